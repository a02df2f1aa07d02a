"""Keys in texts that are written where nobody knows which keys there are: the keymap of the console puts them in."""

from __future__ import annotations

import re
from collections.abc import Callable

_MARK = "\u2063"
"""Invisible: what is made plain without a keymap loses it, and names the command."""
_KEYED = re.compile(f"{_MARK}([a-z_]+){_MARK}")


def keyed(name: str) -> str:
    """Stands for the key of the command of that name."""
    return f"{_MARK}{name}{_MARK}"


def with_keys(text: str, key: Callable[[str], str]) -> str:
    """The text with the keys in it."""
    return _KEYED.sub(lambda match: key(match[1]), text) if _MARK in text else text
