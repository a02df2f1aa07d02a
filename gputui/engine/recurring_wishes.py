"""What may be wished of recurring jobs: the part of Actions that is about them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace

from gputui.domain.audit import Actor
from gputui.domain.errors import InputError, NotFoundError
from gputui.domain.job import JobId, JobSpec, Submission
from gputui.domain.recurring import Recurrence, RecurringJob
from gputui.engine.zones import zone
from gputui.ports import Clock, JobStore, Transaction


class RecurringWishes(ABC):
    """Add, remove, pause and resume. All or nothing over the ids given."""

    _store: JobStore
    _clock: Clock
    _actor: Actor

    @abstractmethod
    def _check(self, spec: JobSpec) -> None:
        """Raise GputuiError for a spec that could not be submitted now."""

    @abstractmethod
    def _audit(self, transaction: Transaction, verb: str, target: str, before: str, after: str) -> None:
        """Write down a wish."""

    def add_recurring(self, wished: Recurrence, submission: Submission) -> JobId:
        """Submit a job again and again, whenever the expression says so; the id of that, which is no job's."""
        self._check(submission.spec)
        if submission.spec.begin_at is not None:
            raise InputError("means nothing here", where="--begin", hint="the expression says when")
        submission = replace(submission, spec=self._store.vouch(submission.spec, self._actor.uid))
        entry = wished.begun(submission, zone(wished.zone), self._actor, self._clock.now())
        with self._store.transaction() as transaction:
            entry = transaction.add_recurring(entry)
            self._audit(transaction, "add", f"recurring {entry.id}", "", _word(entry))
        return entry.id

    def remove_recurring(self, ids: Iterable[JobId]) -> None:
        """Submit these no more. Jobs they have submitted stay."""
        with self._store.transaction() as transaction:
            for one in dict.fromkeys(ids):
                before = _found(transaction, one)
                transaction.remove_recurring(one)
                self._audit(transaction, "remove", f"recurring {one}", _word(before), "")

    def pause_recurring(self, ids: Iterable[JobId]) -> None:
        """Make no run of these until they are resumed."""
        self._set_paused(ids, "pause", paused=True)

    def resume_recurring(self, ids: Iterable[JobId]) -> None:
        """Make runs of these again. Those whose time came meanwhile are not made up for."""
        self._set_paused(ids, "resume", paused=False)

    def _set_paused(self, ids: Iterable[JobId], verb: str, *, paused: bool) -> None:
        now = self._clock.now()
        with self._store.transaction() as transaction:
            for one in dict.fromkeys(ids):
                before = _found(transaction, one)
                if before.paused != paused:
                    after = replace(before, paused=paused).awaiting(zone(before.zone), now)
                    transaction.put_recurring(after)
                    self._audit(transaction, verb, f"recurring {one}", _word(before), _word(after))


def _found(transaction: Transaction, recurring: JobId) -> RecurringJob:
    found = transaction.recurring().get(recurring)
    if found is None:
        raise NotFoundError(f"there is no recurring job {recurring}", hint="gputui cron list")
    return found


def _word(entry: RecurringJob) -> str:
    return f"{'paused' if entry.paused else 'waiting'}: {entry.expression} in {entry.zone}"
