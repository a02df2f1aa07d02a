"""The console: the screen, and a thread behind it that schedules when no other process does."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import adapters, hosting, job_access
from gputui.config import Options, templates_path
from gputui.console import own_log, serving
from gputui.console.app import ConsoleApp
from gputui.console.late import Late
from gputui.console.monitoring import monitor_opener
from gputui.console.startup import EarlyProbe
from gputui.console.supervisor import ScreenFailedError, ScreenSupervisor
from gputui.domain.keyed import keyed
from gputui.domain.snapshot import Notice, Snapshot
from gputui.domain.text import plain
from gputui.engine.feed import Feed
from gputui.engine.files.leadership import current_leader
from gputui.engine.process.loop import describe_fault
from gputui.ports import JobStore
from gputui.tui.app import PAGES
from gputui.tui.messages import ExitChoice
from gputui.tui.preferences import Preferences
from gputui.tui.services import FormSources, Hint, JobAccess, Services
from gputui.tui.themes.selection import appearance_of

if TYPE_CHECKING:
    from gputui.domain.gpu_history import TakenStep
    from gputui.engine.actions.foreign_use import ForeignUse
    from gputui.engine.process.host import Adapters


AGAIN_AFTER = 1.0
"""Seconds before a scheduler host that failed or could not be created is tried again."""


class Behind(Protocol):
    """Source of snapshots behind the screen: the host of a scheduler, or the poll of a cluster."""

    @property
    def leads(self) -> bool:
        """Whether this process schedules."""
        ...

    def want_pcie(self, uuid: str | None) -> None:
        """Request PCIe throughput of this GPU only."""
        ...

    def stop(self) -> None:
        """Ask `run` to end, without waiting."""
        ...

    async def run(self) -> None:
        """Publish snapshots until stopped."""
        ...


class BackgroundScheduler:
    """Thread that supplies the feed, and schedules if no other process does. Only `end` blocks."""

    def __init__(
        self,
        make_host: Callable[[], Behind],
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
        self._host: Behind | None = None
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    @property
    def leads(self) -> bool:
        """Return whether this process schedules."""
        return self._host is not None and self._host.leads

    def want_pcie(self, uuid: str | None) -> None:
        """Pass on which GPU the user is viewing."""
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
    """Return the last snapshot, with a notice that this console does not schedule and why."""
    words = f"scheduling failed here and will be tried again: {describe_fault(error)}"
    return replace(latest, leader=None, leads_here=False, notices=(Notice("error", words),))


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


class Demo(Struct, frozen=True):
    """Simulated parts of a demo console."""

    adapters: Callable[[], Adapters]
    """Returns GPUs and runtime."""
    foreign_use: Callable[[], ForeignUse]
    """Returns the actions on foreign processes, and the values of all processes on GPUs."""
    gpu_past: Callable[[], Iterable[TakenStep]]
    """Returns readings from before the console was opened. May block."""
    hint: str
    """Line that is shown until the first key."""


class Console:
    """Runs a console from its first frame to the hand-over of scheduling."""

    def __init__(
        self,
        options: Options,
        store: JobStore,
        tidy_up: Callable[[], None] = lambda: None,
        *,
        preferences: Preferences | None = None,
        may_lead: bool = True,
        has_duties: bool = True,
        probe: EarlyProbe | None = None,
        waiting: LockWaitNotice | None = None,
        demo: Demo | None = None,
        inside: JobAccess | None = None,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        """`has_duties` tells whether it may serve metrics of a cluster, run hooks and measure jobs.

        `inside` is the access to running jobs; None: to those of this machine. `prepare` is called behind the screen,
        after the first frame; an error that it raises ends the console.
        """
        self._demo = demo
        self._inside = inside
        self._options = options
        self._store = store
        self._tidy_up = tidy_up
        self._remembered = preferences or Preferences()
        self._may_lead = may_lead
        self._has_duties = has_duties
        self._probe = probe
        self._waiting = waiting
        self._feed = Feed()
        self._open = prepare
        self._screens = ScreenSupervisor(self._app, own_log.own_log_path(options.state))
        self._refusal: Exception | None = None
        self._behind = BackgroundScheduler(self._make_host, self._feed, prepare=self._prepare, refuse=self._refuse)

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
        services = Services(
            Late(partial(job_access.open_logs, self._options, self._store)).as_made,
            self._options.settings,
            bootstrap.clock(),
            PAGES,
            host=socket.gethostname(),
            user=bootstrap.actor().user,
            preferences=self._remembered,
            job_access=self._inside or Late(partial(job_access.open_job_exec, self._options, self._store)).as_made,
            foreign=Late(self._demo.foreign_use if self._demo else self._foreign_use).as_made,
            want_pcie=self._behind.want_pcie,
            past=lambda since: self._store.history(since),
            gpu_past=self._demo.gpu_past if self._demo else partial(bootstrap.gpu_past, self._options),
            measured=partial(job_access.measured, self._options),
            hint=Hint(self._hint()),
            forms=FormSources(lambda: adapters.local_images(self._options), templates_path()),
        )
        if self._options.in_cluster:
            from gputui.console import cluster

            services = cluster.console_services(services, self._store)
        look = appearance_of(self._options.settings.console, os.environ)
        actions = Late(partial(bootstrap.actions, self._store, self._options)).as_made
        app = ConsoleApp(self._feed, actions, services, look)
        if self._waiting is not None:
            self._waiting.show = app.tell_wait
        return app

    def _foreign_use(self) -> ForeignUse:
        is_read_only = self._options.settings.console.read_only
        return job_access.open_foreign_use(self._options, self._store, is_read_only=is_read_only)

    def _hint(self) -> str:
        """Return the demo's line for newcomers, or the line for a user's first console."""
        if self._demo is not None:
            return self._demo.hint
        return "" if self._remembered.get("hint") else FIRST_HINT

    def _terminate(self) -> None:
        """Handle SIGTERM: end as on hang-up, but restore the terminal."""
        self._screens.leave(ExitChoice.HAND_OVER if self._hands_over else ExitChoice.STOP, 128 + signal.SIGTERM)

    @property
    def _hands_over(self) -> bool:
        """Return whether scheduling continues in the background when the user cannot be asked."""
        return self._options.settings.scheduler.hand_over != "never"

    @property
    def _would_lead(self) -> bool:
        """Return whether this console schedules, or would: it may, and no other process does."""
        may = self._may_lead and not self._options.settings.console.read_only
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

    def _make_host(self) -> Behind:
        if self._options.in_cluster:
            from gputui.bootstrap import clusters  # its imports would delay consoles of one machine
            from gputui.console import cluster_serving

            may = self._has_duties and not self._options.settings.console.read_only
            duties = tuple(cluster_serving.duties(self._options, self._store)) if may else ()
            return clusters.make_poll(self._options, self._store, self._feed, duties)
        started = self._probe.take if self._probe is not None else lambda: None
        hand_over = partial(serving.hand_over, self._options) if self._hands_over else None
        return hosting.make_host(
            self._options,
            self._store,
            self._feed,
            "console",
            may_lead=self._may_lead,
            started=started,
            made=self._demo.adapters if self._demo else None,
            hand_over=hand_over,
            open_monitor=monitor_opener(self._options, self._store.store_id),
        )

    async def _hang_up(self) -> int:
        """Handle a lost terminal: hand over if this console schedules, and end without writing to the screen."""
        await self._let_go(hand_over=self._hands_over and self._behind.leads)
        self._tidy_up()
        self._store.close()
        os._exit(128 + signal.SIGHUP)  # the screen's driver would wait for a terminal that will not answer

    async def _give_up(self, error: ScreenFailedError) -> None:
        """Hand over after the screen has failed for good, and add to the error whether jobs still start."""
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
            log.warning("the scheduler does not stop in time, and ends with the process")


def tell(fault: BaseException) -> None:
    """Print the traceback without control characters."""
    for line in "".join(traceback.format_exception(fault)).splitlines():
        print(plain(line), file=sys.stderr)


def run(
    options: Options,
    *,
    may_lead: bool = True,
    preferences: Preferences | None = None,
    probe: EarlyProbe | None = None,
) -> int:
    """Open the console on a state directory."""
    sys.setswitchinterval(GIVE_WAY_AFTER)
    waiting = LockWaitNotice()
    late = Late(partial(bootstrap.open_store, options, waiting))
    store = late.open() if options.in_cluster else late.as_made
    inside: JobAccess | None = None
    has_duties = may_lead
    if options.in_cluster:
        from gputui.bootstrap import clusters  # here as above: only consoles of clusters pay for it
        from gputui.console import cluster

        inside = clusters.access(options, store)
        options, may_lead = cluster.console_options(options), False
    try:
        own_log.log_to_file(options.state, options.settings.log.format)
        there = Console(
            options,
            store,
            preferences=preferences,
            may_lead=may_lead,
            has_duties=has_duties,
            probe=probe,
            waiting=waiting,
            inside=inside,
            prepare=late.open,
        )
        return there.run()
    finally:
        late.close()
