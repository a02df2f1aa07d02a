"""A console's screen, which is opened again when it fails; the scheduler behind it goes on meanwhile."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from pathlib import Path

from gputui.cli.painted import PaintedConsole
from gputui.domain.errors import GputuiError
from gputui.engine.faults import Count, in_words
from gputui.tui.happenings import Happening
from gputui.tui.leave import Leave
from gputui.tui.steady import hung_up

log = logging.getLogger(__name__)

MOST = 3
"""Times that the screen is opened again within a minute."""
ENDS_WITHIN = 3.0
"""Seconds that a screen which failed may take to end by itself."""
WISHES_WITHIN = 5.0
"""Seconds for which wishes under way are waited for when the screen is not opened again."""


class ScreenFailedError(GputuiError):
    """The screen fails again and again, by `fault` the last time."""

    def __init__(self, fault: BaseException, times: int, path: Path) -> None:
        how_often = f"failed {times} times within a minute, the last time by" if times > 1 else "failed:"
        super().__init__(f"the screen {how_often} {in_words(fault)}", hint=f"{path} tells more")
        self.fault = fault


class Reopening:
    """One screen after the other, until one is left as it should be."""

    def __init__(self, make: Callable[[], PaintedConsole], log_path: Path) -> None:
        self.painted = asyncio.Event()
        """The first frame was on the terminal, or there is none to wait for."""
        self._make = make
        self._log_path = log_path
        self._app: PaintedConsole | None = None
        self._asked: tuple[Leave, int] | None = None
        """How to leave and with which code, once that is asked from outside."""

    def leave(self, how: Leave, code: int) -> None:
        """Have it end that way soon, whichever is shown."""
        self._asked = how, code
        if self._app is not None:
            self._app.exit(how, return_code=code)

    async def run(self) -> tuple[Leave | None, int]:
        """Show it until it is left; how, and the exit code. Raises ScreenFailedError where it fails too often."""
        faults, news = Count(MOST), ""
        while self._asked is None:
            fault = await self._show(news)
            if fault is None:
                break
            self.painted.set()  # what is behind it need not wait for the next one
            await self._after(fault, faults)
            news = f"The screen failed, and was opened again: {in_words(fault)}. The log tells more: {self._log_path}"
            del fault  # its traceback holds the whole screen
        if self._asked is not None:
            return self._asked
        assert self._app is not None
        return self._app.return_value, self._app.return_code or 0

    async def _show(self, news: str) -> BaseException | None:
        """Show one to its end; what it failed by."""
        told = self._let_go()
        try:
            app = self._make()
        except Exception as error:  # a border: whatever of it cannot be made
            log.exception("the screen cannot be made")
            return error
        self._app = app
        app.painted, app.news = self.painted, news
        app.notifier.log.extend(told)
        await to_its_end(app)
        return app.fault if app.has_failed else None

    async def _after(self, fault: BaseException, faults: Count) -> None:
        """Clear away what failed. Raises ScreenFailedError where it is not to be opened again."""
        app = self._app
        if app is not None and app.has_hung_up:
            hung_up()
            await asyncio.Event().wait()  # for the end, which that brings
        may = faults.add(time.monotonic()) and (app is None or app.is_on_terminal)
        if app is not None:
            await asyncio.to_thread(app.wishes.finish, 0 if may else WISHES_WITHIN)
        if not may:
            raise ScreenFailedError(fault, len(faults), self._log_path)

    def _let_go(self) -> list[Happening]:
        """Have nothing left of the one before but what it told."""
        app, self._app = self._app, None
        if app is None:
            return []
        told = list(app.notifier.log)
        del app
        gc.unfreeze()  # it was taken for something that stays
        gc.collect()
        return told


async def to_its_end(app: PaintedConsole) -> None:
    """Run it, in a context of its own, and past its end one that has failed and does not come to it."""
    running, failing = asyncio.create_task(app.run_async()), asyncio.create_task(app.failing.wait())
    await asyncio.wait({running, failing}, return_when=asyncio.FIRST_COMPLETED)
    failing.cancel()
    while not running.done():
        await asyncio.wait({running}, timeout=ENDS_WITHIN)
        if not running.done() and not app.is_away:
            running.cancel()
    error = None if running.cancelled() else running.exception()
    if error is not None:
        log.error("the screen failed as it ended", exc_info=error)
        app.fault = app.fault or error
    app.end()
