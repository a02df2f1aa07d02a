"""The loop of ticks: one thread runs them, on APScheduler's interval and whenever an event wakes it; its memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from gputui.domain.errors import GputuiError
from gputui.domain.settings import SchedulerSettings
from gputui.domain.snapshot import Notice
from gputui.ports import NO_MONITOR, Clock, JobStore, Monitor
from gputui.threads import DaemonExecutor, describe_fault

if TYPE_CHECKING:
    from apscheduler.schedulers.asyncio import AsyncIOScheduler

    from gputui.engine.tick.scheduler import Scheduler

log = logging.getLogger(__name__)


# A collection stops every thread, including the screen. Collecting ten thousand jobs with their rows and plans takes
# some tenths of a second, and Python could start it during a key press. So only young objects are collected, and all
# others when nobody is typing.
YOUNG = 5000
"""New objects that trigger a collection, instead of Python's 700.

A plan for thousands of jobs makes and drops more than that every second. Objects that outlive two collections are old.
"""
NEVER = 1_000_000
"""Collections of younger objects before Python itself collects old ones."""
EVERY, AT_LAST = 300.0, 1800.0
"""Seconds between two full collections while nobody types, and the maximum between two."""
STILL = 3.0
"""Seconds without a key press after which nobody counts as typing."""


class Sweeper(Struct):
    """Decides when to run a full collection. Times are seconds of the monotonic clock."""

    touched_at: float = field(default_factory=time.monotonic)
    """Time of the last key or mouse event."""
    swept_at: float = field(default_factory=time.monotonic)

    def touch(self, now: float) -> None:
        self.touched_at = now

    def is_due(self, now: float) -> bool:
        since = now - self.swept_at
        return since >= AT_LAST or (since >= EVERY and now - self.touched_at >= STILL)

    def tend(self, now: float) -> None:
        """Run a full collection if one is due; call it every few seconds, from any thread."""
        if self.is_due(now):
            self.swept_at = now
            gc.collect()


SWEEPER = Sweeper()
"""Sweeper of this process."""


def configure_gc() -> None:
    """Exclude the present objects, mostly the queue, from collections: they stay, and have no cycles.

    Call it once, and call `SWEEPER.tend` regularly from then on.
    """
    gc.set_threshold(YOUNG, 10, NEVER)
    gc.freeze()


MOST_FROZEN = 250_000
"""Exempt objects above which their garbage stays: a console has some 150,000, a queue of ten thousand jobs far more."""


def collect_frozen() -> None:
    """Collect the garbage among the exempt objects, 0.4 MB after a start, if that takes no more than a blink."""
    if gc.get_freeze_count() <= MOST_FROZEN:
        gc.unfreeze()
        gc.collect()
        gc.freeze()


# A queue of ten thousand jobs creates lists of a hundred kilobytes many times a second, in several threads. glibc would
# keep a heap for each thread, and place later lists among small long-lived objects: after ten minutes 44 of 74 MB were
# holes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3). Setting a threshold ends its automatic growth."""
LARGE = 64 * 1024
"""Size from which an allocation is mapped separately, and returned to the system when it is freed."""
SPARE = 1024 * 1024
"""Bytes that may stay free at the end of the heap."""


def configure_malloc() -> None:
    """Use one heap for all threads, since Python runs one at a time anyway. Only glibc has several heaps."""
    import ctypes  # a console tunes its memory after its first frame

    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # another C library
        libc.mallopt(_ARENA_MAX, 1)
        libc.mallopt(_MMAP_THRESHOLD, LARGE)
        libc.mallopt(_TRIM_THRESHOLD, SPARE)


WITHIN = 60.0
"""Seconds for which a fault counts."""
SHOWN_FOR = 600.0
"""Seconds for which a notice of a fault is shown."""


class SchedulingFailedError(GputuiError):
    def __init__(self, part: str, fault: BaseException, times: int) -> None:
        often = f"scheduling in this process failed {times} times within a minute"
        super().__init__(f"{often}, the last time in {part} by {describe_fault(fault)}")
        self.fault = fault


class FaultCount:
    def __init__(self, most: int) -> None:
        self._most = most
        self._at: deque[float] = deque(maxlen=most + 1)

    def add(self, at: float) -> bool:
        """Count a fault at that time, in seconds; return whether the part may be restarted."""
        self._at.append(at)
        return len(self._at) <= self._most or at - self._at[0] > WITHIN

    def __len__(self) -> int:
        return len(self._at)


