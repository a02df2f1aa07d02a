"""Characters that a terminal acts on or does not draw, and the width of the others in cells."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

ELLIPSIS = "…"
JOINER = "\u200d"

_TRAILING = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff\U0001f3fb-\U0001f3ff]")
"""Parts of a Hangul syllable after its first, and skin tones: drawn into the cell before them."""
# Python's tables are older than the terminal's: Unicode 16 widened these, and emoji were added among others.
_NEWLY_WIDE = re.compile("[\u2630-\u2637\u268a-\u268f\u4dc0-\u4dff\U0001d300-\U0001d376\U0001fa70-\U0001faff]")

_INVISIBLE = (
    (0x00AD, 0x00AD),  # soft hyphen
    (0x034F, 0x034F),  # grapheme joiner
    (0x061C, 0x061C),  # Arabic letter mark
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),  # Mongolian selectors
    (0x200B, 0x200C),  # zero width space and non-joiner
    (0x200E, 0x200F),  # left-to-right and right-to-left marks
    (0x202A, 0x202E),  # embeddings and overrides
    (0x2060, 0x206F),  # word joiner, invisible operators, isolates
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),  # variation selectors: terminals disagree about the width they give
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),  # tags
)
CLEAN: dict[int, str | None] = {
    **{code: chr(0x2400 + code) for code in range(0x20)},
    **dict.fromkeys((0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x2028, 0x2029), " "),
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), None),
    0x85: " ",
    **{code: None for first, last in _INVISIBLE for code in range(first, last + 1)},
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}
"""Replacement of each character: control pictures for controls, a space for line ends, nothing for invisible ones."""


_DRAWN = re.compile(r"[ -~°·–…─-▟⠀-⣿]+")
"""Text with characters of bars and graphs, each of which takes one cell."""


def is_narrow(text: str) -> bool:
    """Return whether each character surely takes one cell."""
    return (text.isascii() and text.isprintable()) or _DRAWN.fullmatch(text) is not None


def width(text: str) -> int:
    """Return the width of the text in terminal cells; of an emoji sequence, that of its first emoji."""
    if is_narrow(text):
        return len(text)
    total, joined = 0, False
    for char in text:
        if not joined:
            total += cells_of(char)
        joined = char == JOINER
    return total


@lru_cache(maxsize=4096)
def cells_of(char: str) -> int:
    """Return the width of one character in cells: 0, 1 or 2."""
    category = unicodedata.category(char)
    if category in {"Mn", "Me", "Mc"} or ord(char) in CLEAN or char == JOINER or _TRAILING.match(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" or _NEWLY_WIDE.match(char) else 1
