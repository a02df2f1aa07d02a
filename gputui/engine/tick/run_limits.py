"""Limits of running attempts: warns jobs before their time limit, and ends those over it or idle for too long.

An attempt is idle without input, output and use of its GPUs, or with GPUs of which it leaves some unused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from gputui.domain.errors import Cause, CauseCode, RuntimeFault
from gputui.domain.event import Event, gpus_idle
from gputui.domain.gpu import HealthCode
from gputui.domain.idle_gpus import IdleSpells, idle_by_gpu, idle_times
from gputui.domain.job import BootTime, Job, JobState
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Notice
from gputui.domain.text import format_duration
from gputui.engine.files.input_marks import last_input
from gputui.engine.files.telemetry_files import AttemptKey
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.stops import begin_stops
from gputui.engine.tick.worker_pools import Pools, WorkKind
from gputui.ports import Runtime

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
    _warn(context, [job for job in context.queue.active if is_to_be_warned(job, now) and context.is_answered(job)], now)


def _warn(context: TickContext, jobs: list[Job], now: datetime) -> None:
    """Send the warning signals. Recorded first: a repeated signal would end many jobs, a missing one ends none."""
    if not jobs:
        return
    with context.store.transaction() as transaction:
        warned = [job for job in (transaction.get(stale.id) for stale in jobs) if is_to_be_warned(job, now)]
        for job in warned:
            transaction.put(job.with_attempt(warned_at=now))
    for job in warned:
        attempt, warning = job.attempts[-1], job.spec.warning
        observer = context.observer_of(job)
        if observer is not None and attempt.container_id is not None and warning is not None:
            context.workers.warn(observer.runtime, (job.id, attempt.number), attempt.container_id, warning.number)
    context.refresh()


def is_to_be_warned(job: Job, now: datetime) -> bool:
    """Return whether the job's warning is due and has not been sent."""
    at, limit_at = job.warning_at, job.limit_at
    if job.state is not JobState.RUNNING or at is None or limit_at is None or job.suspended or job.is_suspended:
        return False
    return at <= now < limit_at and job.attempts[-1].warned_at is None


def overdue(job: Job, now: datetime) -> Cause | None:
    """Return the cause for ending the job if it is over its time limit; else None."""
    limit, limit_at = job.spec.time_limit, job.limit_at
    if limit is None or limit_at is None or now < limit_at:
        return None
    return Cause(CauseCode.TIME_LIMIT, f"over its time limit of {format_duration(limit)}")


log = logging.getLogger(__name__)

_LOOKS = 20
"""Number of checks of the output during the idle timeout."""
_MOST_OFTEN, _LEAST_OFTEN = 1.0, 60.0
"""Limits of the seconds between two checks."""


class IdleWatch:
    """Activity of one attempt, in seconds of the monotonic clock."""

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
        """Return whether the job had been idle for too long when its output was last checked."""
        return self.heard_at - self.active_at >= self.allowed


class JobActivityReader:
    """Reads in workers the amount of attempts' output, and the input marks."""

    def __init__(self, pools: Pools, directory: Path) -> None:
        self._pools = pools
        self._directory = directory
        self._lock = threading.Lock()
        self._found: dict[AttemptKey, object] = {}
        self._reading: set[AttemptKey] = set()

    def read(self, runtime: Runtime, key: AttemptKey, container_id: str) -> None:
        """Read the activity of an attempt, unless a worker already does."""
        with self._lock:
            if key in self._reading:
                return
            self._reading.add(key)
        self._pools(WorkKind.EXIT, runtime.name).submit(self._read, runtime, key, container_id)

    def _read(self, runtime: Runtime, key: AttemptKey, container_id: str) -> None:
        try:
            found = (runtime.activity(container_id), last_input(self._directory, key[0]))
            with self._lock:
                self._found[key] = found
        except RuntimeFault as fault:
            log.info("the activity of %s is not known: %s", container_id[:12], fault)
        except Exception:  # the border of a worker: unreadable activity ends no job
            log.exception("reading the activity of job %d", key[0])
        finally:
            with self._lock:
                self._reading.discard(key)

    def take(self, key: AttemptKey) -> object:
        """Remove and return what was read since the last call; None for nothing."""
        with self._lock:
            return self._found.pop(key, None)


class IdleJobs:
    """Watches of all running jobs with an idle timeout; a new scheduler gives each its whole time again."""

    def __init__(self, context: TickContext, reader: JobActivityReader) -> None:
        self._context = context
        self._reader = reader
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
                self._reader.read(observer.runtime, key, container_id)
            if watch.is_idle:
                gpus = " and no use of its GPUs" if job.gpus else ""
                words = f"idle for {format_duration(job.spec.idle_timeout)}: no output, no input{gpus} (--idle-timeout)"
                stops[job.id] = Cause(CauseCode.TIME_LIMIT, words)
        begin_stops(self._context, stops, now)


class IdleGpus:
    """Watches the GPUs of all running jobs."""

    def __init__(self, context: TickContext, announce: Callable[[Event, datetime], None]) -> None:
        self._context = context
        self._announce = announce
        self._spells = IdleSpells(context.settings.scheduler.idle_gpus_end)

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(Notice("information", spell.words, since=spell.since) for spell in self._spells)

    def enforce(self, now: datetime, boot: BootTime) -> None:
        """Find idle GPUs, report each once, and end the jobs that the settings want ended."""
        running = [job for job in self._context.queue.active if job.state is JobState.RUNNING and job.gpus]
        settings = self._context.settings
        found = {job.id: self._idle_of(job, settings.scheduler.idle_gpus_after, now) for job in running}
        marked = {job.id: self._idle_of(job, settings.idle_marked_after, now) for job in running}
        self._context.idle_since = idle_by_gpu(running, marked)
        for job, spell in self._spells.update(running, found, boot):
            self._announce(gpus_idle(job, spell.words, spell.gpus, spell.since, now), now)
        begin_stops(self._context, self._spells.causes(running, boot, now), now)

    def _idle_of(self, job: Job, after: timedelta, now: datetime) -> dict[str, datetime]:
        """Return the time since which each GPU of the job has been unused, if that is longer than `after`."""
        return idle_times(self._context.telemetry.idle_since(job), after, now)
