"""All that is wrong or odd, in full, and what has happened while this console was open."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from gputui.domain.snapshot import Notice
from gputui.domain.text import plain
from gputui.tui.happenings import Happening
from gputui.tui.present.style import DIM, PLAIN, SEVERITY_STYLES, STRONG
from gputui.tui.screens.dialog import ScrollingDialog

_MARKS = {"error": "✗ error", "warning": "! warning", "information": "· news"}


class Notices(ScrollingDialog):
    """Each with its severity, as a word: what is so now, worst first; then what was, latest first."""

    BINDINGS: ClassVar = [
        ("escape,q,exclamation_mark,enter", "dismiss", "close"),
    ]
    DEFAULT_CSS = """
    Notices VerticalScroll {
        width: 90%; max-width: 112; height: auto; max-height: 90%; background: $surface; border: round $primary;
        padding: 0 2; scrollbar-size-vertical: 1; scrollbar-background: $surface; scrollbar-color: $primary 40%;
    }
    Notices Static { width: 100%; }
    """

    def __init__(self, notices: tuple[Notice, ...], happenings: Sequence[Happening] = (), *, now: datetime) -> None:
        super().__init__()
        self._all = notices
        self._happenings = happenings
        self._now = now

    def compose(self) -> ComposeResult:
        """One after the other."""
        with VerticalScroll() as body:
            body.border_title = "Notices"
            body.border_subtitle = "j k scroll   Esc close"
            yield Static(notice_table(self._all, self._happenings, self._now))


def notice_table(notices: tuple[Notice, ...], happenings: Sequence[Happening], now: datetime) -> Table:
    """What is so, and under it what was; words where there is none."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=9)
    table.add_column(overflow="fold")
    table.add_row(Text("Now", STRONG), Text("" if notices else "Nothing is wrong.", DIM))
    for notice in notices:
        table.add_row(_severity(notice.severity), Text(plain(notice.text, 2000), PLAIN))
    table.add_row("")
    table.add_row(Text("Before", STRONG), Text("while this console was open" if happenings else "Nothing yet.", DIM))
    for happening in reversed(happenings):
        text = Text.assemble((_time(happening.at, now), DIM), (f"  {plain(happening.text, 1000)}", PLAIN))
        table.add_row(_severity(happening.severity), text)
    return table


def _severity(severity: str) -> Text:
    return Text(_MARKS.get(severity, severity), SEVERITY_STYLES.get(severity, PLAIN))


def _time(at: datetime, now: datetime) -> str:
    local = at.astimezone()
    is_today = local.date() == now.astimezone().date()
    return f"{local:%H:%M:%S}" if is_today else f"{local:%d %b %H:%M}"
