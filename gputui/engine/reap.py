"""Store and runtimes are brought together: exits, adoptions, interrupted starts, leftovers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime

from gputui.domain.job import Job
from gputui.domain.policy import gpu_memory
from gputui.domain.state import JobState
from gputui.engine import reconcile, starts, work
from gputui.engine.ground import Ground, runtime_of
from gputui.ports import Runtime, Transaction

log = logging.getLogger(__name__)

_KILL_STRAYS_EVERY = 10.0


class Reaper:
    """Carries out what `reconcile` decides, and remembers when GPUs were given back."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.freed_at: dict[str, datetime] = {}

    def reap(self, now: datetime) -> None:
        """Compare the store with what each runtime listed last, and act on the differences."""
        ground = self._ground
        for name, observer in ground.observers.items():
            seen = observer.latest
            if seen.records is None:
                continue
            mine = [job for job in ground.queue.active if runtime_of(job) == name]
            listing = reconcile.Seen(seen.records, seen.begun, ground.hands.is_busy, ground.hands.settled)
            self._carry_out(reconcile.decide(ground.queue.jobs, mine, listing), observer.runtime, now)

    def let_none_lie_ahead(self, now: datetime) -> None:
        """After the clock went back, let no GPU have been given back later than now."""
        self.freed_at = {uuid: min(at, now) for uuid, at in self.freed_at.items()}

    def _carry_out(self, decisions: list[reconcile.Decision], runtime: Runtime, now: datetime) -> None:
        ground = self._ground
        decisions = [decision for decision in decisions if not self._is_looked_at(decision, runtime)]
        self._write(decisions, now)
        for decision in decisions:
            if isinstance(decision, reconcile.Clean):
                ground.hands.clean(runtime, decision.record, now)
            elif isinstance(decision, reconcile.StartAgain):
                job = ground.queue.jobs[decision.job_id]
                ground.hands.start(runtime, starts.launch_of(ground, job))
            elif isinstance(decision, reconcile.KillStray):
                record = decision.record
                again = now.timestamp() // _KILL_STRAYS_EVERY
                ground.hands.tell(runtime, (record.job_id, record.attempt), record.id, f"kill the stray, {again}")

    def _is_looked_at(self, decision: reconcile.Decision, runtime: Runtime) -> bool:
        """Whether a worker is still reading in the last lines of a failed attempt why it failed."""
        if not isinstance(decision, reconcile.Finish):
            return False
        job = self._ground.queue.jobs[decision.job_id]
        may_have = gpu_memory.may_have(job, decision.record.cause)
        return may_have and self._ground.hands.look(runtime, decision.record) is None

    def _write(self, decisions: list[reconcile.Decision], now: datetime) -> None:
        """Put decisions into the store, each if its job still is what it was made for."""
        changes = [decision for decision in decisions if isinstance(decision, reconcile.Change)]
        if not changes:
            return
        freed: list[str] = []
        with self._ground.store.transaction() as transaction:
            for change in changes:
                before = transaction.get(change.job_id)
                after = self._after(transaction, before, change, now)
                if after is not None:
                    transaction.put(after)
                    freed += [uuid for uuid in before.gpus if uuid not in after.gpus]
                    log.info("job %d: %s to %s by %s", after.id, before.state, after.state, type(change).__name__)
        self._free(freed, now)
        self._ground.observe()

    def _after(self, transaction: Transaction, job: Job, change: reconcile.Change, now: datetime) -> Job | None:
        settings = self._ground.settings.scheduler
        match change:
            case reconcile.Finish(_, record):
                current = work.under_way(transaction, job.id, record.attempt)
                sign = self._ground.hands.take_sign((job.id, record.attempt))
                if current is None:
                    return None
                gpus = self._ground.probe.latest().gpus
                totals = {gpu.uuid: gpu.memory_total for gpu in gpus if gpu.memory_total}
                return gpu_memory.with_more(work.finished(current, record, now, settings, sign), totals)
            case reconcile.Vanished(_, number):
                current = work.under_way(transaction, job.id, number)
                return work.vanished(current, now, settings) if current else None
            case reconcile.Adopt(_, record):
                adoptable = job.state in {JobState.PENDING, JobState.CONFIGURING}
                return work.adopted(job, record, now) if adoptable else None
            case reconcile.GiveBack(_, number):
                self._ground.hands.note_given_back((job.id, number))
                return work.given_back(job) if job.state is JobState.CONFIGURING else None

    def _free(self, uuids: Iterable[str], now: datetime) -> None:
        """Remember when GPUs were given back, and have them read at once: older readings show the job that left."""
        freed = dict.fromkeys(uuids, now)
        if freed:
            self.freed_at.update(freed)
            self._ground.probe.refresh()
