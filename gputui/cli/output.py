"""Output of commands: objects of `--json`, rows under a header, no wider than the terminal, and the result on stderr.

`domain/as_json.py` makes the objects. `--quiet` suppresses the line with the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click
from msgspec import Struct

from gputui.cli import terminal
from gputui.domain.as_json import json_text
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import HOW_TO_SCHEDULE
from gputui.domain.text import fit, plain, plural, width
from gputui.ports import Queue

if TYPE_CHECKING:
    from gputui.domain.verbs import Verb
    from gputui.ports.backend import DirectBackend


def print_json(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Print an object over several lines, an array with one element a line; ASCII, so that no terminal acts on it."""
    terminal.write(json_text(value) + "\n")


T = TypeVar("T")
_Cell: TypeAlias = tuple[str, int]
"""Text of a cell, and its width in columns of a terminal."""
GAP = "  "
LAST_LEAST = 28
"""Cells that the last column gets, if its text is that long, before other columns get more than their minimum."""


class TextColumn(Struct, frozen=True):
    title: str
    limit: int = 0
    """Maximum width in cells; 0: the rest of the line."""
    right: bool = False
    least: int = 0
    """Minimum width in cells when the line is short; 0: never shrinks."""


def lines(columns: Sequence[TextColumn], rows: Iterable[Sequence[str]], total: int | None) -> list[str]:
    """Return the table as lines, without control characters; the last column takes the rest of `total` cells."""
    cells = [[_cell(text) for text in texts] for texts in zip((column.title for column in columns), *rows, strict=True)]
    widest = [max(size for _, size in texts) for texts in cells]
    widths = [min(most, column.limit or most) for most, column in zip(widest, columns, strict=True)]
    if total is not None:
        shrunk = list(widths)
        gaps = len(GAP) * (len(widths) - 1)
        shrunk[-1] = max(min(widths[-1], LAST_LEAST), min(widths[-1], total - gaps - sum(widths[:-1])))
        for place, column in reversed(list(enumerate(columns))):
            over = sum(shrunk) + gaps - total
            if column.least and over > 0:
                shrunk[place] = max(min(column.least, shrunk[place]), shrunk[place] - over)
        shrunk[-1] = max(0, min(shrunk[-1], total - gaps - sum(shrunk[:-1])))
        widths = shrunk
    fitted: list[list[str]] = []
    for column, texts, room in zip(columns, cells, widths, strict=True):
        pad = str.rjust if column.right else str.ljust  # they count characters
        fitted.append([pad(text, room - size + len(text)) if size <= room else fit(text, room) for text, size in texts])
    found = (GAP.join(row).rstrip() for row in zip(*fitted, strict=True))
    return [line if total is None or width(line) <= total else fit(line, total) for line in found]


def table(columns: Sequence[tuple[TextColumn, Callable[[T], str]]], found: Iterable[T]) -> list[str]:
    rows = ([cell(each) for _, cell in columns] for each in found)
    return lines([column for column, _ in columns], rows, terminal.width())


@lru_cache(maxsize=16384)
def _cell(text: str) -> _Cell:
    """Return the text without control characters, and its width. Cached: most cells are like others, or shown again."""
    text = plain(text)
    return text, width(text)


class FiniteRange(click.FloatRange):
    """Range that refuses NaN, which compares with no bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if found != found:
            self.fail(f"{value} is not a number.", param, ctx)
        return found


def local_minute(at: datetime | None) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M}" if at else "-"


NAMED = 10
"""Maximum number of jobs named in one sentence."""


quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print no confirmation on stderr.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print which jobs would start earlier or later, and change nothing."
)


def confirm(sentence: str, *, quiet: bool = False) -> None:
    """Print the sentence on stderr, so that scripts which read stdout are not disturbed.

    A closed or full stderr is not an error: the change has been made.
    """
    if not quiet:
        with suppress(OSError):
            terminal.echo(plain(sentence), err=True)


def jobs_of(queue: Queue, ids: Iterable[JobId]) -> list[Job]:
    """Return the jobs with these ids, elements of one entry together; those in history come last.

    A single job is read alone, so that the others need not be decoded.
    """
    left, found = set(ids), []
    for job in queue.jobs().values() if len(left) > 1 else ():
        mine = left.intersection(job.ids)
        left -= mine
        if mine and (part := job.divided(mine)[0]) is not None:
            found.append(part)
    return [*found, *map(queue.get, sorted(left))]


def named(jobs: Sequence[Job]) -> str:
    count = sum(job.count for job in jobs)
    if count == 1:
        return f"job {jobs[0].shown_id}"
    more = sum(job.count for job in jobs[NAMED:])
    words = [job.shown_id for job in jobs[:NAMED]] + ([f"and {more} more"] if more else [])
    return f"{plural(count, 'job')}: {' '.join(words)}"


def once(backend: DirectBackend) -> str:
    """Return what to put behind a sentence about what a scheduler does to running jobs."""
    return "" if backend.is_scheduled() else f", once a scheduler runs: {HOW_TO_SCHEDULE}"


def changed(verb: Verb[Job], jobs: Sequence[Job], backend: DirectBackend) -> str:
    """Return the sentence about jobs that a verb has changed; `jobs` are in their state after the change."""
    if not jobs:
        return "nothing was changed"
    waiting = [job for job in jobs if not job.state.is_active]
    running = [job for job in jobs if job.state.is_active]
    told = [verb.shell_done.format(named(waiting))] if waiting else []
    if running:
        told.append((verb.shell_done_running or verb.shell_done).format(named(running)) + once(backend))
    return "; ".join(told)
