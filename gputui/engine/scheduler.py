"""One pass of the scheduler, as named steps. It decides and writes down; its hands do what takes time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.errors import StoreError
from gputui.domain.gpu import HealthCode
from gputui.domain.job import Job, JobId, Placement, Stopping
from gputui.domain.policy import gpu_memory
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.policy.retry import conclude, requeued
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Notice, Snapshot, Usage
from gputui.domain.state import JobState
from gputui.domain.units import format_duration
from gputui.engine import hopeless, reconcile, work
from gputui.engine.hands import Hands
from gputui.engine.limits import is_to_be_warned, overdue
from gputui.engine.observer import Observer, Sequence
from gputui.engine.picture import Queue, World, with_plan, within
from gputui.engine.usage import REFRESH, past_usage
from gputui.ports import Clock, GpuProbe, JobStore, Runtime, Transaction

log = logging.getLogger(__name__)

_REASONS_KEEP = timedelta(seconds=5)
_KILL_STRAYS_EVERY = 10.0
_UNKILLABLE = timedelta(minutes=1)
"""After so long a job on a lost GPU is given up: a process waiting in the driver ignores even SIGKILL."""
_LOST = frozenset({HealthCode.LOST, HealthCode.XID, HealthCode.NEEDS_RESET})


class Scheduler:
    """Keeps jobs running in the order wished, one `tick` at a time, in one thread at a time."""

    def __init__(
        self,
        *,
        store: JobStore,
        runtimes: Mapping[str, Runtime],
        probe: GpuProbe,
        settings: Settings,
        workers: Executor,
        clock: Clock,
        directory: Path,
        leader: Leader,
        publish: Callable[[Snapshot], None],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._probe = probe
        self._settings = settings
        self._leader = leader
        self._publish_to = publish
        self._wake = wake
        sequence = Sequence()
        interval = settings.scheduler.reconcile_interval
        self.observers = {name: Observer(runtime, sequence, wake, interval) for name, runtime in runtimes.items()}
        self._hands = Hands(
            store=store,
            workers=workers,
            clock=clock,
            directory=directory,
            settings=settings.scheduler,
            sequence=sequence,
            changed=self._worked,
        )
        self._freed_at: dict[str, datetime] = {}
        self._trouble: tuple[Notice, ...] = ()
        self._damage: tuple[Notice, ...] = ()
        self._queue = Queue()
        self._checked: Queue | None = None
        self._version: object = None
        self._snapshot = Snapshot()
        self._plan = Plan()
        self._usage = Usage()
        self._usage_read_at: datetime | None = None
        self._planned_for: object = None
        self._plan_again_at = self._ticked_at = datetime.min.replace(tzinfo=UTC)

    def start(self) -> None:
        """Begin to watch runtimes and GPUs."""
        self._probe.subscribe(lambda _: self._wake())
        self._probe.start()
        for observer in self.observers.values():
            observer.start()

    def stop(self) -> None:
        """Watch no more. Containers run on."""
        for observer in self.observers.values():
            observer.stop()

    def look_again(self) -> None:
        """Have every runtime listed anew, whether or not it told of anything."""
        for observer in self.observers.values():
            observer.poke()

    def tick(self, now: datetime) -> Snapshot:
        """One pass. What the store refuses is told in the snapshot, and tried again at the next tick."""
        self._trouble = ()
        self._mind_the_clock(now)
        try:
            self._observe()
            self._reap(now)
            self._enforce_limits(now)
            self._cancel(now)
            self._give_up_hopeless(now)
            self._plan_starts(now)
            self._start(now)
        except StoreError as error:
            log.error("the store refused: %s", error)
            self._trouble = (Notice("error", f"{error}; nothing is started until this is mended"),)
            self._plan_starts(now)
        return self._publish(now)

    def _mind_the_clock(self, now: datetime) -> None:
        """After the clock went back, let nothing wait until it is as late again."""
        if now < self._ticked_at:
            log.warning("the clock went back by %s", format_duration(self._ticked_at - now))
            self._freed_at = {uuid: min(at, now) for uuid, at in self._freed_at.items()}
            self._plan_again_at = now
        self._ticked_at = now

    def _worked(self, runtime_name: str) -> None:
        self.observers[runtime_name].poke()
        self._wake()

    # observe

    def _observe(self) -> None:
        """See what the store says now, if it was written since we last looked."""
        version = self._store.version()
        if version == self._version:
            return
        self._queue, self._version = Queue.of(self._store), version
        self._damage = tuple(Notice("warning", sentence) for sentence in self._store.damage())
        self._probe.follow(self._queue.active)

    # reap

    def _reap(self, now: datetime) -> None:
        """Bring store and runtimes together: exits, adoptions, interrupted starts, leftovers."""
        for name, observer in self.observers.items():
            seen = observer.latest
            if seen.records is None:
                continue
            mine = [job for job in self._queue.active if runtime_of(job) == name]
            listing = reconcile.Seen(seen.records, seen.begun, self._hands.is_busy, self._hands.settled)
            self._carry_out(reconcile.decide(self._queue.jobs, mine, listing), observer.runtime, now)

    def _carry_out(self, decisions: list[reconcile.Decision], runtime: Runtime, now: datetime) -> None:
        decisions = [decision for decision in decisions if not self._is_looked_at(decision, runtime)]
        self._write(decisions, now)
        for decision in decisions:
            if isinstance(decision, reconcile.Clean):
                self._hands.clean(runtime, decision.record, now)
            elif isinstance(decision, reconcile.StartAgain):
                job = self._queue.jobs[decision.job_id]
                self._hands.start(runtime, work.launch_of(self._store.store_id, job, job.attempts[-1]))
            elif isinstance(decision, reconcile.KillStray):
                record = decision.record
                again = now.timestamp() // _KILL_STRAYS_EVERY
                self._hands.tell(runtime, (record.job_id, record.attempt), record.id, f"kill the stray, {again}")

    def _is_looked_at(self, decision: reconcile.Decision, runtime: Runtime) -> bool:
        """Whether a worker is still reading in the last lines of a failed attempt why it failed."""
        if not isinstance(decision, reconcile.Finish):
            return False
        job = self._queue.jobs[decision.job_id]
        may_have = gpu_memory.may_have(job, decision.record.cause)
        return may_have and self._hands.look(runtime, decision.record) is None

    def _write(self, decisions: list[reconcile.Decision], now: datetime) -> None:
        """Put decisions into the store, each if its job still is what it was made for."""
        changes = [decision for decision in decisions if isinstance(decision, reconcile.Change)]
        if not changes:
            return
        freed: list[str] = []
        with self._store.transaction() as transaction:
            for change in changes:
                before = transaction.get(change.job_id)
                after = self._after(transaction, before, change, now)
                if after is not None:
                    transaction.put(after)
                    freed += [uuid for uuid in before.gpus if uuid not in after.gpus]
                    log.info("job %d: %s to %s by %s", after.id, before.state, after.state, type(change).__name__)
        self._free(freed, now)
        self._observe()

    def _after(self, transaction: Transaction, job: Job, change: reconcile.Change, now: datetime) -> Job | None:
        settings = self._settings.scheduler
        match change:
            case reconcile.Finish(_, record):
                current = work.under_way(transaction, job.id, record.attempt)
                sign = self._hands.take_sign((job.id, record.attempt))
                if current is None:
                    return None
                gpus = self._probe.latest().gpus
                totals = {gpu.uuid: gpu.memory_total for gpu in gpus if gpu.memory_total}
                return gpu_memory.with_more(work.finished(current, record, now, settings, sign), totals)
            case reconcile.Vanished(_, number):
                current = work.under_way(transaction, job.id, number)
                return work.vanished(current, now, settings) if current else None
            case reconcile.Adopt(_, record):
                adoptable = job.state in {JobState.PENDING, JobState.CONFIGURING}
                return work.adopted(job, record, now) if adoptable else None
            case reconcile.GiveBack():
                return work.given_back(job) if job.state is JobState.CONFIGURING else None

    def _free(self, uuids: Iterable[str], now: datetime) -> None:
        """Remember when GPUs were given back, and have them read at once: older readings show the job that left."""
        freed = dict.fromkeys(uuids, now)
        if freed:
            self._freed_at.update(freed)
            self._probe.refresh()

    # enforce limits, cancel

    def _enforce_limits(self, now: datetime) -> None:
        """End attempts that are over their time, or whose GPU is lost."""
        samples = self._probe.latest().samples
        sick = {uuid: sample.health for uuid, sample in samples.items() if sample.health.code in _LOST}
        stops: dict[JobId, Cause] = {}
        for job in self._queue.active:
            lost = next((uuid for uuid in job.gpus if uuid in sick), None)
            if job.state is JobState.RUNNING and lost is not None:
                stops[job.id] = Cause(CauseCode.GPU_LOST, f"{lost}: {sick[lost].text}")
            elif job.state is JobState.RUNNING and (cause := overdue(job, now)):
                stops[job.id] = cause
        self._begin_stops(stops, now)
        self._warn([job for job in self._queue.active if is_to_be_warned(job, now)], now)

    def _warn(self, jobs: list[Job], now: datetime) -> None:
        """Announce time limits. Written down first: a signal too many would end many a job, one too few ends none."""
        if not jobs:
            return
        with self._store.transaction() as transaction:
            warned = [job for job in (transaction.get(stale.id) for stale in jobs) if is_to_be_warned(job, now)]
            for job in warned:
                transaction.put(job.with_attempt(warned_at=now))
        for job in warned:
            attempt, warning = job.attempts[-1], job.spec.warning
            observer = self.observers.get(runtime_of(job))
            if observer is not None and attempt.container_id is not None and warning is not None:
                self._hands.warn(observer.runtime, (job.id, attempt.number), attempt.container_id, warning.number)
        self._observe()

    def _begin_stops(self, stops: Mapping[JobId, Cause], now: datetime) -> None:
        if not stops:
            return
        with self._store.transaction() as transaction:
            for job_id, cause in stops.items():
                job = transaction.get(job_id)
                if job.state is JobState.RUNNING:
                    transaction.put(job.to(JobState.COMPLETING, stopping=Stopping(cause, now)))
        self._observe()

    def _cancel(self, now: datetime) -> None:
        """Carry out the wishes to cancel and to requeue, and see that what is to end does end."""
        if self._queue.wished:
            self._carry_out_wishes(self._queue.wished, now)
        self._begin_graces_anew(now)
        for job in self._queue.active:
            if job.state is JobState.COMPLETING:
                self._see_it_end(job, now)

    def _begin_graces_anew(self, now: datetime) -> None:
        """A stop that lies ahead was begun before the clock went back: its grace would last until then."""
        ahead = [job for job in self._queue.active if job.stopping is not None and job.stopping.at > now]
        if not ahead:
            return
        with self._store.transaction() as transaction:
            for stale in ahead:
                job = transaction.get(stale.id)
                if job.stopping is not None:
                    transaction.put(job.evolve(stopping=replace(job.stopping, at=now)))
        self._observe()

    def _carry_out_wishes(self, wished: tuple[Job, ...], now: datetime) -> None:
        self._begin_stops({job.id: _wish(job) for job in wished if job.state is JobState.RUNNING}, now)
        at_once = [job for job in wished if _at_once(job, now)]
        if not at_once:
            return
        with self._store.transaction() as transaction:
            for stale in at_once:
                if after := _at_once(transaction.get(stale.id), now):
                    transaction.put(after)
        self._observe()

    def _give_up_hopeless(self, now: datetime) -> None:
        """Cancel jobs that wait for what can never come."""
        if self._checked is not self._queue and hopeless.are_there(self._queue):
            hopeless.give_up(self._store, self._queue, now)
            self._observe()
        self._checked = self._queue

    def _see_it_end(self, job: Job, now: datetime) -> None:
        """SIGTERM first; SIGKILL when the grace is over, again after every further grace."""
        attempt, stopping = job.attempt, job.stopping
        observer = self.observers.get(runtime_of(job))
        if attempt is None or attempt.container_id is None or stopping is None or observer is None:
            return
        grace = max(self._settings.scheduler.stop_grace, timedelta(milliseconds=100))
        if stopping.cause.code is CauseCode.GPU_LOST and now - stopping.at > _UNKILLABLE:
            self._give_up(job, attempt.number, stopping.cause, now)
            return
        graces = (now - stopping.at) // grace
        how = "terminate" if graces < 1 else f"kill for the {graces}. time"
        self._hands.tell(observer.runtime, (job.id, attempt.number), attempt.container_id, how)

    def _give_up(self, job: Job, number: int, cause: Cause, now: datetime) -> None:
        """Let the job go on elsewhere though a sick driver keeps its processes from dying.

        Its container stays a stray: told to die again and again, and its GPUs count as taken.
        """
        with self._store.transaction() as transaction:
            current = work.under_way(transaction, job.id, number)
            if current is not None:
                transaction.put(conclude(current, cause, None, now, self._settings.scheduler))
        self._observe()

    # plan, start

    def _plan_starts(self, now: datetime) -> None:
        """Look at everything as it is now, and decide what starts."""
        self._look(now)
        news = _news(self._version, self._snapshot)
        if news != self._planned_for or now >= self._plan_again_at:
            self._plan = plan(self._snapshot, self._settings, now)
            self._planned_for, self._plan_again_at = news, _next_look(self._snapshot, now)

    def _look(self, now: datetime) -> None:
        """Put together the picture of everything as it is now."""
        world = World(
            reading=self._probe.latest(),
            observations=tuple(observer.latest for observer in self.observers.values()),
            freed_at=self._freed_at,
            progress=self._hands.progress,
            notices=(*self._trouble, *self._damage),
            usage=self._past_usage(now),
        )
        self._snapshot = within(self._store.store_id, self._queue, world, self._leader, self._settings, now)

    def _past_usage(self, now: datetime) -> Usage:
        """What tenants used in jobs that are in the queue no more, read anew every so often."""
        if self._usage_read_at is None or abs(now - self._usage_read_at) > REFRESH:
            self._usage_read_at = now
            try:
                self._usage = past_usage(self._store, self._settings.policy.half_life, now)
            except StoreError as error:  # fair share is less fair for it; nothing has to wait
                log.warning("what was used in the past cannot be read: %s", error)
        return self._usage

    def _start(self, now: datetime) -> None:
        """Step (a) of the start protocol for all that start now; workers do the rest."""
        claims = self._claim([start for start in self._plan.starts if self._has_image(start)], now)
        if not claims:
            return
        for job in claims:
            launch = work.launch_of(self._store.store_id, job, job.attempts[-1])
            self._hands.start(self.observers[runtime_of(job)].runtime, launch)
        self._observe()
        self._look(now)
        self._plan, self._planned_for = _without(self._plan, claims), None

    def _claim(self, starts: list[Placement], now: datetime) -> list[Job]:
        if not starts:
            return []
        claims: list[Job] = []
        with self._store.transaction() as transaction:
            for start in starts:
                job = transaction.get(start.job_id)
                if job.state is JobState.PENDING and not job.held and not job.cancel_requested:
                    claims.append(work.claimed(job, start.gpus, now))
                    transaction.put(claims[-1])
        return claims

    def _has_image(self, start: Placement) -> bool:
        job = self._queue.jobs[start.job_id]
        return self._hands.has_image(self.observers[runtime_of(job)].runtime, job.id, job.spec.image)

    # publish

    def _publish(self, now: datetime) -> Snapshot:
        snapshot = with_plan(replace(self._snapshot, taken_at=now), self._plan)
        self._publish_to(snapshot)
        return snapshot


def runtime_of(job: Job) -> str:
    """The name of the runtime a job runs in."""
    return "process" if job.spec.is_host else "docker"


def _news(version: object, snapshot: Snapshot) -> object:
    """What a plan is made from, apart from the time: as long as it stays the same, so does the plan."""
    node = snapshot.nodes[0]
    return (version, tuple((view.gpu.uuid, view.state, view.why) for view in node.gpus), node.runtimes, node.probe)


def _without(decided: Plan, claims: Iterable[Job]) -> Plan:
    """The plan, of which these starts are done: it reckoned with them when it judged the others."""
    done = {job.id for job in claims}
    return replace(
        decided,
        starts=tuple(start for start in decided.starts if start.job_id not in done),
        order=tuple(job_id for job_id in decided.order if job_id not in done),
        forecast={job_id: at for job_id, at in decided.forecast.items() if job_id not in done},
    )


def _next_look(snapshot: Snapshot, now: datetime) -> datetime:
    """When time alone changes the plan: a job may begin, a back-off ends; reasons that tell times grow old before."""
    timed = [job for job in snapshot.jobs if job.not_before or job.spec.begin_at]
    gates = (gate for job in timed if job.state is JobState.PENDING for gate in (job.not_before, job.spec.begin_at))
    return min((now + _REASONS_KEEP, *(gate for gate in gates if gate is not None and gate > now)))


def _wish(job: Job) -> Cause:
    if job.cancel_requested:
        return Cause(CauseCode.CANCELLED, "cancelled by a user")
    return Cause(CauseCode.REQUEUED, "requeued by a user")


def _at_once(job: Job, now: datetime) -> Job | None:
    """The job after a wish that needs no container to end; None when it has to wait for one."""
    has_container = job.attempt is not None and not job.attempt.is_over
    if job.state is JobState.PENDING or (job.state is JobState.CONFIGURING and not has_container):
        if job.cancel_requested:
            return job.to(JobState.CANCELLED, cancel_requested=False, cause=_wish(job), ended_at=now)
        return job.evolve(requeue_requested=False) if job.requeue_requested else None
    if job.state.is_terminal:
        return requeued(job) if job.requeue_requested else job.evolve(cancel_requested=False)
    return None
