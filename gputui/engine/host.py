"""A process that keeps a picture up to date: as the scheduler if nobody else is, otherwise beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from gputui.domain.errors import NotLeaderError, StoreError
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Node, Notice, Snapshot
from gputui.engine import garbage, gpu_focus, heap, picture, published
from gputui.engine.announcer import Announcer
from gputui.engine.daemons import DaemonExecutor
from gputui.engine.delivery import sinks
from gputui.engine.faults import Faults, GivenUpError, in_words
from gputui.engine.feed import Feed
from gputui.engine.gpu_log import GpuLog
from gputui.engine.leader import SILENT_AFTER, Leadership
from gputui.engine.loop import AGAIN_AFTER, MOST_FAULTS, Loop
from gputui.engine.pools import WorkerPools
from gputui.engine.scheduler import Scheduler
from gputui.engine.waker import Waker
from gputui.ports import GpuProbe, JobStore, Runtime, SteadyClock

log = logging.getLogger(__name__)
T = TypeVar("T")

TELLERS = 4
"""Deliveries at a time to one hook."""
LOOK_EVERY = 1.0
"""Seconds between two pictures of a process that does not schedule, and between two tries to become the one."""
STORE_POLL = 0.2
"""Seconds between two looks at the store's version, and between two pictures at least."""
BARRED_FOR = 60.0
"""Seconds after giving up in which this process does not try to schedule."""
CLOSE_WITHIN = 5.0
"""Seconds that runtimes may take to close their connections."""
LEAVE_WITHIN = 8.0
"""Seconds that starts under way may take to end before the process leaves them to the next scheduler."""


@dataclass(frozen=True)
class Adapters:
    """What a scheduler works with; made only when it begins to schedule."""

    runtimes: Mapping[str, Runtime]
    probe: GpuProbe


def _close(adapters: Adapters) -> None:
    adapters.probe.close()
    for runtime in adapters.runtimes.values():
        runtime.close()


