"""The console: the screen, and behind it the scheduler when nobody else is one."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

from gputui import bootstrap
from gputui.cli import serving
from gputui.cli.behind import Behind
from gputui.cli.first import EarlyProbe
from gputui.cli.painted import PaintedConsole
from gputui.cli.reopening import Reopening, ScreenFailedError
from gputui.config import Options, templates_path
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
WANTED_WITHIN = 10.0
"""Seconds for which a probe that was begun early is kept for the scheduler."""
LET_GO_WITHIN = 12.0
"""Seconds for which the screen's process waits for its scheduler to let go before it ends anyway."""


class Waiting:
    """Tells of waits for the queue's lock in the log, and on the screen that is open."""

    def __init__(self) -> None:
        self.show: Callable[[str], object] = lambda _: None

    def __call__(self, sentence: str) -> None:
        """Tell, from any thread."""
        log.warning("%s", sentence)
        self.show(sentence)


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
        waiting: Waiting | None = None,
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
        self._waiting = waiting
        self._feed = Feed()
        self._behind = Behind(self._make_host, self._feed)

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
        screens = Reopening(self._app, serving.log_path(self._options.state))
        hung_up = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, hung_up.set)
        loop.add_signal_handler(signal.SIGTERM, self._terminate, screens)
        screen = asyncio.create_task(screens.run())
        beginning = asyncio.create_task(self._begin_behind(screens.painted))
        hang_up = asyncio.create_task(hung_up.wait())
        await asyncio.wait({screen, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        beginning.cancel()
        if hung_up.is_set():
            return await self._hang_up()
        hang_up.cancel()
        try:
            how, code = await screen
        except ScreenFailedError as error:
            await self._give_up(error)
            raise
        await self._let_go(hand_over=how is Leave.HAND_OVER and self._behind.leads)
        return code

    def _app(self) -> PaintedConsole:
        app = PaintedConsole(
            self._feed,
            bootstrap.actions(self._store, self._options),
            bootstrap.open_logs(self._options, self._store),
            self._options.settings,
            clock=bootstrap.clock(),
            host=socket.gethostname(),
            user=bootstrap.actor().user,
            remembered=self._remembered,
            inside=bootstrap.open_inside(self._options, self._store),
            look=wish_of(self._options.settings.console, os.environ),
            want_pcie=self._behind.want_pcie,
            past=self._store.history,
            gpu_past=partial(bootstrap.gpu_past, self._options),
            forms=FormSources(lambda: bootstrap.local_images(self._options), templates_path()),
        )
        if self._waiting is not None:
            self._waiting.show = app.tell_wait
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
    def _would_lead(self) -> bool:
        """Whether the scheduler is here, or would be: nobody is one, and this console was about to be."""
        may = self._may_lead and not self._options.settings.console.read_only
        return self._behind.leads or (may and current_leader(self._options.state) is None)

    async def _begin_behind(self, painted: asyncio.Event) -> None:
        """Begin only when the first frame is painted: importing and connecting would delay it."""
        await painted.wait()
        if self._probe is not None:  # another may have begun to schedule since
            asyncio.get_running_loop().call_later(WANTED_WITHIN, Thread(target=self._probe.close, daemon=True).start)
        self._behind.begin()

    def _make_host(self) -> Host:
        started = self._probe.take if self._probe is not None else lambda: None
        hand_over = partial(serving.hand_over, self._options) if self._hands_over else None
        return bootstrap.make_host(
            self._options,
            self._store,
            self._feed,
            "console",
            may_lead=self._may_lead,
            started=started,
            hand_over=hand_over,
        )

    async def _hang_up(self) -> int:
        """The terminal is gone: hand over if we schedule, and end without another word to the screen."""
        await self._let_go(hand_over=self._hands_over and self._behind.leads)
        self._tidy_up()
        self._store.close()
        os._exit(128 + signal.SIGHUP)  # the screen's driver would wait for a terminal that will not answer

    async def _give_up(self, error: ScreenFailedError) -> None:
        """There will be no screen, but jobs are to start as before; say what becomes of that."""
        would_lead = self._would_lead
        if would_lead:
            goes_on = "jobs start as before, by a background scheduler"
            error.hint = f"{goes_on if self._hands_over else 'no job starts until gputui serve runs'}; {error.hint}"
        await self._let_go(hand_over=would_lead and self._hands_over)

    async def _let_go(self, *, hand_over: bool) -> None:
        if hand_over:
            serving.hand_over(self._options)
        self._behind.stop()
        if not await asyncio.to_thread(self._behind.end, LET_GO_WITHIN):
            log.warning("the scheduler does not let go, and ends with the process")


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
    waiting = Waiting()
    store = bootstrap.open_store(options, waiting)
    try:
        serving.log_to_file(options.state)
        there = Console(
            options, store, remembered=remembered, may_lead=may_lead, opening=opening, probe=probe, waiting=waiting
        )
        return there.run()
    finally:
        store.close()
