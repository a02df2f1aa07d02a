"""The screen of a console, and its supervisor: reopens it when it fails, while the scheduler's thread continues."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from textual.worker import WorkerFailed

from gputui.domain.errors import GputuiError
from gputui.engine.process.loop import FaultCount
from gputui.engine.process.memory_tuning import collect_frozen
from gputui.threads import describe_fault
from gputui.tui.actions import ExitChoice
from gputui.tui.app import Gputui
from gputui.tui.notifications import Notification
from gputui.tui.terminal import hang_up, has_terminal
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
        return self.fault is not None and self.return_value is None

    @property
    def is_on_terminal(self) -> bool:
        """Return whether the app runs on a terminal, not in a browser or a test."""
        return issubclass(self.driver_class, NonblockingDriver)

    @property
    def has_hung_up(self) -> bool:
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


MOST = 3
"""Maximum number of times that a screen is reopened within a minute."""
ENDS_WITHIN = 3.0
"""Seconds for a failed screen to end by itself."""
ACTIONS_WITHIN = 5.0
"""Seconds to wait for pending changes when the screen is not reopened."""


class ScreenFailedError(GputuiError):
    """Raised when the screen keeps failing; `fault` is the last error."""

    def __init__(self, fault: BaseException, times: int, path: Path) -> None:
        how_often = f"failed {times} times within a minute, the last time by" if times > 1 else "failed:"
        super().__init__(f"the screen {how_often} {describe_fault(fault)}", hint=f"{path} tells more")
        self.fault = fault


class ScreenSupervisor:
    """Opens screens one after the other until one is closed without an error."""

    def __init__(self, make: Callable[[], ConsoleApp], log_path: Path) -> None:
        self.painted = asyncio.Event()
        """Set when the first frame is on the terminal, or will never be."""
        self._make = make
        self._log_path = log_path
        self._app: ConsoleApp | None = None
        self._asked: tuple[ExitChoice, int] | None = None
        """Exit choice and exit code requested from outside."""

    def leave(self, how: ExitChoice, code: int) -> None:
        """Ask the current screen to end this way, without waiting."""
        self._asked = how, code
        if self._app is not None:
            self._app.exit(how, return_code=code)

    async def run(self) -> tuple[ExitChoice | None, int]:
        """Show screens until one is left; return how it was left, and the exit code. Raises ScreenFailedError."""
        faults, news = FaultCount(MOST), ""
        while self._asked is None:
            fault = await self._show(news)
            if fault is None:
                break
            self.painted.set()  # the scheduler behind it need not wait for the next screen
            await self._after(fault, faults)
            what = describe_fault(fault)
            news = f"The screen failed and was opened again: {what}. See the log: {self._log_path}"
            del fault  # its traceback holds the whole screen
        if self._asked is not None:
            return self._asked
        assert self._app is not None
        return self._app.return_value, self._app.return_code or 0

    async def _show(self, news: str) -> BaseException | None:
        """Run one screen to its end; return its error, None if the user left it."""
        told = self._let_go()
        try:
            app = self._make()
        except Exception as error:  # a border: any part of it may fail
            log.exception("the screen cannot be created")
            return error
        self._app = app
        app.painted, app.news = self.painted, news
        app.notifier.log.extend(told)
        await to_its_end(app)
        return app.fault if app.has_failed else None

    async def _after(self, fault: BaseException, faults: FaultCount) -> None:
        """Clean up after a failure. Raises ScreenFailedError if the screen must not be reopened."""
        app = self._app
        if app is not None and app.has_hung_up:
            hang_up()
            await asyncio.Event().wait()  # until the cancellation that follows
        may = faults.add(time.monotonic()) and (app is None or app.is_on_terminal)
        if app is not None:
            await asyncio.to_thread(app.actions.finish, 0 if may else ACTIONS_WITHIN)
        if not may:
            raise ScreenFailedError(fault, len(faults), self._log_path)

    def _let_go(self) -> list[Notification]:
        """Free the previous screen, and return its notifications."""
        app, self._app = self._app, None
        if app is None:
            return []
        told = list(app.notifier.log)
        del app
        gc.unfreeze()  # it was frozen as if it were to stay
        gc.collect()
        return told


async def to_its_end(app: ConsoleApp) -> None:
    """Run the app in a task of its own; cancel it if it has failed and does not end by itself."""
    running, failing = asyncio.create_task(app.run_async()), asyncio.create_task(app.failing.wait())
    await asyncio.wait({running, failing}, return_when=asyncio.FIRST_COMPLETED)
    failing.cancel()
    while not running.done():
        await asyncio.wait({running}, timeout=ENDS_WITHIN)
        if not running.done() and not app.terminal.is_away:
            running.cancel()
    error = None if running.cancelled() else running.exception()
    if error is not None:
        log.error("the screen failed as it ended", exc_info=error)
        app.fault = app.fault or error
    app.end()
