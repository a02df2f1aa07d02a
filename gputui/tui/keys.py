"""Names keys: as Textual does, as people read them, and as they are written in a settings file."""

from __future__ import annotations

import re
from collections.abc import Callable

NAMES = {
    "slash": "/",
    "ampersand": "&",
    "comma": ",",
    "full_stop": ".",
    "left_parenthesis": "(",
    "right_parenthesis": ")",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "shift+left": "Shift-←",
    "shift+right": "Shift-→",
    "question_mark": "?",
    "asterisk": "*",
    "vertical_line": "|",
    "backslash": "\\",
    "exclamation_mark": "!",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "colon": ":",
    "enter": "Enter",
    "escape": "Esc",
    "space": "Space",
    "tab": "Tab",
    "shift+tab": "Shift-Tab",
    "down": "↓",
    "up": "↑",
    "left": "←",
    "right": "→",
    "pagedown": "PgDn",
    "pageup": "PgUp",
    "home": "Home",
    "end": "End",
    "ctrl+p": "Ctrl-P",
    "ctrl+c": "Ctrl-C",
    "ctrl+d": "Ctrl-D",
    "ctrl+u": "Ctrl-U",
}
_WORDS = {
    "esc": "escape",
    "return": "enter",
    "pgdn": "pagedown",
    "pgup": "pageup",
    "page_down": "pagedown",
    "page_up": "pageup",
    "del": "delete",
    "ins": "insert",
    "←": "left",
    "→": "right",
    "↑": "up",
    "↓": "down",
}
"""Further names of keys, as they stand on keyboards and in help."""
_WHOLE = frozenset(
    {"enter", "escape", "space", "tab", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown"}
    | {"up", "down", "left", "right", *(f"f{number}" for number in range(1, 25))}
)
_MODIFIERS = ("ctrl", "alt", "shift")


def key_name(key: str) -> str:
    """Return the key as a person reads it: `Shift-Tab`, `/`."""
    if key in NAMES:
        return NAMES[key]
    if len(key) == 1:
        return key
    *modifiers, last = key.split("+")
    parts = (*modifiers, NAMES.get(last, last))
    return "-".join(part[:1].upper() + part[1:] for part in parts)


def key_of(text: str) -> str | None:
    """Return Textual's name of the key that a person wrote: `x`, `/`, `Ctrl-K`, `f5`; None where there is none."""
    if len(text) == 1:
        return _character(text)
    *modifiers, last = text.replace("-", "+").split("+") if text[-1] not in "+-" else (*_split(text[:-2]), text[-1])
    held = {modifier.lower() for modifier in modifiers}
    if not held <= set(_MODIFIERS):
        return None
    base = _base(last, held)
    if base is None:
        return None
    return "+".join((*(each for each in _MODIFIERS if each in held), base))


def _split(text: str) -> list[str]:
    return text.replace("-", "+").split("+")


def _base(last: str, held: set[str]) -> str | None:
    """Return the key that is held down with modifiers, or a named one."""
    if len(last) == 1 and last not in _WORDS:
        key = _character(last.lower() if held else last)
        return key if "shift" not in held else None  # Shift with a letter is the capital: written so
    word = last.lower()
    word = _WORDS.get(word, word)
    if word in _WHOLE:
        return word
    return word if not held and word in NAMES else None


def _character(character: str) -> str | None:
    from gputui.tui.textual_internals import key_of_character

    if character == " ":
        return "space"
    if character in _WORDS:
        return _WORDS[character]
    return key_of_character(character) if character.isprintable() else None


_MARK = "\u2063"
"""Invisible mark around a command's name: text that is made plain without a keymap loses it, and shows the name."""
_KEYED = re.compile(f"{_MARK}([a-z_]+){_MARK}")


def order_words() -> str:
    """Return the sentence on how the queue is ordered by hand."""
    return (
        f"A job of higher priority goes before every one of lower: {keyed('raise')} and {keyed('lower')} change the "
        f"priority, {keyed('move_up')} and {keyed('move')} put a job just before or behind its neighbour, with the "
        f"priority and the rank of that, and {keyed('top')} puts it before all."
    )


def keyed(name: str) -> str:
    """Return the mark that stands for the key of a command."""
    return f"{_MARK}{name}{_MARK}"


def with_keys(text: str, key: Callable[[str], str]) -> str:
    """Return the text with the keys in it."""
    return _KEYED.sub(lambda match: key(match[1]), text) if _MARK in text else text
