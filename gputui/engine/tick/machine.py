"""Watches of a tick over its machine: clock jumps, fatal errors of GPUs, the disk of the state directory, its backup.

Clock jumps: each attempt keeps `began`, its start on the monotonic clock. If the wall clock differs by `SMALLEST_JUMP`
or more, it was set, perhaps while no scheduler ran: the attempt's times are shifted by the difference, so that limits
count real time.
"""

from __future__ import annotations

import logging
import os
from datetime import datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from gputui.domain.gpu import ProbeCode
from gputui.domain.gpu_faults import FaultEvidence, judged, reported
from gputui.domain.job import BootTime, Job
from gputui.domain.log_fields import about
from gputui.domain.snapshot import Notice
from gputui.domain.units import format_size
from gputui.engine.files.backup_file import read_backup_record
from gputui.engine.tick.context import TickContext

log = logging.getLogger(__name__)

SMALLEST_JUMP = timedelta(seconds=5)
"""Smallest difference that counts as a jump; less is slewing."""
_BEGUN = ("claimed_at", "started_at", "warned_at", "preempted_at", "suspended_at")


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
    return _moved(job, by) if abs(by) >= SMALLEST_JUMP else job


def _moved(job: Job, by: timedelta) -> Job:
    attempt = job.attempts[-1]
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


class FaultRecorder:
    """Keeps GPU faults in the store, and tracks which of them the running probe reported itself."""

    def __init__(self, context: TickContext) -> None:
        self._context = context
        self._live: frozenset[str] = frozenset()

    def record(self, now: datetime, boot: BootTime) -> None:
        """Record changed faults, if any."""
        context = self._context
        reading, controls = context.probe.latest(), context.queue.controls
        if reading.status.code is not ProbeCode.OK:
            return
        seen = FaultEvidence(reading.samples, controls.resumed, boot.boot, now)
        self._live = frozenset(reported(seen)) | (self._live & controls.faults.keys())
        seen = replace(seen, live=self._live)
        if judged(controls.faults, seen) is controls.faults:
            return
        with context.store.transaction() as transaction:
            before = transaction.controls()
            after = judged(before.faults, replace(seen, resumed=before.resumed))
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


class Disk:
    """Measures the free space every 15 s; it is low below `floor` bytes for ordinary users."""

    def __init__(self, directory: Path, floor: int) -> None:
        self.path = str(directory)
        self._floor = floor
        self._measured_at: datetime | None = None
        self.free: int | None = None
        """Free bytes; None before the first measurement, and if the system does not report it."""

    @property
    def is_low(self) -> bool:
        return self.free is not None and self.free < self._floor

    @property
    def words(self) -> str:
        return f"{format_size(self.free)} left on the disk of {self.path}: queue and logs need room"

    def notices(self, now: datetime) -> tuple[Notice, ...]:
        """Return a warning when the space is low; measure it if due."""
        if self._measured_at is None or abs(now - self._measured_at) >= _MEASURE_EVERY:
            self._measured_at = now
            self.free = self._measure()
        return (Notice("warning", self.words, short="disk low"),) if self.is_low else ()

    def _measure(self) -> int | None:
        try:
            found = os.statvfs(self.path)
        except OSError:  # the store reports a missing directory
            return None
        return found.f_bavail * found.f_frsize


_READ_EVERY = timedelta(seconds=15)


class BackupWatch:
    """Reads the result of the last backup every 15 s."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._read_at: datetime | None = None
        self._notices: tuple[Notice, ...] = ()

    def notices(self, now: datetime) -> tuple[Notice, ...]:
        """Return an error if the last backup failed."""
        if self._read_at is None or abs(now - self._read_at) >= _READ_EVERY:
            self._read_at = now
            record = read_backup_record(self._state)
            failed = record is not None and record.problem
            self._notices = (Notice("error", record.sentence, short="backup failed"),) if record and failed else ()
        return self._notices
