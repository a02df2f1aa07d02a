"""Changes of jobs by an action or an edit: applied to all ids in one transaction, and audited.

An edit may not make a job wait for itself, nor exceed the limits of a submission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from msgspec.structs import replace

from gputui.domain import runs
from gputui.domain.action import (
    Done,
    Edit,
    EditJobs,
    Ids,
    JobAction,
    PlaceJobs,
    Requeue,
    SetPriority,
    check_suits_state,
    differs,
    put,
    refuse_cancelled,
)
from gputui.domain.errors import GputuiError, InputError, NotFoundError, signal_name
from gputui.domain.job import Job, JobState, Placed
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.policy.waits import Dependencies, keep_wait
from gputui.domain.spec_values import check_values
from gputui.domain.text import format_duration
from gputui.engine.actions import agents
from gputui.engine.actions.admission import with_dependencies, within_limits
from gputui.engine.actions.context import REPORT_EVERY, ActionContext, JobChange, PriorityCaps, check_job
from gputui.engine.actions.permissions import check_warning
from gputui.ports import JobStore, Transaction

_LIMIT = "--time-limit"


def change_jobs(context: ActionContext, action: JobAction | PlaceJobs) -> Done:
    """Change the jobs of the action, elements of one entry together.

    Raises GputuiError, and changes nothing, if one of them may not be changed.
    """
    done: list[JobId] = []
    changes: list[JobChange] = []
    edit, total = action.edit if isinstance(action, EditJobs) else None, len(set(action.ids))
    named = _named_dependencies(context, edit) if edit is not None else {}
    with context.store.transaction() as transaction:
        taken = agents.taken(context, lambda: transaction.jobs().values())
        for number, (before, after) in enumerate(_changed(context, transaction, transaction.chosen, action, named)):
            if context.on_progress is not None and number % REPORT_EVERY == 0:
                context.on_progress(number, total)
            if isinstance(action, EditJobs) and action.seen is not None and differs(action.seen, before):
                what = f"job {before.shown_id} was changed meanwhile: nothing is edited"
                raise GputuiError(what, hint="edit it as it is now")
            if after == before:
                continue
            if edit is None:
                was, then = _requests(before), _requests(after)
            else:
                was, then = edit.words(before.spec, before.held), edit.words(after.spec, after.held)
                then = f"elements {runs.words(before.runs)}: {then}" if before.runs else then
            transaction.put(after)
            context.audit(transaction, action.verb, before.target, was, then)
            if not action.is_final and (after.state is JobState.PENDING or isinstance(action, SetPriority)):
                changes.append(JobChange(action.verb, before, after))
            done += before.ids
        agents.check_taken(context, taken, lambda: transaction.jobs().values())
    return Done(tuple(done), tuple(changes))


def foreseen(context: ActionContext, action: JobAction | PlaceJobs) -> Done:
    """Return the jobs as `change_jobs` would leave them; raises the same errors, and writes nothing."""
    named = _named_dependencies(context, action.edit) if isinstance(action, EditJobs) else {}
    found = _changed(context, context.store, partial(map, context.store.get), action, named)
    return Done(action.ids, jobs=tuple(after for _, after in found))


def _changed(
    context: ActionContext,
    queue: JobStore | Transaction,
    chosen: Callable[[Iterable[JobId]], Iterable[Job]],
    action: JobAction | PlaceJobs,
    named: Mapping[str, Any],
) -> Iterator[tuple[Job, Job]]:
    """Yield each job with what the action makes of it; raises GputuiError if its state or the actor forbids that.

    The whole queue is read only if a changed job depends on others.
    """
    caps, now, by = PriorityCaps(context, queue.controls()), context.clock.now(), context.actor.user
    dependencies: Dependencies | None = None
    wishes: Sequence[tuple[Ids, JobAction | Placed]]
    wishes = (
        [(each.ids, each.placed) for each in action.places] if isinstance(action, PlaceJobs) else [(action.ids, action)]
    )
    for ids, wish in wishes:
        for before in chosen(dict.fromkeys(ids)):
            if isinstance(wish, Placed):
                after = put(before, wish, by)
            else:
                check_job(context.caller, before, wish)
                after = _wished(context, queue, before, wish, named)
            if after != before:
                ended_at = None
                if before.spec.after or before.spec.after_any:
                    dependencies = dependencies or Dependencies.of(queue.jobs().values())
                    ended_at = dependencies.ended_at(before, now)
                after = keep_wait(before, after, ended_at, now)
                caps.check(before, after)
                agents.check_changed(context, before, after)
            yield before, after


def _wished(
    context: ActionContext, queue: JobStore | Transaction, before: Job, wish: JobAction, named: Mapping[str, Any]
) -> Job:
    if isinstance(wish, EditJobs):
        return _edited(context, queue, before, wish, named)
    after = wish.apply(before, context.clock.now(), context.actor.user)  # of jobs put on top together the last is first
    if isinstance(wish, Requeue) and not context.may_operate:
        after = after.evolve(waited=())  # or members could divide a long job, each part with all waits
    return after


def _named_dependencies(context: ActionContext, edit: Edit) -> Mapping[str, Any]:
    """Return the dependencies that the edit names; raises NotFoundError for jobs that do not exist."""
    named = {name: edit.spec[name] for name in ("after", "after_any") if name in edit.spec}
    known = with_dependencies(context, JobSpec(**named)) if named else None
    return {name: getattr(known, name) for name in named}


def _edited(
    context: ActionContext, queue: JobStore | Transaction, before: Job, action: EditJobs, named: Mapping[str, Any]
) -> Job:
    """Return the edited job; of a running one its time limit, if the job and the actor allow it, and its comment."""
    check_editable(before, action.edit)
    check_values(action.edit.apply(before.spec))
    now = context.clock.now()
    if before.state is not JobState.PENDING:
        after = action.apply(before, now, context.actor.user)
        if after.spec.time_limit != before.spec.time_limit:
            _check_limit(context, before, after, now)
            check_warning(after.spec)
        return after
    edited = action.apply(before, now, context.actor.user)
    spec = replace(within_limits(context, edited.spec), **named)
    # it must not wait for itself: directly, through others, or as an element of its array
    seen: set[JobId] = set()
    todo = [*spec.after, *spec.after_any]
    while todo:
        other = todo.pop()
        if before.has(other) or (before.array is not None and other == before.array.id):
            raise InputError("would wait for itself", where="after", hint="leave out the jobs that wait for this one")
        if other not in seen:
            seen.add(other)
            with suppress(NotFoundError):
                found = queue.get(other).spec
                todo += [*found.after, *found.after_any]
    return edited.evolve(spec=spec)


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


def _check_limit(context: ActionContext, before: Job, after: Job, now: datetime) -> None:
    """Raise InputError for a time limit that has passed, or one that only operators may give."""
    limit, attempt, longest = after.spec.time_limit, before.attempt, context.settings.max_time
    asked, had = (timedelta.max if each is None else each for each in (limit, before.spec.time_limit))
    if after.limit_at is not None and limit is not None and after.limit_at <= now:
        ran = now - attempt.started_at if attempt and attempt.started_at else timedelta()
        text = f"job {before.shown_id} has run for {format_duration(ran)}"
        hint = "give it longer than that, or cancel it"
        raise InputError(f"{text}: the limit of {format_duration(limit)} has already passed", where=_LIMIT, hint=hint)
    if asked <= had or context.may_operate:
        return
    if context.policy.extend == "operator":
        hint = "ask one: the setting policy.extend"
        what = "only operators may give a running job more time"
        raise context.refusal(what, "operators-extend", where=_LIMIT, hint=hint)
    if longest is not None and asked > longest:
        hint = f"at most {format_duration(longest)} in all (scheduler.max_time); an operator may give more"
        words = format_duration(limit) if limit else "no limit"
        what = f"{words} is longer than a job may run here"
        raise context.refusal(what, "longest-time", where=_LIMIT, hint=hint)


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
