"""Rows under a header, as wide as the terminal and no wider."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gputui.domain.text import fit, plain, width

GAP = "  "
LAST_LEAST = 28
"""Cells the last column is given, where it has so much to say, before others keep more than their least."""


@dataclass(frozen=True)
class Column:
    """A column: numbers stand on the right."""

    title: str
    limit: int = 0
    """At most so many cells; 0: what is left of the line."""
    right: bool = False
    least: int = 0
    """May shrink to so many cells when the line is short; 0: may not."""


def terminal_width() -> int | None:
    """Cells of a line of the terminal on stdout; None when it is none, and so has no width."""
    if not sys.stdout.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and 0 < len(columns) < 6:
        return max(20, int(columns))
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


def lines(columns: Sequence[Column], rows: Iterable[Sequence[str]], total: int | None) -> list[str]:
    """The table. Every cell is made plain; the last column takes what is left of `total` cells."""
    cells = [tuple(column.title for column in columns), *(tuple(map(plain, row)) for row in rows)]
    widths = [_width(column, [row[place] for row in cells]) for place, column in enumerate(columns)]
    if total is not None:
        widths = _shrunk(columns, widths, total)
    return [_line(columns, row, widths, total) for row in cells]


def _width(column: Column, cells: Sequence[str]) -> int:
    widest = max(map(width, cells))
    return min(widest, column.limit) if column.limit else widest


def _shrunk(columns: Sequence[Column], widths: Sequence[int], total: int) -> list[int]:
    """The widths that fit the line: first the last column gives, then the others, from the right."""
    shrunk = list(widths)
    gaps = len(GAP) * (len(widths) - 1)
    shrunk[-1] = max(min(widths[-1], LAST_LEAST), min(widths[-1], total - gaps - sum(widths[:-1])))
    for place, column in reversed(list(enumerate(columns))):
        over = sum(shrunk) + gaps - total
        if column.least and over > 0:
            shrunk[place] = max(min(column.least, shrunk[place]), shrunk[place] - over)
    shrunk[-1] = max(0, min(shrunk[-1], total - gaps - sum(shrunk[:-1])))
    return shrunk


def _line(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int], total: int | None) -> str:
    fitted = (
        fit(cell, cells, "right" if column.right else "left")
        for column, cell, cells in zip(columns, row, widths, strict=True)
    )
    line = GAP.join(fitted).rstrip()
    return line if total is None or width(line) <= total else fit(line, total)
