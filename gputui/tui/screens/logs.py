"""Several logs at once: side by side where there is room, else one above the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container

from gputui.domain.job import Job, JobId
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
from gputui.tui.desk import Desk
from gputui.tui.log.follower import LogFollower
from gputui.tui.log.pinned import LogOf, started_attempt
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.widgets.line import KeyBar
from gputui.tui.widgets.log_pane import LogPane

_NARROWEST = 56
"""Cells that a log is wide at least, where there are several beside each other."""
_KEPT = ("zoom", "pane(1)", "pane(-1)")
_PANE_COMMANDS = tuple(command for command in PANE_COMMANDS if command.action in _KEPT)
_HERE = {"attempt", "pin_log"}
_LOG_JOB_COMMANDS = tuple(c for c in LOG_JOB_COMMANDS if c.verb in _HERE)


class LogsScreen(JobScreen):
    """Commands act on the job of the log that has the focus."""

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
        self, desk: Desk, snapshot: Snapshot, logs: list[LogOf], follow: Callable[[JobId, int | None], None]
    ) -> None:
        super().__init__(desk, snapshot)
        self._logs = dict(enumerate(logs))
        """By the number of the pane."""
        self._follow = follow
        self._jobs: dict[JobId, Job] = {}
        self._begun: dict[int, int] = {}
        """Which attempt each pane began with."""
        self._keys = KeyBar(id="keys")

    def compose(self) -> ComposeResult:
        """A pane for each log, and the keys."""
        with Container(id="logs"):
            for number in self._logs:
                yield LogPane(id=f"log-{number}")
        yield self._keys

    def on_mount(self) -> None:
        """Begin to read."""
        self.show_snapshot(self._snapshot)
        for number in self._logs:
            self._open(number)
        self._arrange()
        self.query_one(LogPane).focus()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Take the picture in."""
        self._snapshot = snapshot
        wanted = {log.job_id for log in self._logs.values()}
        self._jobs |= {job.id: job for job in snapshot.jobs if job.id in wanted}
        for number, log in self._logs.items():
            if log.attempt is None and started_attempt(self._jobs.get(log.job_id)) > self._begun.get(number, 10**9):
                self._open(number)
        self._show_keys()

    def subject(self) -> Job | None:
        """The job of the log that has the focus."""
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
        follower = LogFollower(self._desk.logs, log.job_id, log.attempt)
        pane.follow(follower, log.heading(self._jobs.get(log.job_id)))

    def on_resize(self) -> None:
        """Other panes fit beside each other now."""
        self._arrange()

    def _arrange(self) -> None:
        """As many beside each other as are wide enough, and as alike as can be; the last takes what is left."""
        panes = list(self.query(LogPane))
        columns = columns_for(len(panes), self.size.width)
        self.query_one("#logs").styles.grid_size_columns = 1 if self.has_class("-zoomed") else columns
        for pane in panes:
            pane.styles.column_span = 1
        if panes and not self.has_class("-zoomed"):
            panes[-1].styles.column_span = columns - (len(panes) - 1) % columns

    def on_descendant_focus(self) -> None:
        """Other keys work now."""
        self._show_keys()

    def _show_keys(self) -> None:
        if not self._keys.is_attached:
            return  # a picture may come before the screen is there
        offered = (*LOG_COMMANDS, LOG_JOB_COMMANDS[0], *JOB_COMMANDS)
        commands = tuple(command for command in offered if command.in_footer and self._works(command))
        self._keys.show(commands, (BACK, APP_COMMANDS[0]))

    def _works(self, command: Command) -> bool:
        pane = self.focused
        return command.works_at(pane if isinstance(pane, LogPane) and command.is_known_to(pane) else self)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what there is no other attempt for."""
        if action == "attempt":
            return self._beside(int(str(parameters[0]))) is not None
        return super().check_action(action, parameters)

    def _beside(self, step: int) -> LogOf | None:
        job, number = self.subject(), self._focused_number
        return None if job is None or number is None else self._logs[number].beside(job, step)

    def action_attempt(self, step: int) -> None:
        """Show another attempt of the same job in this pane."""
        log, number = self._beside(step), self._focused_number
        if log is not None and number is not None:
            self._logs[number] = log
            self._open(number)

    def action_pin_log(self) -> None:
        """Take the log that has the focus away; the last one takes the screen with it."""
        number = self._focused_number
        if number is None:
            return
        log = self._logs.pop(number)
        if log in self._desk.pinned.logs:
            self._desk.pinned.toggle(log)
        if not self._logs:
            self.dismiss()
            return
        self.remove_class("-zoomed")
        self.query_one(f"#log-{number}").remove()
        next(pane for pane in self.query(LogPane) if pane.id != f"log-{number}").focus()
        self.call_after_refresh(self._arrange)

    def action_pane(self, step: int) -> None:
        """Go to the next log, or the one before."""
        panes = list(self.query(LogPane))
        here = panes.index(self.focused) if isinstance(self.focused, LogPane) else 0
        is_zoomed = self.has_class("-zoomed")
        self.remove_class("-zoomed")
        panes[(here + step) % len(panes)].focus()
        self.set_class(is_zoomed, "-zoomed")

    def action_zoom(self) -> None:
        """Give the log that has the focus the whole screen, or take it back."""
        self.toggle_class("-zoomed")
        self._arrange()

    def action_detail(self) -> None:
        """Everything about the job."""
        if job := self.subject():
            from gputui.tui.screens.detail import Detail

            self.app.push_screen(Detail(self._desk, self._snapshot, job.id, self._leave_for))

    def action_follow(self) -> None:
        """Follow this log on the main screen."""
        number = self._focused_number
        if number is not None:
            self._leave_for(self._logs[number].job_id, self._logs[number].attempt)

    def _leave_for(self, job_id: JobId, attempt: int | None = None) -> None:
        self._follow(job_id, attempt)
        self.app.call_later(self.dismiss)  # when what may lie over it is closed

    def action_back(self) -> None:
        """Back to the main screen."""
        self.dismiss()


def columns_for(count: int, width: int) -> int:
    """How many logs stand side by side."""
    most = max(1, min(count, width // _NARROWEST))
    rows = -(-count // most)
    return -(-count // rows) if count else 1
