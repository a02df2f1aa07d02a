"""The screen of a console: reports its first frame, ends itself on an internal error, and keeps that error."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from typing import TYPE_CHECKING

from textual.worker import WorkerFailed

from gputui.engine.process.memory_tuning import collect_frozen
from gputui.tui.app import Gputui
from gputui.tui.suspend import has_terminal
from gputui.tui.textual_internals import NonblockingDriver, nonblocking

if TYPE_CHECKING:
    from textual.driver import Driver

log = logging.getLogger(__name__)

_STARTED = 1.0
"""Seconds after the first frame until the start has no more work to do."""


class ConsoleApp(Gputui):
    """The console's app on a terminal; sets `painted` once its first frame is drawn."""

    painted: asyncio.Event
    news = ""
    """Message about an earlier failure, shown once after opening."""
    fault: BaseException | None = None
    """Error that ended the screen."""

    def get_driver_class(self) -> type[Driver]:
        """Return a driver that never blocks on the terminal, so that the console still reacts to signals."""
        return nonblocking(super().get_driver_class())

    @property
    def has_failed(self) -> bool:
        """Return whether the screen ended by an error."""
        return self.fault is not None and self.return_value is None

    @property
    def is_on_terminal(self) -> bool:
        """Return whether the app runs on a terminal, not in a browser or a test."""
        return issubclass(self.driver_class, NonblockingDriver)

    @property
    def has_hung_up(self) -> bool:
        """Return whether its terminal has gone."""
        return self.is_on_terminal and sys.__stdin__ is not None and not has_terminal(sys.__stdin__.fileno())

    def on_ready(self) -> None:
        """Called by Textual after the first frame: exempt the objects of the start from garbage collection."""
        gc.freeze()
        gc.enable()
        self.set_timer(_STARTED, collect_frozen)
        self.painted.set()
        if self.news:
            self.notify(self.news, severity="error")

    def end(self) -> None:
        """Release all resources: an app that failed may have ended before its own clean-up."""
        self._unsubscribe()
        self.close_driver()

    def fail(self, error: Exception) -> None:
        """End the app, and keep the error.

        Textual would draw a traceback with the values of all variables on the terminal, where it would be lost.
        """
        cause = error.error if isinstance(error, WorkerFailed) else error
        words = "the screen failed" if self.fault is None else "the rest of the screen failed too"
        log.error(words, exc_info=cause)
        self.fault = self.fault or cause
        self.end_by(error)
