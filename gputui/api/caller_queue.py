"""The queue as a caller may see it, for commands and handlers that read it as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from gputui.api.visibility import Visibility
from gputui.domain.access import Caller
from gputui.domain.arrays import Entries
from gputui.domain.audit import AuditEntry, targets_of
from gputui.domain.errors import NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_record import JobRecord
from gputui.domain.job_spec import JobId
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import Controls, Unreadable
from gputui.ports import JobStore


class CallerQueue:
    """Reading side of a store, with the eyes of a caller who is no operator."""

    def __init__(self, store: JobStore, caller: Caller, visibility: Visibility) -> None:
        self._store, self._caller, self._visibility = store, caller, visibility
        self._seen: tuple[Entries, Entries] | None = None

    @property
    def store_id(self) -> str:
        return self._store.store_id

    def jobs(self) -> Entries:
        entries = self._store.jobs()
        if self._seen is None or self._seen[0] is not entries:
            see, caller = self._visibility.job, self._caller
            self._seen = (entries, Entries({key: see(job, caller) for key, job in entries.items()}))
        return self._seen[1]

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        return self._store.arrays()

    def get(self, job_id: JobId) -> Job:
        [job] = self._visibility.jobs((self._store.get(job_id),), self._caller)
        return job

    def controls(self) -> Controls:
        return self._store.controls()

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        return {key: self._visibility.recurring(each, self._caller) for key, each in self._store.recurring().items()}

    def version(self) -> object:
        return self._store.version()

    def watch(self) -> None:
        return None

    def past(self, since: datetime | None = None) -> Iterator[Job]:
        return self._visibility.jobs(self._store.past(since), self._caller)

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        return self._visibility.jobs(self._store.history(since), self._caller)

    def records(self, since: datetime | None = None) -> Iterator[JobRecord]:
        return self._store.records(since)

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        """Yield the entries of his own, and those about his jobs."""
        entries, caller = self._store.audit_log(target), self._caller
        if target is not None:
            return self._visibility.audit(entries, {target} if self._owns_target(target) else (), caller)
        own = {
            each
            for job in self._store.jobs().values()
            if caller.owns(job)
            for single in _singles(job)
            for each in targets_of(single)
        }
        return self._visibility.audit(self._with_submitted(entries, own), own, caller)

    def _with_submitted(self, entries: Iterable[AuditEntry], own: set[str]) -> Iterator[AuditEntry]:
        """Yield the entries, and add to the caller's own targets what he has submitted, before its entries follow.

        So history, which may be long, is not read for it.
        """
        for entry in entries:
            if entry.verb == "submit" and entry.uid == self._caller.uid:
                own.add(entry.target)
            yield entry

    def requests(self, uid: int) -> Iterator[tuple[str, tuple[JobId, ...]]]:
        return self._store.requests(uid) if uid == self._caller.uid else iter(())

    def check(self) -> None:
        self._store.check()

    def unread(self) -> tuple[str, ...]:
        return self._store.unread()

    def unreadable(self) -> tuple[Unreadable, ...]:
        return self._store.unreadable()

    def _owns_target(self, target: str) -> bool:
        kind, _, number = target.partition(" ")
        if kind not in {"job", "array"} or not number.isdigit():
            return False
        try:
            return self._caller.owns(self._store.get(int(number)))
        except NotFoundError:
            return False


def _singles(job: Job) -> Iterator[Job]:
    return map(job.element, job.ids) if job.runs else iter((job,))
