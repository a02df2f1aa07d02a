"""Cells: styled pieces of text, bars and graphs, the columns of tables, and times as local time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import accumulate
from typing import TypeAlias

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style

from gputui.domain.gpu import GpuState
from gputui.domain.gpu_history import GpuPast
from gputui.domain.state import JobState
from gputui.domain.text import broken, fit, minute, width

GROUND = "#11151a"
RAISED = "#1b222a"
PICKED = "#22344a"
PICKED_FAINT = "#1d2732"
INK = "#d3dae2"
QUIET = "#98a4b1"
FAINT = "#3b4652"
ACCENT = "#74acf2"
GOOD = "#8fd39c"
WARN = "#e6c243"
BAD = "#ff7258"
OTHER = "#d284ff"
HISTORY = "#4f7aa3"
"""Less bright than text, since history is secondary."""
RUNS, OVERRUN, PLANNED, HEAD = "#1b2f24", "#3a2228", "#222c37", "#362e1d"
"""Backgrounds of the bars of a timeline."""
CALM = "#5c9468"
SICK = "#8c1f14"
LOG_NAMES = ("#56626f", "#ee7d7d", "#84c288", "#e3b561", "#7ab7f3", "#b99be3", "#6fc3c3", "#cdd5dd")
LOG_BRIGHT = ("#808c99", "#ff9a9a", "#a3d9a5", "#f5d08a", "#9accff", "#d3bdf5", "#96dede", "#fefefe")
"""The sixteen terminal colours in the console's own tones, so that logs stay readable on its background."""
PLAIN = Style(color=INK)
STRONG = Style(color=INK, bold=True)
DIM = Style(color=QUIET)
TRACK = Style(color=FAINT)
BLUE = Style(color=ACCENT)
GREEN = Style(color=GOOD)
AMBER = Style(color=WARN)
RED = Style(color=BAD)
RED_STRONG = Style(color=BAD, bold=True)
VIOLET = Style(color=OTHER)
GRAPH = Style(color=HISTORY)
LIGHT_GREEN = Style(color=CALM)
SICK_ROW = Style(color=INK, bgcolor=SICK, bold=True)
ON_GROUND = Style(bgcolor=GROUND)
ON_RAISED = Style(bgcolor=RAISED)
ON_PICKED = Style(bgcolor=PICKED)
ON_PICKED_FAINT = Style(bgcolor=PICKED_FAINT)
JOB_STYLES: dict[JobState, Style] = {
    JobState.PENDING: PLAIN,
    JobState.CONFIGURING: AMBER,
    JobState.RUNNING: GREEN,
    JobState.COMPLETING: AMBER,
    JobState.COMPLETED: DIM,
    JobState.FAILED: RED,
    JobState.CANCELLED: DIM,
    JobState.TIMEOUT: RED,
    JobState.OUT_OF_MEMORY: RED,
    JobState.PREEMPTED: AMBER,
}
GPU_STYLES: dict[GpuState, Style] = {
    GpuState.FREE: DIM,
    GpuState.ALLOCATED: GREEN,
    GpuState.FOREIGN: VIOLET,
    GpuState.DRAINED: DIM,
    GpuState.UNKNOWN: AMBER,
}
SEVERITY_STYLES: dict[str, Style] = {"error": RED, "warning": AMBER, "information": BLUE}
SEVERITY_MARKS = {"error": "✗ ", "warning": "! ", "information": "· "}
"""Marks for users who do not see colours."""


def clock(at: datetime, now: datetime) -> str:
    """Return `now` for a past time, else the result of `minute`: what is to come is known no better."""
    return "now" if at <= now else minute(at, now)


def second(at: datetime, now: datetime) -> str:
    """Return `14:32:10` today, `Tue 14:32` within six days, else `03-24 14:32`."""
    here = at.astimezone()
    return f"{here:%H:%M:%S}" if here.date() == now.astimezone().date() else minute(at, now)


def in_full(at: datetime) -> str:
    """Return `2026-03-02 14:32:10`, in local time."""
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


Span: TypeAlias = tuple[str, Style]
Cell: TypeAlias = tuple[Span, ...]


def cell(value: str, style: Style = PLAIN) -> Cell:
    return ((value, style),)


def width_of(spans: Iterable[Span]) -> int:
    return sum(width(value) for value, _ in spans)


def joined(parts: Iterable[Sequence[Span]], gap: Span) -> Cell:
    return tuple(span for number, part in enumerate(parts) for span in ((gap, *part) if number else part))


_NARROW = 6
"""Minimum width of a flexible column if there is no room for its usual one."""


def broken_cell(cell: Cell, room: int) -> list[Cell]:
    spans, lines = list(cell), []
    text = "".join(words for words, _ in cell)
    for line in broken(text, max(1, room)):
        first, spans = _first_of(spans, len(line))
        lines.append(first)
        if spans and spans[0][0].startswith(" "):  # the line's end replaces the blank between two words
            _, spans = _first_of(spans, 1)
    return lines


def _first_of(spans: list[Span], count: int) -> tuple[Cell, list[Span]]:
    first: list[Span] = []
    for i, (words, style) in enumerate(spans):
        if len(words) > count:
            left = [(words[count:], style), *spans[i + 1 :]]
            return (*first, *([(words[:count], style)] if count else [])), left
        first.append((words, style))
        count -= len(words)
    return tuple(first), []


_NEAR = 8
"""Bytes of unchanged cells that cost less to send again than to skip."""


