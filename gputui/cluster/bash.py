"""Words of bash scripts: texts quoted so that bash sees exactly these characters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from gputui.domain.errors import InputError

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNSEEN = "\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\udc80-\udcff"
"""Characters that act on a terminal, end a line for some readers, or hide; bytes that are not UTF-8."""
_SPECIAL = re.compile(rf"[\x01-\x1f\\'{_UNSEEN}]")
_CONTROL = re.compile(rf"[\x01-\x08\x0b-\x1f{_UNSEEN}]")
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
    return "$'" + _SPECIAL.sub(lambda match: _ESCAPES.get(match[0]) or _bytes(match[0]), text) + "'"


def _bytes(character: str) -> str:
    """Return the character as its bytes, which every locale takes: \\u depends on it."""
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def array(name: str, words: Iterable[str]) -> str:
    """Return the assignment of an array, one quoted word on each line."""
    lines = [f"  {each}\n" for each in words]
    return f"{name}=(\n{''.join(lines)})\n" if lines else f"{name}=()\n"
