"""Begins the starts of a plan: claims their GPUs (step 1 of `start_protocol`) and passes the jobs to the workers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from gputui.domain.container import Launch
from gputui.domain.job import Job, Placement
from gputui.domain.job_spec import JobId
from gputui.domain.policy.dependency import Dependencies
from gputui.domain.policy.gpus.engine import cdi_names, present_gpus
from gputui.domain.state import JobState
from gputui.engine.tick import reconcile, start_protocol
from gputui.engine.tick.context import TickContext

_SLOW = timedelta(seconds=5)
"""Time after which a start is so slow that lists say so."""


def begin_starts(context: TickContext, planned: Iterable[Placement], now: datetime) -> list[Job]:
    """Claim GPUs for the planned starts whose image is present, and start them; return the claimed jobs."""
    claims = _claim(context, [start for start in planned if has_image(context, start.job_id)], now)
    for job in claims:
        context.workers.start(context.observers[job.spec.runtime_name].runtime, latest_launch(context, job))
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
    """Return the launch of the job's latest attempt."""
    attempt, engine = job.attempts[-1], context.observers[job.spec.runtime_name].latest.status.gpus
    names = cdi_names(engine, present_gpus(context.probe.latest()), attempt.gpus) if engine else ()
    return start_protocol.launch_of(context.store.store_id, job, attempt, names)


def _claim(context: TickContext, starts: list[Placement], now: datetime) -> list[Job]:
    if not starts:
        return []
    claims: list[Job] = []
    dependencies = Dependencies.of(context.queue.all_jobs)
    with context.store.transaction() as transaction:
        for start in starts:
            job = transaction.get(start.job_id)
            records = context.observers[job.spec.runtime_name].latest.records or ()
            if reconcile.runs_already(job, records):
                continue
            if job.state is JobState.PENDING and not job.held and not job.cancel_requested:
                claims.append(start_protocol.claimed(job, start, now, dependencies.ended_at(job, now)))
                transaction.put(claims[-1])
    return claims


def has_image(context: TickContext, job_id: JobId) -> bool:
    """Return whether the job's image is known to be present; a missing one is being pulled."""
    job = context.queue.jobs[job_id]
    pull = job.spec.options.pull
    if pull == "never":  # an engine without the image says so when the container is created
        return True
    always = job.next_attempt if pull == "always" else None
    runtime = context.observers[job.spec.runtime_name].runtime
    return context.workers.pulls.is_here(runtime, job.id, job.spec.image, always)
