"""Checks of texts that users give."""

from __future__ import annotations

import re

from gputui.domain.errors import InputError
from gputui.domain.units import quoted

MAX_NAME = 128
MAX_TENANT = 64
MAX_ARGUMENT = 128 * 1024 - 1
"""Maximum bytes: Linux's own limit of one argument or environment string."""
_JOINERS = "\u200c\u200d"
"""Format characters needed by emoji and several scripts; the others can reorder displayed text."""


def any_text(text: str, where: str) -> str:
    """Return a text that can be passed to a program and stored in a file."""
    if "\0" in text:
        raise InputError("has a NUL character", where=where)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InputError("is not UTF-8 text", where=where) from error
    if size > MAX_ARGUMENT:
        raise InputError(f"is {size} bytes long", where=where, hint=f"at most {MAX_ARGUMENT}")
    return text


def one_line(text: str, where: str, limit: int = 512) -> str:
    """Return a text that is not blank, at most `limit` long, and cannot move a cursor or reverse text."""
    if not text.strip():
        raise InputError("is blank", where=where)
    if len(text) > limit:
        raise InputError(f"is {len(text)} characters long", where=where, hint=f"at most {limit}")
    if not (text.isascii() and text.isprintable()):
        _refuse_controls(text, where)
    return text


def _refuse_controls(text: str, where: str) -> None:
    import unicodedata

    for character in text:
        category = unicodedata.category(character)
        if category == "Cs":
            raise InputError("is not UTF-8 text", where=where)
        if category in {"Cc", "Zl", "Zp"} or (category == "Cf" and character not in _JOINERS):
            raise InputError(f"has the control character U+{ord(character):04X}", where=where)


def job_name(text: str, where: str) -> str:
    """Return a job's name: any script, one line."""
    return one_line(text, where, MAX_NAME)


def tenant_name(text: str, where: str) -> str:
    """Return a tenant's name."""
    return one_line(text, where, MAX_TENANT)


def token(text: str, where: str) -> str:
    """Return one word without blanks, such as a user, a network or a runtime."""
    if re.search(r"\s", one_line(text, where, 256)):
        raise InputError(f"{quoted(text)} has a blank in it", where=where)
    return text