class Column(Struct, frozen=True):
    key: str
    title: str
    width: int
    right: bool = False
    flex: int = 0
    """Share of the spare room; 0: always `width`."""
    rank: int = 0
    """Order of leaving out: 0 never, the highest first."""
    most: int = 10_000
    """Largest width of a flexible column."""


class PlacedColumn(Struct, frozen=True):
    column: Column
    x: int
    width: int


def lay_out(columns: Sequence[Column], room: int) -> tuple[PlacedColumn, ...]:
    """Return the columns that fit into `room` cells with a gap before each.

    Flexible ones share the spare room in proportion to `flex`; the last of them takes the rest.
    """
    kept = list(columns)
    while (spare := room - 1 - sum(c.width + 1 for c in kept)) < 0 and (optional := [c for c in kept if c.rank]):
        kept.remove(max(optional, key=lambda c: c.rank))
    widths = [column.width for column in kept]
    flexible = [i for i, column in enumerate(kept) if column.flex]
    for _ in range(-spare):  # the widest becomes narrower first: cut words are better than a lost end of the row
        widest = max(flexible, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= _NARROW:
            break
        widths[widest] -= 1
    shares = sum(column.flex for column in kept)
    for i, column in enumerate(kept):
        if column.flex and spare > 0:
            grown = min(spare * column.flex // shares, column.most - column.width)
            widths[i] += grown
            spare -= grown
            shares -= column.flex
    starts = accumulate(widths, lambda x, wide: x + wide + 1, initial=1)
    return tuple(PlacedColumn(column, x, wide) for column, x, wide in zip(kept, starts, widths, strict=False))


def fitted(spans: Cell, room: int, *, right: bool = False) -> list[Span]:
    """Return the pieces cut or padded to exactly `room` cells."""
    result: list[Span] = []
    left = room
    for value, style in spans:
        if left <= 0:
            break
        if not value:
            continue
        used = width(value)
        shown = value if used <= left else fit(value, left)
        left -= used if used <= left else width(shown)
        result.append((shown, style))
    if left > 0:  # padding in the style of the adjacent piece: one run for the terminal instead of two
        pad = " " * left
        if not result:
            result.append((pad, PLAIN))
        elif right:
            result[0] = (pad + result[0][0], result[0][1])
        else:
            result[-1] = (result[-1][0] + pad, result[-1][1])
    return result


def split_at_word(spans: Cell, room: int) -> tuple[Cell, Cell]:
    """Return the part that fits on a line of `room` cells, up to the end of a word, and the rest, if any."""
    text = "".join(value for value, _ in spans)
    if width(text) <= room:
        return spans, ()
    end = next((n for n in range(len(text), 0, -1) if width(text[:n]) <= room), 0)
    at = text.rfind(" ", 0, end + 1)
    if at <= 0:
        return spans, ()
    first, rest, gone = [], [], 0
    for value, style in spans:
        first.append((value[: max(0, at - gone)], style))
        rest.append((value[max(0, at + 1 - gone) :], style))
        gone += len(value)
    return tuple(span for span in first if span[0]), tuple(span for span in rest if span[0])


def changed_runs(before: Sequence[Span], after: Sequence[Span]) -> list[tuple[int, int]]:
    """Return the ranges that differ; ranges close to each other are joined, which is cheaper to send."""
    room = width_of(after)
    was, text = ("".join([words for words, _ in spans]) for spans in (before, after))
    styling = [[(len(words), style) for words, style in spans] for spans in (before, after)]
    is_styled_alike = styling[0] == styling[1]  # then only characters differ
    old: Sequence[object] = was if is_styled_alike else _by_character(before)
    new: Sequence[object] = text if is_styled_alike else _by_character(after)
    if not len(old) == len(new) == room:
        return [(0, room)]
    runs: list[tuple[int, int]] = []
    for x in [x for x, (one, other) in enumerate(zip(old, new, strict=True)) if one != other]:
        if runs and x - runs[-1][1] < _NEAR and len(text[runs[-1][1] : x].encode()) < _NEAR:
            runs[-1] = (runs[-1][0], x + 1)
        else:
            runs.append((x, x + 1))
    return runs


def _by_character(spans: Iterable[Span]) -> list[tuple[str, Style]]:
    return [(character, style) for value, style in spans for character in value]


def segments(spans: Iterable[Span], ground: Style) -> list[Segment]:
    return [Segment(value, ground + style) for value, style in spans]


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


def block_bar(share: float, room: int, style: Style, *, is_hatched: bool = False) -> Cell:
    """Return a bar of `room` cells, filled to an eighth of a cell; values above 0 fill at least one eighth.

    The rest is hatched if an empty bar is an alarm.
    """
    eighths = round(min(1.0, max(0.0, share)) * room * 8)
    whole, part = divmod(max(eighths, int(share > 0)), 8)
    filled = "█" * whole + (_PARTS[part] if part else "")
    rest = ("░" if is_hatched else " ") * (room - len(filled))
    return ((filled + rest, style + ON_RAISED),)


_PERCENT = re.compile(r"[,:]?\s*\b(\d{1,3})\s?%")
_WORK = 7


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
    if seconds < 100:  # from there on minutes are precise enough
        return f"{seconds}s"
    return f"{round(seconds / 60)}m" if seconds < 3600 else f"{round(seconds / 3600)}h"


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
    bottom = _ZERO if max(left, right) == 0 else _cell(left, right)
    return (*(_cell(left - 4 * above, right - 4 * above) for above in range(height - 1, 0, -1)), bottom)


def _cell(left: int, right: int) -> str:
    dots = sum(_LEFT[: max(0, min(4, left))]) + sum(_RIGHT[: max(0, min(4, right))])
    return chr(0x2800 + dots) if dots else " "
