"""Logs on the main screen, pinned ones and those of attempts, and the screen that shows several."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from msgspec import Struct
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.timer import Timer

from gputui.domain.gpu import GpuState
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.text import plain
from gputui.tui.commands import (
    APP_COMMANDS,
    BACK,
    JOB_COMMANDS,
    LOG_COMMANDS,
    LOG_JOB_COMMANDS,
    Command,
    bindings,
    named,
)
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import Cell
from gputui.tui.present.status import further_ways, submit_words
from gputui.tui.screens.job_screen import JobScreen, Predicate
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.services import Services
from gputui.tui.widgets.log_follower import MOST_PINNED, LogFollower, LogOf, started_attempt
from gputui.tui.widgets.status_bars import KeyBar

REST = 0.2
"""Seconds for which the cursor must rest on a job before its log is opened."""


class LogController(Struct, eq=False):
    """Shows the log of the job under the cursor, unless one is pinned."""

    _screen: JobScreen
    _services: Services
    _pane: LogPane
    _job_of: Callable[[JobId], Job | None]
    _show_pane: Callable[[], None]
    _look_at: Callable[[Job | None], None]
    """Records that a job was viewed."""
    _timer: Timer | None = None
    _is_late: bool = False
    """True if the cursor rested on another job while another screen was in front."""
    followed: LogOf | None = None
    """Log that is shown."""
    _attempt: int = 0
    """Number of the displayed attempt; 0 before the first."""

    @property
    def conditions(self) -> dict[str, Predicate]:
        subject = self._screen.subject
        return {
            "attempt": lambda step: self._other_attempt(int(str(step))) is not None,
            "error": lambda _: bool((job := subject()) and job.attempts),
            "pin_log": lambda _: bool((job := subject()) and job.attempts),
            "attempts": lambda _: bool((job := subject()) and len(job.attempts) > 1),
        }

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
        self._pane.follow(LogFollower(self._services.backend, job_id, attempt), self.followed.heading(job))

    def open(self, job_id: JobId) -> None:
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
        words = f"Job {job.shown_id} has not started"
        reason = self._screen.snapshot.reasons.get(job.id)
        return f"{words}: {plain(reason.local(self._services.clock.now()), 300)}" if reason else f"{words}."

    def _instead(self) -> tuple[str, tuple[Cell, ...]]:
        """Return text for the pane while the queue is empty, and how to submit if the queue's pane does not say it."""
        snapshot = self._screen.snapshot
        if snapshot.jobs or not snapshot.is_read:
            return "", ()
        if self._services.is_read_only:
            return "No log, for the queue is empty.", ()
        keys = keymap_of(self._screen)
        words = f"No log, for the queue is empty. {keys.key('submit')} submits a job"
        if any(view.state is GpuState.FOREIGN for view in snapshot.gpus):
            return f"{words}, or in any shell:", keys.cells((*submit_words(snapshot.jobs_machine), *further_ways()))
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

    def action_error(self, step: int) -> None:
        if job := self._screen.subject():
            self.open(job.id)
            self._pane.action_error(step)

    def action_attempt(self, step: int) -> None:
        if (log := self._other_attempt(step)) is not None:
            self.follow(log.job_id, log.attempt)

    def _other_attempt(self, step: int) -> LogOf | None:
        job = self._screen.subject()
        if job is None:
            return None
        shown = self.followed if self.followed and self.followed.job_id == job.id else LogOf(job.id)
        return shown.beside(job, step)

    def action_pin_log(self) -> None:
        if job := self._screen.subject():
            shown = self.followed
            is_shown = self._screen.focused is self._pane and shown is not None and shown.job_id == job.id
            log = shown if is_shown and shown is not None else LogOf(job.id)
            words = f"{log.heading(job)}: {self._services.pinned.toggle(log)}"
            is_pinned = log in self._services.pinned.logs
            if is_pinned and log != self.followed:
                self.follow(log.job_id, log.attempt)
            self._pane.is_pinned = is_pinned
            if not is_pinned:
                self._follow_cursor()
            hint = f"{keymap_of(self._screen).key('logs')} shows pinned logs together"
            self._screen.app.notify(f"{words}. {hint}")

    def action_logs(self) -> None:
        jobs = self._screen.snapshot.jobs
        running = (LogOf(job.id) for job in jobs if job.started_at and job.state.is_active)
        self._show_together(self._services.pinned.logs or list(running)[:MOST_PINNED])

    def action_attempts(self) -> None:
        if job := self._screen.subject():
            self._show_together([LogOf(job.id, attempt.number) for attempt in job.attempts[-2:]])

    def _show_together(self, logs: list[LogOf]) -> None:
        if not logs:
            self._screen.app.notify("No log is pinned and no job runs.")
            return
        self._screen.app.push_screen(LogsScreen(self._services, self._screen.snapshot, logs, self.follow))


_NARROWEST = 56
"""Minimum width in cells of logs that are side by side."""


