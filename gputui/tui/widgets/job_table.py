"""The queue."""

from __future__ import annotations

from typing import ClassVar

from gputui.domain.job import Job, JobId
from gputui.tui.present.cells import Cell
from gputui.tui.present.job import JOB_COLUMNS, JobContext, job_cells
from gputui.tui.present.status import empty_queue_words
from gputui.tui.queue_rows import QueueRows
from gputui.tui.widgets.line_table import LineTable


class JobTable(LineTable[JobId]):
    """Rows by job id."""

    COLUMNS: ClassVar = JOB_COLUMNS
    NOUN = "job"

    def __init__(self, rows: QueueRows, context: JobContext, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.rows = rows
        self._known = context

    def show(self, context: JobContext) -> None:
        """Show the rows as they are now."""
        self._known = context
        rows = self.rows
        self.show_rows(rows.keys, rows.positions, () if rows.keys else empty_queue_words(rows.filter))

    @property
    def job(self) -> Job | None:
        """The job under the cursor."""
        return None if self.cursor is None else self.rows.jobs.get(self.cursor)

    def cell_of(self, key: JobId, column: str, room: int) -> Cell:
        """What stands in that cell."""
        return job_cells(self.rows.jobs[key], column, self._known)
