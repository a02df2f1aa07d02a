"""Edits of waiting jobs: what may be changed when, and that nobody comes to wait for himself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from gputui.domain.edit import Edit
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.job import Job, JobId, JobSpec
from gputui.domain.state import JobState
from gputui.engine.undo import JobChange, WishedChange
from gputui.ports import JobStore, Transaction


class EditWishes(ABC):
    """The part of Actions that is about edits."""

    _store: JobStore

    @abstractmethod
    def _waiting_for(self, spec: JobSpec) -> JobSpec:
        """Raise for jobs waited for that do not exist."""

    @abstractmethod
    def _within_limits(self, spec: JobSpec) -> JobSpec:
        """Raise for a spec that the site does not allow."""

    @abstractmethod
    def _audit(self, transaction: Transaction, verb: str, target: str, before: str, after: str) -> None:
        """Write down a wish."""

    @abstractmethod
    def _note(self, change: WishedChange) -> None:
        """Tell what can be taken back."""

    def edit(self, job_id: JobId, edit: Edit) -> bool:
        """Change what a waiting job asks for; whether that was news. Its place and its age are kept."""
        named = {name: edit.spec[name] for name in ("after", "after_any") if name in edit.spec}
        checked = self._waiting_for(JobSpec(**named))
        with self._store.transaction() as transaction:
            before = transaction.get(job_id)
            spec = self._within_limits(edit.apply(before.spec))
            spec = replace(spec, **{name: getattr(checked, name) for name in named})
            check_no_circle(transaction, job_id, spec)
            after = edited(before, edit, spec)
            if after == before:
                return False
            transaction.put(after)
            self._audit(transaction, "edit", f"job {job_id}", edit.words(before.spec), edit.words(after.spec))
            self._note(JobChange("edit", before, after))
        return True


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
