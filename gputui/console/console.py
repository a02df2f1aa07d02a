"""The console: the screen, and a thread behind it that schedules when no other process does."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace
from textual.worker import WorkerFailed

from gputui import bootstrap
from gputui.bootstrap import hosting
from gputui.bootstrap.backend import open_console_backend
from gputui.bootstrap.servers import ServersWatch, open_servers
from gputui.config import Options, user_directory
from gputui.console import own_log, serving, startup
from gputui.domain.conditions import keyed
from gputui.domain.errors import GputuiError
from gputui.domain.snapshot import Notice, Snapshot
from gputui.domain.text import plain
from gputui.engine.feed import Feed
from gputui.engine.leadership import current_leader
from gputui.engine.loop import FaultCount, collect_frozen
from gputui.ports.backend import Backend
from gputui.threads import describe_fault, fault_words
from gputui.tui.actions import ExitChoice
from gputui.tui.app import PAGES, Gputui
from gputui.tui.notifications import Notification
from gputui.tui.preferences import Preferences
from gputui.tui.services import Hint, Services
from gputui.tui.terminal import hang_up, has_terminal
from gputui.tui.textual_internals import NonblockingDriver, nonblocking
from gputui.tui.themes import appearance_of

if TYPE_CHECKING:
    from textual.driver import Driver

    from gputui.bootstrap.door import MakeCommands
    from gputui.console.startup import EarlyProbe
    from gputui.domain.gpu_history import TakenStep
    from gputui.domain.settings import ServerSettings
    from gputui.engine.actions.foreign_use import ForeignUse

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


class ScreenSupervisor(Struct, eq=False):
    """Opens screens one after the other until one is closed without an error."""

    _make: Callable[[], ConsoleApp]
    _log_path: Path
    painted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the first frame is on the terminal, or will never be."""
    _app: ConsoleApp | None = None
    _asked: tuple[ExitChoice, int] | None = None
    """Exit choice and exit code requested from outside."""

    def leave(self, how: ExitChoice, code: int) -> None:
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
            app = self._app
            if app is not None and app.has_hung_up:
                hang_up()
                await asyncio.Event().wait()  # until the cancellation that follows
            may = faults.add(time.monotonic()) and (app is None or app.is_on_terminal)
            if app is not None:
                await asyncio.to_thread(app.actions.finish, 0 if may else ACTIONS_WITHIN)
            if not may:
                raise ScreenFailedError(fault, len(faults), self._log_path)
            what = describe_fault(fault)
            news = f"The screen failed and was opened again: {what}. See the log: {self._log_path}"
            del app, fault  # its traceback holds the whole screen
        if self._asked is not None:
            return self._asked
        assert self._app is not None
        return self._app.return_value, self._app.return_code or 0

    async def _show(self, news: str) -> BaseException | None:
        """Run one screen to its end; return its error, None if the user left it."""
        earlier = self._let_go()
        try:
            app = self._make()
        except Exception as error:  # a border: any part of it may fail
            log.exception("the screen cannot be created")
            return error
        self._app = app
        app.painted, app.news = self.painted, news
        app.notifier.log.extend(earlier)
        await to_its_end(app)
        return app.fault if app.has_failed else None

    def _let_go(self) -> list[Notification]:
        app, self._app = self._app, None
        if app is None:
            return []
        earlier = list(app.notifier.log)
        del app
        gc.unfreeze()  # it was frozen as if it were to stay
        gc.collect()
        return earlier


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


AGAIN_AFTER = 1.0
"""Seconds before a scheduler host that failed or could not be created is tried again."""


