"""The scheduler: a tick is a list of named steps that decide and record. Workers do the blocking work."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.errors import StoreError
from gputui.domain.event import Event, disk_low
from gputui.domain.gpu import DOCKER, STATE, FaultEvidence, ProbeCode, judged, reported
from gputui.domain.idle_gpus import IdleSpells, IdleTracker
from gputui.domain.job import BootTime, Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Notice, Snapshot
from gputui.domain.text import format_duration, format_size
from gputui.engine.actions.permissions import UserPermissions
from gputui.engine.files import read_backup_record
from gputui.engine.hooks import Announcer
from gputui.engine.tick.attempt_workers import AttemptWorkers, ImagePulls
from gputui.engine.tick.context import Ports, TickContext
from gputui.engine.tick.planner import (
    PastUsage,
    Planner,
    hold_jobs_of_former_users,
    make_due_runs,
    next_run_at,
    record_reservations,
)
from gputui.engine.tick.reconcile import Reaper, begin_preemptions, begin_starts
from gputui.engine.tick.snapshot_builder import QueueView, refusal_notice
from gputui.engine.tick.stops import (
    IdleGpus,
    IdleJobs,
    cancel_unsatisfiable,
    carry_out_requests,
    carry_out_suspensions,
    drive_stops,
    enforce_limits,
    send_signals,
)
from gputui.engine.tick.workers import Observer, Pools, Sequence, TelemetryRecorder, WorkKind
from gputui.ports.monitor import about

log = logging.getLogger(__name__)

SMALLEST_JUMP = timedelta(seconds=5)
"""Smallest difference that counts as a jump; less is slewing."""
_BEGUN = ("claimed_at", "started_at", "warned_at", "preempted_at", "suspended_at")


# Clock jumps: each attempt keeps `began`, its start on the monotonic clock. If the wall clock differs by
# `SMALLEST_JUMP` or more, it was set, perhaps while no scheduler ran: the attempt's times are shifted by the
# difference, so that limits count real time.
def shift_times(context: TickContext, now: datetime, boot: BootTime) -> None:
    """Shift the times of started attempts by the amount that the clock was set."""
    stale = [job.id for job in context.queue.active if _corrected(job, now, boot) is not job]
    if not stale:
        return
    with context.store.transaction() as transaction:
        for job_id in stale:
            before = transaction.get(job_id)
            after = _corrected(before, now, boot)
            if before.state.is_active and after is not before:
                transaction.put(after)
                if by := after.attempts[-1].clock_moved - before.attempts[-1].clock_moved:
                    text = "job %d: the clock was set by %.0f s, its time limit continues"
                    log.warning(text, after.id, by.total_seconds(), extra=about(after.id))
    context.refresh()


def _corrected(job: Job, now: datetime, boot: BootTime) -> Job:
    """Return the job with corrected times; the same object if they are right."""
    attempt = job.attempt
    if attempt is None or attempt.is_over or attempt.started_at is None:
        return job
    if attempt.began is None or attempt.began.boot != boot.boot:  # adopted, or started by an older gputui
        ran = max(now - attempt.started_at, timedelta())
        return job.with_attempt(began=BootTime(boot.boot, boot.seconds - ran.total_seconds()))
    ran = timedelta(seconds=boot.seconds - attempt.began.seconds)
    by = now - ran - attempt.started_at
    if abs(by) < SMALLEST_JUMP:
        return job
    times = {name: at + by for name in _BEGUN if (at := getattr(attempt, name)) is not None}
    suspensions = tuple((begin + by, end + by) for begin, end in attempt.suspensions)
    job = job.with_attempt(**times, suspensions=suspensions, clock_moved=attempt.clock_moved + by)
    if job.started_at is not None:
        job = job.evolve(started_at=job.started_at + by)
    if job.stopping is not None:
        killed_at = job.stopping.killed_at
        stopping = replace(job.stopping, at=job.stopping.at + by, killed_at=killed_at and killed_at + by)
        job = job.evolve(stopping=stopping)
    return job


class FaultRecorder(Struct, eq=False):
    """Keeps GPU faults in the store, and tracks which of them the running probe reported itself."""

    _context: TickContext
    _live: frozenset[str] = field(default_factory=frozenset)

    def record(self, now: datetime, boot: BootTime) -> None:
        context = self._context
        reading, controls = context.probe.latest(), context.queue.controls
        if reading.status.code is not ProbeCode.OK:
            return
        evidence = FaultEvidence(reading.samples, controls.resumed, boot.boot, now)
        self._live = frozenset(reported(evidence)) | (self._live & controls.faults.keys())
        evidence = replace(evidence, live=self._live)
        if judged(controls.faults, evidence) is controls.faults:
            return
        with context.store.transaction() as transaction:
            before = transaction.controls()
            after = judged(before.faults, replace(evidence, resumed=before.resumed))
            if after is not before.faults:
                transaction.set_controls(replace(before, faults=after))
        for uuid in after.keys() - before.faults.keys():
            log.warning(
                "%s takes no job until it is reset or resumed: %s", uuid, after[uuid].text, extra=about(gpus=[uuid])
            )
        for uuid in before.faults.keys() - after.keys():
            log.info("%s may take jobs again: it was reset or resumed", uuid, extra=about(gpus=[uuid]))
        context.refresh()


_MEASURE_EVERY = timedelta(seconds=15)


class Disk(Struct, eq=False):
    """Measures the free space every 15 s; it is low below `floor` bytes for ordinary users."""

    path: Path
    _floor: int
    _measured_at: datetime | None = None
    free: int | None = None
    """Free bytes; None before the first measurement, and if the system does not report it."""

    @property
    def is_low(self) -> bool:
        return self.free is not None and self.free < self._floor

    @property
    def words(self) -> str:
        return f"{format_size(self.free)} left on the disk of {self.path}: queue and logs need room"

    def notices(self, now: datetime) -> tuple[Notice, ...]:
        if self._measured_at is None or abs(now - self._measured_at) >= _MEASURE_EVERY:
            self._measured_at = now
            try:
                found = os.statvfs(self.path)
                self.free = found.f_bavail * found.f_frsize
            except OSError:  # the store reports a missing directory
                self.free = None
        return (Notice("warning", self.words, short="disk low"),) if self.is_low else ()


_READ_EVERY = timedelta(seconds=15)


class BackupWatch(Struct, eq=False):
    _state: Path
    _read_at: datetime | None = None
    _notices: tuple[Notice, ...] = ()

    def notices(self, now: datetime) -> tuple[Notice, ...]:
        if self._read_at is None or abs(now - self._read_at) >= _READ_EVERY:
            self._read_at = now
            record = read_backup_record(self._state)
            failed = record is not None and record.problem
            self._notices = (Notice("error", record.sentence, short="backup failed"),) if record and failed else ()
        return self._notices


LOCK_PATIENCE = 2.0
"""Seconds that a tick waits for the store's lock; after that it reports that the queue is locked."""


