"""Log pane of the main screen: the displayed log, and access to screens with several logs."""

from __future__ import annotations

from collections.abc import Callable

from textual.timer import Timer

from gputui.domain.gpu import GpuState
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import EMPTY
from gputui.domain.text import plain
from gputui.tui.keymap import keymap_of
from gputui.tui.log.follower import LogFollower
from gputui.tui.log.pinned import MOST, LogOf, last_attempts, started_attempt
from gputui.tui.present.cells import Cell
from gputui.tui.present.empty_queue import SUBMIT, further_ways
from gputui.tui.screens.job_screen import JobScreen, Predicate
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.services import Services

REST = 0.2
"""Seconds for which the cursor must rest on a job before its log is opened."""


class LogController:
    """Shows the log of the job under the cursor, unless one is pinned."""

    def __init__(
        self,
        screen: JobScreen,
        services: Services,
        pane: LogPane,
        job_of: Callable[[JobId], Job | None],
        show_pane: Callable[[], None],
        look_at: Callable[[Job | None], None],
    ) -> None:
        self._screen = screen
        self._services = services
        self._pane = pane
        self._job_of = job_of
        self._show_pane = show_pane
        self._look_at = look_at
        """Records that a job was viewed."""
        self._timer: Timer | None = None
        self._is_late = False
        """True if the cursor rested on another job while another screen was in front."""
        self.followed: LogOf | None = None
        """Log that is shown."""
        self._attempt = 0
        """Number of the displayed attempt; 0 before the first."""
        self.conditions: dict[str, Predicate] = {
            "attempt": lambda step: self._other_attempt(int(str(step))) is not None,
            "error": lambda _: self._has_attempts(1),
            "pin_log": lambda _: self._has_attempts(1),
            "attempts": lambda _: self._has_attempts(2),
        }

    def _has_attempts(self, least: int) -> bool:
        job = self._screen.subject()
        return job is not None and len(job.attempts) >= least

    def follow(self, job_id: JobId, attempt: int | None = None) -> None:
        """Show the log that the user asks for: of the job's latest attempt, unless one is given."""
        self._forget_cursor()
        self._show(job_id, attempt)

    def _show(self, job_id: JobId, attempt: int | None = None) -> None:
        job = self._job_of(job_id)
        self.followed, self._attempt = LogOf(job_id, attempt), started_attempt(job)
        if job is not None and not job.attempts:
            self._pane.wait_for(self.followed.heading(job), self._why_none(job))
            return
        self._pane.follow(LogFollower(self._services.logs, job_id, attempt), self.followed.heading(job))

    def open(self, job_id: JobId) -> None:
        """Show the log of a job and move the focus into it."""
        if self._is_shown(job_id):
            self._forget_cursor()
        else:
            self._pane.is_pinned = False
            self.follow(job_id)
        self._look_at(self._job_of(job_id))
        self._show_pane()

    def _is_shown(self, job_id: JobId) -> bool:
        return self.followed is not None and self.followed.job_id == job_id

    def _why_none(self, job: Job) -> str:
        """Return text for a log that is empty because no attempt has started."""
        words = f"Job {job.shown_id} has not started"
        reason = self._screen.snapshot.reasons.get(job.id)
        return f"{words}: {plain(reason.local(self._services.clock.now()), 300)}" if reason else f"{words}."

    def _instead(self) -> tuple[str, tuple[Cell, ...]]:
        """Return text for the pane while the queue is empty, and how to submit if the queue's pane does not say it."""
        snapshot = self._screen.snapshot
        if snapshot.jobs:
            return "", ()
        if self._services.is_read_only:
            return "No log, for the queue is empty.", ()
        keys = keymap_of(self._screen)
        words = f"No log, for the queue is empty. {keys.key('submit')} submits a job"
        if any(view.state is GpuState.FOREIGN for view in snapshot.gpus):
            return f"{words}, or in any shell:", keys.cells((*SUBMIT, *further_ways()))
        return f"{words}, as `gputui submit` does in any shell.", ()

    def follow_cursor_soon(self) -> None:
        """Show the log of the job under the cursor once the cursor rests, unless a log is pinned."""
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._screen.set_timer(REST, self._follow_cursor)

    def _forget_cursor(self) -> None:
        """Follow the cursor again only after it moves: the user asked for another log."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self._is_late = False

    def _follow_cursor(self) -> None:
        self._timer = None
        self._is_late = not self._screen.is_in_sight and self.followed is not None
        if self._is_late:
            return
        job = self._screen.subject()
        if job is not None and not self._pane.is_pinned and not self._is_shown(job.id):
            self._show(job.id)

    def catch_up(self) -> None:
        """Show the log of the job under the cursor if the cursor came to it while another screen was in front."""
        if self._is_late:
            self._follow_cursor()

    def follow_on(self) -> None:
        """Show the log of the job under the cursor if none is shown yet; then that job's next attempt as it starts."""
        log = self.followed
        if log is None:
            self._follow_cursor()
            if self.followed is None and self._screen.snapshot is not EMPTY:
                self._pane.list_keys(*self._instead())
            return
        if self._pane.is_pinned and log not in self._services.pinned.logs:
            self._pane.is_pinned = False  # it was unpinned on the screen of logs
        job = self._job_of(log.job_id)
        if log.attempt is None and started_attempt(job) > self._attempt:
            self._show(log.job_id)
        elif job is not None and not job.attempts:
            self._pane.wait_for(log.heading(job), self._why_none(job))

    def show_error(self, step: int) -> None:
        """Follow the subject's log, and go to its first error."""
        if job := self._screen.subject():
            self.open(job.id)
            self._pane.action_error(step)

    def show_attempt(self, step: int) -> None:
        """Show the log of the previous attempt, or of the next."""
        if (log := self._other_attempt(step)) is not None:
            self.follow(log.job_id, log.attempt)

    def _other_attempt(self, step: int) -> LogOf | None:
        """Return another attempt of the subject, relative to the displayed one."""
        job = self._screen.subject()
        if job is None:
            return None
        shown = self.followed if self.followed and self.followed.job_id == job.id else LogOf(job.id)
        return shown.beside(job, step)

    def toggle_pin(self) -> None:
        """Pin or unpin the subject's log. The pane shows a pinned log regardless of the cursor."""
        if job := self._screen.subject():
            shown = self.followed
            is_shown = self._screen.focused is self._pane and shown is not None and shown.job_id == job.id
            log = shown if is_shown and shown is not None else LogOf(job.id)
            words = f"{log.heading(job)}: {self._services.pinned.toggle(log)}"
            self._stay(log, is_pinned=log in self._services.pinned.logs)
            hint = f"{keymap_of(self._screen).key('logs')} shows pinned logs together"
            self._screen.app.notify(f"{words}. {hint}")

    def _stay(self, log: LogOf, *, is_pinned: bool) -> None:
        """Keep the pane on a pinned log, or let it follow the cursor again."""
        if is_pinned and log != self.followed:
            self.follow(log.job_id, log.attempt)
        self._pane.is_pinned = is_pinned
        if not is_pinned:
            self._follow_cursor()

    def show_pinned(self) -> None:
        """Show the pinned logs together; without any, the logs of the first running jobs."""
        jobs = self._screen.snapshot.jobs
        running = (LogOf(job.id) for job in jobs if job.started_at and job.state.is_active)
        self._show_together(self._services.pinned.logs or list(running)[:MOST])

    def show_attempts(self) -> None:
        """Show the last two attempts of the subject side by side."""
        if job := self._screen.subject():
            self._show_together(last_attempts(job))

    def _show_together(self, logs: list[LogOf]) -> None:
        if not logs:
            self._screen.app.notify("No log is pinned and no job runs.")
            return
        from gputui.tui.screens.logs import LogsScreen

        self._screen.app.push_screen(LogsScreen(self._services, self._screen.snapshot, logs, self.follow))
