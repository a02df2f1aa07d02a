"""The end of a job's log on the page of the job: it is read there, and followed elsewhere."""

from __future__ import annotations

from gputui.domain.job import Job
from gputui.tui.log.follower import LogFollower, LogOpener
from gputui.tui.log.pinned import LogOf, started_attempt
from gputui.tui.widgets.log_view import LogView


class JobLog(LogView, can_focus=False):
    """Shows the latest attempt that has begun. Keys go to the page; the wheel scrolls it."""

    DEFAULT_CSS = "JobLog { height: 1fr; display: none; }"
    _begun = 0

    def show_of(self, job: Job, opener: LogOpener, *, is_room: bool) -> None:
        """Read that job's log as long as there is something to read and room for it."""
        attempt = started_attempt(job)
        self.display = is_room and attempt > 0
        if self.display and attempt > self._begun:
            self._begun = attempt
            self.follow(LogFollower(opener, job.id, None), LogOf(job.id).heading(job))
