"""When things happen: APScheduler is the clock, an event the doorbell, one thread the place where ticks run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from datetime import UTC
from typing import TYPE_CHECKING, Any

from gputui.domain.errors import GputuiError
from gputui.domain.settings import SchedulerSettings
from gputui.engine import garbage
from gputui.engine.daemons import DaemonExecutor
from gputui.engine.faults import Faults, GivenUpError
from gputui.engine.scheduler import Scheduler
from gputui.engine.waker import Waker
from gputui.ports import Clock, JobStore, StoreWatch

if TYPE_CHECKING:
    from apscheduler.events import JobExecutionEvent
    from apscheduler.schedulers.asyncio import AsyncIOScheduler

log = logging.getLogger(__name__)

STORE_POLL = 0.1
"""Seconds between two looks at the store's version where nobody gives word of writes."""
STORE_LOOK = 1.0
"""The same where somebody does: for a writer that was killed before it could."""
HOUSEKEEPING = 10.0
AGAIN_AFTER = 1.0
"""Seconds after which a part that failed is begun again."""
MOST_FAULTS = 4
"""Faults within a minute after which scheduling goes on; with one more this process gives up."""
END_TICK_WITHIN = 30.0
"""Seconds that a tick under way may take when the loop ends."""
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
        faults: Faults | None = None,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        self._scheduler = scheduler
        self._store = store
        self._settings = settings
        self._clock = clock
        self._waker = waker
        self._holds = holds
        self._faults = faults or Faults(MOST_FAULTS)
        self._told = told
        """Called when there is a notice of a fault."""
        self._given_up: GivenUpError | None = None
        self._is_ending = False
        self._lost = asyncio.Event()
        self._has_ticked = asyncio.Event()
        self._thread = DaemonExecutor(1, "tick")
        self._house_thread = DaemonExecutor(1, "house")
        self._house: Future[None] = Future()
        self._house.set_result(None)
        self._seen: object = None
        self._ticked_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._is_settled = False

    async def run(self, stop: asyncio.Event) -> None:
        """Schedule until `stop` is set or the leadership is lost. A tick under way is finished first.

        Raises GivenUpError when parts of it failed too often.
        """
        self._waker.bind()
        self._scheduler.start()
        parts = {"a tick": self._dispatch, "the watch for wishes": self._watch_store, "the timer": self._keep_time}
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
            await self._end_tick()
        if self._given_up is not None:
            raise self._given_up

    async def _end_tick(self) -> None:
        """Wait for a tick under way, but not for ever: one that hangs writes nothing once it finds its store locked."""
        executors = (self._thread, self._house_thread)
        for executor in executors:
            executor.shutdown()
        for _ in range(round(END_TICK_WITHIN / MIN_PAUSE)):
            if all(executor.drain(0) for executor in executors):
                return
            await asyncio.sleep(MIN_PAUSE)
        log.warning("a tick does not end, and is left to itself")

    async def _supervise(self, name: str, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a part that has no end of its own, and begin it again after each fault."""
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
        """Log and tell a fault; where there are too many, have `run` give up."""
        log.error("the scheduler failed in %s", name, exc_info=fault)
        self._given_up = self._given_up or self._faults.add(name, fault)
        if self._given_up is not None:
            self._lost.set()
        try:
            self._told()
        except Exception:  # a border: the notice comes with the next picture
            log.exception("a fault could not be told")

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
        from apscheduler.events import EVENT_JOB_ERROR
        from apscheduler.schedulers.asyncio import AsyncIOScheduler

        defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        timer = AsyncIOScheduler(job_defaults=defaults, timezone=UTC)
        timer.add_listener(self._job_failed, EVENT_JOB_ERROR)
        timer.add_job(self._tick_due, "interval", seconds=self._settings.tick_interval.total_seconds())
        timer.add_job(self._reconcile_due, "interval", seconds=self._settings.reconcile_interval.total_seconds())
        timer.add_job(self._keep_house, "interval", seconds=HOUSEKEEPING)
        return timer

    def _job_failed(self, event: JobExecutionEvent) -> None:
        """Hear from APScheduler, which goes on by itself."""
        self._note("the timer", event.exception)

    async def _tick_due(self) -> None:
        """Time alone calls for a tick only where nothing else did: readings come every second as a rule."""
        if time.monotonic() - self._ticked_at >= self._settings.tick_interval.total_seconds() * 0.75:
            self._waker.wake()

    async def _reconcile_due(self) -> None:
        self._scheduler.look_again()

    async def _keep_house(self) -> None:
        """Not awaited: when we are stopped, APScheduler would cancel it and report that as a failure."""
        if self._house.done():
            self._house = self._house_thread.submit(self._keep_house_now)

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
        failed: asyncio.Future[None] = loop.create_future()

        def hear(watch: StoreWatch) -> None:
            try:
                self._hear(watch)
            except Exception as error:  # noqa: BLE001 - the loop would call it again at once, for ever
                loop.remove_reader(watch.fileno())
                failed.set_exception(error)

        if watch is not None:
            loop.add_reader(watch.fileno(), hear, watch)
        try:
            while not failed.done():
                await asyncio.wait({failed}, timeout=STORE_POLL if watch is None else STORE_LOOK)
                self._look_at_store()
            failed.result()
        finally:
            failed.cancel()
            if watch is not None:
                loop.remove_reader(watch.fileno())
                watch.close()

    def _hear(self, watch: StoreWatch) -> None:
        watch.take()
        self._look_at_store()

    def _look_at_store(self) -> None:
        if self._has_ticked.is_set() and self._version() != self._seen:
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
        self._scheduler.tick(self._clock.now())
        self._settle_memory()
        # Our own writes make one more tick due; another process's between `before` and the reading of the store too.
        self._seen = before
        return True

    def _settle_memory(self) -> None:
        """Once, after the first tick: the queue is here."""
        if not self._is_settled:
            self._is_settled = True
            garbage.settle()
