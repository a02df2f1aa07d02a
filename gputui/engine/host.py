"""The host of the scheduler: schedules if no other process does, else shows the leader's view."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.arrays import Entries
from gputui.domain.errors import NotLeaderError, RuntimeUnavailableError, StoreError
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Node, Notice, Snapshot
from gputui.engine import loop
from gputui.engine.feed import Feed
from gputui.engine.hooks import Announcer, MakeReport, WeeklyReport, sinks, stored_ends, weekly_of
from gputui.engine.leadership import SILENT_AFTER, Leadership
from gputui.engine.loop import AGAIN_AFTER, Faults, Loop, SchedulingFailedError, Waker
from gputui.engine.saved_logs import LogSweeper
from gputui.engine.streams import Streams
from gputui.engine.telemetry_files import GpuLog
from gputui.engine.tick import snapshot_builder
from gputui.engine.tick.context import Ports
from gputui.engine.tick.scheduler import Scheduler
from gputui.engine.tick.workers import WorkerPools
from gputui.ports import NO_MONITOR, GpuProbe, JobStore, Monitor, Runtime, SteadyClock
from gputui.threads import DaemonExecutor, describe_fault

log = logging.getLogger(__name__)
T = TypeVar("T")

DELIVERY_WORKERS = 4
"""Deliveries to one hook at a time."""
FOLLOW_INTERVAL = 1.0
"""Seconds between two snapshots of a process that does not schedule, and between two attempts to lead."""
ROOM_FOR = 5.0
"""Seconds that a console which made room for a service leaves it to take over."""
BARRED_FOR = 60.0
"""Seconds after giving up during which this process does not try to schedule."""
CLOSE_WITHIN = 5.0
"""Seconds that runtimes may take to close their connections."""
IDLE_FOR = 60.0
"""Seconds without anything to do after which a stand-in ends."""
LOOK_EVERY = 0.5
"""Seconds between two looks of a stand-in whether it has to go on."""
OWN_WITHIN = 5.0
"""Seconds to wait for a command that writes into the queue just now."""
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}", re.ASCII)
LEAVE_WITHIN = 8.0
"""Seconds that current starts may take before the process leaves them to the next scheduler."""


class Adapters(Struct, frozen=True):
    """Runtimes and probe of a scheduler, created only when it begins to schedule."""

    runtimes: Mapping[str, Runtime]
    probe: GpuProbe


class DoorPort(Protocol):
    """The socket at which others ask this process while it schedules. None of its errors is raised."""

    def open(self) -> None:
        """Begin to listen."""

    def notices(self) -> tuple[Notice, ...]:
        """Return what is wrong with it."""

    def close(self) -> None:
        """Answer no further request; called while this process still leads."""

    def leave(self, *, is_awaited: bool) -> None:
        """Close the socket, or wait until a next scheduler has taken its place; called when it may."""


class FollowPort(Protocol):
    """Snapshots of the process that schedules, by its events. All calls but `stop` may block."""

    def next(self, seconds: float, gpu: str | None) -> tuple[Snapshot, float] | None:
        """Return the newest snapshot once there is news, or after so many seconds; None: nobody serves any.

        With it come the seconds since its process was last heard, 0 while it answers. `gpu` is what to read in detail.
        """

    @property
    def answers(self) -> bool:
        """Whether a process that schedules answers now."""

    def stop(self) -> None:
        """Follow nobody, until `next` is called again."""


class Extras(Struct, frozen=True):
    """Optional tasks of a host besides scheduling."""

    hand_over: Callable[[], object] | None = None
    """Starts a background scheduler when scheduling keeps failing here."""
    streams: Streams | None = None
    """Open while this process schedules."""
    open_monitor: Callable[[Entries], Monitor] | None = None
    """Opens a monitor for a term as scheduler, given the jobs of the queue before its first tick."""
    make_report: MakeReport | None = None
    door: DoorPort | None = None
    follow: FollowPort | None = None
    for_users: bool = False
    """True if users of the machine wait at a socket that only this process can serve."""
    is_former: Callable[[int], bool] = lambda uid: False
    """Returns whether an account may not use the queue any more."""


NO_EXTRAS = Extras()


class _GpuFocus(Struct, eq=False):
    """GPU that the probe reads in detail, PCIe and NVLink too: the one that this process shows, else others'."""

    shown: str | None = None
    _asked: str | None = None
    _read: str | None = None
    _probe: GpuProbe | None = None

    def use(self, probe: GpuProbe | None) -> None:
        self._probe, self._read = probe, None
        self._follow()

    def show(self, uuid: str | None) -> None:
        self.shown = uuid
        self._follow()

    def ask(self, uuid: str | None) -> None:
        """Request readings of a GPU for others, who may send anything."""
        self._asked = uuid if uuid is not None and _UUID.fullmatch(uuid) else None
        self._follow()

    def _follow(self) -> None:
        wanted = self.shown or self._asked
        if self._probe is not None and wanted != self._read:
            self._read = wanted
            self._probe.want_pcie(wanted)


