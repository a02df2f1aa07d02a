"""Placeholders for keys in sentences: only a console knows which keys its user has."""

from __future__ import annotations

import re
from collections.abc import Callable

_MARK = "\u2063"
"""Invisible mark around a command's name; text that is made plain without a keymap loses it, and shows the name."""
_KEYED = re.compile(f"{_MARK}([a-z_]+){_MARK}")


def keyed(name: str) -> str:
    """Return the placeholder for the key of a command."""
    return f"{_MARK}{name}{_MARK}"


def with_keys(text: str, key: Callable[[str], str]) -> str:
    """Return the text with placeholders replaced by keys."""
    return _KEYED.sub(lambda match: key(match[1]), text) if _MARK in text else text
