"""The console: the screen, and a thread behind it that schedules when no other process does."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import hosting
from gputui.bootstrap.backend import open_console_backend
from gputui.bootstrap.servers import ServersWatch, open_servers
from gputui.config import Options, templates_path
from gputui.console import own_log, serving, startup
from gputui.console.supervisor import ConsoleApp, ScreenFailedError, ScreenSupervisor
from gputui.domain.conditions import keyed
from gputui.domain.snapshot import Notice, Snapshot
from gputui.domain.text import plain
from gputui.engine.feed import Feed
from gputui.engine.files.leadership import current_leader
from gputui.ports.backend import Backend
from gputui.threads import fault_words
from gputui.tui.actions import ExitChoice
from gputui.tui.app import PAGES
from gputui.tui.preferences import Preferences
from gputui.tui.services import Hint, Services
from gputui.tui.themes import appearance_of

if TYPE_CHECKING:
    from gputui.bootstrap.door import MakeCommands
    from gputui.console.startup import EarlyProbe
    from gputui.domain.gpu_history import TakenStep
    from gputui.domain.settings import ServerSettings
    from gputui.engine.actions.foreign_use import ForeignUse


AGAIN_AFTER = 1.0
"""Seconds before a scheduler host that failed or could not be created is tried again."""


class BackgroundScheduler:
    """Thread that supplies the feed, and schedules if no other process does. Only `end` blocks."""

    def __init__(
        self,
        make_host: Callable[[], hosting.Behind],
        feed: Feed,
        *,
        prepare: Callable[[], object] = lambda: None,
        refuse: Callable[[Exception], object] = lambda error: None,
    ) -> None:
        """`prepare` is the thread's first call; if it raises, `refuse` gets the error, and nothing is scheduled."""
        self._prepare = prepare
        self._refuse = refuse
        self._make_host = make_host
        self._feed = feed
        self._stopped = threading.Event()
        self._host: hosting.Behind | None = None
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    @property
    def leads(self) -> bool:
        return self._host is not None and self._host.leads

    def want_pcie(self, uuid: str | None) -> None:
        if self._host is not None:
            self._host.want_pcie(uuid)

    def begin(self) -> None:
        """Start the thread; if the system allows no more threads, publish a notice that says so."""
        try:
            self._thread.start()
        except RuntimeError as error:
            log.exception("the scheduler's thread cannot be started")
            self._feed.publish(picture_of(error, self._feed.latest))

    def stop(self) -> None:
        """Ask the scheduler to stop, without waiting."""
        self._stopped.set()
        if self._host is not None:
            self._host.stop()

    def end(self, timeout: float) -> bool:
        """Wait for the thread's end; return whether it came within `timeout` seconds."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._prepare()
        except Exception as error:  # noqa: BLE001 - the border of the thread: the console ends by this error
            self._refuse(error)
            return
        while not self._stopped.is_set():
            try:
                self._host = self._host or self._make_host()
                if self._stopped.is_set():
                    return
                asyncio.run(self._host.run())
            except Exception as error:  # the border of the thread: without a notice an old snapshot would look current
                log.exception("scheduling failed")
                self._host = None
                self._feed.publish(picture_of(error, self._feed.latest))
                self._stopped.wait(AGAIN_AFTER)


def picture_of(error: Exception, latest: Snapshot) -> Snapshot:
    """Return the last snapshot, with a notice that this console does not schedule, or is out of date, and why."""
    is_ours = not (latest.servers or latest.engine_decides)
    words = "scheduling failed here" if is_ours else "this view is not kept up to date"
    notices = (Notice("error", f"{words} and will be tried again: {fault_words(error)}"),)
    return replace(latest, leader=None if is_ours else latest.leader, leads_here=False, notices=notices)


log = logging.getLogger(__name__)
FIRST_HINT = (
    f"New here? {keyed('pane_next')} changes the pane, {keyed('notices')} lists problems, "
    f"{keyed('palette')} finds a command by name"
)
GIVE_WAY_AFTER = 0.001
"""Interpreter switch interval in seconds, short so that keys need not wait for a plan on another thread."""
WANTED_WITHIN = 10.0
"""Seconds for which a GPU probe that was started early is kept for the scheduler."""
LET_GO_WITHIN = 12.0
"""Seconds to wait for the scheduler thread to stop before the process ends anyway."""


class LockWaitNotice:
    """Reports waits for the queue's lock in the log, and on the current screen."""

    def __init__(self) -> None:
        self.show: Callable[[str], object] = lambda _: None

    def __call__(self, sentence: str) -> None:
        """Report a wait; may be called from any thread."""
        log.warning("%s", sentence)
        self.show(sentence)


