"""Changes of jobs by an action: applied to all ids in one transaction, audited, and reported for undo."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Protocol

from gputui.domain import runs
from gputui.domain.audit import target_of
from gputui.domain.cause import signal_name
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job, Placed
from gputui.domain.job_spec import JobId
from gputui.domain.policy import eligible_wait
from gputui.domain.policy.dependency import Dependencies
from gputui.domain.state import JobState
from gputui.engine.actions.context import ActionContext
from gputui.engine.actions.undo import JobChange


class QueueJobs(Protocol):
    """Source of the jobs of the queue: a store or a transaction."""

    def jobs(self) -> Mapping[JobId, Job]:
        """Return all jobs of the queue."""
        ...


class EligibleWaits:
    """Eligible waits of changed jobs at one moment. Reads the whole queue only if a job depends on others."""

    def __init__(self, queue: QueueJobs, now: datetime) -> None:
        self._queue = queue
        self._now = now

    def keep(self, before: Job, after: Job) -> Job:
        """Return the changed job with the eligible wait that it keeps."""
        if after == before:
            return after
        depends = before.spec.after or before.spec.after_any
        ended_at = self._dependencies.ended_at(before, self._now) if depends else None
        return eligible_wait.keep_wait(before, after, ended_at, self._now)

    @cached_property
    def _dependencies(self) -> Dependencies:
        return Dependencies.of(self._queue.jobs().values())


def change_jobs(
    context: ActionContext, ids: Iterable[JobId], verb: str, change: Callable[[Job], Job]
) -> tuple[JobId, ...]:
    """Change the jobs with these ids, elements of one entry together; return the ids of the changed ones.

    Raises GputuiError, and changes nothing, if one of them may not be changed.
    """
    changed: list[JobId] = []
    wanted = tuple(dict.fromkeys(ids))
    with context.store.transaction() as transaction:
        waits, caps = EligibleWaits(transaction, context.now()), context.caps(transaction.controls())
        for before in context.with_progress(transaction.chosen(wanted), len(wanted)):
            after = waits.keep(before, change(before))
            if after != before:
                caps.check(before, after)
                transaction.put(after)
                context.audit(transaction, verb, target_of(before), _requests(before), _requests(after))
                context.report(JobChange(verb, before, after))
                changed += before.ids
    return tuple(changed)


def cancelled(job: Job, by: str = "") -> Job:
    """Return the job with a user's request to cancel it; one that has ended stays as it is."""
    if job.state.is_terminal:
        return job
    return job.evolve(cancel_requested=True, cancelled_by=by, requeue_requested=False)


def refuse_cancelled(job: Job) -> None:
    """Raise GputuiError if a job is being cancelled."""
    if job.cancel_requested:
        raise GputuiError(f"job {job.shown_id} is being cancelled")


def held(job: Job, by: str, at: datetime) -> Job:
    """Return the waiting job, held by a user; raises GputuiError if it is not waiting."""
    if job.state is not JobState.PENDING:
        hint = "cancel or requeue it"
        raise GputuiError(f"job {job.shown_id} is {job.state}: only a waiting job can be held", hint=hint)
    refuse_cancelled(job)
    if job.held and job.hold_reason is None:
        return job  # still held by the first user who held it
    return job.evolve(held=True, hold_reason=None, held_by=by, held_at=at)


def ranked(before: Job, after: Job, by: str) -> Job:
    """Return the job with another priority or place, and the user who changed it; unchanged if nothing differs.

    Raises GputuiError for a job that has ended.
    """
    if before.state.is_terminal:
        raise GputuiError(
            f"job {before.shown_id} is {before.state}: it no longer has a place in the queue", hint="requeue it"
        )
    return before if after == before else after.evolve(ranked_by=by)


def released(job: Job, now: datetime) -> Job:
    """Return the job, released, together with its image and tenant if the fast-failure guard has paused them.

    The job may use the GPUs that failed it again: a user who releases it has had them repaired, or wants a new try.
    """
    job = job.evolve(avoid_gpus=())
    if job.state is not JobState.PENDING:
        return job.unheld()
    return job.unheld(released_at=now)


def moved(job: Job, placed: Placed, by: str) -> Job:
    """Return the waiting job beside another; raises GputuiError if it is not waiting."""
    if job.state is not JobState.PENDING:
        raise GputuiError(f"job {job.shown_id} is {job.state}: only a waiting job has a place in the queue")
    refuse_cancelled(job)
    return ranked(job, job.put(placed), by)


def requeued(job: Job, *, keeps_wait: bool) -> Job:
    """Return the job with a request to run it again; raises GputuiError if it is waiting."""
    if job.state is JobState.PENDING:
        raise GputuiError(f"job {job.shown_id} is waiting already")
    job = job.evolve(requeue_requested=True, cancel_requested=False)
    return job if keeps_wait else job.evolve(waited=())


def _requests(job: Job) -> str:
    """Return the job's state and the users' requests for it, as text for the audit log."""
    words = [f"priority {job.priority}"]
    words += ["held"] if job.held else []
    words += [f"released {job.released_at.isoformat()}"] if job.released_at else []
    words += ["cancel requested"] if job.cancel_requested else []
    words += ["requeue requested"] if job.requeue_requested else []
    words += ["suspended"] if job.suspended else []
    words += [f"to be sent {signal_name(number)}" for number in job.signals]
    words += [f"placed beside job {job.placed.past}"] if job.placed else []
    words += [f"topped {job.topped_at.isoformat()}"] if job.topped_at else []
    which = f"elements {runs.words(job.runs)} " if job.runs else ""
    return f"{which}{job.state}: " + ", ".join(words)