class Scheduler:
    """Runs the jobs of the queue in order, one `tick` at a time, in one thread at a time."""

    def __init__(
        self,
        ports: Ports,
        settings: Settings,
        *,
        pools: Pools,
        directory: Path,
        leader: Leader,
        publish: Callable[[Snapshot], None],
        wake: Callable[[], None],
        announcer: Announcer | None = None,
        before_start: Callable[[JobId], None] = lambda job_id: None,
        is_former: Callable[[int], bool] = lambda uid: False,
    ) -> None:
        store, self._probe, self._clock = ports.store, ports.probe, ports.clock
        self._directory = directory
        self._watched: dict[str, str] = {}
        """Paths of the disks that the probe was asked to read, by role."""
        self._publish_to = publish
        self._wake = wake
        self._is_former = is_former
        self.announcer = announcer
        sequence, interval = Sequence(), settings.scheduler.reconcile_interval
        self.observers = {name: Observer(runtime, sequence, wake, interval) for name, runtime in ports.runtimes.items()}
        permissions, changed = UserPermissions(directory, settings), self._worked
        pulls = ImagePulls(store, pools, ports.clock, settings.scheduler, changed)
        self.workers = AttemptWorkers(
            store, pools, ports.clock, settings, changed, pulls, directory, sequence, permissions, before_start
        )
        telemetry = TelemetryRecorder(directory, store.store_id, pools, ports.clock)
        self.context = TickContext(store, ports.probe, self.observers, self.workers, settings, telemetry, ports.monitor)
        self._gpu_faults = FaultRecorder(self.context)
        self._reaper = Reaper(self.context)
        self._idle_jobs = IdleJobs(self.context, pools, directory)
        self._idle_gpus = IdleGpus(self.context, self._announce_event, IdleSpells(settings.scheduler.idle_gpus_end))
        past_usage = PastUsage(store, settings.policy.half_life, pools(WorkKind.HISTORY, ""), wake)
        self._planner = Planner(self.context, leader, past_usage, IdleTracker(settings))
        self._disk = Disk(directory, settings.scheduler.disk_floor)
        self._backup = BackupWatch(directory)
        self._store_notices: tuple[Notice, ...] = ()
        self._refusal = ""
        """Error of the store in the last tick; each is logged once."""
        self._checked: QueueView | None = None
        self._ticked_at = datetime.min.replace(tzinfo=UTC)

    def start(self) -> None:
        self._probe.subscribe(lambda _: self._wake())
        self._probe.start()
        for observer in self.observers.values():
            observer.start()

    def stop(self) -> None:
        """Stop watching, and end pulls. Containers keep running."""
        self.context.telemetry.save()
        self.workers.pulls.close()
        for observer in self.observers.values():
            observer.stop()

    def relist(self) -> None:
        for observer in self.observers.values():
            observer.poke()

    def tick(self, now: datetime) -> Snapshot:
        """Run one tick and return its snapshot, which reports an error of the store; the next tick retries."""
        boot = self._clock.boot_time()  # read immediately: it is compared with `now`
        begun = time.perf_counter()
        self._store_notices = ()
        if now < self._ticked_at:  # nothing may wait for times in the future
            log.warning("the clock went back by %s", format_duration(self._ticked_at - now))
            self._reaper.freed_at = {uuid: min(at, now) for uuid, at in self._reaper.freed_at.items()}
            self._planner.next_at = now
        self._ticked_at = now
        with self.context.store.lock_timeout(LOCK_PATIENCE):
            self._pass(now, boot)
        # the probe reads the disks of the state directory and of the engines' data, as far as they are where it reads
        is_far = bool(self.context.reading.machine)
        present = (observer.latest.status for observer in self.observers.values())
        roots = (each.data_root for each in present if bool(each.gpus and each.gpus.elsewhere) == is_far)
        root = next(filter(None, roots), self._watched.get(DOCKER, ""))
        wanted = ({} if is_far else {STATE: str(self._directory)}) | ({DOCKER: root} if root else {})
        if wanted != self._watched:
            self._watched = wanted
            self._probe.watch_disks(wanted)
        snapshot = self._planner.snapshot(now)
        self._publish_to(snapshot)
        self.context.monitor.took("tick", time.perf_counter() - begun)
        return snapshot

    def _pass(self, now: datetime, boot: BootTime) -> None:
        """Run the steps of a tick, until the store raises an error."""
        context, planner = self.context, self._planner
        try:
            context.refresh()
            self._gpu_faults.record(now, boot)
            shift_times(context, now, boot)
            context.telemetry.update(context.queue.active, context.observers, context.reading, now)
            self._reaper.reap(now)
            enforce_limits(context, now)
            self._idle_jobs.enforce(now, boot)
            self._idle_gpus.enforce(now, boot)
            carry_out_requests(context, now)
            drive_stops(context, now)
            carry_out_suspensions(context, now)
            send_signals(context)
            self.workers.pulls.keep_wanted(context.queue.jobs)
            self._check_queue(now)
            make_due_runs(context, now, self._is_former)
            self._plan(now)
            record_reservations(context, planner.plan.windows)
            if begin_preemptions(context, planner.plan.preemptions, now):
                planner.carried_out((), now, self._reaper.freed_at)
            if begun := begin_starts(context, planner.plan.starts, now):
                planner.carried_out(begun, now, self._reaper.freed_at)
            if self.announcer is not None:
                self.announcer.update(context.queue.jobs, planner.gpus, now)
            self._refusal = ""
        except StoreError as error:
            if str(error) != self._refusal:
                log.error("the store refused: %s", error)
            self._refusal = str(error)
            self._store_notices = (refusal_notice(error),)
            self._plan(now)

    @property
    def has_work(self) -> bool:
        """Return whether anything is left: a job that has not ended, held or not, a recurring one, an untold end."""
        queue = self.context.queue
        is_known = self._ticked_at.year > 1 and not self._refusal and not queue.unreadable
        is_telling = self.announcer is not None and self.announcer.is_telling
        is_over = all(job.state.is_terminal for job in queue.jobs.values())
        recurs = any(not entry.paused for entry in queue.recurring.values())
        return not (is_known and is_over) or recurs or is_telling

    @property
    def wake_at(self) -> datetime:
        """Time of the next tick, if nothing happens before."""
        run_at = next_run_at(self.context.queue.recurring.values(), self._ticked_at)
        return min(self._planner.next_at, run_at) if run_at else self._planner.next_at

    def _worked(self, runtime_name: str) -> None:
        self.observers[runtime_name].poke()
        self._wake()

    def _check_queue(self, now: datetime) -> None:
        """If the queue has changed, hold jobs of former users, and cancel those whose dependencies can never be met."""
        context = self.context
        if self._checked is not context.queue:
            hold_jobs_of_former_users(context, now, self._is_former)
            cancel_unsatisfiable(context, now)
        self._checked = context.queue

    def _plan(self, now: datetime) -> None:
        """Plan, with notices of the store, of the disk, of a failed backup, of failing hooks and of idle GPUs."""
        was_low, warnings = self._disk.is_low, (*self._disk.notices(now), *self._backup.notices(now))
        if self.announcer is not None:
            if self._disk.is_low and not was_low:
                self.announcer.announce(
                    disk_low(str(self._disk.path), self._disk.free or 0, self._disk.words, now), now
                )
            warnings = (*warnings, *self.announcer.notices(now))
        notices = (*self._store_notices, *warnings, *self._idle_gpus.notices)
        self._planner.update(now, self._reaper.freed_at, notices)

    def _announce_event(self, event: Event, now: datetime) -> None:
        if self.announcer is not None:
            self.announcer.announce(event, now)
