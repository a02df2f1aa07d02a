"""Begins the preemptions of a plan: recorded and audited first, all or none, then signalled to the jobs.

The preemptor is put at the head of the queue, so that neither a later job with a higher score nor a victim with a
longer wait takes the GPUs before it. From then on a victim ends like any stopped job, with its grace period, even under
the next scheduler.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from datetime import datetime

from gputui.domain.audit import AuditEntry
from gputui.domain.job import Job, Stopping
from gputui.domain.job_spec import JobId, whole_class
from gputui.domain.policy.plan import Preemption
from gputui.domain.policy.preemption import is_candidate, preemption_cause
from gputui.domain.state import JobState
from gputui.domain.units import listed
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.starts import has_image
from gputui.engine.tick.stops import drive_stops
from gputui.ports import Transaction

log = logging.getLogger(__name__)


def begin_preemptions(context: TickContext, planned: Iterable[Preemption], now: datetime) -> bool:
    """Stop the victims of each preemptor whose image is present; return whether there were any."""
    by_whom: dict[JobId, list[JobId]] = {}
    for preemption in planned:
        by_whom.setdefault(preemption.by, []).append(preemption.victim)
    begun = [by for by, victims in by_whom.items() if has_image(context, by) and _write(context, by, victims, now)]
    if not begun:
        return False
    context.refresh()
    drive_stops(context, now)
    return True


def _write(context: TickContext, by: JobId, ids: list[JobId], now: datetime) -> bool:
    """Record that all these jobs are to end, if each may still be preempted by that job; else nothing."""
    with context.store.transaction() as transaction:
        preemptor, victims = transaction.get(by), [transaction.get(job_id) for job_id in ids]
        if not all(_may(context, preemptor, victim, now) for victim in victims):
            return False
        for victim in victims:
            _stop(transaction, victim, preemptor, now)
        transaction.put(preemptor.evolve(topped_at=now))
        _audit(transaction, preemptor, f"put first: others are preempted for it: {listed(ids)}", now)
    log.info("preempted for job %d: %s", by, ", ".join(map(str, ids)))
    return True


def _may(context: TickContext, preemptor: Job, victim: Job, now: datetime) -> bool:
    """Return whether the conditions of the plan still hold."""
    if preemptor.state is not JobState.PENDING or preemptor.held or preemptor.cancel_requested:
        return False
    policy = context.settings.policy
    is_higher = whole_class(preemptor.priority) > whole_class(victim.priority)
    return policy.preemption and is_higher and is_candidate(victim, policy, now)


def _stop(transaction: Transaction, victim: Job, preemptor: Job, now: datetime) -> None:
    cause = preemption_cause(preemptor)
    told = victim.with_attempt(preempted_by=preemptor.id, preempted_at=now)
    transaction.put(told.to(JobState.COMPLETING, stopping=Stopping(cause, now)))
    _audit(transaction, victim, cause.text, now)


def _audit(transaction: Transaction, job: Job, words: str, now: datetime) -> None:
    transaction.audit(AuditEntry(now, os.getuid(), "scheduler", "preempt", f"job {job.id}", str(job.state), words))
