"""Lines around the panes of the main screen: status, notices and the summary of GPUs and host."""

from __future__ import annotations

from datetime import datetime

from gputui.domain.snapshot import Snapshot
from gputui.tui.present.notices import pressing
from gputui.tui.present.status import status_line
from gputui.tui.present.summary import summary_line
from gputui.tui.services import Services
from gputui.tui.widgets.log_view import LogView
from gputui.tui.widgets.status_bars import HintBar, NoticeBar, StatusBar, SummaryBar


class StatusController:
    """Shows each snapshot in the lines above and between the panes."""

    def __init__(self, services: Services, log: LogView) -> None:
        self._services = services
        self._log = log
        self.bar = StatusBar(id="status")
        self.notices = NoticeBar(id="notices")
        self.summary = SummaryBar(id="summary")
        self.hint = HintBar(id="hint")

    @property
    def rows(self) -> int:
        """Number of rows that notices, summary and hint take."""
        return self.notices.rows + self.summary.rows + self.hint.rows

    def show(self, snapshot: Snapshot, now: datetime) -> None:
        """Show the snapshot; on a low screen a few words of the summary join the status line."""
        read_only = self._services.is_read_only
        found = self._services.conditions.look(snapshot, now)
        words = status_line(snapshot, self._services.host, self.bar.room, found=found, read_only=read_only)
        self._show_summary(snapshot, now)
        self.bar.show(words, f"{now.astimezone():{self._services.pace.clock}}")
        self.hint.show(self._services.hint.text)
        self.notices.show(pressing(snapshot, now))

    def _show_summary(self, snapshot: Snapshot, now: datetime) -> None:
        """Show the summary in its row, or on a low screen at the end of the log's title, which has cells to spare."""
        has_room = self.summary.has_room
        self.summary.show(summary_line(snapshot, now, self.summary.room) if has_room else ())
        self._log.show_aside(() if has_room else summary_line(snapshot, now, self.summary.room // 2))
