"""The current plan: made from a snapshot and past usage, and again when any of its inputs has changed."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.access import Actor, AuditEntry
from gputui.domain.container import ContainerState, ForeignContainer
from gputui.domain.errors import GputuiError, InputError, StoreError
from gputui.domain.gpu import GpuState, GpuView, ProbeReading
from gputui.domain.idle_gpus import IdleTracker
from gputui.domain.job import Job
from gputui.domain.job_spec import RUNTIMES, JobId
from gputui.domain.policy.availability import UNASKED, Evidence, gpu_views, why_unseen
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.policy.queue_order import OrderCache
from gputui.domain.policy.reservations import with_claims
from gputui.domain.recurring import Overlap, RecurringJob, Skipped, live_jobs
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Node, Notice, Snapshot, Usage, WindowView
from gputui.domain.state import JobState
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.admission import find_zone
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.reconcile import find_strays, held_up
from gputui.engine.tick.snapshot_builder import QueueView, with_plan
from gputui.engine.tick.workers import Observation
from gputui.ports import JobStore, Transaction

log = logging.getLogger(__name__)

REFRESH = timedelta(minutes=10)
"""Time between two readings of the history; jobs that moved there later do not count until the next."""
_HALF_LIVES = 8
"""Half-lives that are read; older usage would count for less than half a percent of itself."""


class PastUsage(Struct, eq=False):
    """Cache of the past usage, refreshed in the background; the last reading counts meanwhile."""

    _store: JobStore
    _half_life: timedelta
    _workers: Executor
    _wake: Callable[[], None]
    _usage: Usage = field(default_factory=Usage)
    _asked_at: datetime | None = None
    _is_reading: bool = False

    def at(self, now: datetime) -> Usage:
        """Return the last reading; start a new one in a worker if it is older than `REFRESH`. Never blocks."""
        is_old = self._asked_at is None or abs(now - self._asked_at) > REFRESH
        if is_old and not self._is_reading:
            self._asked_at, self._is_reading = now, True
            self._workers.submit(self._read, now)
        return self._usage

    def _read(self, now: datetime) -> None:
        try:
            self._usage = past_usage(self._store, self._half_life, now)
        except StoreError as error:  # fair share is less exact, but nothing has to wait
            log.warning("past usage cannot be read: %s", error)
        except Exception:  # the border of a worker
            log.exception("reading past usage")
        finally:
            self._is_reading = False
        self._wake()


def past_usage(store: JobStore, half_life: timedelta, now: datetime) -> Usage:
    """Return GPU-seconds of each tenant, decayed to `now` from the end of each attempt."""
    used: dict[str, float] = {}
    for job in store.past(now - _HALF_LIVES * half_life):
        for attempt in job.attempts:
            if attempt.gpus and attempt.started_at and attempt.ended_at:
                gpus = len(attempt.gpus) * attempt.gpu_share
                seconds = (attempt.ended_at - attempt.started_at).total_seconds() * gpus
                decay = 0.5 ** (max(now - attempt.ended_at, timedelta(0)) / half_life)
                used[job.spec.tenant] = used.get(job.spec.tenant, 0.0) + max(0.0, seconds) * decay
    return Usage(now, used)


_REASONS_KEEP = timedelta(seconds=5)


class Planner(Struct, eq=False):
    """Takes snapshots and plans, no more often than necessary."""

    _context: TickContext
    _leader: Leader
    _past_usage: PastUsage
    _idle: IdleTracker
    plan: Plan = Plan()
    _order_cache: OrderCache = field(default_factory=OrderCache)
    _snapshot: Snapshot = Snapshot()
    _planned_for: object = None
    next_at: datetime = datetime.min.replace(tzinfo=UTC)
    """Time of the next plan, if nothing changes before."""

    def update(self, now: datetime, freed_at: Mapping[str, datetime], trouble: tuple[Notice, ...]) -> None:
        self._take_snapshot(now, freed_at, trouble)
        node = self._snapshot.nodes[0]
        gpus = tuple(
            # other reasons contain figures that always change
            (each.gpu.uuid, each.state, each.why if each.state is GpuState.UNKNOWN else "", each.sharers, each.closed)
            for each in node.gpus
        )
        inputs = (self._context.version, gpus, node.runtimes, node.probe, node.name, self._snapshot.usage.at)
        if inputs != self._planned_for or now >= self.next_at:
            begun = time.perf_counter()
            self.plan = plan(self._snapshot, self._context.settings, now, self._order_cache)
            self._context.monitor.took("plan", time.perf_counter() - begun)
            self._planned_for = inputs
            # time alone changes the plan: a back-off or a reservation ends, a begin time comes, reasons age
            timed = [job for job in self._snapshot.jobs if job.not_before or job.spec.begin_at]
            waiting = [job for job in timed if job.state is JobState.PENDING]
            gates = [gate for job in waiting for gate in (job.not_before, job.spec.begin_at)]
            turns = [at for view in self.plan.windows for at in (view.window.start, view.lapses_at, view.window.end)]
            self.next_at = min((now + _REASONS_KEEP, *(at for at in (*gates, *turns) if at is not None and at > now)))

    def carried_out(self, claims: Iterable[Job], now: datetime, freed_at: Mapping[str, datetime]) -> None:
        """Count these starts as done; their other effects are planned at the next tick."""
        entries = {job.id: job for job in self._snapshot.jobs if job.runs}
        self._take_snapshot(now, freed_at, ())
        self.plan, self._planned_for = _without(self.plan, claims, entries), None

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        return self._snapshot.gpus

    def snapshot(self, now: datetime) -> Snapshot:
        return with_plan(replace(self._snapshot, taken_at=now), self.plan)

    def _take_snapshot(self, now: datetime, freed_at: Mapping[str, datetime], trouble: tuple[Notice, ...]) -> None:
        context = self._context
        observed = Observations(
            reading=context.reading,
            runtimes=tuple(observer.latest for observer in context.observers.values()),
            freed_at=freed_at,
            progress={**held_up(context, now), **context.workers.pulls.progress},
            notices=(*trouble, *context.damage),
            usage=self._past_usage.at(now),
            idle_since=context.idle_since,
        )
        snapshot = leader_snapshot(context.store.store_id, context.queue, observed, self._leader, context.settings, now)
        active = {job.id: job for job in context.queue.active}
        self._snapshot = replace(snapshot, nodes=self._idle.marked(snapshot.nodes, active, now))


def _without(decided: Plan, claims: Iterable[Job], entries: Mapping[JobId, Job]) -> Plan:
    """Return the plan without these starts, which it already counted when it judged the other jobs.

    `entries` are the array entries that it was made for: the rest of one has another id.
    """
    done = {job.id for job in claims}

    def left(job_id: JobId) -> JobId | None:
        entry = entries.get(job_id)
        rest = entry.without(done) if entry else None
        if entry is None:
            return None if job_id in done else job_id
        return rest.id if rest else None

    return replace(
        decided,
        starts=tuple(start for start in decided.starts if start.job_id not in done),
        order=tuple(job_id for job_id in map(left, decided.order) if job_id is not None),
        forecast={job_id: at for job_id, at in decided.forecast.items() if job_id not in done},
    )


def record_reservations(context: TickContext, windows: tuple[WindowView, ...]) -> None:
    """Record the reservations that the plan found claimed, or not claimed in time: each is decided once."""
    if with_claims(context.queue.controls, windows) is context.queue.controls:
        return
    with context.store.transaction() as transaction:
        before = transaction.controls()
        after = with_claims(before, windows)
        if after is not before:
            transaction.set_controls(after)
    for view in windows:
        if view.window.key in after.released.keys() - before.released.keys():
            log.info("reservation %s is released: unused", view.window.name)
        elif view.window.key in after.claimed.keys() - before.claimed.keys():
            log.info("reservation %s is claimed", view.window.name)
    context.refresh()


class Observations(Struct, frozen=True):
    """State outside the store, as the scheduler observed it: GPUs, runtimes, pulls, past usage."""

    reading: ProbeReading
    runtimes: tuple[Observation, ...]
    freed_at: Mapping[str, datetime]
    progress: Mapping[JobId, str]
    notices: tuple[Notice, ...]
    usage: Usage = Usage()
    idle_since: Mapping[str, datetime] = field(default_factory=dict)


def leader_snapshot(
    store_id: str, queue: QueueView, observed: Observations, leader: Leader, settings: Settings, now: datetime
) -> Snapshot:
    evidence = Evidence(
        reading=observed.reading,
        store_id=store_id,
        jobs=queue.active,
        controls=queue.controls,
        unreadable=queue.unreadable,
        foreign=_foreign(queue.jobs, observed.runtimes),
        unseen=_why_unseen(observed.runtimes),
        freed_at=observed.freed_at,
        # by session leader pid, to identify processes of this machine's host jobs with unreadable environments
        sessions={
            record.pid: record.job_id
            for latest in observed.runtimes
            if RUNTIMES.get(latest.status.name) and not observed.reading.machine
            for record in latest.records or ()
            if record.pid is not None
        },
        idle_since=observed.idle_since,
    )
    node = Node(
        name=observed.reading.machine or leader.host,
        gpus=gpu_views(evidence, settings.scheduler, now),
        probe=observed.reading.status,
        driver_version=observed.reading.driver_version,
        runtimes=tuple(latest.status for latest in observed.runtimes),
        host=observed.reading.host,
        is_elsewhere=bool(observed.reading.machine),
    )
    return Snapshot(
        taken_at=now,
        nodes=(node,),
        jobs=queue.all_jobs,
        controls=queue.controls,
        recurring=tuple(queue.recurring.values()),
        unreadable=queue.unreadable,
        leader=leader,
        leads_here=True,
        progress=observed.progress,
        usage=observed.usage,
        notices=(*observed.notices, *(Notice("information", note) for note in observed.reading.notes)),
    )


def _foreign(jobs: Mapping[JobId, Job], observations: Iterable[Observation]) -> tuple[ForeignContainer, ...] | None:
    """Return foreign containers with GPUs; None if any runtime cannot list them."""
    found: list[ForeignContainer] = []
    for latest in observations:
        if latest.foreign is None or latest.records is None:
            return None
        found += latest.foreign
        for stray in find_strays(jobs, latest.records):
            name = f"job {stray.job_id} of a lost queue"
            if (job := jobs.get(stray.job_id)) is not None:
                end = "which does not stop" if stray.attempt < job.next_attempt else "which the queue lost"
                name = f"attempt {stray.attempt} of job {stray.job_id}, {end}"
            found.append(ForeignContainer(stray.id, name, None, stray.gpus, started_at=stray.started_at))
    return tuple(found)


def _why_unseen(observations: Iterable[Observation]) -> str:
    silent = [latest for latest in observations if latest.foreign is None or latest.records is None]
    return why_unseen(latest.status for latest in silent) if any(latest.begun for latest in silent) else UNASKED


class _FrozenClock(Struct, frozen=True):
    at: datetime

    def now(self) -> datetime:
        return self.at


def next_run_at(entries: Iterable[RecurringJob], now: datetime) -> datetime | None:
    return min((entry.next_at for entry in entries if entry.next_at > now and not entry.paused), default=None)


def make_due_runs(context: TickContext, now: datetime, is_former: Callable[[int], bool] = lambda uid: False) -> None:
    """Make the due runs, as the store is now; those of former users are paused instead.

    A job is submitted and its next run set in one transaction: a scheduler killed at any moment neither loses a run nor
    makes it twice.
    """
    jobs = context.queue.jobs
    due = {
        entry.id: is_former(entry.uid)
        for entry in context.queue.recurring.values()
        if entry.is_due(now)
        and (
            entry.overlap is Overlap.ALLOW
            or all(_is_known_to_run(context, job) for job in live_jobs(jobs.values(), entry.id))
        )
    }
    if not due:
        return
    with context.store.transaction() as transaction:
        for entry in transaction.recurring().values():
            if entry.id in due and entry.is_due(now):
                if due[entry.id]:
                    why = f"paused: {no_user(entry.added_by)}"
                    after = _skipped(transaction, replace(entry, paused=True), entry.next_at, why, now)
                else:
                    after = _run(context, transaction, entry, now)
                transaction.put_recurring(after)
    context.refresh()


def no_user(name: str) -> str:
    return f"{name or 'its submitter'} may not use this queue any more (access.users)"


def hold_jobs_of_former_users(context: TickContext, now: datetime, is_former: Callable[[int], bool]) -> None:
    """Hold the waiting jobs of those who may not use the queue any more; what runs, goes on."""
    former = {uid for uid in {job.submitted_uid for job in _waiting(context.queue.jobs)} if uid and is_former(uid)}
    if not former:
        return
    with context.store.transaction() as transaction:
        for job in _waiting(transaction.jobs()):
            if job.submitted_uid in former:
                why = no_user(job.submitted_by)
                transaction.put(job.evolve(held=True, held_at=now, hold_reason=why))
                entry = AuditEntry(now, os.getuid(), "scheduler", "hold", job.target, str(job.state), f"held: {why}")
                transaction.audit(entry)
    context.refresh()


def _waiting(jobs: Mapping[JobId, Job]) -> list[Job]:
    return [job for job in jobs.values() if job.state is JobState.PENDING and not job.held]


def _is_known_to_run(context: TickContext, job: Job) -> bool:
    """Return whether a job that is running in the store is also running in the last listing.

    After a time without a scheduler it may have ended: a run whose overlap rule depends on it waits for a listing.
    """
    observer = context.observer_of(job)
    if observer is None or job.state not in {JobState.RUNNING, JobState.COMPLETING}:
        return True
    records = observer.latest.records or ()
    return any(record.job_id == job.id and record.state is ContainerState.RUNNING for record in records)


def _run(context: TickContext, transaction: Transaction, entry: RecurringJob, now: datetime) -> RecurringJob:
    """Return the recurring job after its run was made, or skipped for a reason."""
    try:
        own_zone = find_zone(entry.zone)
    except InputError as error:  # this host lost time zones
        return _skipped(transaction, replace(entry, paused=True), entry.next_at, f"paused: {error}", now)
    run = entry.run_at(own_zone, now)
    waiting = entry.awaiting(own_zone, now)
    if run is None:
        log.warning("the clock was put back: recurring job %d runs at %s next", entry.id, waiting.next_at)
        return waiting
    why_not = entry.why_not(run, live_jobs(transaction.jobs().values(), entry.id), now)
    if why_not:
        return _skipped(transaction, waiting, run, why_not, now)
    actor = Actor(entry.uid, entry.added_by)
    actions = Actions(context.store, _FrozenClock(now), actor, context.settings.scheduler, context.settings.policy)
    try:
        ids = actions.submit_run(entry.id, entry.submission)
    except StoreError:
        raise
    except GputuiError as error:  # it was allowed when it was added, and no longer is
        return _skipped(transaction, waiting, run, str(error), now)
    log.info("recurring job %d submits job %d for %s", waiting.id, ids[0], run)
    _audit(transaction, waiting, "fire", run, f"job {ids[0]}", now)
    return replace(waiting, last_at=run, last_job_id=ids[0])


def _skipped(transaction: Transaction, entry: RecurringJob, run: datetime, why: str, now: datetime) -> RecurringJob:
    log.info("recurring job %d leaves out the run of %s: %s", entry.id, run, why)
    _audit(transaction, entry, "skip", run, why, now)
    return replace(entry, skipped=Skipped(run, why))


def _audit(transaction: Transaction, entry: RecurringJob, verb: str, run: datetime, after: str, now: datetime) -> None:
    before = f"due {run.isoformat()}"
    transaction.audit(AuditEntry(now, entry.uid, entry.added_by, verb, f"recurring {entry.id}", before, after))
