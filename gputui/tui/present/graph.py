"""History as an area of braille dots, two steps to a cell.

It moves by whole cells, every other step: what a terminal is sent for it stays small. Braille patterns as Unicode
numbers them from U+2800: bits 0 to 2 and 6 are the left column from the top, 3 to 5 and 7 the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gputui.domain.gpu_past import Past

_LEFT = (0x40, 0x04, 0x02, 0x01)
_RIGHT = (0x80, 0x20, 0x10, 0x08)
"""Dots of a column from the bottom."""
_BLANK = chr(0x2800)


@lru_cache(maxsize=1024)
def past_graph(past: Past, name: str, most: float, width: int, height: int) -> list[str]:
    """One reading of a GPU's past as shares of `most`, in so many lines from the top."""
    values = past.values(name, most)
    return area([*values, None] if past.number % 2 else values, width, height)


def area(values: Sequence[float | None], width: int, height: int) -> list[str]:
    """The newest at the right; a gap where nothing was read. A reading has one dot at least: idle is not unknown."""
    shown = values[-2 * width :] if width else ()
    levels = [0 if value is None else max(1, min(4 * height, round(value * 4 * height))) for value in shown]
    levels = [0] * (2 * width - len(levels)) + levels
    return [_line(levels, height - 1 - y) for y in range(height)]


def _line(levels: Sequence[int], above: int) -> str:
    """The line that has so many lines below it."""
    pairs = zip(levels[::2], levels[1::2], strict=True)
    cells = (sum(_LEFT[: _filled(left, above)]) + sum(_RIGHT[: _filled(right, above)]) for left, right in pairs)
    return "".join(chr(0x2800 + dots) for dots in cells).replace(_BLANK, " ")


def _filled(level: int, above: int) -> int:
    """Dots of a column that are set in that line."""
    return max(0, min(4, level - 4 * above))
