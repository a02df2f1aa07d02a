"""Shows the progress of long tasks on other threads, and cancels them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.message import Message
from textual.timer import Timer

from gputui.domain.errors import GputuiError
from gputui.domain.text import fit, plain, width
from gputui.tui.present.cells import Cell
from gputui.tui.present.graphs import bar, moving
from gputui.tui.present.style import AMBER, BLUE, DIM, PLAIN


class TaskCancelledError(GputuiError):
    """Raised in a task that was cancelled; its work was not done."""


class LongTask:
    """Task whose progress is counted by its thread, and which another thread may cancel."""

    def __init__(self, words: str, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.words = words
        """Name of the task, for the progress line."""
        self.unit = unit
        """Unit of its progress."""
        self.done = 0
        self.total: int | None = None
        """Total number of units; None if unknown."""
        self.is_over = False
        self.is_given_up = False
        self._clock = clock
        self._begun_at: float | None = None

    def begin(self) -> None:
        """Record the start of the task."""
        self._begun_at = self._clock()

    @property
    def took(self) -> float:
        """Seconds since the task began; 0 before that."""
        return 0.0 if self._begun_at is None else self._clock() - self._begun_at

    def step(self, done: int, total: int | None = None) -> None:
        """Record progress; raises TaskCancelledError if the task was cancelled."""
        self.done, self.total = done, total
        if self.is_given_up:
            raise TaskCancelledError("Cancelled; nothing was changed")

    def give_up(self) -> None:
        """Cancel the task at its next step; after the last one it completes all the same."""
        self.is_given_up = True

    def end(self) -> None:
        """Record that the task is finished, or has failed."""
        self.is_over = True


class TaskStarted(Message):
    """Message that a task has started which may take long."""

    def __init__(self, work: LongTask) -> None:
        super().__init__()
        self.work = work


_BAR = 20
_NAMED = 40


def work_cell(work: LongTask, second: int) -> Cell:
    """Return the progress line: `saving job-12.log ━━━━╸────  4,210 of 10,000 jobs   Esc cancels`."""
    meter = moving(second, _BAR) if work.total is None else bar(work.done / max(1, work.total), _BAR, AMBER)
    count = f"{work.done:,}" + (f" of {work.total:,}" if work.total is not None else "")
    end: Cell = (("cancelling …", AMBER),) if work.is_given_up else (("Esc", BLUE), (" cancels", DIM))
    return (
        (f"{fit(plain(work.words), min(_NAMED, width(work.words)))} ", PLAIN),
        *meter,
        (f" {count} {work.unit}   ", PLAIN),
        *end,
    )


LONG = 1.0
"""Seconds after which a task's progress is shown."""


class ProgressDisplay:
    """Display of long tasks: one at a time, the one that began first."""

    def __init__(self, app: App[Any], show: Callable[[Cell], None], every: float) -> None:
        """`show` gets the progress, each time that it may have changed; empty once there is none."""
        self._app = app
        self._draw = show
        self._every = every
        self._works: list[LongTask] = []
        self._timer: Timer | None = None
        self.shown: LongTask | None = None
        """Task whose progress is shown."""

    def watch(self, work: LongTask) -> None:
        """Show a task's progress once it takes long."""
        self._works.append(work)
        if self._timer is None:
            self._timer = self._app.set_interval(self._every, self.look)

    @property
    def is_watching(self) -> bool:
        """Return whether any task is watched."""
        return self._timer is not None

    def look(self) -> None:
        """Show the present progress; hide the line if there is none."""
        self._works = [work for work in self._works if not work.is_over]
        if not self._works and self._timer is not None:
            self._timer.stop()
            self._timer = None
        self._show(next((work for work in self._works if work.took >= LONG), None))

    def give_up(self) -> None:
        """Cancel the task that is shown."""
        if self.shown is not None:
            self.shown.give_up()
            self._show(self.shown)

    def _show(self, work: LongTask | None) -> None:
        self.shown = work
        self._draw(() if work is None else work_cell(work, int(time.monotonic())))
