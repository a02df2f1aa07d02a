"""A screen with one log that follows a job, and the way to screens with several."""

from __future__ import annotations

from typing import ClassVar

from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui.commands import LOG_JOB_COMMANDS, bindings
from gputui.tui.desk import Desk
from gputui.tui.keymap import keymap_of
from gputui.tui.log.follower import LogFollower
from gputui.tui.log.pinned import MOST, LogOf, last_attempts, started_attempt
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.widgets.log_pane import LogPane


class FollowScreen(JobScreen):
    """Shows the log of the first running job until somebody chooses."""

    BINDINGS: ClassVar = bindings(LOG_JOB_COMMANDS)

    def __init__(self, desk: Desk, snapshot: Snapshot = EMPTY) -> None:
        super().__init__(desk, snapshot)
        self._followed: LogOf | None = None
        """Whose log is shown."""
        self._begun = 0
        """Which attempt's; 0 before the first."""

    def job_of(self, job_id: JobId) -> Job | None:
        """The job of that id."""
        raise NotImplementedError

    @property
    def log_pane(self) -> LogPane:
        """Where the log is shown."""
        return self.query_one("#log", LogPane)

    def show_log_pane(self) -> None:
        """Have it in sight, and send it the keys."""
        self.log_pane.focus()

    def follow(self, job_id: JobId, attempt: int | None = None) -> None:
        """Show that job's log."""
        job = self.job_of(job_id)
        self._followed, self._begun = LogOf(job_id, attempt), started_attempt(job)
        self.log_pane.follow(LogFollower(self._desk.logs, job_id, attempt), self._followed.heading(job))

    def follow_on(self) -> None:
        """Follow the first running job if nobody chose; then that job's next attempt as it starts."""
        log = self._followed
        if log is not None:
            if log.attempt is None and started_attempt(self.job_of(log.job_id)) > self._begun:
                self.follow(log.job_id)
            return
        running = next((job for job in self._snapshot.jobs if job.started_at and job.state.is_active), None)
        if running is not None:
            self.follow(running.id)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what there is no log for."""
        if action == "attempt":
            return self._other_attempt(int(str(parameters[0]))) is not None
        if action in {"error", "pin_log", "attempts"}:
            job = self.subject()
            return job is not None and len(job.attempts) > (action == "attempts")
        return super().check_action(action, parameters)

    def action_follow(self) -> None:
        """Follow the job's log."""
        if job := self.subject():
            self.follow(job.id)

    def action_error(self, step: int) -> None:
        """Follow the job's log, and go to the first error in it."""
        if job := self.subject():
            if self._followed is None or self._followed.job_id != job.id:
                self.follow(job.id)
            self.show_log_pane()
            self.log_pane.action_error(step)

    def action_attempt(self, step: int) -> None:
        """Show the log of the attempt before, or of the next."""
        if (log := self._other_attempt(step)) is not None:
            self.follow(log.job_id, log.attempt)

    def _other_attempt(self, step: int) -> LogOf | None:
        """Of the job that is the subject: that whose log is shown stays on its attempt."""
        job = self.subject()
        if job is None:
            return None
        shown = self._followed if self._followed and self._followed.job_id == job.id else LogOf(job.id)
        return shown.beside(job, step)

    def action_pin_log(self) -> None:
        """Keep the job's log among those shown together, or not."""
        if job := self.subject():
            shown = self._followed
            is_shown = self.focused is self.log_pane and shown is not None and shown.job_id == job.id
            log = shown if is_shown and shown is not None else LogOf(job.id)
            words = f"{log.heading(job)}: {self._desk.pinned.toggle(log)}"
            hint = f"{keymap_of(self).key('logs')} shows pinned logs together"
            self.app.notify(f"{words}. {hint}", markup=False, timeout=4)

    def action_logs(self) -> None:
        """Show the pinned logs together; where none is pinned, those of the first running jobs."""
        running = (LogOf(job.id) for job in self._snapshot.jobs if job.started_at and job.state.is_active)
        self._show_together(self._desk.pinned.logs or list(running)[:MOST])

    def action_attempts(self) -> None:
        """Show the job's last two attempts side by side."""
        if job := self.subject():
            self._show_together(last_attempts(job))

    def _show_together(self, logs: list[LogOf]) -> None:
        if not logs:
            self.app.notify("No log is pinned and no job runs.", timeout=4)
            return
        from gputui.tui.screens.logs import LogsScreen

        self.app.push_screen(LogsScreen(self._desk, self._snapshot, logs, self.follow))
