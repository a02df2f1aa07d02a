"""Shows how far long work is, over whatever screen there is, and gives it up."""

from __future__ import annotations

import contextlib
from typing import Any

from textual.app import App
from textual.css.query import NoMatches
from textual.timer import Timer

from gputui.tui.widgets.work_line import WorkLine
from gputui.tui.work import Work

LONG = 1.0
"""Seconds after which it is shown."""


class Works:
    """The work under way; one at a time is shown, that which began first."""

    def __init__(self, app: App[Any], every: float) -> None:
        self._app = app
        self._every = every
        self._works: list[Work] = []
        self._timer: Timer | None = None
        self._line: WorkLine | None = None

    def watch(self, work: Work) -> None:
        """Show it when it takes long."""
        self._works.append(work)
        if self._timer is None:
            self._timer = self._app.set_interval(self._every, self.look)

    @property
    def shown(self) -> Work | None:
        """What is shown now."""
        return self._line.work if self._line is not None else None

    @property
    def is_watching(self) -> bool:
        """Whether it looks now and then: not where nothing is under way."""
        return self._timer is not None

    def look(self) -> None:
        """Show how far it is by now, or that there is none."""
        self._works = [work for work in self._works if not work.is_over]
        if not self._works and self._timer is not None:
            self._timer.stop()
            self._timer = None
        self._show(next((work for work in self._works if work.took >= LONG), None))

    def give_up(self) -> None:
        """Have what is shown end."""
        if self._line is not None:
            self._line.work.give_up()
            self._line.tell()

    def _show(self, work: Work | None) -> None:
        line = self._line
        if line is not None and (line.work is not work or line.parent is not self._app.screen):
            self._line = None
            with contextlib.suppress(NoMatches):
                line.remove()
        if work is not None and self._line is None:
            self._line = WorkLine(work)
            self._app.screen.mount(self._line)
        elif self._line is not None:
            self._line.tell()
