"""Edits of jobs. An edit may not make a job wait for itself, nor exceed the limits of a submission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from gputui.domain import runs
from gputui.domain.action import EditJobs
from gputui.domain.audit import target_of
from gputui.domain.edit import Edit, differs
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.snapshot import Controls
from gputui.domain.state import JobState
from gputui.domain.submit_action import Done
from gputui.engine.actions.admission import Admission
from gputui.engine.actions.context import ActionContext
from gputui.engine.actions.job_changes import EligibleWaits, QueueJobs, undoable
from gputui.engine.actions.running_jobs import check_editable, edited_while_running
from gputui.engine.actions.undo import JobChange


class EditableQueue(QueueJobs, Protocol):
    """Source of jobs and the operator's controls: a store or a transaction."""

    def controls(self) -> Controls:
        """Return the operator's controls."""
        ...

    def get(self, job_id: JobId, /) -> Job:
        """Return the job of that id; raises NotFoundError."""
        ...


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
    admission: Admission, queue: EditableQueue, before: Job, action: EditJobs, dependencies: Mapping[str, Any]
) -> Job:
    context = admission.context
    check_editable(before, action.edit)
    if before.state is not JobState.PENDING:
        return edited_while_running(context, before, action)
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


def check_no_circle(queue: EditableQueue, job: Job, spec: JobSpec) -> None:
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