class Host:
    """Schedules when it can get the leadership; otherwise publishes the leader's view."""

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
        extras: Extras = NO_EXTRAS,
    ) -> None:
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
        self._extras = extras
        self._monitor: Monitor = NO_MONITOR
        silence = max(SILENT_AFTER, 3 * settings.scheduler.tick_interval.total_seconds())
        self._leadership = Leadership(directory, silence)
        self._gpu_log = GpuLog(directory)
        self._gpu_focus = _GpuFocus()
        self.want_pcie = self._gpu_focus.show
        """Requests PCIe and NVLink readings of a GPU, from this process's probe or the leader's. Never blocks."""
        self.read_for_others = self._gpu_focus.ask
        """Requests these readings for those who follow this process. Never blocks."""
        self._stopped = asyncio.Event()
        self._must_stop = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = DaemonExecutor(4, "host")
        self._faults = Faults()
        self._barred_until = 0.0
        """Time of the monotonic clock before which it does not try to schedule."""
        self._outcome: Notice | None = None
        """Why it stopped scheduling."""
        self._refusal: OSError | StoreError | None = None
        """Error of the last attempt to lead."""
        self._makes_room = self._has_made_room = False
        self.has_run_dry = False
        """True if it ended, as a stand-in, because there was nothing to do."""
        self._is_tuned = False
        """True if the garbage collector has been tuned; see `loop`."""

    @property
    def leads(self) -> bool:
        return self._leadership.is_mine

    def stop(self) -> None:
        """End `run` or `lead` soon. May be called from any thread, at any time."""
        self._must_stop = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._stopped.set)

    def _bind(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._must_stop:
            self._stopped.set()
        loop.configure_malloc()

    async def run(self) -> None:
        """Publish snapshots until stopped, and schedule whenever no other process does. Call it once."""
        self._bind()
        self._makes_room = True
        follow = self._extras.follow
        try:
            while not self._stopped.is_set():
                may_try = self.may_lead and time.monotonic() >= self._barred_until
                if may_try and not (follow and follow.answers) and await self._in_thread(self._acquire):
                    if follow is not None:
                        follow.stop()
                    await self._lead_once()
                elif follow is None or not await self._in_thread(partial(self._publish_followed, follow)):
                    await self._in_thread(self._publish_files)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stopped.wait(), FOLLOW_INTERVAL)
        finally:
            if follow is not None:
                follow.stop()
            self._threads.shutdown()

    async def lead(self, wait: float) -> bool:
        """Schedule until stopped, once the leadership is free; False if it was not within `wait` seconds.

        Raises the error that prevented leading, if it still does by then: the OSError of the lock file or the queue's
        StoreError. Raises SchedulingFailedError when scheduling fails repeatedly.
        """
        self._bind()
        deadline = time.monotonic() + wait
        try:
            while not await self._in_thread(self._acquire):
                if time.monotonic() >= deadline or self._stopped.is_set():
                    if self._refusal is not None:
                        raise self._refusal
                    return False
                if self._refusal is None and not self._me.stands_in:
                    await self._in_thread(partial(self._leadership.stand_in_line, for_users=self._extras.for_users))
                else:  # it could not lead if another process made room
                    self._leadership.leave_line()
                await asyncio.sleep(0.1)
            try:
                await self._lead()
            finally:
                await self._release()
        finally:
            self._leadership.leave_line()
            self._threads.shutdown()
        if not self._stopped.is_set():
            raise NotLeaderError(
                f"{self._directory} was removed or replaced: this process no longer schedules", hint="start it again"
            )
        return True

    async def _lead_once(self) -> None:
        fault: Exception | None = None
        try:
            await self._lead()
        except Exception as error:
            log.exception("scheduling failed")
            fault = error
        finally:
            await self._release()
        if self._stopped.is_set():
            return
        if self._has_made_room:
            self._has_made_room = False
            self._barred_until = time.monotonic() + ROOM_FOR
        elif fault is None:
            words = f"{self._directory} was removed or replaced, so this process no longer schedules there"
            self._outcome = Notice("error", f"{words}: quit, and start gputui again")
        else:
            await self._pause_after(fault)

    async def _pause_after(self, fault: Exception) -> None:
        """Pause before the next try; after too many faults, leave scheduling to a new process."""
        given_up = fault if isinstance(fault, SchedulingFailedError) else self._faults.add("its beginning", fault)
        if given_up is None:
            words = f"scheduling failed here and will be tried again: {describe_fault(fault)}"
            self._outcome = Notice("error", words)
            await self._in_thread(self._publish_files)
            await asyncio.sleep(AGAIN_AFTER)
            return
        self._barred_until = time.monotonic() + BARRED_FOR
        self._faults = Faults()
        goes_on = "it will be tried again in a minute"
        if self._extras.hand_over is not None:
            try:
                await self._in_thread(self._extras.hand_over)
                goes_on = "a background `gputui serve` continues"
            except OSError as error:
                log.error("no background scheduler can be started: %s", error)
        log.error("%s; %s", given_up, goes_on)
        self._outcome = Notice("error", f"{given_up}; {goes_on}")

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work on a daemon thread, so that it does not delay the exit."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _acquire(self) -> bool:
        """Try to lead; return whether this process leads now, and record the error that prevents it, if any."""
        try:
            self._store.jobs()  # a replaced queue is left to another process
            acquired = self._leadership.acquire(self._me)
            if acquired:
                # take the queue, or leave it to others
                try:
                    with self._store.lock_timeout(OWN_WITHIN):
                        self._store.own()
                except BaseException:
                    self._leadership.release()
                    raise
        except (OSError, StoreError) as error:
            self._refusal = error
            return False
        self._refusal = None
        return acquired

    async def _release(self) -> None:
        """Let another process schedule, and have the door; requests are answered up to then."""
        is_awaited, door = self._leadership.is_awaited(), self._extras.door
        try:
            if door is not None:
                await self._in_thread(door.close)
        finally:
            try:
                await self._in_thread(self._store.disown)
            finally:
                self._leadership.release()
        if door is not None:
            await self._in_thread(partial(door.leave, is_awaited=is_awaited))

    async def _lead(self) -> None:
        log.info("scheduling in %s", self._directory)
        adapters = await self._in_thread(self.open_adapters)
        self._outcome = None
        monitor = await self._in_thread(self._begin_monitor)
        pools, waker, streams = WorkerPools(), Waker(), self._extras.streams
        announcer = self._announcer(waker)
        runtimes = adapters.runtimes
        if monitor is not NO_MONITOR:
            runtimes = {name: monitored(runtime, monitor) for name, runtime in runtimes.items()}
        scheduler = Scheduler(
            Ports(self._store, runtimes, adapters.probe, self._clock, monitor),
            self._settings,
            pools=pools,
            directory=self._directory,
            leader=self._me,
            publish=self._publish,
            wake=waker.wake,
            announcer=announcer,
            before_start=streams.before_start if streams is not None else lambda job_id: None,
            is_former=self._extras.is_former,
        )
        self._gpu_focus.use(adapters.probe)
        if streams is not None:
            streams.open()
        if self._extras.door is not None:
            await self._in_thread(self._extras.door.open)
        standing_in = asyncio.create_task(self._stand_in(scheduler)) if self._me.stands_in else None
        try:
            await Loop(
                scheduler,
                self._store,
                self._settings.scheduler,
                self._clock,
                waker,
                self._holds,
                self._faults,
                self._show_fault,
                monitor,
                LogSweeper(self._directory, self._settings.store, self._store).step,
            ).run(self._stopped)
        finally:
            if standing_in is not None:
                standing_in.cancel()
            self._gpu_focus.use(None)
            if streams is not None:
                streams.close()
            if announcer is not None:
                announcer.close()
            self._store.time_writes(NO_MONITOR.wrote)
            self._monitor = NO_MONITOR
            await self._in_thread(monitor.close)
            await self._leave(pools, adapters)

    def _begin_monitor(self) -> Monitor:
        if self._extras.open_monitor is not None:
            try:
                self._monitor = self._extras.open_monitor(self._store.jobs())
            except Exception:  # a border: scheduling continues without metrics
                log.exception("no metrics are served")
        self._store.time_writes(self._monitor.wrote)
        return self._monitor

    def _announcer(self, waker: Waker) -> Announcer | None:
        hooks = list(sinks(self._settings.hooks, self._me.host))
        if not hooks:
            return None
        weekly: WeeklyReport | None = None
        if self._extras.make_report is not None:
            worker = DaemonExecutor(1, "weekly-report")
            weekly = weekly_of(self._settings, self._directory, self._extras.make_report, worker, waker.wake)
        workers = partial(DaemonExecutor, DELIVERY_WORKERS)
        return Announcer(
            stored_ends(self._store), self._settings.hooks, hooks, workers, waker.wake, self._monitor, weekly
        )

    def _holds(self) -> bool:
        """Return whether this process still schedules; a console does not once a service is there for all users."""
        if self._makes_room and self._leadership.is_wanted():
            log.info("makes room for the service, at whose socket users wait")
            self._has_made_room = True
            return False
        return self._leadership.holds()

    async def _stand_in(self, scheduler: Scheduler) -> None:
        busy_at = time.monotonic()
        while not await self._in_thread(self._leadership.is_awaited):
            if scheduler.has_work or self._settings.metrics.enabled or self._settings.report.weekly:
                busy_at = time.monotonic()
            elif time.monotonic() - busy_at >= IDLE_FOR:
                log.info("nothing is left to do")
                self.has_run_dry = True
                break
            await asyncio.sleep(LOOK_EVERY)
        else:
            log.info("a service waits to schedule")
        self._stopped.set()

    async def _leave(self, pools: WorkerPools, adapters: Adapters) -> None:
        """Wait for current starts, within limits; the next scheduler reconciles those that are interrupted."""

        def close() -> None:
            adapters.probe.close()
            for runtime in adapters.runtimes.values():
                runtime.close()

        if not await self._in_thread(partial(pools.close, LEAVE_WITHIN)):
            log.warning("starts under way are left to the next scheduler")
        try:
            await asyncio.wait_for(self._in_thread(close), CLOSE_WITHIN)
        except TimeoutError:
            log.warning("a runtime does not close in time, and is abandoned")
        log.info("no longer scheduling")

    def _publish(self, snapshot: Snapshot) -> None:
        """Publish the snapshot here, and record what others need of it."""
        door = self._extras.door
        own = (*self._faults.notices, *self._monitor.notices(), *(door.notices() if door is not None else ()))
        snapshot = replace(snapshot, notices=(*own, *snapshot.notices))
        self._feed.publish(snapshot)
        self._monitor.published(snapshot)
        self._leadership.beat()
        self._gpu_log.add(snapshot)
        if self._extras.streams is not None:
            self._extras.streams.look()

    def _show_fault(self) -> None:
        """Publish the last snapshot with the notice of a fault, since a failing scheduler may have no newer one."""
        latest = self._feed.latest
        shown = tuple(notice for notice in latest.notices if notice not in self._faults.notices)
        self._feed.publish(replace(latest, notices=(*self._faults.notices, *shown)))

    def _publish_followed(self, follow: FollowPort) -> bool:
        found = follow.next(FOLLOW_INTERVAL, self._gpu_focus.shown)
        if found is None:
            return False
        snapshot, silence = found
        self._publish_of_others(snapshot_builder.as_told(snapshot, silence, self._settings, self._clock.now()))
        return True

    def _abstention(self) -> tuple[Notice, ...]:
        """Return the reasons why this process does not schedule."""
        notices = (self._outcome,) if self._outcome is not None else ()
        if (error := self._refusal) is None:
            return notices
        words = str(error) if isinstance(error, StoreError) else f"{error.filename}: {error.strerror}"
        return (*notices, Notice("error", f"this process cannot schedule: {words}"))

    def _publish_of_others(self, snapshot: Snapshot) -> None:
        """Publish what another process knows, with the reasons why this one does not schedule."""
        self._feed.publish(replace(snapshot, notices=(*self._abstention(), *snapshot.notices)))
        if not self._is_tuned:
            self._is_tuned = True
            loop.configure_gc()
        loop.SWEEPER.tend(time.monotonic())

    def _publish_files(self) -> None:
        """Publish what the files have; if the queue cannot be read, the last snapshot again, with the reason."""
        now = self._clock.now()
        try:
            found = snapshot_builder.files_snapshot(self._store, self._directory, self._settings, now)
        except StoreError as error:
            latest, notices = self._feed.latest, self._abstention()
            if self._refusal is None:
                notices = (*notices, snapshot_builder.refusal_notice(error))
            if latest.leads_here:  # its readings are ours, and age
                nodes = (Node("", probe=snapshot_builder.NOBODY),)
                latest = replace(latest, leader=None, leads_here=False, nodes=nodes)
            self._feed.publish(replace(latest, taken_at=now, notices=notices))
        else:
            self._publish_of_others(found)


RECORDED = frozenset(
    {"pull", "create", "start", "terminate", "signal", "suspend", "unsuspend", "kill"}
    | {"containers", "save_log", "remove"}
)
"""Calls that act on attempts, and the listing, which shows that a runtime answers."""


class MonitoredRuntime(Struct, eq=False):
    _runtime: Runtime
    _monitor: Monitor

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._runtime, name)
        if name not in RECORDED:
            return attribute

        def recorded(*arguments: Any, **named: Any) -> Any:
            begun, result = time.perf_counter(), "error"
            try:
                answer = attribute(*arguments, **named)
                result = "ok"
            except RuntimeUnavailableError:
                result = "unavailable"
                raise
            finally:
                self._monitor.called(self._runtime.name, name, result, time.perf_counter() - begun)
            return answer

        return recorded


def monitored(runtime: Runtime, monitor: Monitor) -> Runtime:
    return cast("Runtime", MonitoredRuntime(runtime, monitor))
