"""Words of bash scripts: texts quoted so that bash sees exactly these characters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from gputui.domain.errors import InputError

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SPECIAL = re.compile(r"[\x01-\x1f\x7f\\']")
_CONTROL = re.compile(r"[\x01-\x08\x0b-\x1f\x7f]")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""Names that a variable of bash can have."""


def word(text: str) -> str:
    """Return the text as one word; raises InputError if it contains a NUL, which no word can.

    Texts with control characters are written as $'…': sbatch refuses scripts with ends of line as in DOS.
    """
    if "\0" in text:
        raise InputError("a command and its options cannot contain the character NUL")
    if not _CONTROL.search(text):
        return shlex.quote(text)
    return "$'" + _SPECIAL.sub(lambda match: _ESCAPES.get(match[0], f"\\x{ord(match[0]):02x}"), text) + "'"


def array(name: str, words: Iterable[str]) -> str:
    """Return the assignment of an array, one quoted word on each line."""
    lines = [f"  {each}\n" for each in words]
    return f"{name}=(\n{''.join(lines)})\n" if lines else f"{name}=()\n"
