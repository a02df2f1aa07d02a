"""Edits of jobs: which fields, who may change them, and within which limits.

An edit may not make a job wait for itself, nor exceed the limits of a submission.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from gputui.domain import runs
from gputui.domain.action import EditJobs, refuse_cancelled
from gputui.domain.audit import target_of
from gputui.domain.edit import Edit, check_suits_state, differs
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.state import JobState
from gputui.domain.submit_action import Done
from gputui.domain.units import format_duration
from gputui.engine.actions.admission import Admission
from gputui.engine.actions.context import ActionContext
from gputui.engine.actions.job_changes import EligibleWaits, check_owner, undoable
from gputui.engine.actions.limits import check_warning
from gputui.engine.actions.undo import JobChange
from gputui.ports import JobStore, Transaction

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


def foreseen(context: ActionContext, action: EditJobs) -> Done:
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
