"""Lists all present conditions and past events, and goes from an alarm to what it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import Screen

from gputui.domain.conditions import FAILED, INFORMATION, Condition
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import broken, format_duration, minute, plain
from gputui.tui.commands.command import bound_to
from gputui.tui.commands.table import NOTICES
from gputui.tui.notifications import Notification
from gputui.tui.present.cells import Cell, Span, fitted, second
from gputui.tui.present.style import DIM, PLAIN, SEVERITY_MARKS, SEVERITY_STYLES, STRONG
from gputui.tui.screens.dialog import ScrollingDialog
from gputui.tui.services import Services
from gputui.tui.widgets.line_table import CellLines

if TYPE_CHECKING:
    from textual.app import App


_FIRST = 12
"""Cells of the first column: the severity."""
_WORDS = {"error": "error", "warning": "warning", "information": "news"}


class Notices(ScrollingDialog):
    """Notices with their severity as a word: current ones first, worst first; then past ones, latest first."""

    BINDINGS: ClassVar = bound_to("close", NOTICES)
    DEFAULT_CSS = """
    Notices VerticalScroll {
        width: 90%; max-width: 112; height: auto; max-height: 90%; background: $surface; border: round $primary;
        padding: 0 2; scrollbar-size-vertical: 1; scrollbar-background: $surface; scrollbar-color: $primary 40%;
    }
    """

    def __init__(self, look: Callable[[], tuple[tuple[Condition, ...], Sequence[Notification], datetime]]) -> None:
        """`look` returns the present conditions, past events, and the time."""
        super().__init__()
        self._look = look

    def compose(self) -> ComposeResult:
        with VerticalScroll() as body:
            body.border_title = "Notices"
            body.border_subtitle = self.how
            yield CellLines(id="lines")

    def on_mount(self) -> None:
        self.show_lines()

    def lines(self, room: int) -> list[Cell]:
        return notice_lines(*self._look(), room)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self.show_lines()


def notice_lines(
    found: tuple[Condition, ...], happenings: Sequence[Notification], now: datetime, room: int
) -> list[Cell]:
    """Return current conditions and past notices, in lines of `room` cells; a sentence where there are none."""
    lines: list[Cell] = [_row(("Now", STRONG), "worst first" if found else "No error and no warning.", DIM)]
    for condition in found:
        lines += _broken(condition.severity, ((plain(condition.text, 2000), PLAIN),), room)
        told = "since before this console was opened"
        if condition.since is not None:
            age = format_duration(max(now - condition.since, timedelta(0)))
            told = f"{'seen ' if condition.is_seen else ''}since {minute(condition.since, now)} ({age})"
        told += f" · {plain(condition.todo, 300)}" if condition.todo else ""
        lines += [_row(("", PLAIN), line, DIM) for line in broken(told, max(10, room - _FIRST))]
    lines += [(), _row(("Before", STRONG), "while this console was open" if happenings else "Nothing yet.", DIM)]
    for happening in reversed(happenings):
        at: Span = (f"{second(happening.at, now)}  ", DIM)
        lines += _broken(happening.severity, (at, (plain(happening.text, 1000), PLAIN)), room)
    return lines


def _row(first: Span, words: str, style: Style) -> Cell:
    return (*fitted((first,), _FIRST), (words, style))


def _broken(severity: str, spans: Sequence[Span], room: int) -> Iterator[Cell]:
    """Return a notice's lines: the first with its severity, the others indented."""
    *before, (text, style) = spans
    first, *rest = broken("".join(words for words, _ in before) + text, max(10, room - _FIRST))
    begun = sum(len(words) for words, _ in before)
    word = SEVERITY_MARKS.get(severity, "") + _WORDS.get(severity, severity)
    word_style = SEVERITY_STYLES.get(severity, PLAIN)
    yield (*fitted(((word, word_style),), _FIRST), *before, (first[begun:], style))
    for line in rest:
        yield _row(("", PLAIN), line, style)


Place = tuple[str, str]


def place_of(condition: Condition, snapshot: Snapshot) -> Place | None:
    """Return the kind and id of what it is about; None for a condition that is no alarm, or about no page."""
    if condition.severity == INFORMATION:
        return None
    if condition.place[0]:
        return condition.place
    if condition.kind == FAILED and condition.subject.isdigit():
        return "job", condition.subject
    return ("gpu", condition.subject) if any(v.gpu.uuid == condition.subject for v in snapshot.gpus) else None


class AlarmPages:
    """The pages of the alarms, one after the other."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._page: Screen[None] | None = None
        self._last: Place | None = None

    def open_next(
        self, app: App[Any], snapshot: Snapshot, found: Sequence[Condition], follow: Callable[[JobId], None]
    ) -> bool:
        """Open the page of the worst alarm; on such a page, that of the next one. Return whether there is any."""
        known = (place_of(condition, snapshot) for condition in found)
        places = list(dict.fromkeys(place for place in known if place is not None))
        if not places:
            return False
        is_on_page = self._page is not None and app.screen is self._page
        after = places.index(self._last) + 1 if is_on_page and self._last in places else 0
        kind, name = self._last = places[after % len(places)]
        page: Screen[None]
        if kind == "job":
            from gputui.tui.screens.detail import Detail

            page = Detail(self._services, snapshot, int(name), follow)
        elif kind == "gpu":
            from gputui.tui.screens.gpu import GpuDetailScreen

            page = GpuDetailScreen(self._services, snapshot, name, follow)
        else:
            from gputui.tui.screens.gpu_processes import GpuProcessesScreen

            page = GpuProcessesScreen(self._services, snapshot, follow, at=name)
        if is_on_page:
            app.switch_screen(page)
        else:
            app.push_screen(page)
        self._page = page
        return True
