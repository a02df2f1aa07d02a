"""Cells of tables: styled pieces of text without control characters, their columns, and times as local time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style

from gputui.domain.text import broken, fit, width
from gputui.domain.units import format_duration, minute
from gputui.tui.present.style import PLAIN


def clock(at: datetime, now: datetime) -> str:
    """Return `now` for a past time, else the result of `second`."""
    return "now" if at <= now else second(at, now)


def second(at: datetime, now: datetime) -> str:
    """Return `14:32:10` today, `Tue 14:32` within six days, else `03-24 14:32`."""
    here = at.astimezone()
    return f"{here:%H:%M:%S}" if here.date() == now.astimezone().date() else minute(at, now)


def in_full(at: datetime) -> str:
    """Return `2026-03-02 14:32:10`, in local time."""
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def distance(before: datetime, after: datetime) -> str:
    """Return `38m10s earlier` or `4h00m later`."""
    shift = after - before
    return f"{format_duration(abs(shift))} {'later' if shift > timedelta(0) else 'earlier'}"


Span: TypeAlias = tuple[str, Style]
Cell: TypeAlias = tuple[Span, ...]


def cell(value: str, style: Style = PLAIN) -> Cell:
    return ((value, style),)


def width_of(spans: Iterable[Span]) -> int:
    return sum(width(value) for value, _ in spans)


_NARROW = 6
"""Minimum width of a flexible column if there is no room for its usual one."""


def broken_cell(cell: Cell, room: int) -> list[Cell]:
    """Return the cell in lines of at most `room` cells, broken between words where possible."""
    spans, lines = list(cell), []
    text = "".join(words for words, _ in cell)
    for line in broken(text, max(1, room)):
        taken, spans = _first_of(spans, len(line))
        lines.append(taken)
        if spans and spans[0][0].startswith(" "):  # the line's end replaces the blank between two words
            _, spans = _first_of(spans, 1)
    return lines


def _first_of(spans: list[Span], count: int) -> tuple[Cell, list[Span]]:
    taken: list[Span] = []
    for i, (words, style) in enumerate(spans):
        if len(words) > count:
            left = [(words[count:], style), *spans[i + 1 :]]
            return (*taken, *([(words[:count], style)] if count else [])), left
        taken.append((words, style))
        count -= len(words)
    return tuple(taken), []


_NEAR = 8
"""Bytes of unchanged cells that cost less to send again than to skip."""


class Column(Struct, frozen=True):
    """Column of a table."""

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
    """Column with its place on the screen."""

    column: Column
    x: int
    width: int


def lay_out(columns: Sequence[Column], room: int) -> tuple[PlacedColumn, ...]:
    """Return the columns that fit into `room` cells with a gap before each; flexible ones share the rest."""
    kept = list(columns)
    while _least(kept) > room and (optional := [c for c in kept if c.rank]):
        kept.remove(max(optional, key=lambda c: c.rank))
    widths = _widths(kept, room)
    placed, x = [], 1
    for column, width_ in zip(kept, widths, strict=True):
        placed.append(PlacedColumn(column, x, width_))
        x += width_ + 1
    return tuple(placed)


def _least(columns: Sequence[Column]) -> int:
    return 1 + sum(column.width + 1 for column in columns)


def _widths(columns: Sequence[Column], room: int) -> list[int]:
    """Return minimum widths, grown by the spare room in proportion to `flex`; the last flexible one takes the rest."""
    widths = [column.width for column in columns]
    spare = room - _least(columns)
    flexible = [i for i, column in enumerate(columns) if column.flex]
    for _ in range(-spare):  # the widest becomes narrower first: cut words are better than a lost end of the row
        widest = max(flexible, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= _NARROW:
            break
        widths[widest] -= 1
    shares = sum(column.flex for column in columns)
    for i, column in enumerate(columns):
        if column.flex and spare > 0:
            grown = min(spare * column.flex // shares, column.most - column.width)
            widths[i] += grown
            spare -= grown
            shares -= column.flex
    return widths


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


def changed_part(before: Sequence[Span], after: Sequence[Span]) -> tuple[int, int]:
    """Return the range in which two cells of equal width differ; the whole range if characters are wide."""
    old, new = _by_character(before), _by_character(after)
    room = width_of(after)
    if not len(old) == len(new) == room:
        return 0, room
    differing = [x for x, (was, is_now) in enumerate(zip(old, new, strict=True)) if was != is_now]
    return (differing[0], differing[-1] + 1) if differing else (0, room)


def changed_runs(before: Sequence[Span], after: Sequence[Span]) -> list[tuple[int, int]]:
    """Return the ranges that differ; ranges close to each other are joined, which is cheaper to send."""
    room, text = width_of(after), _text(after)
    styling = [[(len(words), style) for words, style in spans] for spans in (before, after)]
    is_styled_alike = styling[0] == styling[1]  # then only characters differ
    old: Sequence[object] = _text(before) if is_styled_alike else _by_character(before)
    new: Sequence[object] = text if is_styled_alike else _by_character(after)
    if not len(old) == len(new) == room:
        return [(0, room)]
    runs: list[tuple[int, int]] = []
    for x in [x for x, (was, is_now) in enumerate(zip(old, new, strict=True)) if was != is_now]:
        if runs and x - runs[-1][1] < _NEAR and len(text[runs[-1][1] : x].encode()) < _NEAR:
            runs[-1] = (runs[-1][0], x + 1)
        else:
            runs.append((x, x + 1))
    return runs


def _text(spans: Iterable[Span]) -> str:
    return "".join([words for words, _ in spans])


def _by_character(spans: Iterable[Span]) -> list[tuple[str, Style]]:
    return [(character, style) for value, style in spans for character in value]


def segments(spans: Iterable[Span], ground: Style) -> list[Segment]:
    return [Segment(value, ground + style) for value, style in spans]
