"""The console: the screen, and behind it the scheduler when nobody else is one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

from gputui import bootstrap
from gputui.cli import serving
from gputui.cli.first import EarlyProbe
from gputui.cli.painted import PaintedConsole
from gputui.cli.reopening import Reopening, ScreenFailedError
from gputui.config import Options, templates_path
from gputui.domain.snapshot import Notice, Snapshot
from gputui.domain.text import plain
from gputui.engine.feed import Feed
from gputui.engine.leader import current_leader
from gputui.ports import JobStore
from gputui.tui.leave import Leave
from gputui.tui.opening import Opening
from gputui.tui.remembered import Remembered
from gputui.tui.submission.sources import FormSources
from gputui.tui.theme import wish_of

if TYPE_CHECKING:
    from gputui.engine.host import Host

log = logging.getLogger(__name__)

GIVE_WAY_AFTER = 0.001
"""Seconds after which a thread lets others run that wait: a key must not wait for a plan at each of its steps."""
AGAIN_AFTER = 1.0
"""Seconds after which what failed behind the screen is tried again."""
WANTED_WITHIN = 10.0
"""Seconds for which a probe that was begun early is kept for the scheduler."""
LET_GO_WITHIN = 12.0
"""Seconds for which the screen's process waits for its scheduler to let go before it ends anyway."""


