"""Begins the starts and the preemptions of a plan.

A start claims its GPUs (step 1 of `start_protocol`) and passes the job to the workers. Preemptions are recorded and
audited first, all or none, then signalled. The preemptor is put at the head of the queue, so that neither a later job
with a higher score nor a victim with a longer wait takes the GPUs before it. From then on a victim ends like any
stopped job, with its grace period, even under the next scheduler.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from datetime import datetime, timedelta

from gputui.domain.access import AuditEntry
from gputui.domain.container import Launch
from gputui.domain.job import Job, JobState, Placement, Stopping
from gputui.domain.job_spec import JobId, whole_class
from gputui.domain.policy.availability import cdi_names, present_gpus
from gputui.domain.policy.plan import Preemption
from gputui.domain.policy.preemption import is_candidate, preemption_cause
from gputui.domain.policy.waits import Dependencies
from gputui.domain.text import listed
from gputui.engine.tick import reconcile
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.start_protocol import claimed, launch_of
from gputui.engine.tick.stops import drive_stops
from gputui.ports import Transaction

_SLOW = timedelta(seconds=5)
"""Time after which a start is so slow that lists say so."""


def begin_starts(context: TickContext, planned: Iterable[Placement], now: datetime) -> list[Job]:
    """Claim GPUs for the planned starts whose image is present, and start them; return the claimed jobs."""
    claims = _claim(context, [start for start in planned if has_image(context, start.job_id)], now)
    for job in claims:
        context.workers.start(
            context.observers[job.spec.runtime_in(context.observers)].runtime, latest_launch(context, job)
        )
    if claims:
        context.refresh()
    return claims


def held_up(context: TickContext, now: datetime) -> dict[JobId, str]:
    """Return in words what the begun starts wait for, if the runtime does not answer."""
    found: dict[JobId, str] = {}
    for job in context.queue.active:
        attempt, observer = job.attempt, context.observer_of(job)
        if job.state is not JobState.CONFIGURING or attempt is None or attempt.is_over or observer is None:
            continue
        status = observer.latest.status
        if status.asked and not status.up:
            found[job.id] = f"starting: {status.text}"
        elif attempt.claimed_at is not None and now - attempt.claimed_at > _SLOW:
            found[job.id] = f"starting: {status.name} has not confirmed it yet"
    return found


def latest_launch(context: TickContext, job: Job) -> Launch:
    attempt, engine = job.attempts[-1], context.observers[job.spec.runtime_in(context.observers)].latest.status.gpus
    names = cdi_names(engine, present_gpus(context.probe.latest()), attempt.gpus) if engine else ()
    return launch_of(context.store.store_id, job, attempt, names)


def _claim(context: TickContext, starts: list[Placement], now: datetime) -> list[Job]:
    if not starts:
        return []
    claims: list[Job] = []
    dependencies = Dependencies.of(context.queue.all_jobs)
    with context.store.transaction() as transaction:
        for start in starts:
            job = transaction.get(start.job_id)
            records = context.observers[job.spec.runtime_in(context.observers)].latest.records or ()
            if reconcile.runs_already(job, records):
                continue
            if job.state is JobState.PENDING and not job.held and not job.cancel_requested:
                claims.append(claimed(job, start, now, dependencies.ended_at(job, now)))
                transaction.put(claims[-1])
    return claims


def has_image(context: TickContext, job_id: JobId) -> bool:
    """Return whether the job's image is known to be present; a missing one is being pulled."""
    job = context.queue.jobs[job_id]
    pull = job.spec.options.pull
    if pull == "never":  # an engine without the image says so when the container is created
        return True
    always = job.next_attempt if pull == "always" else None
    runtime = context.observers[job.spec.runtime_in(context.observers)].runtime
    return context.workers.pulls.is_here(runtime, job.id, job.spec.image, always)


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
            cause = preemption_cause(preemptor)
            told = victim.with_attempt(preempted_by=preemptor.id, preempted_at=now)
            transaction.put(told.to(JobState.COMPLETING, stopping=Stopping(cause, now)))
            _audit(transaction, victim, cause.text, now)
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


def _audit(transaction: Transaction, job: Job, words: str, now: datetime) -> None:
    transaction.audit(AuditEntry(now, os.getuid(), "scheduler", "preempt", f"job {job.id}", str(job.state), words))