class BackgroundScheduler(Struct, eq=False):
    """Thread that supplies the feed, and schedules if no other process does. Only `end` blocks."""

    _make_host: Callable[[], hosting.Behind]
    _feed: Feed
    prepare: Callable[[], object] = lambda: None
    """First call of the thread."""
    refuse: Callable[[Exception], object] = lambda error: None
    """Gets the error that `prepare` raised; nothing is scheduled then."""
    _stopped: threading.Event = field(default_factory=threading.Event)
    _host: hosting.Behind | None = None
    _thread: Thread | None = None

    @property
    def leads(self) -> bool:
        return self._host is not None and self._host.leads

    def want_pcie(self, uuid: str | None) -> None:
        if self._host is not None:
            self._host.want_pcie(uuid)

    def begin(self) -> None:
        """Start the thread; if the system allows no more threads, publish a notice that says so."""
        self._thread = Thread(target=self._run, name="scheduler", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            log.exception("the scheduler's thread cannot be started")
            self._feed.publish(picture_of(error, self._feed.latest))

    def stop(self) -> None:
        self._stopped.set()
        if self._host is not None:
            self._host.stop()

    def end(self, timeout: float) -> bool:
        """Wait for the thread's end; return whether it came within `timeout` seconds."""
        if self._thread is None or self._thread.ident is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.prepare()
        except Exception as error:  # noqa: BLE001 - the border of the thread: the console ends by this error
            self.refuse(error)
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


class LockWaitNotice(Struct, eq=False):
    show: Callable[[str], object] = lambda _: None

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
            for line in "".join(traceback.format_exception(error.fault)).splitlines():
                print(plain(line), file=sys.stderr)
            raise
        finally:
            self._tidy_up()

    async def _run(self) -> int:
        screens = self._screens
        hung_up = asyncio.Event()
        self._loop = loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, hung_up.set)
        # SIGTERM ends as a hang-up does, but restores the terminal
        how_ended = ExitChoice.HAND_OVER if hands_over(self._options) else ExitChoice.STOP
        loop.add_signal_handler(signal.SIGTERM, screens.leave, how_ended, 128 + signal.SIGTERM)
        screen = asyncio.create_task(screens.run())
        beginning = asyncio.create_task(self._begin_behind(screens.painted))
        hang_up = asyncio.create_task(hung_up.wait())
        await asyncio.wait({screen, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        beginning.cancel()
        if hung_up.is_set():  # end without writing to the screen, whose driver would wait for the lost terminal
            await self._let_go(hand_over=hands_over(self._options) and self._behind.leads)
            self._tidy_up()
            self._backend.close()
            os._exit(128 + signal.SIGHUP)
        hang_up.cancel()
        try:
            how, code = await screen
        except ScreenFailedError as error:
            # hand over after the screen has failed for good, and add to the error whether jobs still start
            may = self._may_lead and bootstrap.may_schedule(self._options, is_console=True)
            would_lead = self._behind.leads or (may and current_leader(self._options.state) is None)
            if would_lead:
                goes_on = "jobs start as before, by a background scheduler"
                waits = "no job starts until gputui serve runs"
                error.hint = f"{goes_on if hands_over(self._options) else waits}; {error.hint}"
            await self._let_go(hand_over=would_lead and hands_over(self._options))
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
            templates=user_directory("XDG_CONFIG_HOME", "~/.config") / "gputui/templates",
            foreign=self._foreign,
            want_pcie=self._behind.want_pcie,
            gpu_past=self._gpu_past,
            hint=Hint(hint),
        )
        app = ConsoleApp(self._feed, services, appearance_of(console, os.environ))
        if self._waiting is not None:
            self._waiting.show = app.tell_wait
        return app

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

    async def _let_go(self, *, hand_over: bool) -> None:
        if hand_over:
            serving.hand_over(self._options)
        self._behind.stop()
        if not await asyncio.to_thread(self._behind.end, LET_GO_WITHIN):
            log.warning("the scheduler does not stop in time, and ends with the process")


def hands_over(options: Options) -> bool:
    """Return whether scheduling continues in the background when the user cannot be asked."""
    return options.settings.scheduler.hand_over != "never"


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
    if servers:  # it keeps no queue and never schedules
        directory = startup.directory()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        own_log.log_to_file(directory, options.settings.log.format)
        with closing(open_servers(servers)) as queues:
            watch, own = partial(ServersWatch, queues), replace(options, state=directory)
            return Console(own, queues, watch, preferences=preferences, hint="").run()
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
            host=partial(
                hosting.make_host,
                started=probe.take if probe else lambda: None,
                hand_over=partial(serving.hand_over, here) if hands_over(here) else None,
                commands=commands,
            ),
            open_monitor=partial(serving.monitor_opener, here),
            duties=partial(serving.duties, here),
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
            prepare=partial(hosting.store_of, backend),
        ).run()
