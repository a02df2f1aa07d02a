"""Screen with several logs: side by side if there is room, else one above the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container

from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.tui.commands import (
    APP_COMMANDS,
    BACK,
    JOB_COMMANDS,
    LOG_COMMANDS,
    LOG_JOB_COMMANDS,
    PANE_COMMANDS,
    Command,
    bindings,
)
from gputui.tui.log.follower import LogFollower
from gputui.tui.log.pinned import LogOf, started_attempt
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.services import Services
from gputui.tui.widgets.status_bars import KeyBar

_NARROWEST = 56
"""Minimum width in cells of logs that are side by side."""
_KEPT = ("zoom", "pane(1)", "pane(-1)")
_PANE_COMMANDS = tuple(command for command in PANE_COMMANDS if command.action in _KEPT)
_HERE = {"attempt", "pin_log"}
_LOG_JOB_COMMANDS = tuple(c for c in LOG_JOB_COMMANDS if c.action_name in _HERE)


class LogsScreen(JobScreen):
    """Several logs. Commands act on the job of the focused one."""

    BINDINGS: ClassVar = [
        *bindings(JOB_COMMANDS),
        *bindings(_LOG_JOB_COMMANDS),
        *bindings(_PANE_COMMANDS),
        *bindings((BACK,)),
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
        """Yield a pane for each log, and the keys."""
        with Container(id="logs"):
            for number in self._logs:
                yield LogPane(id=f"log-{number}")
        yield self._keys

    def on_mount(self) -> None:
        """Open the logs."""
        self.show_snapshot(self._snapshot)
        for number in self._logs:
            self._open(number)
        self._arrange()
        self.query_one(LogPane).focus()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Take the snapshot."""
        self._snapshot = snapshot
        wanted = {log.job_id for log in self._logs.values()}
        self._jobs |= {job.id: job for job in snapshot.jobs if job.id in wanted}
        for number, log in self._logs.items():
            if log.attempt is None and started_attempt(self._jobs.get(log.job_id)) > self._begun.get(number, 10**9):
                self._open(number)
        self._show_keys()

    def subject(self) -> Job | None:
        """Return the job of the focused log."""
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
        follower = LogFollower(self._services.logs, log.job_id, log.attempt)
        pane.follow(follower, log.heading(self._jobs.get(log.job_id)))

    def on_resize(self) -> None:
        """Arrange the panes for the new size."""
        self._arrange()

    def _arrange(self) -> None:
        """Arrange the panes in columns of even width; the last pane takes the rest of its row."""
        panes = list(self.query(LogPane))
        columns = columns_for(len(panes), self.size.width)
        self.query_one("#logs").styles.grid_size_columns = 1 if self.has_class("-zoomed") else columns
        for pane in panes:
            pane.styles.column_span = 1
        if panes and not self.has_class("-zoomed"):
            panes[-1].styles.column_span = columns - (len(panes) - 1) % columns

    def on_descendant_focus(self) -> None:
        """Show the keys of the focused pane."""
        self._show_keys()

    def _show_keys(self) -> None:
        if not self._keys.is_attached:
            return  # a snapshot may arrive before the screen is ready
        offered = (*LOG_COMMANDS, LOG_JOB_COMMANDS[0], *JOB_COMMANDS)
        commands = tuple(command for command in offered if command.in_footer and self._works(command))
        self._keys.show(commands, (BACK, APP_COMMANDS[0]))

    def _works(self, command: Command) -> bool:
        pane = self.focused
        return command.works_at(pane if isinstance(pane, LogPane) and command.is_known_to(pane) else self)

    def _beside(self, step: int) -> LogOf | None:
        job, number = self.subject(), self._focused_number
        return None if job is None or number is None else self._logs[number].beside(job, step)

    def action_attempt(self, step: int) -> None:
        """Show another attempt of the job in this pane."""
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
        """Go to the next or previous log."""
        panes = list(self.query(LogPane))
        here = panes.index(self.focused) if isinstance(self.focused, LogPane) else 0
        is_zoomed = self.has_class("-zoomed")
        self.remove_class("-zoomed")
        panes[(here + step) % len(panes)].focus()
        self.set_class(is_zoomed, "-zoomed")

    def action_zoom(self) -> None:
        """Show the focused log on the whole screen, or restore the others."""
        self.toggle_class("-zoomed")
        self._arrange()

    def action_detail(self) -> None:
        """Open the job's page."""
        if job := self.subject():
            from gputui.tui.screens.detail import Detail

            self.app.push_screen(Detail(self._services, self._snapshot, job.id, self._leave_for))

    def action_follow(self) -> None:
        """Follow this log on the main screen."""
        number = self._focused_number
        if number is not None:
            self._leave_for(self._logs[number].job_id, self._logs[number].attempt)

    def _leave_for(self, job_id: JobId, attempt: int | None = None) -> None:
        self._follow(job_id, attempt)
        self.app.call_later(self.dismiss)  # when any screen on top is closed

    def action_back(self) -> None:
        """Close the screen."""
        self.dismiss()


def columns_for(count: int, width: int) -> int:
    """Return how many logs fit side by side."""
    most = max(1, min(count, width // _NARROWEST))
    rows = -(-count // most)
    return -(-count // rows) if count else 1
