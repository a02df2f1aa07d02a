"""Edits of waiting jobs: what may be changed when, and that nobody comes to wait for himself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from gputui.domain.edit import Edit, differs
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
    def _still_vouched(self, before: JobSpec, after: JobSpec) -> JobSpec:
        """Renew the proof of who wants it run; raise where that is not for this actor."""

    @abstractmethod
    def _audit(self, transaction: Transaction, verb: str, target: str, before: str, after: str) -> None:
        """Write down a wish."""

    @abstractmethod
    def _note(self, change: WishedChange) -> None:
        """Tell what can be taken back."""

    @abstractmethod
    def _now(self) -> datetime:
        """What time it is."""

    def edit(self, job_id: JobId, edit: Edit, seen: Job | None = None) -> bool:
        """Change what a waiting job asks for; whether that was news. Its place and its age are kept.

        `seen` is the job as whoever edits it saw it: where it was changed since, nothing is.
        """
        waits_for = self._checked(edit)
        with self._store.transaction() as transaction:
            before = transaction.get(job_id)
            after = self._after(transaction, before, edit, waits_for)
            check_unchanged(before, seen)
            if after == before:
                return False
            after = after.evolve(spec=self._still_vouched(before.spec, after.spec))
            transaction.put(after)
            was, then = edit.words(before.spec, before.held), edit.words(after.spec, after.held)
            self._audit(transaction, "edit", f"job {job_id}", was, then)
            self._note(JobChange("edit", before, after))
        return True

    def rehearse_edit(self, job_id: JobId, edit: Edit) -> Job:
        """The job as `edit` would leave it; raises what it would raise."""
        return self._after(self._store, self._store.get(job_id), edit, self._checked(edit))

    def _checked(self, edit: Edit) -> Mapping[str, Any]:
        """The jobs to be waited for that the edit names, all of which there are."""
        named = {name: edit.spec[name] for name in ("after", "after_any") if name in edit.spec}
        checked = self._waiting_for(JobSpec(**named))
        return {name: getattr(checked, name) for name in named}

    def _after(self, jobs: Jobs, before: Job, edit: Edit, waits_for: Mapping[str, Any]) -> Job:
        check_waits(before)
        edited = edit.on(before, self._now())
        spec = replace(self._within_limits(edited.spec), **waits_for)
        check_no_circle(jobs, before.id, spec)
        return edited.evolve(spec=spec)


class Jobs(Protocol):
    """Where jobs are found."""

    def get(self, job_id: JobId, /) -> Job:
        """The job of that id; raises NotFoundError."""
        ...


def check_waits(job: Job) -> None:
    """Raise where it waits no more."""
    if job.state is not JobState.PENDING:
        hint = "submit another like it instead"
        raise GputuiError(f"job {job.shown_id} is {job.state}: only a waiting job can be edited", hint=hint)
    if job.cancel_requested:
        raise GputuiError(f"job {job.shown_id} is being cancelled")


def check_unchanged(now: Job, seen: Job | None) -> None:
    """Raise where somebody changed it since it was seen."""
    if seen is not None and differs(seen, now):
        raise GputuiError(f"job {now.id} was changed meanwhile: nothing is edited", hint="edit it as it is now")


def check_no_circle(jobs: Jobs, job_id: JobId, spec: JobSpec) -> None:
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
                found = jobs.get(other).spec
            except NotFoundError:
                continue
            todo += [*found.after, *found.after_any]
