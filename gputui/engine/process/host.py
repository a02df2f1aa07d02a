"""The host of the scheduler: schedules when no other process does, else shows the leader's view."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.entries import Entries
from gputui.domain.errors import NotLeaderError, StoreError
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Node, Notice, Snapshot
from gputui.domain.weekly import parse_weekly
from gputui.engine.feed import Feed
from gputui.engine.files import gpu_focus, live_file
from gputui.engine.files.gpu_log import GpuLog
from gputui.engine.files.leadership import SILENT_AFTER, Leadership
from gputui.engine.hooks.announcer import Announcer
from gputui.engine.hooks.delivery import sinks
from gputui.engine.hooks.weekly import MakeReport, WeeklyReport
from gputui.engine.process import memory_tuning
from gputui.engine.process.faults import Faults, SchedulingFailedError, describe_fault
from gputui.engine.process.loop import AGAIN_AFTER, MOST_FAULTS, Loop, Waker
from gputui.engine.process.monitored_runtime import monitored
from gputui.engine.process.relay import Relay
from gputui.engine.tick import snapshot_builder
from gputui.engine.tick.scheduler import Scheduler
from gputui.engine.tick.worker_pools import DaemonExecutor, WorkerPools
from gputui.ports import NO_MONITOR, GpuProbe, JobStore, Monitor, Runtime, SteadyClock

log = logging.getLogger(__name__)
T = TypeVar("T")

DELIVERY_WORKERS = 4
"""Deliveries to one hook at a time."""
FOLLOW_INTERVAL = 1.0
"""Seconds between two snapshots of a process that does not schedule, and between two attempts to lead."""
STORE_POLL = 0.2
"""Seconds between two checks of the store's version."""
BARRED_FOR = 60.0
"""Seconds after giving up during which this process does not try to schedule."""
CLOSE_WITHIN = 5.0
"""Seconds that runtimes may take to close their connections."""
LEAVE_WITHIN = 8.0
"""Seconds that starts under way may take to end before the process leaves them to the next scheduler."""


class Adapters(Struct, frozen=True):
    """Runtimes and probe of a scheduler, made only when it begins to schedule."""

    runtimes: Mapping[str, Runtime]
    probe: GpuProbe


def _close(adapters: Adapters) -> None:
    adapters.probe.close()
    for runtime in adapters.runtimes.values():
        runtime.close()


def _monitored(runtimes: Mapping[str, Runtime], monitor: Monitor) -> Mapping[str, Runtime]:
    if monitor is NO_MONITOR:
        return runtimes
    return {name: monitored(runtime, monitor) for name, runtime in runtimes.items()}


