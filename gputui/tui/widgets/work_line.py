"""A line over the screen that says how far long work is."""

from __future__ import annotations

import time

from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from gputui.domain.text import fit, plain, width
from gputui.tui.present.cells import Cell, fitted, segments
from gputui.tui.present.meter import bar, moving
from gputui.tui.present.style import AMBER, BLUE, DIM, PLAIN, RAISED
from gputui.tui.work import Work

_RAISED = Style(bgcolor=RAISED)
_BAR = 20
_NAMED = 40


def work_cell(work: Work, second: int) -> Cell:
    """`saving job-12.log ━━━━╸────  4,210 of 10,000 jobs   Esc gives it up`."""
    meter = moving(second, _BAR) if work.total is None else bar(work.done / max(1, work.total), _BAR, AMBER)
    count = f"{work.done:,}" + (f" of {work.total:,}" if work.total is not None else "")
    end: Cell = (("given up …", AMBER),) if work.is_given_up else (("Esc", BLUE), (" gives it up", DIM))
    return (
        (f" {fit(plain(work.words), min(_NAMED, width(work.words)))} ", PLAIN),
        *meter,
        (f" {count} {work.unit}   ", PLAIN),
        *end,
        (" ", DIM),
    )


class WorkLine(Widget):
    """On top of all else, at the upper edge."""

    DEFAULT_CSS = "WorkLine { layer: _toastrack; dock: top; height: 1; width: 100%; }"

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work
        self._shown: Cell = ()

    def on_mount(self) -> None:
        """Begin."""
        self.tell()

    def tell(self) -> None:
        """Say how far it is by now; only what changed is drawn."""
        now = work_cell(self.work, int(time.monotonic()))
        if now != self._shown:
            self._shown = now
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """The line."""
        del y
        room = self.size.width
        return Strip(segments(fitted(self._shown, room), _RAISED)).adjust_cell_length(room, _RAISED)
