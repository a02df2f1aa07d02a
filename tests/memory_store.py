"""Job store in memory with the behaviour of the durable one: the second implementation of the port."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.access import Actor, AuditEntry, requests_of
from gputui.domain.arrays import ArrayPlaces, Entries, changes_of, chosen, numbered
from gputui.domain.errors import NotFoundError, StoreError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.recurring import RecurringJob
from gputui.domain.runs import Run
from gputui.domain.settings import StoreSettings
from gputui.domain.snapshot import Controls, Unreadable
from gputui.store.codec import no_recurring
from gputui.store.history import jobs_to_archive, month_of, submission_entries

if TYPE_CHECKING:
    from gputui.domain.accounting import JobRecord
    from gputui.ports import StoreWatch, Transaction

DEFAULTS = StoreSettings()


class _Contents(Struct, frozen=True, dict=True):
    """Immutable contents of the store; every change replaces them."""

    jobs: Mapping[JobId, Job] = field(default_factory=dict)
    history: Mapping[JobId, Job] = field(default_factory=dict)
    controls: Controls = Controls()
    recurring: Mapping[JobId, RecurringJob] = field(default_factory=dict)
    audit: tuple[AuditEntry, ...] = ()
    next_id: JobId = 1

    @cached_property
    def entries(self) -> Entries:
        return Entries(self.jobs)

    @cached_property
    def finished(self) -> Entries:
        return Entries(self.history)

    def get(self, job_id: JobId) -> Job:
        job = self.entries.get(job_id) or self.finished.get(job_id)
        if job is None:
            raise NotFoundError(f"there is no job {job_id}")
        return job

    def with_history(self, moved: Iterable[Job]) -> _Contents:
        """Return the contents with these jobs moved from the queue to history."""
        history, gone = dict(self.history), set()
        for job in moved:
            gone.add(job.id)
            history = _changed(history, Entries(history), job)
        return replace(self, jobs={key: job for key, job in self.jobs.items() if key not in gone}, history=history)


def _changed(jobs: Mapping[JobId, Job], entries: Entries, job: Job) -> dict[JobId, Job]:
    """Return the jobs with this one added, and removed from the entries it was in."""
    changes = changes_of(entries.overlapping(job), job)
    return dict(sorted((key, one) for key, one in {**jobs, **changes}.items() if one is not None))


class _MemoryTransaction:
    def __init__(self, contents: _Contents) -> None:
        self.contents = contents
        self.is_over = False

    def add(self, job: Job) -> Job:
        [stored] = numbered([job], self._open().next_id)
        jobs, next_id = {**self.contents.jobs, stored.id: stored}, self.contents.next_id + job.count
        self.contents = replace(self.contents, jobs=jobs, next_id=next_id)
        return stored

    def get(self, job_id: JobId) -> Job:
        return self._open().get(job_id)

    def chosen(self, ids: Iterable[JobId]) -> Iterator[Job]:
        for found in chosen(self._open().entries, ids):
            yield found if isinstance(found, Job) else self.get(found)

    def put(self, job: Job) -> None:
        self.get(job.id)
        self.contents = replace(self.contents, jobs=_changed(self.contents.jobs, self.contents.entries, job))

    def jobs(self) -> Entries:
        return self._open().entries

    def controls(self) -> Controls:
        return self._open().controls

    def set_controls(self, controls: Controls) -> None:
        frozen = replace(controls, drains=MappingProxyType(dict(controls.drains)))
        self.contents = replace(self._open(), controls=frozen)

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        return MappingProxyType(dict(self._open().recurring))

    def add_recurring(self, entry: RecurringJob) -> RecurringJob:
        stored = replace(entry, id=self._open().next_id)
        recurring = {**self.contents.recurring, stored.id: stored}
        self.contents = replace(self.contents, recurring=recurring, next_id=stored.id + 1)
        return stored

    def put_recurring(self, entry: RecurringJob) -> None:
        if entry.id not in self._open().recurring:
            raise no_recurring(entry.id)
        self.contents = replace(self.contents, recurring={**self.contents.recurring, entry.id: entry})

    def remove_recurring(self, recurring: JobId) -> None:
        left = dict(self._open().recurring)
        if left.pop(recurring, None) is None:
            raise no_recurring(recurring)
        self.contents = replace(self.contents, recurring=left)

    def audit(self, entry: AuditEntry) -> None:
        self.contents = replace(self._open(), audit=(*self.contents.audit, entry))

    def _open(self) -> _Contents:
        if self.is_over:
            raise StoreError("this transaction is over")
        return self.contents


class MemoryJobStore:
    """JobStore shared between threads, not between processes."""

    def __init__(self, settings: StoreSettings = DEFAULTS, *, store_id: str = "memory000000") -> None:
        self._settings = settings
        self._store_id = store_id
        self._lock = threading.RLock()
        self._kept = _Contents()
        self._version = 0
        self._changed: Callable[[], object] = tuple
        self._under_way: _MemoryTransaction | None = None

    @property
    def store_id(self) -> str:
        """Twelve characters of [a-z0-9]."""
        return self._store_id

    def whole_id(self, number: JobId) -> JobId:
        """Return the number: none is long."""
        return number

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin an all-or-nothing change; a nested one is part of the outer one."""
        with self._lock:
            outer = self._under_way
            inner = _MemoryTransaction(outer.contents if outer else self._contents)
            self._under_way = inner
            try:
                yield inner
            finally:
                inner.is_over = True
                self._under_way = outer
            if outer is None:
                is_changed = inner.contents is not self._contents
                self._contents = inner.contents
                if is_changed:
                    self._changed()
            else:
                outer.contents = inner.contents

    def own(self) -> None:
        """Do nothing: no other process writes here."""

    def disown(self) -> None:
        """Do nothing."""

    def on_change(self, changed: Callable[[], object]) -> None:
        """Call it after each write."""
        self._changed = changed

    def lock_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """Do nothing: no other process writes here."""
        del seconds
        return nullcontext()

    def note(self, entry: AuditEntry) -> None:
        """Add an entry to the audit log."""
        with self.transaction() as transaction:
            transaction.audit(entry)

    def time_writes(self, wrote: Callable[[float], object]) -> None:
        """Do nothing: nothing is written to a disk here."""
        del wrote

    def submit(self, jobs: Iterable[Job], *, actor: Actor) -> tuple[JobId, ...]:
        """Append new jobs with their audit entries, all or none; return their ids."""
        batch = list(jobs)
        if not batch:
            return ()
        with self._lock, self.transaction():
            transaction = self._under_way
            assert transaction is not None
            before = transaction.contents
            added = numbered(batch, before.next_id)
            transaction.contents = replace(
                before,
                jobs={**before.jobs, **{job.id: job for job in added}},
                audit=(*before.audit, *submission_entries(added, actor)),
                next_id=before.next_id + sum(job.count for job in added),
            )
        return tuple(job.id for job in added)

    @property
    def owner(self) -> int:
        """Return this process's user."""
        return os.geteuid()

    def run_as(self, spec: JobSpec, submitted_uid: int | None = None) -> int:
        """Return this process's user."""
        return self.owner

    def jobs(self) -> Entries:
        """Return all jobs of the queue, in the order of their ids."""
        return self._contents.entries

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        """Return the elements of each array in the queue: by array, ids by index."""
        found: dict[JobId, ArrayPlaces] = {}
        for job in self._contents.jobs.values():
            if job.array is not None:
                places = found.setdefault(job.array.id, ArrayPlaces())
                places.add(job.runs or (Run(job.id, job.array.index, 1),))
        return found

    def get(self, job_id: JobId) -> Job:
        """Return a job from the queue or from history; raises NotFoundError."""
        return self._contents.get(job_id)

    def controls(self) -> Controls:
        """Return the operator's controls."""
        return self._contents.controls

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        """Return all recurring jobs by id."""
        return MappingProxyType(dict(self._contents.recurring))

    def version(self) -> object:
        """Return a token that changes with every write."""
        return self._version

    def watch(self) -> StoreWatch | None:
        """Return None: other processes do not write here."""
        return None

    def past(self, since: datetime | None = None, until: datetime | None = None) -> Iterator[Job]:
        """Yield finished jobs that left the queue, latest month first; with `since`, those that ended since."""
        del until
        contents = self._contents
        left = (job.without(contents.entries.spans) for job in contents.history.values())
        finished = (job for job in left if job is not None and (since is None or job.end >= since))
        yield from sorted(finished, key=lambda job: (month_of(job.end), job.id), reverse=True)

    def records(self, since: datetime | None = None) -> Iterator[JobRecord]:
        """Yield the records of all jobs in the queue, and of finished jobs that left it; with `since`, ended since."""
        from gputui.domain.accounting import record_of

        return map(record_of, [*self.jobs().values(), *self.past(since)])

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        """Return the audit log, oldest entry first."""
        return iter([entry for entry in self._contents.audit if target in (None, entry.target)])

    def requests(self, uid: int) -> Iterator[tuple[str, tuple[JobId, ...]]]:
        """Return the requests with a key of that user."""
        return requests_of(uid, self._contents.jobs.values(), self._contents.audit)

    def maintain(self, now: datetime) -> None:
        """Move old finished jobs to history."""
        with self._lock:
            moved = jobs_to_archive(self._contents.jobs.values(), self._settings, now)
            if moved:
                self._contents = self._contents.with_history(moved)

    def damage(self) -> tuple[str, ...]:
        """Return nothing: memory cannot be damaged."""
        return ()

    def history_damage(self) -> tuple[str, ...]:
        """Return nothing: memory cannot be damaged."""
        return ()

    def unreadable(self) -> tuple[Unreadable, ...]:
        """Return nothing: memory cannot be damaged."""
        return ()

    def unread(self) -> tuple[str, ...]:
        return ()

    def check(self) -> None:
        """Do nothing: nothing can be missing."""

    def close(self) -> None:
        """Do nothing: there are no files."""

    @property
    def _contents(self) -> _Contents:
        return self._kept

    @_contents.setter
    def _contents(self, contents: _Contents) -> None:
        self._version += contents is not self._kept
        self._kept = contents
