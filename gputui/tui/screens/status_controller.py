"""Lines around the panes of the main screen: status, the summary of GPUs and host, notices, and the keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from msgspec.structs import replace

from gputui.domain.notices import pressing
from gputui.domain.snapshot import Snapshot
from gputui.domain.steady import Steady
from gputui.tui.commands.command import Command
from gputui.tui.commands.table import (
    APP_COMMANDS,
    EDIT_COMMANDS,
    GPU,
    GPU_COMMANDS,
    LOG_COMMANDS,
    LOG_JOB_COMMANDS,
    MAIN_COMMANDS,
    PANE_COMMANDS,
    QUEUE_COMMANDS,
    SUBMIT,
)
from gputui.tui.keymap import keymap_of
from gputui.tui.present.status import status_line, summary_line
from gputui.tui.services import Services
from gputui.tui.widgets.log_view import LogView
from gputui.tui.widgets.status_bars import StatusBar, SummaryBar, line_of


class StatusController:
    """Shows each snapshot in the lines above and between the panes."""

    def __init__(self, services: Services, log: LogView) -> None:
        self._services = services
        self._log = log
        self.bar = StatusBar(id="status")
        self.summary = SummaryBar(id="summary")
        self._steady: Steady[tuple[str, str]] = Steady()

    @property
    def rows(self) -> int:
        """Number of rows that they take."""
        return 3 + self.summary.rows

    def show(self, snapshot: Snapshot, now: datetime) -> None:
        """Show the snapshot; on a low screen a few words of the summary join the status line."""
        self._show_status(snapshot, now, f"{now.astimezone():{self._services.pace.clock}}")
        self._show_summary(snapshot, now)
        line_of(self.bar.screen).show(pressing(snapshot, now), self._services.hint.text)

    def _show_status(self, snapshot: Snapshot, now: datetime, time: str) -> None:
        read_only = self._services.is_read_only
        found = self._services.conditions.look(snapshot, now)
        key = keymap_of(self.bar).key("notices")
        words = status_line(
            snapshot, self._services.about.host, self.bar.room, found=found, read_only=read_only, key=key
        )
        self.bar.show(words, time)

    def _show_summary(self, snapshot: Snapshot, now: datetime) -> None:
        """Show the summary in its row, or on a low screen at the end of the log's title, which has room."""
        has_room = self.summary.has_room
        room = self.summary.room if has_room else self.summary.room // 2
        line = summary_line(snapshot, now, room, self._steady)
        self.summary.show(line if has_room else ())
        self._log.show_aside(() if has_room else line)


_BY_NAME = {
    command.name: command
    for command in (*EDIT_COMMANDS, *PANE_COMMANDS, *LOG_COMMANDS, *LOG_JOB_COMMANDS, *MAIN_COMMANDS)
}
_OF_LOG = (
    *map(_BY_NAME.__getitem__, ("log_next", "clear_log", "log_search", "error", "log_only", "pause_log")),
    replace(_BY_NAME["follow"], title="queue"),
    *(command for command in LOG_COMMANDS if command.in_footer),
    _BY_NAME["pin_log"],
)
"""Commands of the log: those of a search, which exist only during one, come first."""
_OF_GPUS = (GPU, *GPU_COMMANDS, _BY_NAME["follow"], _BY_NAME["reserve"], _BY_NAME["gpu_view"])
_FIRST = {"gpus": _OF_GPUS, "log": tuple(dict.fromkeys(_OF_LOG))}
"""Commands of each pane that come first; in the queue, those about jobs do anyway."""
_OTHERS = tuple(c for c in (*MAIN_COMMANDS, *EDIT_COMMANDS, *QUEUE_COMMANDS) if c.in_footer and c is not SUBMIT)
_ALWAYS = tuple(c for c in (SUBMIT, *APP_COMMANDS) if c.in_footer)


def footer(pane: str | None, works: Callable[[Command], bool]) -> tuple[tuple[Command, ...], tuple[Command, ...]]:
    """Return the commands available while a pane has the focus, and the permanent ones at the right end."""
    wanted: dict[str, Command] = {}
    for command in (*_FIRST.get(pane or "", ()), *_OTHERS):
        wanted.setdefault(command.name, command)
    return tuple(filter(works, wanted.values())), tuple(filter(works, _ALWAYS))
