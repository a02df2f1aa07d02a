"""Edits of jobs. An edit may not make a job wait for itself, nor exceed the limits of a submission."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from gputui.domain import runs
from gputui.domain.audit import target_of
from gputui.domain.edit import Edit, differs
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.snapshot import Controls
from gputui.domain.state import JobState
from gputui.engine.actions.admission import Admission
from gputui.engine.actions.context import ActionContext
from gputui.engine.actions.job_changes import EligibleWaits, QueueJobs
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


class Edits:
    """Edits by one actor: of waiting jobs, and of the time limit of running ones."""

    def __init__(self, context: ActionContext, admission: Admission) -> None:
        self._context = context
        self._admission = admission

    def apply(self, ids: Iterable[JobId], edit: Edit, seen: Job | None) -> tuple[JobId, ...]:
        """Edit the jobs, elements of one entry together; return the ids of the changed ones.

        `seen` is the job as its editor showed it: a job that has changed since then is not edited.
        """
        context, dependencies = self._context, self._known_dependencies(edit)
        changed: list[JobId] = []
        with context.store.transaction() as transaction:
            for before in transaction.chosen(ids):
                after = self._edited(transaction, before, edit, dependencies)
                check_unchanged(before, seen)
                if after == before:
                    continue
                after = after.evolve(spec=self._admission.revouched(before.spec, after.spec))
                transaction.put(after)
                was, then = edit.words(before.spec, before.held), edit.words(after.spec, after.held)
                which = f"elements {runs.words(before.runs)}: " if before.runs else ""
                context.audit(transaction, "edit", target_of(before), was, f"{which}{then}")
                context.report(JobChange("edit", before, after))
                changed += before.ids
        return tuple(changed)

    def rehearse(self, job_id: JobId, edit: Edit) -> Job:
        """Return the job as the edit would leave it; raises the same errors as `apply`."""
        store = self._context.store
        return self._edited(store, store.get(job_id), edit, self._known_dependencies(edit))

    def _known_dependencies(self, edit: Edit) -> Mapping[str, Any]:
        """Return the dependencies that the edit names; raises NotFoundError for jobs that do not exist."""
        named = {name: edit.spec[name] for name in ("after", "after_any") if name in edit.spec}
        known = self._admission.with_dependencies(JobSpec(**named))
        return {name: getattr(known, name) for name in named}

    def _edited(self, queue: EditableQueue, before: Job, edit: Edit, dependencies: Mapping[str, Any]) -> Job:
        check_editable(before, edit)
        if before.state is not JobState.PENDING:
            return edited_while_running(self._context, before, edit)
        now = self._context.now()
        edited = self._signed(before, edit.on(before, now))
        spec = replace(self._admission.within_limits(edited.spec), **dependencies)
        check_no_circle(queue, before, spec)
        after = EligibleWaits(queue, now).keep(before, edited.evolve(spec=spec))
        self._context.caps(queue.controls()).check(before, after)
        return after

    def _signed(self, before: Job, edited: Job) -> Job:
        """Return the edited job with the actor recorded for a changed hold state or priority."""
        by = self._context.actor.user
        edited = edited.evolve(held_by=by) if edited.held_at != before.held_at and edited.held else edited
        return edited.evolve(ranked_by=by) if edited.priority != before.priority else edited


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
