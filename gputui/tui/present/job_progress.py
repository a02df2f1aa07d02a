"""Progress of a job as a bar: elapsed time against the limit, a pull, or the elements of an array."""

from __future__ import annotations

import re
from datetime import timedelta

from msgspec import Struct

from gputui.domain.job import Job
from gputui.domain.queue_columns import QUEUE_COLUMNS
from gputui.domain.state import JobState
from gputui.domain.units import format_duration, format_limit
from gputui.tui.present.cells import Cell
from gputui.tui.present.graphs import bar
from gputui.tui.present.style import AMBER, DIM, GREEN, PLAIN, RED, TRACK

WIDTH = QUEUE_COLUMNS["progress"].width
"""Cells that elapsed time and limit need without a bar."""
_LEAST_BAR = 4
_MOST_BAR = 12
_PERCENT = re.compile(r"\b(\d{1,3})\s?%")
_NEAR = 0.9
"""Share of the time limit from which the bar warns."""
_HOUR = timedelta(hours=1)
DONE, LEFT = "▰", "▱"
_ELEMENTS = 10
"""Cells of an array's bar at most."""


def clock_words(taken: timedelta) -> str:
    """Return `0:42` for less than an hour, else `2h14m`."""
    if taken >= _HOUR:
        return format_duration(taken)
    minutes, seconds = divmod(max(0, int(taken.total_seconds())), 60)
    return f"{minutes}:{seconds:02}"


def elapsed_words(taken: timedelta, limit: timedelta | None) -> str:
    """Return `0:42 / 16m`, or only the time if there is no limit."""
    return clock_words(taken) if limit is None else f"{clock_words(taken)} / {format_limit(limit)}"


def time_progress(job: Job, taken: timedelta | None, room: int) -> Cell:
    """Return the elapsed time against the limit; for a job that is not running only one of the two."""
    limit = job.spec.time_limit
    if taken is None:
        return ((f"limit {format_limit(limit)}", DIM),) if limit else ()
    if not job.state.is_active or job.state is JobState.CONFIGURING:
        return ((clock_words(taken), DIM),)
    words = elapsed_words(taken, limit)
    cells = min(_MOST_BAR, room - WIDTH - 1)  # all rows have bars of the same width
    if limit is None or cells < _LEAST_BAR:
        return ((words, PLAIN),)
    share = taken / limit
    return (*bar(share, cells, AMBER if share >= _NEAR else GREEN), (f" {words}", PLAIN))


def pull_progress(words: str, room: int) -> Cell:
    """Return a bar of the percentage in the text, else the beginning of the text."""
    found = _PERCENT.search(words)
    if found is None:
        return ((words.split(" ", 1)[0].rstrip(":"), AMBER),)
    percent = min(100, int(found[1]))
    return (*bar(percent / 100, max(_LEAST_BAR, min(_MOST_BAR, room - 6)), AMBER), (f" {percent:>2} %", PLAIN))


class ArrayCounts(Struct):
    """Elements of an array by their state."""

    done: int = 0
    running: int = 0
    failed: int = 0
    others: int = 0
    """Elements that wait, or were cancelled."""
    past: int = 0
    """Maximum cells of an array's bar."""

    @property
    def total(self) -> int:
        """Number of elements."""
        return self.done + self.running + self.failed + self.others + self.past

    def add(self, job: Job) -> None:
        """Count a job, of an entry its elements."""
        if job.state is JobState.COMPLETED:
            self.done += job.count
        elif job.state.is_active:
            self.running += job.count
        elif job.state.is_terminal and job.state is not JobState.CANCELLED:
            self.failed += job.count
        else:
            self.others += job.count


def array_progress(counts: ArrayCounts, room: int) -> Cell:
    """Return `▰▰▰▱ 7/20 ✗1`: finished, running and failed elements, of all."""
    done = counts.done + counts.past
    words = f" {done:,}/{counts.total:,}"
    failed = f" ✗{counts.failed:,}" if counts.failed else ""
    cells = max(0, min(_ELEMENTS, room - len(words) - len(failed)))
    parts, rest = [], cells
    for number, style in ((counts.failed, RED), (done, GREEN), (counts.running, AMBER)):
        filled = min(rest, -(-number * cells // max(1, counts.total)))
        rest -= filled
        parts.append((DONE * filled, style))
    parts = [parts[1], parts[2], parts[0], (LEFT * rest, TRACK)]
    return (*(part for part in parts if part[0]), (words if cells else words[1:], PLAIN), (failed, RED))
