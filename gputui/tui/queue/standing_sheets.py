"""The tabs of recurring jobs and of reservations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gputui.domain.job import Job
from gputui.domain.recurring import RecurringJob
from gputui.domain.window import WindowView
from gputui.tui.key_words import keyed
from gputui.tui.present.cells import Cell, Column, cell
from gputui.tui.present.job import JobContext
from gputui.tui.present.standing_rows import RECURRING_COLUMNS, WINDOW_COLUMNS, recurring_cell, window_cell
from gputui.tui.present.style import BLUE, DIM
from gputui.tui.queue.sheets import Key


class _Standing:
    """A sheet whose rows are about no job."""

    def __init__(self) -> None:
        self.keys: Sequence[Key] = ()
        self.positions: Mapping[Key, int] = {}

    def _become(self, keys: Sequence[Key]) -> None:
        self.keys = keys
        self.positions = {key: row for row, key in enumerate(keys)}

    def lead(self, key: Key) -> str:
        """Nothing."""
        del key
        return " "

    def jobs(self, key: Key | None) -> tuple[Job, ...]:
        """None."""
        del key
        return ()


class RecurringSheet(_Standing):
    """What is submitted again and again."""

    name, noun = "recurring", "recurring job"
    columns: tuple[Column, ...] = RECURRING_COLUMNS

    def __init__(self) -> None:
        super().__init__()
        self.entries: Mapping[Key, RecurringJob] = {}

    def take(self, entries: Sequence[RecurringJob]) -> None:
        """Show these."""
        self.entries = {entry.id: entry for entry in entries}
        self._become(list(self.entries))

    def cell(self, key: Key, column: str, context: JobContext) -> Cell:
        """What stands in that cell."""
        return recurring_cell(self.entries[key], column, context.now)

    def empty(self) -> tuple[Cell, ...]:
        """How to make one."""
        return (
            cell(
                "Nothing is submitted again and again. Select a job in the queue and press "
                f"{keyed('recur')}, or from any shell:",
                DIM,
            ),
            cell("  gputui cron add '0 3 * * *' IMAGE COMMAND...", BLUE),
        )


class WindowSheet(_Standing):
    """GPUs kept for somebody, now or later."""

    name, noun = "reservations", "reservation"
    columns: tuple[Column, ...] = WINDOW_COLUMNS

    def __init__(self) -> None:
        super().__init__()
        self.views: Mapping[Key, WindowView] = {}

    def take(self, views: Sequence[WindowView]) -> None:
        """Show these."""
        self.views = {view.window.key: view for view in views}
        self._become(list(self.views))

    def cell(self, key: Key, column: str, context: JobContext) -> Cell:
        """What stands in that cell."""
        return window_cell(self.views[key], column, dict(context.gpu_names), context.now)

    def empty(self) -> tuple[Cell, ...]:
        """How to make one."""
        return (
            cell("No GPUs are reserved. Press B to reserve some, or from any shell:", DIM),
            cell("  gputui reserve add --gpus 4 --start 14:00 --end 18:00 --tenant alice", BLUE),
        )
