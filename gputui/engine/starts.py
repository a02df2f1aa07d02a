"""The starts of a plan, begun: step (a) of the start protocol. Workers do the rest."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from gputui.domain.container import Launch
from gputui.domain.job import Job, JobId, Placement
from gputui.domain.policy.engine_gpus import cdi_names, present
from gputui.domain.state import JobState
from gputui.engine import reconcile, work
from gputui.engine.ground import Ground, runtime_of


def begin(ground: Ground, planned: Iterable[Placement], now: datetime) -> list[Job]:
    """Claim the GPUs of those whose image is here, and have them started; the jobs as they are then."""
    claims = _claim(ground, [start for start in planned if has_image(ground, start.job_id)], now)
    for job in claims:
        ground.hands.start(ground.observers[runtime_of(job)].runtime, launch_of(ground, job))
    if claims:
        ground.observe()
    return claims


def launch_of(ground: Ground, job: Job) -> Launch:
    """Return the job's latest attempt as its runtime is to create it."""
    attempt, engine = job.attempts[-1], ground.observers[runtime_of(job)].latest.status.gpus
    names = cdi_names(engine, present(ground.probe.latest()), attempt.gpus) if engine else ()
    return work.launch_of(ground.store.store_id, job, attempt, names)


def _claim(ground: Ground, starts: list[Placement], now: datetime) -> list[Job]:
    if not starts:
        return []
    claims: list[Job] = []
    with ground.store.transaction() as transaction:
        for start in starts:
            job = transaction.get(start.job_id)
            records = ground.observers[runtime_of(job)].latest.records or ()
            if reconcile.runs_already(job, records):
                continue
            if job.state is JobState.PENDING and not job.held and not job.cancel_requested:
                claims.append(work.claimed(job, start, now))
                transaction.put(claims[-1])
    return claims


def has_image(ground: Ground, job_id: JobId) -> bool:
    """Whether a job's image is known to be here; if not, it is being fetched."""
    job = ground.queue.jobs[job_id]
    wish = job.spec.options.pull
    if wish == "never":  # an engine without it says so when the container is created
        return True
    always = job.next_attempt if wish == "always" else None
    return ground.hands.pulls.is_here(ground.observers[runtime_of(job)].runtime, job.id, job.spec.image, always)