class Console:
    """Runs a console from its first frame to the hand-over of scheduling."""

    def __init__(
        self,
        options: Options,
        backend: Backend,
        make_behind: Callable[[Feed], hosting.Behind],
        *,
        preferences: Preferences | None = None,
        may_lead: bool = False,
        probe: EarlyProbe | None = None,
        waiting: LockWaitNotice | None = None,
        foreign: ForeignUse | None = None,
        gpu_past: Callable[[], Iterable[TakenStep]] = lambda: (),
        hint: str | None = None,
        prepare: Callable[[], object] = lambda: None,
        tidy_up: Callable[[], object] = lambda: None,
    ) -> None:
        """`make_behind` returns what publishes snapshots behind the screen, and schedules if it may lead.

        `prepare` is called there first, after the first frame; an error that it raises ends the console. `hint` is the
        line for newcomers; None: that of a user's first console.
        """
        self._options = options
        self._backend = backend
        self._may_lead = may_lead
        self._probe = probe
        self._waiting = waiting
        self._feed = Feed()
        self._open = prepare
        self._tidy_up = tidy_up
        self._screens = ScreenSupervisor(self._app, own_log.own_log_path(options.state))
        self._refusal: Exception | None = None
        make = partial(make_behind, self._feed)
        self._behind = BackgroundScheduler(make, self._feed, prepare=self._prepare, refuse=self._refuse)
        self._foreign = foreign
        self._gpu_past = gpu_past
        self._remembered = preferences or Preferences()
        self._hint = hint

    def run(self) -> int:
        """Show the console until it is quit; return the exit code. Raises ScreenFailedError after too many failures."""
        try:
            return asyncio.run(self._run())
        except ScreenFailedError as error:
            tell(error.fault)
            raise
        finally:
            self._tidy_up()

    async def _run(self) -> int:
        screens = self._screens
        hung_up = asyncio.Event()
        self._loop = loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, hung_up.set)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
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
        await self._let_go(hand_over=how is ExitChoice.HAND_OVER and self._behind.leads)
        if self._refusal is not None:
            raise self._refusal
        return code

    def _refuse(self, error: Exception) -> None:
        """End the console by this error; called in the scheduler's thread."""
        self._refusal = error
        self._loop.call_soon_threadsafe(self._screens.leave, ExitChoice.STOP, 1)

    def _app(self) -> ConsoleApp:
        console, hint = self._options.settings.console, self._hint
        if hint is None:
            hint = "" if self._remembered.get("hint") else FIRST_HINT
        services = Services(
            self._backend,
            self._options.settings,
            bootstrap.clock(),
            PAGES,
            preferences=self._remembered,
            templates=templates_path(),
            foreign=self._foreign,
            want_pcie=self._behind.want_pcie,
            gpu_past=self._gpu_past,
            hint=Hint(hint),
        )
        app = ConsoleApp(self._feed, services, appearance_of(console, os.environ))
        if self._waiting is not None:
            self._waiting.show = app.tell_wait
        return app

    def _terminate(self) -> None:
        """Handle SIGTERM: end as on hang-up, but restore the terminal."""
        how = ExitChoice.HAND_OVER if hands_over(self._options) else ExitChoice.STOP
        self._screens.leave(how, 128 + signal.SIGTERM)

    @property
    def _would_lead(self) -> bool:
        """Return whether this console schedules, or would: it may, and no other process does."""
        may = self._may_lead and bootstrap.may_schedule(self._options, is_console=True)
        return self._behind.leads or (may and current_leader(self._options.state) is None)

    async def _begin_behind(self, painted: asyncio.Event) -> None:
        """Start the scheduler thread after the first frame: imports and connections would delay that."""
        await painted.wait()
        if self._probe is not None:  # another process may schedule by now
            asyncio.get_running_loop().call_later(WANTED_WITHIN, Thread(target=self._probe.close, daemon=True).start)
        self._behind.begin()

    def _prepare(self) -> None:
        if self._probe is not None:  # first: it reads while the rest is imported and opened
            self._probe.start()
        self._open()

    async def _hang_up(self) -> int:
        """Handle a lost terminal: hand over if this console schedules, and end without writing to the screen."""
        await self._let_go(hand_over=hands_over(self._options) and self._behind.leads)
        self._tidy_up()
        self._backend.close()
        os._exit(128 + signal.SIGHUP)  # the screen's driver would wait for a terminal that will not answer

    async def _give_up(self, error: ScreenFailedError) -> None:
        """Hand over after the screen has failed for good, and add to the error whether jobs still start."""
        would_lead = self._would_lead
        if would_lead:
            goes_on, waits = "jobs start as before, by a background scheduler", "no job starts until gputui serve runs"
            error.hint = f"{goes_on if hands_over(self._options) else waits}; {error.hint}"
        await self._let_go(hand_over=would_lead and hands_over(self._options))

    async def _let_go(self, *, hand_over: bool) -> None:
        if hand_over:
            serving.hand_over(self._options)
        self._behind.stop()
        if not await asyncio.to_thread(self._behind.end, LET_GO_WITHIN):
            log.warning("the scheduler does not stop in time, and ends with the process")


