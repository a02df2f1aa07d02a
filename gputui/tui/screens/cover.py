"""What the screens have in common that lie over the main one: its log is where they follow, and Escape goes back."""

from __future__ import annotations

from collections.abc import Callable

from gputui.domain.job import JobId
from gputui.domain.snapshot import Snapshot
from gputui.tui.desk import Desk
from gputui.tui.screens.gpu_screen import GpuScreen


class Cover(GpuScreen):
    """It may be left for the main screen, to follow the log of its subject there."""

    def __init__(self, desk: Desk, snapshot: Snapshot, follow: Callable[[JobId], None]) -> None:
        super().__init__(desk, snapshot)
        self._follow = follow

    def action_detail(self) -> None:
        """Everything about the job."""
        if job := self.subject():
            from gputui.tui.screens.detail import Detail

            self.app.push_screen(Detail(self._desk, self._snapshot, job.id, self._follow_there))

    def _follow_there(self, job_id: JobId) -> None:
        """Follow its log, which is on the main screen."""
        self._follow(job_id)
        self.app.call_later(self.dismiss)

    def action_follow(self) -> None:
        """Follow the job's log on the main screen."""
        if job := self.subject():
            self._follow(job.id)
            self.dismiss()

    def action_back(self) -> None:
        """Back to the main screen."""
        self.dismiss()
