"""What stands for each character where only ASCII may be drawn: one for each cell, so that nothing moves."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from gputui.domain.text import JOINER, width

_PAIRS = (
    ("▁▂▃▄▅▆▇█", "_.:-=+*#"),  # eighths of a cell, from the ground up
    ("▏▎▍▌▋▊▉▐", "|||>####"),  # ▌ marks the row of the cursor
    ("░▒▓▔▀▙▛▜▟", ":%#######"),
    ("━╸╺═╍╌≈─│", "=--#~.!-|"),
    ("┣┫├┤╞╡", "[](){}"),  # how bars of a timeline begin and end
    ("▸▶▾◂▲▼△▽←→↑↓↩⇒↳↵", ">>v<^v^v<>^v<>`<"),
    ("●○◐◑◉•·■□◆✓✔✗✘✕×‖⚠★☆", "*ooo@*'#o*vvxxxx=!**"),
    ("…–—−‐‑°±µμ", "~----- +uu"),
    ("“”„‘’«»≤≥≠", '"""\'\'<><>!'),
    ("\u00a0\u2007\u2009\u202f�ßøØæ", "    ?soOa"),
)
_SINGLE = {shown: plain for many, plains in _PAIRS for shown, plain in zip(many, plains, strict=True)}


def ascii_of(text: str) -> str:
    """The text in ASCII, as many cells wide."""
    return text if text.isascii() else _translated(text)


@lru_cache(4096)
def _translated(text: str) -> str:
    found: list[str] = []
    joined = False
    for character in text:
        if not joined:
            found.append(_of(character))
        joined = character == JOINER
    return "".join(found)


@lru_cache(2048)
def _of(character: str) -> str:
    if character.isascii():
        return character
    cells = width(character)
    if (known := _SINGLE.get(character)) is not None and cells == 1:
        return known
    return (_drawn(ord(character)) or _letter(character) or "?").ljust(cells, "?")[:cells]


def _drawn(code: int) -> str:
    """Lines of boxes, and braille by its highest dot."""
    if 0x2500 <= code < 0x2580:
        words = unicodedata.name(chr(code))
        is_across, is_upright = "HORIZONTAL" in words, "VERTICAL" in words
        return "-" if is_across and not is_upright else "|" if is_upright and not is_across else "+"
    if 0x2800 <= code < 0x2900:
        dots = code - 0x2800
        heights = ((0x09, "#"), (0x12, "="), (0x24, "-"), (0xC0, "."))
        return next((shown for mask, shown in heights if dots & mask), " ")
    return "#" if 0x2580 <= code < 0x25A0 else ""


def _letter(character: str) -> str:
    """The letter without what is above or below it."""
    plain = unicodedata.normalize("NFKD", character)
    return "".join(part for part in plain if part.isascii() and part.isprintable())[:1]