class Console:
    """One console, from first paint to hand-over."""

    def __init__(
        self,
        options: Options,
        store: JobStore,
        tidy_up: Callable[[], None] = lambda: None,
        *,
        remembered: Remembered | None = None,
        may_lead: bool = True,
        opening: Opening | None = None,
        probe: EarlyProbe | None = None,
    ) -> None:
        self._options = options
        self._store = store
        self._tidy_up = tidy_up
        self._remembered = remembered or Remembered()
        self._may_lead = may_lead
        self._opening = opening
        self._is_opened = False
        """A screen has taken over from what was shown before it."""
        self._probe = probe
        self._host: Host | None = None

    def run(self) -> int:
        """Show it until it is quit; the exit code. Raises ScreenFailedError where that cannot be."""
        try:
            return asyncio.run(self._run())
        except ScreenFailedError as error:
            if self._opening is not None:
                self._opening.close()
            tell(error.fault)
            raise
        finally:
            self._tidy_up()

    async def _run(self) -> int:
        feed = Feed()
        screens = Reopening(partial(self._app, feed), serving.log_path(self._options.state))
        hung_up = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, hung_up.set)
        loop.add_signal_handler(signal.SIGTERM, self._terminate, screens)
        screen = asyncio.create_task(screens.run())
        scheduling = asyncio.create_task(self._behind(screens.painted, feed))
        hang_up = asyncio.create_task(hung_up.wait())
        await asyncio.wait({screen, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        if hung_up.is_set():
            return await self._hang_up(scheduling)
        hang_up.cancel()
        try:
            how, code = await screen
        except ScreenFailedError as error:
            await self._give_up(scheduling, error)
            raise
        await self._let_go(scheduling, hand_over=how is Leave.HAND_OVER and self._leads)
        return code

    def _app(self, feed: Feed) -> PaintedConsole:
        app = PaintedConsole(
            feed,
            bootstrap.actions(self._store, self._options),
            bootstrap.open_logs(self._options, self._store),
            self._options.settings,
            clock=bootstrap.clock(),
            host=socket.gethostname(),
            user=bootstrap.actor().user,
            remembered=self._remembered,
            inside=bootstrap.open_inside(self._options, self._store),
            look=wish_of(self._options.settings.console, os.environ),
            want_pcie=self._want_pcie,
            past=self._store.history,
            gpu_past=partial(bootstrap.gpu_past, self._options),
            forms=FormSources(lambda: bootstrap.local_images(self._options), templates_path()),
        )
        if self._opening is not None and not self._is_opened:
            app.take_over(self._opening)
        self._is_opened = True
        return app

    def _terminate(self, screens: Reopening) -> None:
        """Somebody wants it ended: as on hang-up, but the terminal is there and is left as it was."""
        screens.leave(Leave.HAND_OVER if self._hands_over else Leave.STOP, 128 + signal.SIGTERM)

    @property
    def _hands_over(self) -> bool:
        """Whether dispatch goes on when nobody can be asked."""
        return self._options.settings.scheduler.hand_over != "never"

    @property
    def _leads(self) -> bool:
        return self._host is not None and self._host.leads

    @property
    def _would_lead(self) -> bool:
        """Whether the scheduler is here, or would be: nobody is one, and this console was about to be."""
        may = self._may_lead and not self._options.settings.console.read_only
        return self._leads or (may and current_leader(self._options.state) is None)

    def _want_pcie(self, uuid: str | None) -> None:
        """Pass on which GPU somebody looks at."""
        if self._host is not None:
            self._host.want_pcie(uuid)

    async def _behind(self, painted: asyncio.Event, feed: Feed) -> None:
        """Begin only when the first frame is painted: importing and connecting would delay it."""
        await painted.wait()
        if self._probe is not None:  # another may have begun to schedule since
            asyncio.get_running_loop().call_later(WANTED_WITHIN, Thread(target=self._probe.close, daemon=True).start)
        while True:
            try:
                if self._host is None:
                    self._host = await asyncio.to_thread(self._make_host, feed)
                return await self._host.run()
            except Exception as error:  # a border: the screen would go on showing the last picture as if it were new
                log.exception("scheduling failed")
                feed.publish(picture_of(error, feed.latest))
                await asyncio.sleep(AGAIN_AFTER)

    def _make_host(self, feed: Feed) -> Host:
        started = self._probe.take if self._probe is not None else lambda: None
        return bootstrap.make_host(
            self._options, self._store, feed, "console", may_lead=self._may_lead, started=started
        )

    async def _hang_up(self, scheduling: asyncio.Task[None]) -> int:
        """The terminal is gone: hand over if we schedule, and end without another word to the screen."""
        await self._let_go(scheduling, hand_over=self._hands_over and self._leads)
        self._tidy_up()
        self._store.close()
        os._exit(128 + signal.SIGHUP)  # the screen's driver would wait for a terminal that will not answer

    async def _give_up(self, scheduling: asyncio.Task[None], error: ScreenFailedError) -> None:
        """There will be no screen, but jobs are to start as before; say what becomes of that."""
        would_lead = self._would_lead
        if would_lead:
            goes_on = "jobs start as before, by a background scheduler"
            error.hint = f"{goes_on if self._hands_over else 'no job starts until gputui serve runs'}; {error.hint}"
        await self._let_go(scheduling, hand_over=would_lead and self._hands_over)

    async def _let_go(self, scheduling: asyncio.Task[None], *, hand_over: bool) -> None:
        if hand_over:
            serving.hand_over(self._options)
        if self._host is None:
            scheduling.cancel()
        else:
            self._host.stop()
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(scheduling, LET_GO_WITHIN)


def picture_of(error: Exception, latest: Snapshot) -> Snapshot:
    """The last picture, which says that nothing is scheduled here and why."""
    words = f"scheduling here failed, and is tried again: {type(error).__name__}: {error}"
    return replace(latest, leader=None, leads_here=False, notices=(Notice("error", words),))


def tell(fault: BaseException) -> None:
    """Print the traceback, without anything a terminal would act on."""
    for line in "".join(traceback.format_exception(fault)).splitlines():
        print(plain(line), file=sys.stderr)


def run(
    options: Options,
    *,
    may_lead: bool = True,
    remembered: Remembered | None = None,
    opening: Opening | None = None,
    probe: EarlyProbe | None = None,
) -> int:
    """Open the console on a state directory."""
    sys.setswitchinterval(GIVE_WAY_AFTER)
    store = bootstrap.open_store(options)
    try:
        serving.log_to_file(options.state)
        there = Console(options, store, remembered=remembered, may_lead=may_lead, opening=opening, probe=probe)
        return there.run()
    finally:
        store.close()
