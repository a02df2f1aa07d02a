"""All that is wrong or odd, in full, and what has happened while this console was open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.containers import VerticalScroll

from gputui.domain.snapshot import Notice
from gputui.domain.text import broken, plain
from gputui.tui.commands import NOTICES, bound_to
from gputui.tui.happenings import Happening
from gputui.tui.present.cells import Cell, Span, fitted
from gputui.tui.present.style import DIM, PLAIN, SEVERITY_STYLES, STRONG
from gputui.tui.present.times import second
from gputui.tui.screens.dialog import ScrollingDialog
from gputui.tui.widgets.cell_lines import CellLines

_FIRST = 12
"""Cells of the first column: the severity."""
_MARKS = {"error": "✗ error", "warning": "! warning", "information": "· news"}


class Notices(ScrollingDialog):
    """Each with its severity, as a word: what is so now, worst first; then what was, latest first."""

    BINDINGS: ClassVar = bound_to("close", NOTICES)
    DEFAULT_CSS = """
    Notices VerticalScroll {
        width: 90%; max-width: 112; height: auto; max-height: 90%; background: $surface; border: round $primary;
        padding: 0 2; scrollbar-size-vertical: 1; scrollbar-background: $surface; scrollbar-color: $primary 40%;
    }
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
            body.border_subtitle = self.how
            yield CellLines(id="lines")

    def on_mount(self) -> None:
        """Show them."""
        self.show_lines()

    def lines(self, room: int) -> list[Cell]:
        """Each in as many as it needs."""
        return notice_lines(self._all, self._happenings, self._now, room)


def notice_lines(notices: tuple[Notice, ...], happenings: Sequence[Happening], now: datetime, room: int) -> list[Cell]:
    """What is so, and under it what was, in lines of `room` cells; words where there is none."""
    lines: list[Cell] = [_row(("Now", STRONG), "" if notices else "No error and no warning.", DIM)]
    for notice in notices:
        lines += _broken(notice.severity, ((plain(notice.text, 2000), PLAIN),), room)
    lines += [(), _row(("Before", STRONG), "while this console was open" if happenings else "Nothing yet.", DIM)]
    for happening in reversed(happenings):
        at: Span = (f"{second(happening.at, now)}  ", DIM)
        lines += _broken(happening.severity, (at, (plain(happening.text, 1000), PLAIN)), room)
    return lines


def _row(first: Span, words: str, style: Style) -> Cell:
    return (*fitted((first,), _FIRST), (words, style))


def _broken(severity: str, spans: Sequence[Span], room: int) -> Iterator[Cell]:
    """Its first line with the severity; the last of the spans goes on below where it does not fit."""
    *before, (text, style) = spans
    first, *rest = broken("".join(words for words, _ in before) + text, max(10, room - _FIRST))
    begun = sum(len(words) for words, _ in before)
    yield (*fitted((_severity(severity),), _FIRST), *before, (first[begun:], style))
    for line in rest:
        yield _row(("", PLAIN), line, style)


def _severity(severity: str) -> Span:
    return (_MARKS.get(severity, severity), SEVERITY_STYLES.get(severity, PLAIN))