class Host:
    """Schedules when it can get the leadership; publishes the leader's view when it cannot."""

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
        relay: Relay | None = None,
        open_monitor: Callable[[Entries], Monitor] | None = None,
        make_report: MakeReport | None = None,
    ) -> None:
        self._make_report = make_report
        self._open_monitor = open_monitor
        """Opens a monitor for a term as scheduler, given the jobs of the queue before its first tick."""
        self._monitor: Monitor = NO_MONITOR
        self._relay = relay
        self._store = store
        self.open_adapters = adapters
        """Opens the probe and the runtimes when this process becomes the scheduler."""
        self._settings = settings
        self._clock = clock
        self._directory = directory
        self._me = me
        self._feed = feed
        self.may_lead = may_lead
        """True if this process may become the scheduler."""
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
        """Notice why this process stopped scheduling."""
        self._published_at = 0.0
        self._published: object = None
        self._probe: GpuProbe | None = None
        """Probe of this process, while it schedules."""
        self._focus: str | None = None
        """UUID of the GPU that this process shows in detail."""
        self._followed: str | None = None
        """UUID of the GPU that the probe was asked to read in detail."""
        self._is_tuned = False
        """True if the garbage collector has been tuned; see `gc_tuning`."""
        self._refusal: OSError | StoreError | None = None
        """Error of the last attempt to lead."""
        self._barred: tuple[Notice, ...] = ()
        """Notice why this process cannot try to schedule."""

    @property
    def leads(self) -> bool:
        """Return whether this process schedules."""
        return self._leadership.is_mine

    def want_pcie(self, uuid: str | None) -> None:
        """Request PCIe and NVLink readings of this GPU, from this process's probe or the leader's. Never blocks."""
        self._focus = uuid
        if self._probe is not None:
            self._probe.want_pcie(uuid)

    def _follow_focus(self) -> None:
        """Read the GPU in detail that this console shows, or else the one that another console shows."""
        wanted = self._focus or gpu_focus.read_focus(self._directory)
        if self._probe is not None and wanted != self._followed:
            self._followed = wanted
            self._probe.want_pcie(wanted)

    def stop(self) -> None:
        """End `run` or `lead` soon. May be called from any thread, at any time."""
        self._is_stopped = True
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(self._stop.set)

    def _bind(self) -> None:
        """Bind `stop` to the running loop."""
        self._loop = asyncio.get_running_loop()
        if self._is_stopped:
            self._stop.set()
        memory_tuning.configure_malloc()

    async def run(self) -> None:
        """Publish snapshots until stopped, and schedule whenever no other process does. Call it once."""
        self._bind()
        try:
            while not self._stop.is_set():
                if self._may_try and await self._in_thread(self._acquire):
                    await self._lead_once()
                else:
                    await self._follow()
        finally:
            self._threads.shutdown()

    @property
    def _may_try(self) -> bool:
        """Return whether to try for the leadership; not for `BARRED_FOR` seconds after giving up."""
        return self.may_lead and time.monotonic() >= self._barred_until

    async def _lead_once(self) -> None:
        """Schedule until stopped or until scheduling fails here, and record why."""
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
            words = f"{self._directory} was removed or replaced, so this process no longer schedules there"
            self._outcome = Notice("error", f"{words}: quit, and start gputui again")
        else:
            await self._take_fault(fault)

    async def _take_fault(self, fault: Exception) -> None:
        """Pause before the next try; after too many faults, leave scheduling to a new process."""
        given_up = fault if isinstance(fault, SchedulingFailedError) else self._faults.add("its beginning", fault)
        if given_up is None:
            self._outcome = Notice("error", f"scheduling failed here and will be tried again: {describe_fault(fault)}")
            await self._in_thread(self._publish_followed)
            await asyncio.sleep(AGAIN_AFTER)
            return
        self._barred_until = time.monotonic() + BARRED_FOR
        self._faults = Faults(MOST_FAULTS)
        goes_on = "it will be tried again in a minute"
        if self._hand_over is not None and await self._in_thread(self._try_hand_over):
            goes_on = "a background `gputui serve` continues"
        log.error("%s; %s", given_up, goes_on)
        self._outcome = Notice("error", f"{given_up}; {goes_on}")

    def _try_hand_over(self) -> bool:
        """Start a process that schedules in place of this one; return whether that was possible."""
        assert self._hand_over is not None
        try:
            self._hand_over()
        except OSError as error:
            log.error("no background scheduler can be started: %s", error)
            return False
        return True

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work on a daemon thread, which no exit waits for."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _acquire(self) -> bool:
        """Try to lead; return whether this process leads now, and record why not where an error prevents it."""
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
        queue's StoreError. Raises SchedulingFailedError when scheduling fails again and again.
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
                f"{self._directory} was removed or replaced: this process no longer schedules", hint="start it again"
            )
        return True

    async def _wait_to_lead(self, deadline: float) -> bool:
        """Try to lead until that time of the monotonic clock; return whether this process leads."""
        while not await self._in_thread(self._acquire):
            if time.monotonic() >= deadline or self._stop.is_set():
                if self._refusal is not None:
                    raise self._refusal
                return False
            await asyncio.sleep(0.1)
        return True

    def _scheduler(
        self, adapters: Adapters, pools: WorkerPools, waker: Waker, announcer: Announcer | None, monitor: Monitor
    ) -> Scheduler:
        return Scheduler(
            store=self._store,
            runtimes=_monitored(adapters.runtimes, monitor),
            probe=adapters.probe,
            settings=self._settings,
            pools=pools,
            clock=self._clock,
            directory=self._directory,
            leader=self._me,
            publish=self._publish,
            wake=waker.wake,
            announcer=announcer,
            monitor=monitor,
        )

    def _make_loop(self, scheduler: Scheduler, waker: Waker, monitor: Monitor) -> Loop:
        return Loop(
            scheduler,
            self._store,
            self._settings.scheduler,
            self._clock,
            waker,
            self._leadership.holds,
            self._faults,
            self._tell_fault,
            monitor,
        )

    async def _lead(self) -> None:
        log.info("scheduling in %s", self._directory)
        adapters = await self._in_thread(self.open_adapters)
        self._outcome = None
        monitor = await self._in_thread(self._begin_monitor)
        pools = WorkerPools()
        waker = Waker()
        announcer = self._announcer(waker)
        scheduler = self._scheduler(adapters, pools, waker, announcer, monitor)
        self._probe, self._followed = adapters.probe, None
        if self._relay is not None:
            self._relay.open()
        try:
            await self._make_loop(scheduler, waker, monitor).run(self._stop)
        finally:
            self._probe = None
            if self._relay is not None:
                self._relay.close()
            if announcer is not None:
                announcer.close()
            self._store.time_writes(NO_MONITOR.wrote)
            self._monitor = NO_MONITOR
            await self._in_thread(monitor.close)
            await self._leave(pools, adapters)

    def _begin_monitor(self) -> Monitor:
        """Open a monitor of this term."""
        if self._open_monitor is not None:
            try:
                self._monitor = self._open_monitor(self._store.jobs())
            except Exception:  # a border: scheduling goes on without metrics
                log.exception("no metrics are served")
        self._store.time_writes(self._monitor.wrote)
        return self._monitor

    def _announcer(self, waker: Waker) -> Announcer | None:
        """Return the teller of all hooks; None where none is set."""
        hooks = list(sinks(self._settings.hooks, self._me.host))
        workers = partial(DaemonExecutor, DELIVERY_WORKERS)
        if not hooks:
            return None
        weekly = self._weekly(waker)
        return Announcer(self._store, self._settings.hooks, hooks, workers, waker.wake, self._monitor, weekly)

    def _weekly(self, waker: Waker) -> WeeklyReport | None:
        """Return the maker of weekly reports; None where none is wanted."""
        if not self._settings.report.weekly or self._make_report is None:
            return None
        at, max_age = parse_weekly(self._settings.report.weekly), self._settings.hooks.max_age
        worker = DaemonExecutor(1, "weekly-report")
        return WeeklyReport(self._directory, at, max_age, self._make_report, worker, waker.wake)

    async def _leave(self, pools: WorkerPools, adapters: Adapters) -> None:
        """Wait for starts under way, within limits: the next scheduler reconciles those that are cut short."""
        if not await self._in_thread(partial(pools.close, LEAVE_WITHIN)):
            log.warning("starts under way are left to the next scheduler")
        try:
            await asyncio.wait_for(self._in_thread(partial(_close, adapters)), CLOSE_WITHIN)
        except TimeoutError:
            log.warning("a runtime does not close in time, and is abandoned")
        log.info("no longer scheduling")

    def _publish(self, snapshot: Snapshot) -> None:
        """Publish the snapshot here, and to other processes at once if it has news, else every second."""
        own = (*self._faults.notices, *self._monitor.notices())
        snapshot = replace(snapshot, notices=(*own, *snapshot.notices))
        self._feed.publish(snapshot)
        self._monitor.published(snapshot)
        self._leadership.beat()
        self._gpu_log.add(snapshot)
        self._follow_focus()
        news = (
            tuple((view.gpu.uuid, view.state, view.job_ids) for view in snapshot.gpus),
            snapshot.progress,
            snapshot.notices,
        )
        if news == self._published and time.monotonic() - self._published_at < FOLLOW_INTERVAL:
            return
        self._published, self._published_at = news, time.monotonic()
        live = live_file.Published(
            snapshot.taken_at, self._me, snapshot.nodes, snapshot.progress, snapshot.notices, snapshot.usage
        )
        live_file.write(self._directory, live, self._mode)

    def _tell_fault(self) -> None:
        """Publish the last snapshot with the notice of a fault: a scheduler that fails may have no newer one."""
        latest = self._feed.latest
        shown = tuple(notice for notice in latest.notices if notice not in self._faults.notices)
        self._feed.publish(replace(latest, notices=(*self._faults.notices, *shown)))

    async def _follow(self) -> None:
        """Publish a snapshot, then wait until the store changes or a second has passed."""
        seen = self._version()
        await self._in_thread(self._publish_followed)
        for _ in range(round(FOLLOW_INTERVAL / STORE_POLL)):
            await asyncio.sleep(STORE_POLL)
            if self._stop.is_set() or self._version() != seen:
                return

    @property
    def _own_notices(self) -> tuple[Notice, ...]:
        """Notices why this process does not schedule."""
        return (*((self._outcome,) if self._outcome else ()), *self._barred)

    def _version(self) -> object:
        """Return the store's version; None while it cannot be read, which the snapshot reports."""
        try:
            return self._store.version()
        except StoreError:
            return None

    def _publish_followed(self) -> None:
        now = self._clock.now()
        if self._focus is not None:
            gpu_focus.write_focus(self._directory, self._focus, self._mode)
        try:
            beside = snapshot_builder.follower_snapshot(self._store, self._directory, self._settings, now)
            self._feed.publish(replace(beside, notices=(*self._own_notices, *beside.notices)))
        except StoreError as error:
            latest = self._feed.latest
            told = self._own_notices if self._barred else (*self._own_notices, snapshot_builder.refusal_notice(error))
            if latest.leads_here:  # its readings are ours, and grow old
                latest = replace(
                    latest, leader=None, leads_here=False, nodes=(Node("", probe=snapshot_builder.NOBODY),)
                )
            self._feed.publish(replace(latest, taken_at=now, notices=told))
            return
        if not self._is_tuned:
            self._is_tuned = True
            memory_tuning.configure_gc()
        memory_tuning.SWEEPER.tend(time.monotonic())
