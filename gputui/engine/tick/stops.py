"""Stops of attempts: recorded first, then SIGTERM, then SIGKILL after the grace period. And the requests of users:
cancel, requeue, suspend and signal, and dependencies that can never be met.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.errors import Cause, CauseCode
from gputui.domain.event import Event, gpus_idle
from gputui.domain.gpu import HealthCode
from gputui.domain.idle_gpus import IdleSpells, idle_by_gpu, idle_times
from gputui.domain.job import BootTime, Job, Stopping
from gputui.domain.job_spec import JobId
from gputui.domain.policy.preemption import grace_of
from gputui.domain.policy.retry import cancel_cause, conclude, requeued
from gputui.domain.policy.waits import Dependencies
from gputui.domain.snapshot import Notice
from gputui.domain.state import JobState
from gputui.domain.text import format_limit
from gputui.engine.telemetry_files import AttemptKey, last_input
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.snapshot_builder import QueueView
from gputui.engine.tick.start_protocol import under_way
from gputui.engine.tick.workers import BackgroundReader, Pools, WorkKind
from gputui.ports import Runtime
from gputui.ports.monitor import about

log = logging.getLogger(__name__)

_UNKILLABLE = timedelta(minutes=1)
"""Time after which an attempt on a lost GPU is ended: a process blocked in the driver ignores even SIGKILL."""


def begin_stops(
    context: TickContext,
    stops: Mapping[JobId, Cause],
    now: datetime,
    is_due: Callable[[Job, Cause], bool] = lambda job, cause: True,
) -> None:
    """Record that these running jobs are to end, and why; `drive_stops` does the rest.

    `is_due` is called for each job as the store has it now: a user may have changed it since the queue was read.
    """
    if not stops:
        return
    with context.store.transaction() as transaction:
        for job_id, cause in stops.items():
            job = transaction.get(job_id)
            if job.state is JobState.RUNNING and is_due(job, cause):
                transaction.put(job.to(JobState.COMPLETING, stopping=Stopping(cause, now)))
    context.refresh()


def drive_stops(context: TickContext, now: datetime) -> None:
    """Signal the attempts that are to end, as far as their grace periods have passed."""
    ahead = [job for job in context.queue.active if job.stopping is not None and job.stopping.at > now]
    if ahead:  # the clock went back: grace periods that begin in the future would last too long
        with context.store.transaction() as transaction:
            for stale in ahead:
                job = transaction.get(stale.id)
                if job.stopping is not None:
                    transaction.put(job.evolve(stopping=replace(job.stopping, at=now)))
        context.refresh()
    for job in context.queue.active:
        if job.state is JobState.COMPLETING:
            _drive_stop(context, job, now)


def _drive_stop(context: TickContext, job: Job, now: datetime) -> None:
    """Send SIGTERM first, and SIGKILL after each further grace period.

    If a faulty driver keeps its processes alive, end the attempt, so that the job can run elsewhere. Its container
    stays a stray: killed again and again, its GPUs counted as taken.
    """
    attempt, stopping = job.attempt, job.stopping
    observer = context.observer_of(job)
    if attempt is None or attempt.container_id is None or stopping is None or observer is None:
        return
    grace = max(grace_of(job, stopping.cause, context.settings), timedelta(milliseconds=100))
    if stopping.cause.code is CauseCode.GPU_LOST and now - stopping.at > _UNKILLABLE:
        with context.store.transaction() as transaction:
            current = under_way(transaction, job.id, attempt.number)
            if current is not None:
                transaction.put(conclude(current, stopping.cause, None, now, context.settings.scheduler))
        context.refresh()
        return
    graces = (now - stopping.at) // grace
    how = "terminate" if graces < 1 else f"kill for the {graces}. time"
    context.workers.signal_end(observer.runtime, (job.id, attempt.number), attempt.container_id, how)


def carry_out_requests(context: TickContext, now: datetime) -> None:
    """Begin to stop the running jobs that a user cancelled or requeued, and change the others at once."""
    requested = context.queue.requested
    if not requested:
        return
    begin_stops(context, {job.id: _stop_cause(job) for job in requested if job.state is JobState.RUNNING}, now)
    at_once = [job for job in requested if _changed_at_once(job, now)]
    if not at_once:
        return
    with context.store.transaction() as transaction:
        for job in transaction.chosen(job_id for stale in at_once for job_id in stale.ids):
            if after := _changed_at_once(job, now):
                transaction.put(after)
    context.refresh()


def _stop_cause(job: Job) -> Cause:
    if job.cancel_requested:
        return cancel_cause(job)
    return Cause(CauseCode.REQUEUED, "requeued by a user")


def _changed_at_once(job: Job, now: datetime) -> Job | None:
    """Return the job after a request that needs no container to end; None if it has to wait for one."""
    has_container = job.attempt is not None and not job.attempt.is_over
    if job.state is JobState.PENDING or (job.state is JobState.CONFIGURING and not has_container):
        if job.cancel_requested:
            return job.to(JobState.CANCELLED, cancel_requested=False, cause=_stop_cause(job), ended_at=now)
        return job.evolve(requeue_requested=False) if job.requeue_requested else None
    if job.state.is_terminal:
        return requeued(job, now) if job.requeue_requested else job.evolve(cancel_requested=False)
    return None


def cancel_unsatisfiable(context: TickContext, now: datetime) -> None:
    """Cancel the jobs whose dependencies can never be met, and those that wait for them, as the store is now."""
    if not _unsatisfiable(context.queue):
        return
    in_history = context.queue.in_history
    with context.store.transaction() as transaction:
        while hopeless := _unsatisfiable(QueueView(transaction.jobs(), in_history=in_history)):
            for job, why in hopeless:
                log.info("job %s is cancelled: %s", job.shown_id, why, extra=about(job.id))
                cause = Cause(CauseCode.DEPENDENCY_NEVER_MET, why)
                transaction.put(job.to(JobState.CANCELLED, cause=cause, ended_at=now, cancel_requested=False))
    context.refresh()


def _unsatisfiable(queue: QueueView) -> list[tuple[Job, str]]:
    waiting = [job for job in queue.jobs.values() if job.spec.after and job.state is JobState.PENDING]
    if not waiting:
        return []
    dependencies = Dependencies.of(queue.all_jobs)
    return [(job, why) for job in waiting if (why := dependencies.never_met(job))]


def carry_out_suspensions(context: TickContext, now: datetime) -> None:
    """Suspend or continue the processes of each running job as requested.

    The store records a suspension before the processes are stopped, so that no scheduler forgets to continue them.
    """
    for job in context.queue.active:
        if job.state is JobState.RUNNING and (job.suspended or job.is_suspended):
            _suspend_or_continue(context, job, now)


def _suspend_or_continue(context: TickContext, job: Job, now: datetime) -> None:
    observer, attempt = context.observer_of(job), job.attempts[-1]
    if observer is None or observer.latest.records is None:
        return
    key = (job.id, attempt.number)
    record = next((each for each in observer.latest.records if (each.job_id, each.attempt) == key), None)
    if (
        record is None
        or context.workers.is_suspending(key)
        or observer.latest.begun <= context.workers.last_worked_on(key)
    ):
        return
    if job.suspended != job.is_suspended and (job.suspended or not record.is_suspended):
        with context.store.transaction() as transaction:
            current = under_way(transaction, job.id, job.attempts[-1].number)
            if current is not None and current.suspended == job.suspended:
                if job.suspended:
                    current = current.with_attempt(suspended_at=now)
                elif (since := current.attempts[-1].suspended_at) is not None:
                    suspensions = (*current.attempts[-1].suspensions, (since, max(now, since)))
                    current = current.with_attempt(suspended_at=None, suspensions=suspensions)
                transaction.put(current)
        context.refresh()
    if job.suspended != record.is_suspended:
        context.workers.set_suspended(observer.runtime, key, record.id, is_suspended=job.suspended)


def send_signals(context: TickContext) -> None:
    """Send the requested signals. A scheduler that is killed meanwhile loses them rather than sending them twice."""
    asked = [job.id for job in context.queue.active if _is_due(job) and context.is_answered(job)]
    if not asked:
        return
    with context.store.transaction() as transaction:
        due = [job for job_id in asked if _is_due(job := transaction.get(job_id))]
        for job in due:
            transaction.put(job.evolve(signals=()))
    for job in due:
        attempt, observer = job.attempts[-1], context.observer_of(job)
        if observer is not None and attempt.container_id is not None:
            key = (job.id, attempt.number)
            context.workers.send_signals(observer.runtime, key, attempt.container_id, job.signals)
    context.refresh()


def _is_due(job: Job) -> bool:
    attempt = job.attempt
    if job.suspended or job.is_suspended:  # it gets them once it runs again
        return False
    return bool(job.signals and job.state is JobState.RUNNING and attempt is not None and attempt.container_id)


_LOST = frozenset({HealthCode.LOST, HealthCode.XID, HealthCode.NEEDS_RESET})
"""Health codes with which no job can use the GPU any more."""


def enforce_limits(context: TickContext, now: datetime) -> None:
    """Warn jobs before their time limit, and end those that are over it or whose GPU is lost."""
    samples = context.reading.samples
    sick = {uuid: sample.health for uuid, sample in samples.items() if sample.health.code in _LOST}
    stops: dict[JobId, Cause] = {}
    for job in context.queue.active:
        lost = tuple(uuid for uuid in job.gpus if uuid in sick)
        if job.state is JobState.RUNNING and lost:
            text = "; ".join(f"{uuid}: {sick[uuid].text}" for uuid in lost)
            stops[job.id] = Cause(CauseCode.GPU_LOST, text, lost)
        elif job.state is JobState.RUNNING and (cause := overdue(job, now)):
            stops[job.id] = cause
    begin_stops(context, stops, now, lambda job, cause: cause.code is CauseCode.GPU_LOST or bool(overdue(job, now)))
    due = [job for job in context.queue.active if is_to_be_warned(job, now) and context.is_answered(job)]
    if not due:
        return
    # recorded first: a repeated signal would end many jobs, a missing one ends none
    with context.store.transaction() as transaction:
        warned = [job for job in (transaction.get(stale.id) for stale in due) if is_to_be_warned(job, now)]
        for job in warned:
            transaction.put(job.with_attempt(warned_at=now))
    for job in warned:
        attempt, warning = job.attempts[-1], job.spec.warning
        observer = context.observer_of(job)
        if observer is not None and attempt.container_id is not None and warning is not None:
            context.workers.warn(observer.runtime, (job.id, attempt.number), attempt.container_id, warning.number)
    context.refresh()


def is_to_be_warned(job: Job, now: datetime) -> bool:
    at, limit_at = job.warning_at, job.limit_at
    if job.state is not JobState.RUNNING or at is None or limit_at is None or job.suspended or job.is_suspended:
        return False
    return at <= now < limit_at and job.attempts[-1].warned_at is None


def overdue(job: Job, now: datetime) -> Cause | None:
    limit, limit_at = job.spec.time_limit, job.limit_at
    if limit is None or limit_at is None or now < limit_at:
        return None
    return Cause(CauseCode.TIME_LIMIT, f"over its time limit of {format_limit(limit)}")


_LOOKS = 20
"""Number of checks of the output during the idle timeout."""
_MOST_OFTEN, _LEAST_OFTEN = 1.0, 60.0
"""Limits of the seconds between two checks."""


class IdleWatch:
    def __init__(self, job: Job, at: BootTime) -> None:
        timeout = job.spec.idle_timeout or timedelta()
        self.boot = at.boot
        self.allowed = timeout.total_seconds()
        self.pause = min(_LEAST_OFTEN, max(_MOST_OFTEN, self.allowed / _LOOKS))
        self.active_at = self.asked_at = self.heard_at = at.seconds
        self._token: object = None

    def hear(self, token: object, seconds: float) -> None:
        """Record the activity that was read; a changed value is a sign of life."""
        self.heard_at = seconds
        if self._token is not None and token != self._token:
            self.active_at = seconds
        self._token = token

    @property
    def is_idle(self) -> bool:
        return self.heard_at - self.active_at >= self.allowed


class IdleJobs:
    """Watches of all running jobs with an idle timeout; a new scheduler gives each its whole time again."""

    def __init__(self, context: TickContext, pools: Pools, directory: Path) -> None:
        self._context = context

        def activity(runtime: Runtime, key: AttemptKey, container_id: str) -> object:
            return runtime.activity(container_id), last_input(directory, key[0])

        self._reader = BackgroundReader(pools, WorkKind.EXIT, activity, "the activity of", logging.INFO)
        self._watches: dict[AttemptKey, IdleWatch] = {}

    def enforce(self, now: datetime, boot: BootTime) -> None:
        """Check for signs of life, and end the jobs that have shown none for too long."""
        running = [job for job in self._context.queue.active if job.spec.idle_timeout and job.state is JobState.RUNNING]
        keys = {(job.id, job.attempts[-1].number) for job in running}
        self._watches = {key: watch for key, watch in self._watches.items() if key in keys and watch.boot == boot.boot}
        stops: dict[JobId, Cause] = {}
        for job in running:
            key = (job.id, job.attempts[-1].number)
            watch = self._watches.setdefault(key, IdleWatch(job, boot))
            samples = self._context.reading.samples  # unknown use counts as busy
            if any((sample := samples.get(uuid)) is None or sample.utilization != 0 for uuid in job.gpus):
                watch.active_at = boot.seconds
            if (found := self._reader.take(key)) is not None:
                watch.hear(found, boot.seconds)
            observer, container_id = self._context.observer_of(job), job.attempts[-1].container_id
            if observer is not None and container_id is not None and boot.seconds - watch.asked_at >= watch.pause:
                watch.asked_at = boot.seconds
                self._reader.read(observer.runtime, [(key, container_id)], key)
            if watch.is_idle:
                gpus = " and no use of its GPUs" if job.gpus else ""
                words = f"idle for {format_limit(job.spec.idle_timeout)}: no output, no input{gpus} (--idle-timeout)"
                stops[job.id] = Cause(CauseCode.TIME_LIMIT, words)
        begin_stops(self._context, stops, now)


class IdleGpus(Struct, eq=False):
    _context: TickContext
    _announce: Callable[[Event, datetime], None]
    _spells: IdleSpells

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(Notice("information", spell.words, since=spell.since) for spell in self._spells)

    def enforce(self, now: datetime, boot: BootTime) -> None:
        """Find idle GPUs, report each once, and end the jobs that the settings want ended."""
        running = [job for job in self._context.queue.active if job.state is JobState.RUNNING and job.gpus]
        settings = self._context.settings
        uses = {job.id: self._context.telemetry.idle_since(job) for job in running}
        found = {job_id: idle_times(use, settings.scheduler.idle_gpus_after, now) for job_id, use in uses.items()}
        marked = {job_id: idle_times(use, settings.idle_marked_after, now) for job_id, use in uses.items()}
        self._context.idle_since = idle_by_gpu(running, marked)
        for job, spell in self._spells.update(running, found, boot):
            self._announce(gpus_idle(job, spell.words, spell.gpus, spell.since, now), now)
        begin_stops(self._context, self._spells.causes(running, boot, now), now)
