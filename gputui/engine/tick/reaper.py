"""Carries out reconciliation: records exits and adoptions, restarts interrupted starts, cleans up containers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime

from gputui.domain.container import ContainerRecord
from gputui.domain.errors import NotFoundError, StoreFormatError
from gputui.domain.job import Job, JobState
from gputui.domain.job_spec import JobId
from gputui.domain.policy import retry
from gputui.domain.telemetry import efficiency_of
from gputui.engine.tick import reconcile
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.start_protocol import adopted, finished, given_back, is_worth_reading, under_way, vanished
from gputui.engine.tick.starts import latest_launch
from gputui.ports import Runtime, Transaction
from gputui.ports.monitor import about

log = logging.getLogger(__name__)

_KILL_STRAYS_EVERY = 10.0


class Reaper:
    """Applies the corrections that `reconcile` finds, and records when GPUs were freed."""

    def __init__(self, context: TickContext) -> None:
        self._context = context
        self.freed_at: dict[str, datetime] = {}
        self._past: dict[JobId, Job | None] = {}
        """Jobs of listed containers that are not in the queue, from history; None: not there either."""

    def reap(self, now: datetime) -> None:
        """Compare the store with each runtime's last listing, and act on the differences."""
        context = self._context
        jobs = self._context.queue.jobs
        listed = {
            record.job_id
            for observer in self._context.observers.values()
            for record in observer.latest.records or ()
            if record.job_id not in jobs
        }
        known = self._past
        self._past = {each: known[each] if each in known else self._from_history(each) for each in listed}
        past = {job_id: job for job_id, job in self._past.items() if job is not None}
        for name, observer in context.observers.items():
            seen = observer.latest
            if seen.records is None:
                continue
            mine = [job for job in context.queue.active if job.spec.runtime_in(context.observers) == name]
            listing = reconcile.Listing(
                seen.records, seen.begun, context.workers.is_busy, context.workers.last_worked_on
            )
            corrections = reconcile.find_corrections(context.queue.jobs, mine, listing, past)
            self._carry_out(corrections, observer.runtime, now)

    def _from_history(self, job_id: JobId) -> Job | None:
        try:
            return self._context.store.get(job_id)
        except (NotFoundError, StoreFormatError):
            return None

    def clamp_freed_times(self, now: datetime) -> None:
        """After the clock went back, set freed times in the future to now."""
        self.freed_at = {uuid: min(at, now) for uuid, at in self.freed_at.items()}

    def _carry_out(self, corrections: list[reconcile.Correction], runtime: Runtime, now: datetime) -> None:
        context = self._context
        corrections = [correction for correction in corrections if not self._is_being_read(correction, runtime)]
        self._write(corrections, now)
        for correction in corrections:
            if isinstance(correction, reconcile.Clean):
                context.workers.clean(runtime, correction.record, now)
            elif isinstance(correction, reconcile.StartAgain):
                job = context.queue.jobs[correction.job_id]
                context.workers.start(runtime, latest_launch(context, job))
            elif isinstance(correction, reconcile.KillStray):
                record = correction.record
                again = now.timestamp() // _KILL_STRAYS_EVERY
                context.workers.signal_end(
                    runtime, (record.job_id, record.attempt), record.id, f"kill the stray, {again}"
                )

    def _is_being_read(self, correction: reconcile.Correction, runtime: Runtime) -> bool:
        """Return whether a worker is still reading the end of the output to find why the attempt failed."""
        if not isinstance(correction, reconcile.Finish):
            return False
        job = self._context.queue.jobs[correction.job_id]
        if not is_worth_reading(job, correction.record.cause):
            return False
        return self._context.workers.failure_signs(runtime, correction.record, job) is None

    def _write(self, corrections: list[reconcile.Correction], now: datetime) -> None:
        """Write the corrections whose jobs are still in the state they were made for."""
        changes = [correction for correction in corrections if isinstance(correction, reconcile.StoreCorrection)]
        if not changes:
            return
        freed: list[str] = []
        with self._context.store.transaction() as transaction:
            for change in changes:
                before = transaction.get(change.job_id)
                after = self._after(transaction, before, change, now)
                if after is not None:
                    transaction.put(after)
                    freed += [uuid for uuid in before.gpus if uuid not in after.gpus]
                    how = type(change).__name__
                    number = after.attempt.number if after.attempt else None
                    fields = about(after.id, number, before.gpus or after.gpus)
                    log.info("job %d: %s to %s by %s", after.id, before.state, after.state, how, extra=fields)
        self._free(freed, now)
        self._context.refresh()

    def _after(
        self, transaction: Transaction, job: Job, change: reconcile.StoreCorrection, now: datetime
    ) -> Job | None:
        settings = self._context.settings.scheduler
        match change:
            case reconcile.Finish(_, record):
                current = under_way(transaction, job.id, record.attempt)
                signs = self._context.workers.take_failure_signs((job.id, record.attempt))
                if current is None:
                    return None
                gpus = self._context.probe.latest().gpus
                totals = {gpu.uuid: gpu.memory_total for gpu in gpus if gpu.memory_total}
                measured = self._measured(current, now, record)
                ended = finished(measured, record, now, settings, signs)
                return retry.ask_for_more(ended, totals)
            case reconcile.Vanished(_, number):
                current = under_way(transaction, job.id, number)
                if current is None:
                    return None
                measured = self._measured(current, now)
                return vanished(measured, now, settings)
            case reconcile.Adopt(_, record):
                adoptable = job.state in {JobState.PENDING, JobState.CONFIGURING}
                return adopted(job, record, now) if adoptable else None
            case reconcile.GiveBack(_, number):
                self._context.workers.note_given_back((job.id, number))
                return given_back(job) if job.state is JobState.CONFIGURING else None

    def _measured(self, job: Job, now: datetime, record: ContainerRecord | None = None) -> Job:
        found = self._context.telemetry.result(job, now, record)
        return job.with_attempt(telemetry=found, efficiency=efficiency_of(found))

    def _free(self, uuids: Iterable[str], now: datetime) -> None:
        """Record when GPUs were released, and request new readings: older ones show the previous job."""
        freed = dict.fromkeys(uuids, now)
        if freed:
            self.freed_at.update(freed)
            self._context.probe.refresh()
