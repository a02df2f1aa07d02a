"""Processes as `ps` lists them, on another machine or in a container."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from gputui.domain.container import ProcessRow

COLUMNS = "pid,user:32,pcpu,rss,etimes,args"
"""Columns to ask `ps -o` for."""


def process_rows(titles: Sequence[str], table: Iterable[Sequence[str]]) -> Iterator[ProcessRow]:
    """Yield the processes of a table with these titles; a `ps` without column options, like busybox's, has fewer."""
    upper = [title.upper() for title in titles]
    yield from (_row(dict(zip(upper, row, strict=False))) for row in table)


def parse_ps(text: str) -> tuple[ProcessRow, ...]:
    """Return the processes in the output of `ps`, whose last column is the command; lines without a pid are skipped."""
    lines = text.split("\n")
    titles = lines[0].split()
    table = (line.split(None, len(titles) - 1) for line in lines[1:])
    return tuple(process_rows(titles, (row for row in table if row and row[0].isdigit())))


def _row(cells: dict[str, str]) -> ProcessRow:
    memory, age, cpu = (_number(cells.get(title, "")) for title in ("RSS", "ELAPSED", "%CPU"))
    return ProcessRow(
        pid=int(cells["PID"]),
        user=cells.get("USER", cells.get("UID", "")),
        command=cells.get("COMMAND", cells.get("CMD", "")),
        cpu=None if cpu is None else cpu / 100,
        memory=None if memory is None else int(memory) * 1024,
        age=None if age is None else timedelta(seconds=age),
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