class Faults(Struct, eq=False):
    """Record of the faults of the scheduler's parts. Safe to use from any thread."""

    _count: FaultCount = field(default_factory=lambda: FaultCount(MOST_FAULTS))
    _last: tuple[float, Notice] | None = None

    def add(self, part: str, fault: BaseException) -> SchedulingFailedError | None:
        """Record a fault; return the error to stop with if there were too many within a minute."""
        now = time.monotonic()
        words = f"the scheduler failed in {part} and continues: {describe_fault(fault)}"
        self._last = now, Notice("error", f"{words}; gputui.log in the state directory has the details")
        return None if self._count.add(now) else SchedulingFailedError(part, fault, len(self._count))

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notice of the last fault, for `SHOWN_FOR` seconds."""
        last = self._last
        return (last[1],) if last is not None and time.monotonic() - last[0] < SHOWN_FOR else ()


MAINTENANCE_INTERVAL = 10.0
AGAIN_AFTER = 1.0
"""Seconds after which a failed part is restarted."""
MOST_FAULTS = 4
"""Faults within a minute that are tolerated; with one more this process gives up."""
END_TICK_WITHIN = 30.0
"""Seconds that the current tick may take when the loop ends."""
MIN_PAUSE = 0.01
"""Minimum seconds between two ticks, so that a burst of events does not cost one tick each."""


class Loop(Struct, eq=False):
    """Runs ticks one at a time until stopped: at an interval, and immediately after an event or a write."""

    _scheduler: Scheduler
    _store: JobStore
    _settings: SchedulerSettings
    _clock: Clock
    _waker: Waker
    _holds: Callable[[], bool] = lambda: True
    faults: Faults = field(default_factory=Faults)
    told: Callable[[], None] = lambda: None
    """Called when there is a notice of a fault."""
    _monitor: Monitor = NO_MONITOR
    _housekeeping: Callable[[datetime], object] = lambda _: None
    """Called every ten seconds, in the thread of maintenance."""
    _given_up: SchedulingFailedError | None = None
    _is_ending: bool = False
    _lost: asyncio.Event = field(default_factory=asyncio.Event)
    _has_ticked: asyncio.Event = field(default_factory=asyncio.Event)
    _thread: DaemonExecutor = field(default_factory=lambda: DaemonExecutor(1, "tick"))
    _maintenance_thread: DaemonExecutor = field(default_factory=lambda: DaemonExecutor(1, "maintenance"))
    _maintenance: Future[None] | None = None
    _ticked_at: float = 0.0
    _alarm: asyncio.TimerHandle | None = None
    _is_tuned: bool = False

    async def run(self, stop: asyncio.Event) -> None:
        """Schedule until `stop` is set or the leadership is lost. The current tick is completed first.

        Raises SchedulingFailedError when parts of it failed too often.
        """
        self._waker.bind()
        self._scheduler.start()
        self._store.on_change(self._waker.wake)
        parts = {"a tick": self._dispatch, "the timer": self._keep_time}
        tasks = [asyncio.create_task(self._supervise(name, part)) for name, part in parts.items()]
        ends = [asyncio.create_task(each.wait()) for each in (stop, self._lost)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_ending = True
            for task in (*tasks, *ends):
                task.cancel()
            await asyncio.gather(*tasks, *ends, return_exceptions=True)
            await asyncio.sleep(0)
            self._scheduler.stop()
            executors = (self._thread, self._maintenance_thread)
            for executor in executors:
                executor.shutdown()
            for _ in range(round(END_TICK_WITHIN / MIN_PAUSE)):
                if all(executor.drain(0) for executor in executors):
                    break
                await asyncio.sleep(MIN_PAUSE)
            else:
                log.warning("a tick does not end, and is left to itself")
        if self._given_up is not None:
            raise self._given_up

    async def _supervise(self, name: str, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a part that never returns, and restart it after each fault."""
        while self._given_up is None:
            try:
                await part()
                fault: BaseException = RuntimeError("it ended")
            except asyncio.CancelledError as error:
                if self._is_ending:
                    raise
                fault = error
            except Exception as error:  # noqa: BLE001 - the border of the part
                fault = error
            self._note(name, fault)
            await asyncio.sleep(AGAIN_AFTER)

    def _note(self, name: str, fault: BaseException) -> None:
        """Log and report a fault; after too many, end `run`."""
        log.error("the scheduler failed in %s", name, exc_info=fault)
        self._monitor.failed(name)
        self._given_up = self._given_up or self.faults.add(name, fault)
        if self._given_up is not None:
            self._lost.set()
        try:
            self.told()
        except Exception:  # a border: the next snapshot has the notice
            log.exception("a fault could not be reported")

    async def _keep_time(self) -> None:
        """Start APScheduler after the first tick: importing it takes longer than that tick, and users wait for it."""
        await self._has_ticked.wait()
        timer = await asyncio.to_thread(self._timer)
        timer.start()
        try:
            await asyncio.Event().wait()
        finally:
            timer.shutdown(wait=False)

    def _timer(self) -> AsyncIOScheduler:
        """Return a timer that calls its jobs in the event loop: as tasks, due ones would be cancelled at its end."""
        from apscheduler.events import EVENT_JOB_ERROR
        from apscheduler.executors.debug import DebugExecutor
        from apscheduler.schedulers.asyncio import AsyncIOScheduler

        defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        timer = AsyncIOScheduler(executors={"default": DebugExecutor()}, job_defaults=defaults, timezone=UTC)
        # APScheduler continues after a failed job by itself
        timer.add_listener(lambda event: self._note("the timer", event.exception), EVENT_JOB_ERROR)
        timer.add_job(self._tick_due, "interval", seconds=self._settings.tick_interval.total_seconds())
        relisted_every = self._settings.reconcile_interval.total_seconds()
        timer.add_job(lambda: self._scheduler.relist(), "interval", seconds=relisted_every)
        timer.add_job(self._maintain, "interval", seconds=MAINTENANCE_INTERVAL)
        return timer

    def _tick_due(self) -> None:
        """Wake the loop unless a tick ran just now: readings usually cause one every second."""
        if time.monotonic() - self._ticked_at >= self._settings.tick_interval.total_seconds() * 0.75:
            self._waker.wake()

    def _maintain(self) -> None:
        def maintain() -> None:
            SWEEPER.tend(time.monotonic())
            try:
                self._store.maintain(self._clock.now())
                self._housekeeping(self._clock.now())
            except (GputuiError, OSError) as error:
                log.warning("maintenance has to wait: %s", error)
            except Exception:  # a border: no caller reads the result of this thread
                log.exception("maintenance failed")

        if self._maintenance is None or self._maintenance.done():
            self._maintenance = self._maintenance_thread.submit(maintain)

    async def _dispatch(self) -> None:
        """Run a tick at each wake-up, and set an alarm for the time at which one is due without any event.

        Work that a tick could not do although it was due is left to the interval, to avoid a loop of ticks.
        """
        loop = asyncio.get_running_loop()
        self._waker.wake()
        while True:
            await self._waker.wait()
            if not await asyncio.shield(loop.run_in_executor(self._thread, self.tick)):
                self._lost.set()
            self._has_ticked.set()
            if self._alarm is not None:
                self._alarm.cancel()
            left = (self._scheduler.wake_at - self._clock.now()).total_seconds()
            is_soon = 0 < left < self._settings.tick_interval.total_seconds()
            self._alarm = loop.call_later(left, self._waker.wake) if is_soon else None
            await asyncio.sleep(MIN_PAUSE)

    def tick(self) -> bool:
        """Run a tick; return False, without a tick, if another process may be scheduling."""
        if not self._holds():
            return False
        self._ticked_at = time.monotonic()
        self._scheduler.tick(self._clock.now())
        if not self._is_tuned:  # from now on the queue is in memory
            self._is_tuned = True
            configure_gc()
        return True


class Waker(Struct, eq=False):
    """Event that any thread may set; several sets before a wait count as one. No wake-up is lost."""

    _event: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop | None = None

    def bind(self) -> None:
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Wake the waiting task. Never blocks; does nothing once the loop is closed."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(self._event.set)
            except RuntimeError:  # closed since the check above
                return

    async def wait(self) -> None:
        """Return at the next wake-up, at once if there was one since the last."""
        await self._event.wait()
        self._event.clear()