class Host:
    """Schedules when it can get the leadership; shows the leader's picture when it cannot."""

    def __init__(
        self,
        *,
        store: JobStore,
        adapters: Callable[[], Adapters],
        settings: Settings,
        clock: SteadyClock,
        directory: Path,
        me: Leader,
        feed: Feed,
        may_lead: bool = True,
        hand_over: Callable[[], object] | None = None,
    ) -> None:
        self._store = store
        self._adapters = adapters
        self._settings = settings
        self._clock = clock
        self._directory = directory
        self._me = me
        self._feed = feed
        self._may_lead = may_lead
        tick_interval = settings.scheduler.tick_interval.total_seconds()
        self._mode = 0o660 if settings.store.group else 0o600
        self._leadership = Leadership(directory, self._mode, max(SILENT_AFTER, 3 * tick_interval))
        self._gpu_log = GpuLog(directory, self._mode)
        self._hand_over = hand_over
        self._stop = asyncio.Event()
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = DaemonExecutor(4, "host")
        self._faults = Faults(MOST_FAULTS)
        self._barred_until = 0.0
        self._outcome: Notice | None = None
        """Why this process schedules no more."""
        self._published_at = 0.0
        self._published: object = None
        self._probe: GpuProbe | None = None
        """Ours, while we schedule."""
        self._focus: str | None = None
        """The GPU that this process shows in detail."""
        self._followed: str | None = None
        """The GPU that the probe was asked to read in detail."""
        self._is_settled = False
        """The queue that is looked on at is left out of garbage collections."""
        self._refusal: OSError | StoreError | None = None
        """Error that the last try to lead ended with."""
        self._barred: tuple[Notice, ...] = ()
        """Why this process cannot even try to schedule."""

    @property
    def leads(self) -> bool:
        """Whether this process schedules."""
        return self._leadership.is_mine

    def want_pcie(self, uuid: str | None) -> None:
        """Have PCIe and NVLink of this GPU alone read, by this process or by the one that schedules. Never blocks."""
        self._focus = uuid
        if self._probe is not None:
            self._probe.want_pcie(uuid)

    def _follow_focus(self) -> None:
        """Read the GPU that another console shows, unless this one shows one."""
        wanted = self._focus or gpu_focus.asked_for(self._directory)
        if self._probe is not None and wanted != self._followed:
            self._followed = wanted
            self._probe.want_pcie(wanted)

    def stop(self) -> None:
        """End `run` or `lead` soon. To be called from any thread, at any time."""
        self._is_stopped = True
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(self._stop.set)

    def _bind(self) -> None:
        """Take the running loop for the one that `stop` is to wake."""
        self._loop = asyncio.get_running_loop()
        if self._is_stopped:
            self._stop.set()
        heap.settle()

    async def run(self) -> None:
        """Keep the feed supplied until stopped, once. Becomes the scheduler whenever there is none."""
        self._bind()
        try:
            while not self._stop.is_set():
                if self._may_try and await self._elsewhere(self._acquire):
                    await self._lead_once()
                else:
                    await self._look_on()
        finally:
            self._threads.shutdown()

    @property
    def _may_try(self) -> bool:
        """Whether to try for the leadership: not for a while after scheduling failed here again and again."""
        return self._may_lead and time.monotonic() >= self._barred_until

    async def _lead_once(self) -> None:
        """Schedule until stopped, or until that is over for this process, and tell why it is."""
        fault: Exception | None = None
        try:
            await self._lead()
        except Exception as error:
            log.exception("scheduling failed")
            fault = error
        finally:
            self._leadership.release()
        if self._stop.is_set():
            return
        if fault is None:
            words = f"{self._directory} was removed or replaced, so this process schedules in it no more"
            self._outcome = Notice("error", f"{words}: quit, and start gputui again")
        else:
            await self._take_fault(fault)

    async def _take_fault(self, fault: Exception) -> None:
        """Pause before the next try; where there were too many, leave scheduling to a new process."""
        given_up = fault if isinstance(fault, GivenUpError) else self._faults.add("its beginning", fault)
        if given_up is None:
            self._outcome = Notice("error", f"scheduling here failed, and is tried again: {in_words(fault)}")
            await self._elsewhere(self._show)
            await asyncio.sleep(AGAIN_AFTER)
            return
        self._barred_until = time.monotonic() + BARRED_FOR
        self._faults = Faults(MOST_FAULTS)
        goes_on = "it is tried again in a while"
        if self._hand_over is not None and await self._elsewhere(self._try_hand_over):
            goes_on = "a background `gputui serve` goes on"
        log.error("%s; %s", given_up, goes_on)
        self._outcome = Notice("error", f"{given_up}; {goes_on}")

    def _try_hand_over(self) -> bool:
        """Begin a process that schedules in place of this one; return whether that was possible."""
        assert self._hand_over is not None
        try:
            self._hand_over()
        except OSError as error:
            log.error("no background scheduler can be started: %s", error)
            return False
        return True

    async def _elsewhere(self, work: Callable[[], T]) -> T:
        """Do on a thread what may block; no exit waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _acquire(self) -> bool:
        """Try for the leadership of the queue that this process knows; where it cannot be had, say why and look on."""
        self._refusal = None
        try:
            self._store.jobs()  # of a queue that was replaced another process is to take care
            acquired = self._leadership.acquire(self._me)
        except StoreError as error:
            self._refusal = error
            self._barred = (Notice("error", f"this process cannot schedule: {error}"),)
            return False
        except OSError as error:
            self._refusal = error
            self._barred = (Notice("error", f"this process cannot schedule: {error.filename}: {error.strerror}"),)
            return False
        self._barred = ()
        return acquired

    async def lead(self, wait: float) -> bool:
        """Schedule until stopped, once the leadership is free; False when it was not within `wait` seconds.

        Raises the error that kept it from leading, if it still does by then: the OSError of the lock file or the
        queue's StoreError. Raises GivenUpError when scheduling fails again and again.
        """
        self._bind()
        try:
            if not await self._wait_to_lead(time.monotonic() + wait):
                return False
            try:
                await self._lead()
            finally:
                self._leadership.release()
        finally:
            self._threads.shutdown()
        if not self._stop.is_set():
            raise NotLeaderError(
                f"{self._directory} was removed or replaced: this process schedules no more", hint="start it again"
            )
        return True

    async def _wait_to_lead(self, deadline: float) -> bool:
        """Try for the leadership until that time of the monotonic clock; return whether this process has it."""
        while not await self._elsewhere(self._acquire):
            if time.monotonic() >= deadline or self._stop.is_set():
                if self._refusal is not None:
                    raise self._refusal
                return False
            await asyncio.sleep(0.1)
        return True

    async def _lead(self) -> None:
        log.info("scheduling in %s", self._directory)
        adapters = await self._elsewhere(self._adapters)
        self._outcome = None
        pools = WorkerPools()
        waker = Waker()
        announcer = self._announcer(waker)
        scheduler = Scheduler(
            store=self._store,
            runtimes=adapters.runtimes,
            probe=adapters.probe,
            settings=self._settings,
            pools=pools,
            clock=self._clock,
            directory=self._directory,
            leader=self._me,
            publish=self._publish,
            wake=waker.wake,
            announcer=announcer,
        )
        self._probe, self._followed = adapters.probe, None
        try:
            loop = Loop(
                scheduler,
                self._store,
                self._settings.scheduler,
                self._clock,
                waker,
                self._leadership.holds,
                self._faults,
                self._tell_fault,
            )
            await loop.run(self._stop)
        finally:
            self._probe = None
            if announcer is not None:
                announcer.close()
            await self._leave(pools, adapters)

    def _announcer(self, waker: Waker) -> Announcer | None:
        """Return the teller of all hooks; None where none is set."""
        hooks = list(sinks(self._settings.hooks, self._me.host))
        workers = partial(DaemonExecutor, TELLERS)
        return Announcer(self._store, self._settings.hooks, hooks, workers, waker.wake) if hooks else None

    async def _leave(self, pools: WorkerPools, adapters: Adapters) -> None:
        """Let starts under way end, but not for ever: what is cut short here the next scheduler puts right."""
        if not await self._elsewhere(partial(pools.close, LEAVE_WITHIN)):
            log.warning("starts under way are left to the next scheduler")
        try:
            await asyncio.wait_for(self._elsewhere(partial(_close, adapters)), CLOSE_WITHIN)
        except TimeoutError:
            log.warning("a runtime does not let go, and is left to itself")
        log.info("no longer scheduling")

    def _publish(self, snapshot: Snapshot) -> None:
        """Show the picture here, and to other processes: at once when it tells something new, else every second."""
        snapshot = replace(snapshot, notices=(*self._faults.notices, *snapshot.notices))
        self._feed.publish(snapshot)
        self._leadership.beat()
        self._gpu_log.add(snapshot)
        self._follow_focus()
        news = (
            tuple((view.gpu.uuid, view.state, view.job_ids) for view in snapshot.gpus),
            snapshot.progress,
            snapshot.notices,
        )
        if news == self._published and time.monotonic() - self._published_at < LOOK_EVERY:
            return
        self._published, self._published_at = news, time.monotonic()
        live = published.Published(
            snapshot.taken_at, self._me, snapshot.nodes, snapshot.progress, snapshot.notices, snapshot.usage
        )
        published.write(self._directory, live, self._mode)

    def _tell_fault(self) -> None:
        """Publish the last picture with the notice of a fault: a scheduler that fails may have no newer one."""
        latest = self._feed.latest
        shown = tuple(notice for notice in latest.notices if notice not in self._faults.notices)
        self._feed.publish(replace(latest, notices=(*self._faults.notices, *shown)))

    async def _look_on(self) -> None:
        """Show the picture every second, and at once when the store changes, until it is time to try to lead."""
        seen = self._version()
        await self._elsewhere(self._show)
        for _ in range(round(LOOK_EVERY / STORE_POLL)):
            await asyncio.sleep(STORE_POLL)
            if self._stop.is_set() or self._version() != seen:
                return

    @property
    def _own_notices(self) -> tuple[Notice, ...]:
        """Why this process does not schedule, where that is its own affair."""
        return (*((self._outcome,) if self._outcome else ()), *self._barred)

    def _version(self) -> object:
        """The store's version; None while it cannot be read, which the picture tells."""
        try:
            return self._store.version()
        except StoreError:
            return None

    def _show(self) -> None:
        now = self._clock.now()
        if self._focus is not None:
            gpu_focus.tell(self._directory, self._focus, self._mode)
        try:
            beside = picture.beside(self._store, self._directory, self._settings, now)
            self._feed.publish(replace(beside, notices=(*self._own_notices, *beside.notices)))
        except StoreError as error:
            latest = self._feed.latest
            told = self._own_notices if self._barred else (*self._own_notices, picture.refusal(error))
            if latest.leads_here:  # its readings are ours, and grow old
                latest = replace(latest, leader=None, leads_here=False, nodes=(Node("", probe=picture.NOBODY),))
            self._feed.publish(replace(latest, taken_at=now, notices=told))
            return
        if not self._is_settled:
            self._is_settled = True
            garbage.settle()
        garbage.SWEEPER.tend(time.monotonic())
