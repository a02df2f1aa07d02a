"""Edits of waiting jobs: what may be changed when, and that nobody comes to wait for himself."""

from __future__ import annotations

from gputui.domain.edit import Edit
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.job import Job, JobId, JobSpec
from gputui.domain.state import JobState
from gputui.ports import Transaction


def edited(before: Job, edit: Edit, spec: JobSpec) -> Job:
    """The next Job, which asks for `spec`; refuses where it does not wait any more."""
    if before.state is not JobState.PENDING:
        hint = "submit another like it instead"
        raise GputuiError(f"job {before.id} is {before.state}: only a waiting job can be edited", hint=hint)
    if before.cancel_requested:
        raise GputuiError(f"job {before.id} is being cancelled")
    after = before.evolve(spec=spec)
    if "priority" in edit.spec:
        after = after.prioritised(spec.priority)
    if "begin_at" in edit.spec:
        after = after.evolve(not_before=None)
    return after


def check_no_circle(transaction: Transaction, job_id: JobId, spec: JobSpec) -> None:
    """Raise InputError where the job would wait for itself, be it through others."""
    seen: set[JobId] = set()
    todo = [*spec.after, *spec.after_any]
    while todo:
        other = todo.pop()
        if other == job_id:
            raise InputError("would wait for itself", where="after", hint="leave out the jobs that wait for this one")
        if other not in seen:
            seen.add(other)
            try:
                found = transaction.get(other).spec
            except NotFoundError:
                continue
            todo += [*found.after, *found.after_any]
