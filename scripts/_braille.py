"""Braille in an SVG drawn as dots: fonts that lack it are helped out by others, whose cells are of another width."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import groupby

from gputui.domain.text import width

_CELL, _LINE, _ASCENT = 12.2, 24.4, 18.5
"""Cell width, cell height, and height of the text's base line as Rich lays a terminal out."""
_RADIUS = 1.9
_DOTS = ((0x01, 0, 0), (0x02, 0, 1), (0x04, 0, 2), (0x40, 0, 3), (0x08, 1, 0), (0x10, 1, 1), (0x20, 1, 2), (0x80, 1, 3))
"""Bit, column and row of each dot of a character."""
_TEXT = re.compile(
    r'<text class="([^"]*)" x="([^"]*)" y="([^"]*)" textLength="[^"]*" (clip-path="[^"]*")>([^<]*)</text>'
)


def with_dots(svg: str) -> str:
    """Return the picture with dots in place of braille characters."""
    return _TEXT.sub(_drawn, svg)


def _is_braille(character: str) -> bool:
    return "\u2800" <= character <= "\u28ff"


def _drawn(found: re.Match[str]) -> str:
    style, x, y, clip, written = found.groups()
    text = html.unescape(written)
    if not any(map(_is_braille, text)):
        return found[0]
    at, parts = float(x), []
    for is_braille, characters in groupby(text, _is_braille):
        run = "".join(characters)
        if is_braille:
            parts.append(f'<path class="{style}" d="{" ".join(_dots(run, at, float(y)))}"/>')
        elif run.strip("\xa0 "):
            told = html.escape(run).replace("\xa0", "&#160;")
            parts.append(f'<text class="{style}" x="{at:.1f}" y="{y}" {clip}>{told}</text>')
        at += width(run) * _CELL
    return "".join(parts)


def _dots(run: str, left: float, baseline: float) -> Iterator[str]:
    """Return a circle for each dot of the characters."""
    for place, character in enumerate(run):
        for bit, column, row in _DOTS:
            if ord(character) & bit:
                x = left + (place + (column + 0.5) / 2) * _CELL - _RADIUS
                y = baseline - _ASCENT + (row + 0.5) / 4 * _LINE
                size = f"{_RADIUS} {_RADIUS} 0 1 0"
                yield f"M{x:.1f} {y:.1f}a{size} {2 * _RADIUS} 0a{size} {-2 * _RADIUS} 0"
