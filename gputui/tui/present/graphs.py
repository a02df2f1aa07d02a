"""Bars, and graphs of history in blocks or braille dots."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache

from rich.style import Style

from gputui.domain.gpu_history import GpuPast
from gputui.tui.present.cells import Cell
from gputui.tui.present.style import AMBER, DIM, GREEN, PLAIN, RAISED, TRACK

_EIGHTHS = "▁▂▃▄▅▆▇█"


def bar(share: float | None, room: int, style: Style) -> Cell:
    """Return a bar with `share` of its cells filled; an empty track if it is unknown."""
    if share is None:
        return (("╌" * room, TRACK),)
    whole, half = divmod(round(min(1.0, max(0.0, share)) * room * 2), 2)
    filled = "━" * whole + "╸" * half
    return ((filled, style), ("─" * (room - len(filled)), TRACK))


def load_style(share: float | None) -> Style:
    return DIM if share is None or share < 0.05 else GREEN


def graph(history: Sequence[float | None], room: int) -> str:
    """Return a graph of blocks, the newest reading at the right; a gap where nothing was read."""
    # at least one eighth for a reading, so that idle differs from unknown
    shares = (" " if share is None else _EIGHTHS[min(7, max(0, int(share * 8)))] for share in history[-room:])
    return "".join(shares).rjust(room)


_PARTS = " ▏▎▍▌▋▊▉"
"""Eighths of a cell from the left."""


def block_bar(share: float, room: int, style: Style, *, is_hatched: bool = False) -> Cell:
    """Return a bar of `room` cells, filled to an eighth of a cell; values above 0 fill at least one eighth.

    The rest is hatched if an empty bar is an alarm.
    """
    eighths = round(min(1.0, max(0.0, share)) * room * 8)
    whole, part = divmod(max(eighths, int(share > 0)), 8)
    filled = "█" * whole + (_PARTS[part] if part else "")
    rest = ("░" if is_hatched else " ") * (room - len(filled))
    return ((filled + rest, style + _BEHIND),)


_BEHIND = Style(bgcolor=RAISED)
"""Background of a bar, which shows its length."""
_PERCENT = re.compile(r"[,:]?\s*\b(\d{1,3})\s?%")
_WORK = 7
"""Cells of the bar of an unfinished task."""


def progress(words: str, now: datetime) -> Cell:
    """Return a bar of the percentage in the text; without one, a moving marker."""
    found = _PERCENT.search(words)
    if found is None:
        return (*moving(int(now.timestamp())), (f" {words}", AMBER))
    percent = min(100, int(found[1]))
    rest = (words[: found.start()] + words[found.end() :]).strip()
    return (*bar(percent / 100, _WORK, AMBER), (f" {percent:>2} %", PLAIN), (f" {rest}", AMBER))


def moving(second: int, room: int = _WORK) -> Cell:
    """Return a marker that moves to and fro, a cell per second, which costs a few bytes."""
    way = room - 2
    at = way - abs(way - second % (2 * way))
    return (("─" * at, TRACK), ("━━", AMBER), ("─" * (way - at), TRACK))


_LEFT = (0x40, 0x04, 0x02, 0x01)
_RIGHT = (0x80, 0x20, 0x10, 0x08)
"""Bits of a column of dots from the bottom."""
_ZERO = "▁"
"""Character if both columns of a cell are nearly zero: a line, as dots would look like noise."""
_LIVE = 2
"""Seconds per cell unless the graph is zoomed out; with one second each reading would move the whole graph."""


def span_words(width: int, span: int = 0) -> str:
    """Return the period that a graph `width` cells wide shows, such as `56s`, `3m` or `1h`; a `span` of 0 is live."""
    seconds = span or _LIVE * width
    if seconds < _FROM_MINUTES:
        return f"{seconds}s"
    return f"{round(seconds / 60)}m" if seconds < 3600 else f"{round(seconds / 3600)}h"


_FROM_MINUTES = 100
"""Seconds from which minutes are precise enough."""


def past_graph(past: GpuPast, name: str, most: float, room: tuple[int, int], span: int = 0) -> list[str]:
    """Return a graph of one reading of a GPU's past as shares of `most`, in lines from the top.

    `room`: its width and height in cells. `span`: seconds that the whole width represents; 0: two per cell. A single
    line is drawn with blocks, several with dots, two columns per cell. A live graph moves by one cell, once in two
    readings.
    """
    return _past_graph(past if span else past.pair or past, name, most, room, span)


@lru_cache(maxsize=1024)
def _past_graph(past: GpuPast, name: str, most: float, room: tuple[int, int], span: int) -> list[str]:
    width, height = room
    if not width or not height:
        return [""] * height
    columns = width if height == 1 else 2 * width
    seconds = max(_LIVE * width, span)
    unfinished = 0 if span else 1 - (past.second or past.ended) % _LIVE
    values = past.columns(name, -(-seconds // columns), columns + unfinished)[:columns]
    shares = [None if value is None or not most else value / most for value in values]
    return [graph(shares, width)] if height == 1 else area(shares, width, height)


def area(values: Sequence[float | None], width: int, height: int) -> list[str]:
    """Return a graph of dots, the newest reading at the right. A gap means no reading; nearly zero is a line."""
    shown = values[-2 * width :] if width else ()
    levels = [-1 if value is None else min(4 * height, max(0, round(value * 4 * height))) for value in shown]
    levels = [-1] * (2 * width - len(levels)) + levels
    if not height:
        return []
    cells = [_stack(left, right, height) for left, right in zip(levels[::2], levels[1::2], strict=True)]
    return ["".join(line) for line in zip(*cells, strict=True)] if cells else [""] * height


@lru_cache(4096)
def _stack(left: int, right: int, height: int) -> tuple[str, ...]:
    """Return the cells of two columns from the top; a level of -1 means no reading."""
    bottom = _ZERO if max(left, right) == 0 else _cell(left, right)
    return (*(_cell(left - 4 * above, right - 4 * above) for above in range(height - 1, 0, -1)), bottom)


def _cell(left: int, right: int) -> str:
    dots = sum(_LEFT[: max(0, min(4, left))]) + sum(_RIGHT[: max(0, min(4, right))])
    return chr(0x2800 + dots) if dots else " "
