"""Cells of a table: styled pieces of harmless text, and the columns they are laid out in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rich.segment import Segment
from rich.style import Style

from gputui.domain.text import broken, fit, width
from gputui.tui.present.style import PLAIN

Span: TypeAlias = tuple[str, Style]
Cell: TypeAlias = tuple[Span, ...]
UNKNOWN = "–"
"""What stands where a reading could not be had: never a 0."""


def cell(value: str, style: Style = PLAIN) -> Cell:
    """A cell of one piece."""
    return ((value, style),)


def width_of(spans: Iterable[Span]) -> int:
    """Cells that they take together."""
    return sum(width(value) for value, _ in spans)


_NARROW = 6
"""Cells that a flexible column keeps where there is no room for its least width."""


def broken_cell(cell: Cell, room: int) -> list[Cell]:
    """The cell in lines of at most `room` cells, broken between words where that can be."""
    spans, lines = list(cell), []
    text = "".join(words for words, _ in cell)
    for line in broken(text, max(1, room)):
        taken, spans = _first_of(spans, len(line))
        lines.append(taken)
        if spans and spans[0][0].startswith(" "):  # between two words the line's end stands for it
            _, spans = _first_of(spans, 1)
    return lines


def _first_of(spans: list[Span], count: int) -> tuple[Cell, list[Span]]:
    """So many characters, and what is left."""
    taken: list[Span] = []
    for i, (words, style) in enumerate(spans):
        if len(words) > count:
            left = [(words[count:], style), *spans[i + 1 :]]
            return (*taken, *([(words[:count], style)] if count else [])), left
        taken.append((words, style))
        count -= len(words)
    return tuple(taken), []


_NEAR = 8
"""Unchanged cells that cost less to send again than to jump over."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str
    title: str
    width: int
    right: bool = False
    flex: int = 0
    """Share of the room left over; 0: always `width`."""
    rank: int = 0
    """0: always there; higher ones go first when there is no room."""
    most: int = 10_000
    """Width a flexible column never exceeds."""


@dataclass(frozen=True)
class Placed:
    """A column with its place."""

    column: Column
    x: int
    width: int


def lay_out(columns: Sequence[Column], room: int) -> tuple[Placed, ...]:
    """The columns that fit into `room` cells, one cell before and between them; flexible ones share what is left."""
    kept = list(columns)
    while _least(kept) > room and (optional := [c for c in kept if c.rank]):
        kept.remove(max(optional, key=lambda c: c.rank))
    widths = _widths(kept, room)
    placed, x = [], 1
    for column, width_ in zip(kept, widths, strict=True):
        placed.append(Placed(column, x, width_))
        x += width_ + 1
    return tuple(placed)


def _least(columns: Sequence[Column]) -> int:
    return 1 + sum(column.width + 1 for column in columns)


def _widths(columns: Sequence[Column], room: int) -> list[int]:
    """Least widths, grown by what is left in the proportion of `flex`; the last flexible one takes the rest."""
    widths = [column.width for column in columns]
    spare = room - _least(columns)
    if spare < 0:
        return _shrunk(columns, widths, -spare)
    shares = sum(column.flex for column in columns)
    for i, column in enumerate(columns):
        if column.flex and spare > 0:
            grown = min(spare * column.flex // shares, column.most - column.width)
            widths[i] += grown
            spare -= grown
            shares -= column.flex
    return widths


def _shrunk(columns: Sequence[Column], widths: list[int], excess: int) -> list[int]:
    """Flexible columns narrower than they should be, the widest first: better cut words than a lost end of the row."""
    flexible = [i for i, column in enumerate(columns) if column.flex]
    for _ in range(excess):
        widest = max(flexible, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= _NARROW:
            break
        widths[widest] -= 1
    return widths


def fitted(spans: Cell, room: int, *, right: bool = False) -> list[Span]:
    """The pieces cut and padded to exactly `room` cells."""
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
    if left > 0:  # padding in the style of the piece beside it: one run for the terminal instead of two
        pad = " " * left
        if not result:
            result.append((pad, PLAIN))
        elif right:
            result[0] = (pad + result[0][0], result[0][1])
        else:
            result[-1] = (result[-1][0] + pad, result[-1][1])
    return result


def split(spans: Cell, room: int) -> tuple[Cell, Cell]:
    """What of it goes on a line of `room` cells, to the end of a word, and the rest; nothing where all goes."""
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
    """From where to where two cells of the same width differ; all of it where characters take more than one cell."""
    old, new = _by_character(before), _by_character(after)
    room = width_of(after)
    if not len(old) == len(new) == room:
        return 0, room
    differing = [x for x, (was, is_now) in enumerate(zip(old, new, strict=True)) if was != is_now]
    return (differing[0], differing[-1] + 1) if differing else (0, room)


def changed_runs(before: Sequence[Span], after: Sequence[Span]) -> list[tuple[int, int]]:
    """The parts that differ, each from where to where; what lies close together is one part, cheaper than two."""
    old, new = _by_character(before), _by_character(after)
    room = width_of(after)
    if not len(old) == len(new) == room:
        return [(0, room)]
    runs: list[tuple[int, int]] = []
    for x, (was, is_now) in enumerate(zip(old, new, strict=True)):
        if was == is_now:
            continue
        if runs and x - runs[-1][1] < _NEAR:
            runs[-1] = (runs[-1][0], x + 1)
        else:
            runs.append((x, x + 1))
    return runs


def _by_character(spans: Iterable[Span]) -> list[tuple[str, Style]]:
    return [(character, style) for value, style in spans for character in value]


def segments(spans: Iterable[Span], ground: Style) -> list[Segment]:
    """The pieces as segments upon the row's background."""
    return [Segment(value, ground + style) for value, style in spans]
