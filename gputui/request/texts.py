"""Checks of texts that users give."""

from __future__ import annotations

import re

from gputui.domain.errors import InputError

MAX_NAME = 128
MAX_TENANT = 64
MAX_ARGUMENT = 128 * 1024 - 1
"""Bytes: Linux's own bound on one argument or environment string."""
_JOINERS = "\u200c\u200d"
"""Format characters that emoji and several scripts are written with; the others can reorder what is shown."""


def any_text(text: str, where: str) -> str:
    """The text, which a program can be given and a file can hold."""
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
    """The text, which is neither blank, nor longer than `limit`, nor able to move a cursor or turn text around."""
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
    """A job's name: any script, one line."""
    return one_line(text, where, MAX_NAME)


def tenant_name(text: str, where: str) -> str:
    """Read a tenant's name."""
    return one_line(text, where, MAX_TENANT)


def token(text: str, where: str) -> str:
    """Read one word without blanks, such as a user, a network or a runtime."""
    if re.search(r"\s", one_line(text, where, 256)):
        raise InputError(f"{quoted(text)} has a blank in it", where=where)
    return text


def quoted(text: str) -> str:
    """A short quotation that cannot act on a terminal."""
    shown = text if len(text) <= 40 else text[:37] + "..."
    return f"'{shown}'" if shown.isprintable() else ascii(shown)
