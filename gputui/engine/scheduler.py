"""One pass of the scheduler, as named steps. It decides and writes down; its hands do what takes time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from gputui.domain.errors import StoreError
from gputui.domain.event import disk_low
from gputui.domain.job import BootTime
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Notice, Snapshot
from gputui.domain.units import format_duration
from gputui.engine import claims, corrected, hopeless, preemptions, recurring, starts, stops, wishes
from gputui.engine.announcer import Announcer
from gputui.engine.disk import Disk
from gputui.engine.ground import Ground
from gputui.engine.hands import Hands
from gputui.engine.observer import Observer, Sequence
from gputui.engine.permissions import Permissions
from gputui.engine.picture import Queue, refusal
from gputui.engine.planner import Planner
from gputui.engine.pools import Pools, Work
from gputui.engine.reap import Reaper
from gputui.engine.usage import PastUsage
from gputui.ports import GpuProbe, JobStore, Runtime, SteadyClock

log = logging.getLogger(__name__)

LOCK_PATIENCE = 2.0
"""Seconds that a tick waits for whoever else writes to the queue: it has others to tell that it cannot go on."""


class Scheduler:
    """Keeps jobs running in the order wished, one `tick` at a time, in one thread at a time."""

    def __init__(
        self,
        *,
        store: JobStore,
        runtimes: Mapping[str, Runtime],
        probe: GpuProbe,
        settings: Settings,
        pools: Pools,
        clock: SteadyClock,
        directory: Path,
        leader: Leader,
        publish: Callable[[Snapshot], None],
        wake: Callable[[], None],
        announcer: Announcer | None = None,
    ) -> None:
        self._probe = probe
        self._publish_to = publish
        self._clock = clock
        self._wake = wake
        sequence = Sequence()
        interval = settings.scheduler.reconcile_interval
        self.observers = {name: Observer(runtime, sequence, wake, interval) for name, runtime in runtimes.items()}
        self.hands = Hands(
            store=store,
            pools=pools,
            clock=clock,
            directory=directory,
            settings=settings,
            sequence=sequence,
            changed=self._worked,
            permissions=Permissions(directory, settings),
        )
        self._ground = Ground(store, probe, self.observers, self.hands, settings)
        self._reaper = Reaper(self._ground)
        past_usage = PastUsage(store, settings.policy.half_life, pools(Work.HISTORY, ""), wake)
        self._planner = Planner(self._ground, leader, past_usage)
        self._announcer = announcer
        self._disk = Disk(directory, settings.scheduler.disk_floor)
        self._trouble: tuple[Notice, ...] = ()
        self._refusal = ""
        """Why the store refused the last tick; logged once."""
        self._checked: Queue | None = None
        self._ticked_at = datetime.min.replace(tzinfo=UTC)

    def start(self) -> None:
        """Begin to watch runtimes and GPUs."""
        self._probe.subscribe(lambda _: self._wake())
        self._probe.start()
        for observer in self.observers.values():
            observer.start()

    def stop(self) -> None:
        """Watch no more, and end pulls. Containers run on."""
        self.hands.pulls.close()
        for observer in self.observers.values():
            observer.stop()

    def look_again(self) -> None:
        """Have every runtime listed anew, whether or not it told of anything."""
        for observer in self.observers.values():
            observer.poke()

    def tick(self, now: datetime) -> Snapshot:
        """Make one pass. A refusal of the store is told in the snapshot and tried again at the next tick."""
        boot = self._clock.boot_time()  # at once: it is compared with `now`
        self._trouble = ()
        self._mind_the_clock(now)
        with self._ground.store.hurried(LOCK_PATIENCE):
            self._pass(now, boot)
        return self._publish(now)

    def _pass(self, now: datetime, boot: BootTime) -> None:
        """Take the steps of a tick, as far as the store lets them be taken."""
        try:
            self._ground.observe()
            corrected.move_along(self._ground, now, boot)
            self._reaper.reap(now)
            stops.enforce_limits(self._ground, now)
            self._cancel(now)
            self.hands.pulls.keep_wanted(self._ground.queue.jobs)
            self._give_up_hopeless(now)
            recurring.make_due_runs(self._ground, now)
            self._plan(now)
            claims.settle(self._ground, self._planner.plan.windows)
            self._preempt(now)
            self._start(now)
            self._announce(now)
            self._refusal = ""
        except StoreError as error:
            if str(error) != self._refusal:
                log.error("the store refused: %s", error)
            self._refusal = str(error)
            self._trouble = (refusal(error),)
            self._plan(now)

    @property
    def wake_at(self) -> datetime:
        """When time alone calls for the next tick."""
        run_at = recurring.next_run_at(self._ground.queue.recurring.values(), self._ticked_at)
        return min(self._planner.again_at, run_at) if run_at else self._planner.again_at

    def _mind_the_clock(self, now: datetime) -> None:
        """After the clock went back, let nothing wait until it is as late again."""
        if now < self._ticked_at:
            log.warning("the clock went back by %s", format_duration(self._ticked_at - now))
            self._reaper.let_none_lie_ahead(now)
            self._planner.look_again_by(now)
        self._ticked_at = now

    def _worked(self, runtime_name: str) -> None:
        self.observers[runtime_name].poke()
        self._wake()

    def _cancel(self, now: datetime) -> None:
        """Carry out the wishes to cancel and to requeue, and see that what is to end does end."""
        wishes.carry_out(self._ground, now)
        stops.see_them_end(self._ground, now)

    def _give_up_hopeless(self, now: datetime) -> None:
        """Cancel jobs that wait for what can never come."""
        ground = self._ground
        if self._checked is not ground.queue and hopeless.are_there(ground.queue):
            hopeless.give_up(ground.store, ground.queue, now)
            ground.observe()
        self._checked = ground.queue

    def _plan(self, now: datetime) -> None:
        self._planner.make(now, self._reaper.freed_at, (*self._trouble, *self._warnings(now)))

    def _warnings(self, now: datetime) -> tuple[Notice, ...]:
        """Of the disk, and of hooks that do not work."""
        was_low, notices = self._disk.is_low, self._disk.notices(now)
        if self._announcer is None:
            return notices
        if self._disk.is_low and not was_low:
            self._announcer.tell(disk_low(self._disk.path, self._disk.free or 0, self._disk.words, now), now)
        return (*notices, *self._announcer.notices(now))

    def _announce(self, now: datetime) -> None:
        """Tell the hooks what happened."""
        if self._announcer is not None:
            self._announcer.look(self._ground.queue, self._planner.gpus, now)

    def _preempt(self, now: datetime) -> None:
        """Tell those to end that are to make way."""
        if preemptions.begin(self._ground, self._planner.plan.preemptions, now):
            self._planner.carried_out((), now, self._reaper.freed_at)

    def _start(self, now: datetime) -> None:
        """Begin all that start now."""
        begun = starts.begin(self._ground, self._planner.plan.starts, now)
        if begun:
            self._planner.carried_out(begun, now, self._reaper.freed_at)

    def _publish(self, now: datetime) -> Snapshot:
        snapshot = self._planner.picture(now)
        self._publish_to(snapshot)
        return snapshot
