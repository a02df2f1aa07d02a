"""Changes of jobs by an action or an edit: applied to all ids in one transaction, and audited.

An edit may not make a job wait for itself, nor exceed the limits of a submission.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any

from msgspec.structs import replace

from gputui.domain import runs
from gputui.domain.action import EditJobs, JobAction, PlaceJobs, Requeue, SetPriority, put, refuse_cancelled
from gputui.domain.audit import target_of
from gputui.domain.cause import signal_name
from gputui.domain.edit import Edit, check_suits_state, differs
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.policy import eligible_wait
from gputui.domain.policy.dependency import Dependencies
from gputui.domain.state import JobState
from gputui.domain.submit_action import Done, Ids
from gputui.domain.units import format_duration
from gputui.engine.actions.admission import Admission
from gputui.engine.actions.context import ActionContext, JobChange
from gputui.engine.actions.permissions import check_warning
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


_LIMIT = "--time-limit"


def edit_jobs(context: ActionContext, action: EditJobs) -> Done:
    """Edit waiting jobs, or the time limit of running ones, elements of one entry together.

    The wait of a job starts again if it asks for more.
    """
    edit, admission = action.edit, Admission(context)
    dependencies = _known_dependencies(admission, edit)
    done: list[JobId] = []
    changes: list[JobChange] = []
    with context.store.transaction() as transaction:
        for before in transaction.chosen(action.ids):
            after = _edited(admission, transaction, before, action, dependencies)
            check_unchanged(before, action.seen)
            if after == before:
                continue
            after = after.evolve(spec=admission.revouched(before.spec, after.spec))
            transaction.put(after)
            was, then = edit.words(before.spec, before.held), edit.words(after.spec, after.held)
            which = f"elements {runs.words(before.runs)}: " if before.runs else ""
            context.audit(transaction, "edit", target_of(before), was, f"{which}{then}")
            changes += undoable(action, before, after)
            done += before.ids
    return Done(tuple(done), tuple(changes))


def edit_foreseen(context: ActionContext, action: EditJobs) -> Done:
    """Return the jobs as the edit would leave them; raises the same errors as `edit_jobs`."""
    store, admission = context.store, Admission(context)
    dependencies = _known_dependencies(admission, action.edit)
    jobs = (_edited(admission, store, store.get(job_id), action, dependencies) for job_id in action.ids)
    return Done(action.ids, jobs=tuple(jobs))


def _known_dependencies(admission: Admission, edit: Edit) -> Mapping[str, Any]:
    """Return the dependencies that the edit names; raises NotFoundError for jobs that do not exist."""
    named = {name: edit.spec[name] for name in ("after", "after_any") if name in edit.spec}
    known = admission.with_dependencies(JobSpec(**named))
    return {name: getattr(known, name) for name in named}


def _edited(
    admission: Admission, queue: JobStore | Transaction, before: Job, action: EditJobs, dependencies: Mapping[str, Any]
) -> Job:
    context = admission.context
    check_editable(before, action.edit)
    if before.state is not JobState.PENDING:
        return _edited_while_running(context, before, action)
    now = context.now()
    edited = action.apply(before, now, context.actor.user)
    spec = replace(admission.within_limits(edited.spec), **dependencies)
    check_no_circle(queue, before, spec)
    after = EligibleWaits(queue, now).keep(before, edited.evolve(spec=spec))
    context.caps(queue.controls()).check(before, after)
    return after


def check_unchanged(now: Job, seen: Job | None) -> None:
    """Raise GputuiError if the job was changed since the editor showed it."""
    if seen is not None and differs(seen, now):
        raise GputuiError(f"job {now.shown_id} was changed meanwhile: nothing is edited", hint="edit it as it is now")


def check_no_circle(queue: JobStore | Transaction, job: Job, spec: JobSpec) -> None:
    """Raise InputError if the job would wait for itself: directly, through others, or as an element of its array."""
    seen: set[JobId] = set()
    todo = [*spec.after, *spec.after_any]
    while todo:
        other = todo.pop()
        if job.has(other) or (job.array is not None and other == job.array.id):
            raise InputError("would wait for itself", where="after", hint="leave out the jobs that wait for this one")
        if other not in seen:
            seen.add(other)
            try:
                found = queue.get(other).spec
            except NotFoundError:
                continue
            todo += [*found.after, *found.after_any]


def check_editable(job: Job, edit: Edit | None = None) -> None:
    """Raise GputuiError if the job cannot be edited in this way: of a running job, few fields can change."""
    refuse_cancelled(job)
    if job.state is JobState.PENDING:
        return
    if job.state not in {JobState.CONFIGURING, JobState.RUNNING}:
        hint = "submit another like it instead"
        raise GputuiError(f"job {job.shown_id} is {job.state}: it can no longer be edited", hint=hint)
    if edit is not None:
        check_suits_state(job, suits_running=edit.suits_running)


def _edited_while_running(context: ActionContext, before: Job, action: EditJobs) -> Job:
    """Return the running job after the edit; raises GputuiError if the job or the actor does not allow it."""
    check_owner(context, before, "change it while it runs")
    after = action.apply(before, context.now(), context.actor.user)
    if after.spec.time_limit != before.spec.time_limit:
        _check_limit(context, before, after)
        check_warning(after.spec)
    return after


def _check_limit(context: ActionContext, before: Job, after: Job) -> None:
    limit, now = after.spec.time_limit, context.now()
    if after.limit_at is not None and limit is not None and after.limit_at <= now:
        text = f"job {before.shown_id} has run for {format_duration(_ran(before, now))}"
        hint = "give it longer than that, or cancel it"
        raise InputError(f"{text}: the limit of {format_duration(limit)} has already passed", where=_LIMIT, hint=hint)
    if _seconds(limit) > _seconds(before.spec.time_limit) and not context.may_operate:
        _check_extension(context, limit)


def _check_extension(context: ActionContext, limit: timedelta | None) -> None:
    """Raise InputError if only operators may give that much time."""
    longest = context.settings.max_time
    if context.policy.extend == "operator":
        hint = "ask one: the setting policy.extend"
        raise InputError("only operators may give a running job more time", where=_LIMIT, hint=hint)
    if longest is not None and _seconds(limit) > longest.total_seconds():
        hint = f"at most {format_duration(longest)} in all (scheduler.max_time); an operator may give more"
        words = format_duration(limit) if limit else "no limit"
        raise InputError(f"{words} is longer than a job may run here", where=_LIMIT, hint=hint)


def _seconds(limit: timedelta | None) -> float:
    return limit.total_seconds() if limit is not None else float("inf")


def _ran(job: Job, now: datetime) -> timedelta:
    attempt = job.attempt
    return now - attempt.started_at if attempt and attempt.started_at else timedelta()
