"""Changes of jobs by an action: applied to all ids in one transaction, and audited."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cached_property, partial

from gputui.domain import runs
from gputui.domain.action import JobAction, PlaceJobs, Requeue, SetPriority, put
from gputui.domain.audit import target_of
from gputui.domain.cause import signal_name
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy import eligible_wait
from gputui.domain.policy.dependency import Dependencies
from gputui.domain.state import JobState
from gputui.domain.submit_action import Done, Ids
from gputui.engine.actions.context import ActionContext
from gputui.engine.actions.undo import JobChange
from gputui.ports import JobStore, Transaction


class EligibleWaits:
    """Eligible waits of changed jobs at one moment. Reads the whole queue only if a job depends on others."""

    def __init__(self, queue: JobStore | Transaction, now: datetime) -> None:
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


def change_jobs(context: ActionContext, action: JobAction | PlaceJobs) -> Done:
    """Change the jobs of the action, elements of one entry together.

    Raises GputuiError, and changes nothing, if one of them may not be changed.
    """
    done: list[JobId] = []
    changes: list[JobChange] = []
    with context.store.transaction() as transaction:
        waits, caps = EligibleWaits(transaction, context.now()), context.caps(transaction.controls())
        for ids, change in _parts(context, action):
            wanted = tuple(dict.fromkeys(ids))
            for before in context.with_progress(transaction.chosen(wanted), len(wanted)):
                after = waits.keep(before, change(before))
                if after == before:
                    continue
                caps.check(before, after)
                transaction.put(after)
                context.audit(transaction, action.verb, target_of(before), _requests(before), _requests(after))
                changes += undoable(action, before, after)
                done += before.ids
    return Done(tuple(done), tuple(changes))


def foreseen(context: ActionContext, action: JobAction | PlaceJobs) -> Done:
    """Return the jobs as `change_jobs` would leave them; raises the same errors, and writes nothing."""
    store, found = context.store, []
    waits, caps = EligibleWaits(store, context.now()), context.caps(store.controls())
    for ids, change in _parts(context, action):
        for before in map(store.get, ids):
            found.append(waits.keep(before, change(before)))
            caps.check(before, found[-1])
    return Done(action.ids, jobs=tuple(found))


def _parts(context: ActionContext, action: JobAction | PlaceJobs) -> list[tuple[Ids, Callable[[Job], Job]]]:
    """Return the changes that an action makes, one after another, each with its jobs."""
    if isinstance(action, PlaceJobs):
        by = context.actor.user
        return [(each.ids, partial(put, placed=each.placed, by=by)) for each in action.places]
    return [(action.ids, partial(applied, context, action))]


def applied(context: ActionContext, action: JobAction, job: Job) -> Job:
    """Return the job after the action; raises GputuiError if its state or the actor does not allow it.

    Only an operator's requeue keeps the job's wait. Otherwise members of a shared queue could divide a long job into
    parts, each with the wait of all before it.
    """
    if action.may:
        check_owner(context, job, action.may)
    after = action.apply(job, context.now(), context.actor.user)
    return after.evolve(waited=()) if isinstance(action, Requeue) and not context.may_operate else after


def undoable(action: JobAction | PlaceJobs, before: Job, after: Job) -> tuple[JobChange, ...]:
    """Return the change, unless it cannot be undone."""
    can_be = not action.is_final and (after.state is JobState.PENDING or isinstance(action, SetPriority))
    return (JobChange(action.verb, before, after),) if can_be else ()


def check_owner(context: ActionContext, job: Job, what: str) -> None:
    """Raise GputuiError unless the actor submitted the job or is an operator; `what` as in `suspend it`."""
    if not (context.may_operate or _is_owner(context, job)):
        who = job.submitted_by or "its submitter"
        raise GputuiError(f"job {job.shown_id}: only {who}, who submitted it, and operators may {what}")


def _is_owner(context: ActionContext, job: Job) -> bool:
    """Return whether the actor submitted the job; the proof of its submitter decides if there is one."""
    uid, slash, _ = job.spec.warrant.partition("/")
    return uid == str(context.actor.uid) if slash else job.submitted_by == context.actor.user


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