def hands_over(options: Options) -> bool:
    """Return whether scheduling continues in the background when the user cannot be asked."""
    return options.settings.scheduler.hand_over != "never"


def tell(fault: BaseException) -> None:
    """Print the traceback without control characters."""
    for line in "".join(traceback.format_exception(fault)).splitlines():
        print(plain(line), file=sys.stderr)


def run(
    options: Options,
    servers: Sequence[ServerSettings] = (),
    *,
    may_lead: bool = True,
    preferences: Preferences | None = None,
    probe: EarlyProbe | None = None,
    commands: MakeCommands | None = None,
) -> int:
    """Open the console on the queue of the options, or over these servers; return the exit code."""
    sys.setswitchinterval(GIVE_WAY_AFTER)
    if servers:
        return _run_over_servers(options, servers, preferences)
    waiting = LockWaitNotice()
    with closing(open_console_backend(options, waiting)) as backend:
        about = backend.about()  # what cannot be reached at all is told before the screen is opened
        here = hosting.console_options(options, startup.directory(), about)
        own_log.log_to_file(here.state, options.settings.log.format)
        make = partial(
            hosting.make_behind,
            here,
            backend,
            may_lead=may_lead,
            started=probe.take if probe else lambda: None,
            hand_over=partial(serving.hand_over, here) if hands_over(here) else None,
            open_monitor=partial(serving.monitor_opener, here),
            duties=partial(serving.duties, here),
            commands=commands,
        )
        return Console(
            here,
            backend,
            make,
            preferences=preferences,
            may_lead=may_lead,
            probe=probe,
            waiting=waiting,
            foreign=hosting.open_foreign(here, backend),
            gpu_past=partial(bootstrap.gpu_past, here),
            prepare=partial(hosting.prepare, here, backend),
        ).run()


def _run_over_servers(options: Options, servers: Sequence[ServerSettings], preferences: Preferences | None) -> int:
    """Open the console over servers: it keeps no queue and never schedules."""
    directory = startup.directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    own_log.log_to_file(directory, options.settings.log.format)
    with closing(open_servers(servers)) as backend:
        watch = partial(ServersWatch, backend)
        return Console(replace(options, state=directory), backend, watch, preferences=preferences, hint="").run()
