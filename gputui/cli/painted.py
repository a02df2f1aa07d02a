"""The screen of a console: tells when it is painted, ends by itself when something in it fails, and knows why."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from typing import TYPE_CHECKING

from textual.worker import WorkerFailed

from gputui.domain.text import plain
from gputui.tui.app import Gputui
from gputui.tui.opened import drawn_on, taking_over
from gputui.tui.opening import Opening
from gputui.tui.screens.main import Main
from gputui.tui.steady import SteadyDriver, is_there, steady

if TYPE_CHECKING:
    from textual.driver import Driver

    from gputui.domain.snapshot import Snapshot

log = logging.getLogger(__name__)

STAYS = 3600.0
"""Seconds for which it is told that the screen failed: mostly nobody looks as it does."""


class PaintedConsole(Gputui):
    """The console's screen, which tells when its first frame is on the terminal, and keeps it for the next time."""

    painted: asyncio.Event
    news = ""
    """What went wrong before it was opened, to be told once."""
    fault: BaseException | None = None
    """What it ends by."""
    _opening: Opening | None = None

    def get_driver_class(self) -> type[Driver]:
        """Return one that never waits for the terminal, so that the console hears signals meanwhile."""
        return steady(super().get_driver_class())

    def take_over(self, opening: Opening) -> None:
        """Go on from where that left the terminal."""
        self._opening = opening
        self.driver_class = taking_over(opening) or self.driver_class

    @property
    def has_failed(self) -> bool:
        """Whether it ended by a fault, and not because it was left."""
        return self.fault is not None and self.return_value is None

    @property
    def failing(self) -> asyncio.Event:
        """Set once something in it has failed."""
        return self._exception_event

    @property
    def is_on_terminal(self) -> bool:
        """Whether it is on a terminal, and not in a browser or a test."""
        return issubclass(self.driver_class, SteadyDriver)

    @property
    def has_hung_up(self) -> bool:
        """Whether its terminal is there no more."""
        return self.is_on_terminal and sys.__stdin__ is not None and not is_there(sys.__stdin__.fileno())

    def on_ready(self) -> None:
        """Textual calls this after the first frame. What is there by now stays: collections need not walk it."""
        gc.freeze()
        gc.enable()
        self.painted.set()
        if self.news:
            self.notifier.note("error", self.news)
            self.notify(plain(self.news, 400), severity="error", markup=False, timeout=STAYS)

    def end(self) -> None:
        """Hold on to nothing: one that failed may have ended before it let go by itself."""
        self._unsubscribe()
        if self._driver is not None:
            self._driver.close()

    def _show(self, snapshot: Snapshot) -> None:
        opening, self._opening = self._opening, None
        if opening is not None and tuple(self.size) == tuple(opening.size) and isinstance(self.screen, Main):
            picture = drawn_on(self, self.screen.time)
            if picture is not None:
                asyncio.get_running_loop().run_in_executor(None, opening.keep, picture, self.pacer.pace.clock)
        super()._show(snapshot)

    def _handle_exception(self, error: Exception) -> None:
        """End, and keep why; a test notices if Textual stops calling this.

        Textual would draw a traceback on the terminal, where it would be lost, and in it what all variables hold.
        """
        cause = error.error if isinstance(error, WorkerFailed) else error
        words = "the screen failed" if self.fault is None else "what was left of the screen failed too"
        log.error(words, exc_info=cause)
        self._exception = error
        self.failing.set()
        self._return_code = 1
        self.fault = self.fault or cause
        self._close_messages_no_wait()
