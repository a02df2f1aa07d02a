"""Jobs that wait for what can never come: they are cancelled, and then those that wait for them."""

from __future__ import annotations

import logging
from datetime import datetime

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.job import Job
from gputui.domain.policy.dependency import Dependencies
from gputui.domain.state import JobState
from gputui.engine.picture import Queue
from gputui.ports import JobStore

log = logging.getLogger(__name__)


def are_there(queue: Queue) -> bool:
    """Whether any job waits in vain."""
    return bool(_hopeless(queue))


def give_up(store: JobStore, queue: Queue, now: datetime) -> None:
    """Cancel them all, those that wait for them too, judged anew by what the store says now."""
    with store.transaction() as transaction:
        current = Queue(transaction.jobs(), elsewhere=queue.elsewhere)
        while hopeless := _hopeless(current):
            ended = {job.id: _cancelled(job, why, now) for job, why in hopeless}
            for job in ended.values():
                transaction.put(job)
            current = Queue({**current.jobs, **ended}, elsewhere=queue.elsewhere)


def _hopeless(queue: Queue) -> list[tuple[Job, str]]:
    waiting = [job for job in queue.jobs.values() if job.spec.after and job.state is JobState.PENDING]
    if not waiting:
        return []
    dependencies = Dependencies.of(queue.everything)
    return [(job, why) for job in waiting if (why := dependencies.never_met(job))]


def _cancelled(job: Job, why: str, now: datetime) -> Job:
    log.info("job %d is cancelled: %s", job.id, why)
    cause = Cause(CauseCode.DEPENDENCY_NEVER_MET, why)
    return job.to(JobState.CANCELLED, cause=cause, ended_at=now, cancel_requested=False)
