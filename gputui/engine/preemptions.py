"""The preemptions of a plan, begun: written down and audited first, all of them or none, then told to the jobs.

Who they make way for is put first, so that nobody takes their GPUs before it: neither a later job of more points, nor a
victim that has waited for longer. From there on a victim is a job like any that is told to end: it has its grace, and
the next scheduler sees to it too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from datetime import datetime

from gputui.domain.audit import AuditEntry
from gputui.domain.job import Job, JobId, Preemption, Stopping, whole_class
from gputui.domain.policy.preempted import cause_for, is_candidate
from gputui.domain.state import JobState
from gputui.domain.units import listed
from gputui.engine.ground import Ground
from gputui.engine.starts import has_image
from gputui.engine.stops import see_them_end
from gputui.ports import Transaction

log = logging.getLogger(__name__)


def begin(ground: Ground, planned: Iterable[Preemption], now: datetime) -> bool:
    """Have the victims told to end once the image of whom they make way for is here; whether any were."""
    by_whom: dict[JobId, list[JobId]] = {}
    for preemption in planned:
        by_whom.setdefault(preemption.by, []).append(preemption.victim)
    begun = [by for by, victims in by_whom.items() if has_image(ground, by) and _write(ground, by, victims, now)]
    if not begun:
        return False
    ground.observe()
    see_them_end(ground, now)
    return True


def _write(ground: Ground, by: JobId, ids: list[JobId], now: datetime) -> bool:
    """Write down that all of them are to end, if all still may be preempted by that job; else nothing."""
    with ground.store.transaction() as transaction:
        preemptor, victims = transaction.get(by), [transaction.get(job_id) for job_id in ids]
        if not all(_may(ground, preemptor, victim, now) for victim in victims):
            return False
        for victim in victims:
            _stop(transaction, victim, preemptor, now)
        transaction.put(preemptor.evolve(topped_at=now))
        _audit(transaction, preemptor, f"put first, since others make way for it: {listed(ids)}", now)
    log.info("preempted for job %d: %s", by, ", ".join(map(str, ids)))
    return True


def _may(ground: Ground, preemptor: Job, victim: Job, now: datetime) -> bool:
    """Whether what the plan was made from still holds."""
    if preemptor.state is not JobState.PENDING or preemptor.held or preemptor.cancel_requested:
        return False
    policy = ground.settings.policy
    is_higher = whole_class(preemptor.priority) > whole_class(victim.priority)
    return policy.preemption and is_higher and is_candidate(victim, policy, now)


def _stop(transaction: Transaction, victim: Job, preemptor: Job, now: datetime) -> None:
    cause = cause_for(preemptor)
    told = victim.with_attempt(preempted_by=preemptor.id, preempted_at=now)
    transaction.put(told.to(JobState.COMPLETING, stopping=Stopping(cause, now)))
    _audit(transaction, victim, cause.text, now)


def _audit(transaction: Transaction, job: Job, words: str, now: datetime) -> None:
    transaction.audit(AuditEntry(now, os.getuid(), "scheduler", "preempt", f"job {job.id}", str(job.state), words))
