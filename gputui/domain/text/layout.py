"""Cuts, pads and wraps text to a number of terminal cells."""

from __future__ import annotations

from typing import Literal

from gputui.domain.text.characters import ELLIPSIS, JOINER, cells_of, width
from gputui.domain.text.neutralise import plain


def fit(text: str, cells: int, align: Literal["left", "right", "center"] = "left") -> str:
    """The text, made plain, padded or cut with … to exactly that many cells."""
    text = plain(text)
    if (gap := cells - width(text)) < 0:
        text = _cut(text, cells)
        gap = cells - width(text)
    if gap <= 0:
        return text
    before = {"left": 0, "right": gap, "center": gap // 2}[align]
    return " " * before + text + " " * (gap - before)


def broken(text: str, cells: int) -> list[str]:
    """The text in lines of at most so many cells, at least one: broken between words, or within one that is longer."""
    first, *words = text.split(" ")
    *lines, line = _pieces(first, cells)
    for word in words:
        longer = f"{line} {word}"
        if width(longer) <= cells:
            line = longer
            continue
        *full, last = _pieces(word, cells)
        lines += [line, *full]
        line = last
    return [*lines, line]


def _pieces(word: str, cells: int) -> list[str]:
    pieces, piece, taken = [], "", 0
    for char in word:
        wide = cells_of(char)
        if piece and taken + wide > cells:
            pieces.append(piece)
            piece, taken = "", 0
        piece, taken = piece + char, taken + wide
    return [*pieces, piece]


def _cut(text: str, cells: int) -> str:
    """Cut the text so that one cell is left for the ellipsis."""
    if cells <= 0:
        return ""
    used, joined = 0, False
    for end, char in enumerate(text):
        used += 0 if joined else cells_of(char)
        joined = char == JOINER
        if used > cells - 1:
            return text[:end].rstrip(JOINER) + ELLIPSIS
    return text
