"""When things happen: APScheduler is the clock, an event the doorbell, one thread the place where ticks run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING

from gputui.domain.errors import GputuiError
from gputui.domain.settings import SchedulerSettings
from gputui.engine import garbage
from gputui.engine.scheduler import Scheduler
from gputui.engine.waker import Waker
from gputui.ports import Clock, JobStore, StoreWatch

if TYPE_CHECKING:
    from apscheduler.schedulers.asyncio import AsyncIOScheduler

log = logging.getLogger(__name__)

STORE_POLL = 0.1
"""Seconds between two looks at the store's version where nobody gives word of writes."""
STORE_LOOK = 1.0
"""The same where somebody does: for a writer that was killed before it could."""
HOUSEKEEPING = 10.0
MIN_PAUSE = 0.01
"""Seconds between two ticks at least, so that a burst of events costs a few ticks and not one each."""


class Loop:
    """Runs ticks one at a time until it is stopped: on an interval, and at once when something happened."""

    def __init__(
        self,
        scheduler: Scheduler,
        store: JobStore,
        settings: SchedulerSettings,
        clock: Clock,
        waker: Waker,
        holds: Callable[[], bool] = lambda: True,
    ) -> None:
        self._scheduler = scheduler
        self._store = store
        self._settings = settings
        self._clock = clock
        self._waker = waker
        self._holds = holds
        self._lost = asyncio.Event()
        self._has_ticked = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tick")
        self._house: Future[None] = Future()
        self._house.set_result(None)
        self._seen: object = None
        self._ticked_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._is_settled = False

    async def run(self, stop: asyncio.Event) -> None:
        """Schedule until `stop` is set or the leadership is lost. A tick under way is finished first."""
        self._waker.bind()
        self._scheduler.start()
        tasks = [asyncio.create_task(task) for task in (self._dispatch(), self._watch_store(), self._keep_time())]
        ends = [asyncio.create_task(each.wait()) for each in (stop, self._lost)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, *ends):
                task.cancel()
            await asyncio.gather(*tasks, *ends, return_exceptions=True)
            await asyncio.sleep(0)
            self._scheduler.stop()
            await _drained(self._thread)

    async def _keep_time(self) -> None:
        """Begin after the first tick: to import what keeps time takes longer than that, and somebody looks at GPUs."""
        await self._has_ticked.wait()
        timer = await asyncio.to_thread(self._timer)
        timer.start()
        try:
            await asyncio.Event().wait()
        finally:
            timer.shutdown(wait=False)

    def _timer(self) -> AsyncIOScheduler:
        from apscheduler.schedulers.asyncio import AsyncIOScheduler

        defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        timer = AsyncIOScheduler(job_defaults=defaults, timezone=UTC)
        timer.add_job(self._tick_due, "interval", seconds=self._settings.tick_interval.total_seconds())
        timer.add_job(self._reconcile_due, "interval", seconds=self._settings.reconcile_interval.total_seconds())
        timer.add_job(self._keep_house, "interval", seconds=HOUSEKEEPING)
        return timer

    async def _tick_due(self) -> None:
        """Time alone calls for a tick only where nothing else did: readings come every second as a rule."""
        if time.monotonic() - self._ticked_at >= self._settings.tick_interval.total_seconds() * 0.75:
            self._waker.wake()

    async def _reconcile_due(self) -> None:
        self._scheduler.look_again()

    async def _keep_house(self) -> None:
        """Not awaited: when we are stopped, APScheduler would cancel it and report that as a failure."""
        if self._house.done():
            with contextlib.suppress(RuntimeError):  # the thread is gone: we are being stopped
                self._house = self._thread.submit(self._keep_house_now)

    def _keep_house_now(self) -> None:
        garbage.SWEEPER.tend(time.monotonic())
        try:
            self._store.keep_house(self._clock.now())
        except GputuiError as error:
            log.warning("housekeeping has to wait: %s", error)
        except Exception:  # a border: nobody asks this thread how it went
            log.exception("housekeeping failed")

    async def _watch_store(self) -> None:
        """Ring when another process wrote a wish."""
        loop, watch = asyncio.get_running_loop(), self._store.watch()
        if watch is not None:
            loop.add_reader(watch.fileno(), self._hear, watch)
        try:
            while True:
                await asyncio.sleep(STORE_POLL if watch is None else STORE_LOOK)
                self._look_at_store()
        finally:
            if watch is not None:
                loop.remove_reader(watch.fileno())
                watch.close()

    def _hear(self, watch: StoreWatch) -> None:
        watch.take()
        self._look_at_store()

    def _look_at_store(self) -> None:
        if self._version() != self._seen:
            self._waker.wake()

    def _version(self) -> object:
        """The store's version; None when it does not tell. The next tick says why."""
        try:
            return self._store.version()
        except GputuiError:
            return None

    async def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        self._waker.wake()
        while True:
            await self._waker.wait()
            if not await asyncio.shield(loop.run_in_executor(self._thread, self._tick)):
                self._lost.set()
            self._has_ticked.set()
            self._set_alarm(loop)
            await asyncio.sleep(MIN_PAUSE)

    def _set_alarm(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ring at the very moment at which time alone calls for a tick.

        What a tick should have done and could not is left to the interval, or ticks would follow upon one another.
        """
        if self._alarm is not None:
            self._alarm.cancel()
        left = (self._scheduler.wake_at - self._clock.now()).total_seconds()
        soon = 0 < left < self._settings.tick_interval.total_seconds()
        self._alarm = loop.call_later(left, self._waker.wake) if soon else None

    def _tick(self) -> bool:
        """One pass; False, and none, when another process may be scheduling."""
        if not self._holds():
            return False
        before = self._version()
        self._ticked_at = time.monotonic()
        try:
            self._scheduler.tick(self._clock.now())
        except Exception:  # the border of the tick: one that fails must not end dispatch
            log.exception("a tick failed")
        self._settle_memory()
        # Our own writes make one more tick due; another process's between `before` and the reading of the store too.
        self._seen = before
        return True

    def _settle_memory(self) -> None:
        """Once, after the first tick: the queue is here."""
        if not self._is_settled:
            self._is_settled = True
            garbage.settle()


async def _drained(executor: Executor) -> None:
    """Wait for what the executor is at, without blocking the event loop."""
    await asyncio.get_running_loop().run_in_executor(None, partial(executor.shutdown, wait=True, cancel_futures=True))
