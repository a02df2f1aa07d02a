"""A job store in memory, for tests and for trying things out: the same behaviour, gone with the process."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

from gputui.domain.audit import Actor, AuditEntry
from gputui.domain.container import RunAs
from gputui.domain.errors import NotFoundError, StoreError
from gputui.domain.job import Job, JobId, JobSpec
from gputui.domain.numbering import numbered
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import StoreSettings
from gputui.domain.snapshot import Controls
from gputui.domain.state import JobState
from gputui.domain.unreadable import Unreadable
from gputui.ports import StoreWatch, Transaction
from gputui.store.recurring import no_recurring
from gputui.store.retention import ended_at, month_of, outdated
from gputui.store.submissions import submission_entry

DEFAULTS = StoreSettings()


@dataclass(frozen=True)
class _Contents:
    """All that is stored: replaced whole, never changed."""

    jobs: Mapping[JobId, Job] = field(default_factory=dict)
    history: Mapping[JobId, Job] = field(default_factory=dict)
    controls: Controls = Controls()
    recurring: Mapping[JobId, RecurringJob] = field(default_factory=dict)
    audit: tuple[AuditEntry, ...] = ()
    next_id: JobId = 1

    def get(self, job_id: JobId) -> Job:
        job = self.jobs.get(job_id) or self.history.get(job_id)
        if job is None:
            raise NotFoundError(f"there is no job {job_id}")
        return job


class _MemoryTransaction:
    def __init__(self, contents: _Contents) -> None:
        self.contents = contents
        self.is_over = False

    def add(self, job: Job) -> Job:
        [stored] = numbered([job], self._open().next_id)
        self.contents = replace(self.contents, jobs={**self.contents.jobs, stored.id: stored}, next_id=stored.id + 1)
        return stored

    def get(self, job_id: JobId) -> Job:
        return self._open().get(job_id)

    def put(self, job: Job) -> None:
        self.get(job.id)
        jobs = dict(sorted({**self.contents.jobs, job.id: job}.items()))
        self.contents = replace(self.contents, jobs=jobs)

    def jobs(self) -> Mapping[JobId, Job]:
        return MappingProxyType(dict(self._open().jobs))

    def waiting(self) -> Mapping[str, int]:
        return Counter(job.spec.tenant for job in self._open().jobs.values() if job.state is JobState.PENDING)

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
    """Shared between threads, not between processes."""

    def __init__(self, settings: StoreSettings = DEFAULTS, *, store_id: str = "memory000000") -> None:
        self._settings = settings
        self._store_id = store_id
        self._lock = threading.RLock()
        self._kept = _Contents()
        self._version = 0
        self._under_way: _MemoryTransaction | None = None

    @property
    def store_id(self) -> str:
        """Twelve characters of [a-z0-9]."""
        return self._store_id

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """One all-or-nothing change. One begun inside another is part of it."""
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
                self._contents = inner.contents
            else:
                outer.contents = inner.contents

    def hurried(self, seconds: float) -> AbstractContextManager[None]:
        """Nothing: no other process writes here."""
        del seconds
        return nullcontext()

    def submit(self, jobs: Iterable[Job], *, actor: Actor) -> tuple[JobId, ...]:
        """Append new jobs, all or none, each with its audit entry; their ids."""
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
                audit=(*before.audit, *(submission_entry(job, actor) for job in added)),
                next_id=before.next_id + len(added),
            )
        return tuple(job.id for job in added)

    def vouch(self, spec: JobSpec, uid: int) -> JobSpec:
        """Return the spec: nobody else writes here."""
        return spec

    def voucher(self, spec: JobSpec) -> RunAs:
        """Return this process's user."""
        return RunAs(os.geteuid())

    def caps_waiting(self) -> bool:
        """Whether the operator's wishes cap the waiting jobs of any tenant."""
        return any(tenant.pending is not None for tenant in self._contents.controls.tenants)

    def jobs(self) -> Mapping[JobId, Job]:
        """All jobs of the queue, in the order of their ids."""
        return MappingProxyType(dict(self._contents.jobs))

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        """Return the elements of each array in the queue: by array, ids by index."""
        found: dict[JobId, dict[int, JobId]] = {}
        for job in self._contents.jobs.values():
            if job.array is not None:
                found.setdefault(job.array.id, {})[job.array.index] = job.id
        return found

    def get(self, job_id: JobId) -> Job:
        """The job, from the queue or from history; raises NotFoundError."""
        return self._contents.get(job_id)

    def controls(self) -> Controls:
        """The operator's standing wishes."""
        return self._contents.controls

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        """All recurring jobs, in the order of their ids."""
        return MappingProxyType(dict(self._contents.recurring))

    def version(self) -> object:
        """A token that differs whenever anything was written."""
        return self._version

    def watch(self) -> StoreWatch | None:
        """None: other processes do not write here."""
        return None

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        """Finished jobs that were moved out of the queue, by month and then by id; with `since`, ended since then."""
        contents = self._contents
        finished = sorted(contents.history.values(), key=lambda job: (month_of(ended_at(job)), job.id))
        for job in finished:
            if job.id not in contents.jobs and (since is None or ended_at(job) >= since):
                yield job

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        """What was wished, oldest first."""
        return iter([entry for entry in self._contents.audit if target in (None, entry.target)])

    def keep_house(self, now: datetime) -> None:
        """Move old finished jobs to history."""
        with self._lock:
            moved = {job.id: job for job in outdated(self._contents.jobs.values(), self._settings, now)}
            if moved:
                jobs = {job_id: job for job_id, job in self._contents.jobs.items() if job_id not in moved}
                history = {**self._contents.history, **moved}
                self._contents = replace(self._contents, jobs=jobs, history=history)

    def damage(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def history_damage(self) -> tuple[str, ...]:
        """Return no sentence."""
        return ()

    def unreadable(self) -> tuple[Unreadable, ...]:
        """Nothing."""
        return ()

    def check(self) -> None:
        """Nothing can be missing."""

    def close(self) -> None:
        """Nothing to let go of."""

    @property
    def _contents(self) -> _Contents:
        return self._kept

    @_contents.setter
    def _contents(self, contents: _Contents) -> None:
        self._version += contents is not self._kept
        self._kept = contents