class LogsScreen(JobScreen):
    """Several logs. Commands act on the job of the focused one."""

    BINDINGS: ClassVar = [
        *bindings((*JOB_COMMANDS, *named("attempt_before attempt_after pin_log zoom pane_next pane_before"), BACK)),
        Binding("L", "back", "back", id="logs"),
    ]
    DEFAULT_CSS = """
    LogsScreen #logs { layout: grid; grid-gutter: 0 1; height: 1fr; background: $surface-lighten-1; }
    LogsScreen.-zoomed LogPane { display: none; }
    LogsScreen.-zoomed LogPane:focus { display: block; }
    """

    def __init__(
        self, services: Services, snapshot: Snapshot, logs: list[LogOf], follow: Callable[[JobId, int | None], None]
    ) -> None:
        super().__init__(services, snapshot)
        self._logs = dict(enumerate(logs))
        """Logs by the number of their pane."""
        self._follow = follow
        self._jobs: dict[JobId, Job] = {}
        self._begun: dict[int, int] = {}
        """Number of the attempt that each pane was opened with."""
        self._keys = KeyBar(id="keys")
        self.conditions["attempt"] = lambda step: self._beside(int(str(step))) is not None

    def compose(self) -> ComposeResult:
        with Container(id="logs"):
            for number in self._logs:
                yield LogPane(id=f"log-{number}")
        yield self._keys

    def on_mount(self) -> None:
        self.show_snapshot(self._snapshot)
        for number in self._logs:
            self._open(number)
        self._arrange()
        self.query_one(LogPane).focus()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        wanted = {log.job_id for log in self._logs.values()}
        self._jobs |= {job.id: job for job in snapshot.jobs if job.id in wanted}
        for number, log in self._logs.items():
            if log.attempt is None and started_attempt(self._jobs.get(log.job_id)) > self._begun.get(number, 10**9):
                self._open(number)
        self._show_keys()

    def subject(self) -> Job | None:
        number = self._focused_number
        return None if number is None else self._jobs.get(self._logs[number].job_id)

    @property
    def _focused_number(self) -> int | None:
        pane = self.focused
        if not isinstance(pane, LogPane) or pane.id is None:
            return None
        number = int(pane.id.removeprefix("log-"))
        return number if number in self._logs else None

    def _open(self, number: int) -> None:
        log = self._logs[number]
        pane = self.query_one(f"#log-{number}", LogPane)
        self._begun[number] = started_attempt(self._jobs.get(log.job_id))
        follower = LogFollower(self._services.backend, log.job_id, log.attempt)
        pane.follow(follower, log.heading(self._jobs.get(log.job_id)))

    @on(events.Resize)
    def _arrange(self) -> None:
        """Arrange the panes in columns of even width; the last pane takes the rest of its row."""
        panes = list(self.query(LogPane))
        columns = columns_for(len(panes), self.size.width)
        self.query_one("#logs").styles.grid_size_columns = 1 if self.has_class("-zoomed") else columns
        for pane in panes:
            pane.styles.column_span = 1
        if panes and not self.has_class("-zoomed"):
            panes[-1].styles.column_span = columns - (len(panes) - 1) % columns

    @on(events.DescendantFocus)
    def _show_keys(self) -> None:
        if not self._keys.is_attached:
            return  # a snapshot may arrive before the screen is ready
        offered = (*LOG_COMMANDS, LOG_JOB_COMMANDS[0], *JOB_COMMANDS)
        pane = self.focused

        def works(command: Command) -> bool:
            return command.works_at(pane if isinstance(pane, LogPane) and command.is_known_to(pane) else self)

        commands = tuple(command for command in offered if command.in_footer and works(command))
        self._keys.show(commands, (BACK, APP_COMMANDS[0]))

    def _beside(self, step: int) -> LogOf | None:
        job, number = self.subject(), self._focused_number
        return None if job is None or number is None else self._logs[number].beside(job, step)

    def action_attempt(self, step: int) -> None:
        log, number = self._beside(step), self._focused_number
        if log is not None and number is not None:
            self._logs[number] = log
            self._open(number)

    def action_pin_log(self) -> None:
        """Remove the focused log; removing the last one closes the screen."""
        number = self._focused_number
        if number is None:
            return
        log = self._logs.pop(number)
        if log in self._services.pinned.logs:
            self._services.pinned.toggle(log)
        if not self._logs:
            self.dismiss()
            return
        self.remove_class("-zoomed")
        self.query_one(f"#log-{number}").remove()
        next(pane for pane in self.query(LogPane) if pane.id != f"log-{number}").focus()
        self.call_after_refresh(self._arrange)

    def action_pane(self, step: int) -> None:
        panes = list(self.query(LogPane))
        here = panes.index(self.focused) if isinstance(self.focused, LogPane) else 0
        is_zoomed = self.has_class("-zoomed")
        self.remove_class("-zoomed")
        panes[(here + step) % len(panes)].focus()
        self.set_class(is_zoomed, "-zoomed")

    def action_zoom(self) -> None:
        self.toggle_class("-zoomed")
        self._arrange()

    def action_detail(self) -> None:
        if job := self.subject():
            page = self._services.pages.detail(self._services, self._snapshot, job.id, self._leave_for)
            self.app.push_screen(page)

    def action_follow(self) -> None:
        number = self._focused_number
        if number is not None:
            self._leave_for(self._logs[number].job_id, self._logs[number].attempt)

    def _leave_for(self, job_id: JobId, attempt: int | None = None) -> None:
        self._follow(job_id, attempt)
        self.app.call_later(self.dismiss)  # when any screen on top is closed


def columns_for(count: int, width: int) -> int:
    most = max(1, min(count, width // _NARROWEST))
    rows = -(-count // most)
    return -(-count // rows) if count else 1
