"""Durable job store over TinyDB, shared between threads and processes, and its transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui.domain.audit import Actor, AuditEntry
from gputui.domain.container import RunAs
from gputui.domain.entries import Entries, changes_of, chosen, numbered
from gputui.domain.errors import InputError, NotFoundError, StoreError, StoreFormatError, WarrantError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import StoreSettings
from gputui.domain.snapshot import Controls, Unreadable
from gputui.store.codec import (
    RECURRING,
    Document,
    JobCache,
    KnownRecurring,
    count_waiting,
    decode_audit,
    decode_controls,
    decode_job,
    decode_recurring_table,
    elements_of,
    encode_audit,
    encode_controls,
    encode_job,
    encode_jobs,
    encode_recurring,
    keep_unknown,
    no_recurring,
    runs_in,
    without_ids,
)
from gputui.store.directory import QUEUE, open_directory
from gputui.store.history import HistoryFiles, latest, submission_entries
from gputui.store.journal import JournalEntry
from gputui.store.lock import ChangeWatch, StoreLock, log_waiting
from gputui.store.replica import CONTROLS, JOBS, lock_path
from gputui.store.retention import Trimmer, ended_at, jobs_to_archive, month_of
from gputui.store.snapshot_file import Meta, new_store_id, read_meta
from gputui.store.storage import JournalDB, JournalStorage, check_not_orphaned, is_lone, kept_journals
from gputui.store.warrants import Warrants

if TYPE_CHECKING:
    from gputui.domain.job_record import JobRecord
    from gputui.ports import Transaction


class JournalTransaction:
    """Transaction whose changes become one journal line when the surrounding block ends."""

    def __init__(
        self,
        storage: JournalStorage,
        history: HistoryFiles,
        cache: JobCache,
        stored: Callable[[], Entries],
    ) -> None:
        self._open_storage = storage
        self._history = history
        self._cache = cache
        self._stored = stored
        self._is_over = False

    def add(self, job: Job) -> Job:
        """Store a new job under the next id, which the returned job carries."""
        [stored] = numbered([job], self._storage.take_id(job.count))
        self._put(JOBS, stored.id, encode_job(stored))
        return stored

    def get(self, job_id: JobId) -> Job:
        """Return the job from the queue or from history; for an entry, only that element; raises NotFoundError."""
        return self._job_or_entry(job_id).element(job_id)

    def chosen(self, ids: Iterable[JobId]) -> Iterator[Job]:
        """Yield the jobs with these ids, elements of one entry together; raises NotFoundError."""
        for found in chosen(self.jobs(), ids):
            yield found if isinstance(found, Job) else self.get(found)

    def put(self, job: Job) -> None:
        """Store the next version of a job, or of elements together; they leave their previous entry."""
        before = self._storage.document(JOBS, str(job.id))
        if before is not None and not job.runs and not runs_in(before):
            self._put(JOBS, job.id, keep_unknown(encode_job(job), before))
            return
        known = {entry.id: self._document_at(entry.id) for entry in self._overlapping(job)}
        old = known.get(job.id) or next(iter(known.values()), None) or self._document_of(job.id)[1]
        changes = changes_of((self._cache.decode(str(key), document) for key, document in known.items()), job)
        documents = {str(key): keep_unknown(encode_job(one), old) if one else None for key, one in changes.items()}
        self._storage.stage(JOBS, documents)

    def jobs(self) -> Entries:
        """Return all jobs in the queue by id."""
        stored = self._stored()
        changes = self._changes()
        if not changes:
            return stored
        jobs = dict(stored.items())
        for key, document in changes.items():
            if document is None:
                jobs.pop(int(key), None)
            else:
                jobs[int(key)] = self._cache.decode(key, document)
        return Entries(dict(sorted(jobs.items())))

    def waiting(self) -> Mapping[str, int]:
        """Return the number of PENDING jobs per tenant."""
        return count_waiting(self._storage.table(JOBS))

    def controls(self) -> Controls:
        """Return the operator's controls."""
        return decode_controls(self._storage.document(CONTROLS, "1") or {})

    def set_controls(self, controls: Controls) -> None:
        """Replace the operator's controls."""
        self._put(CONTROLS, 1, encode_controls(controls))

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        """Return all readable recurring jobs by id."""
        return decode_recurring_table(self._storage.table(RECURRING), {})

    def add_recurring(self, entry: RecurringJob) -> RecurringJob:
        """Store a new recurring job under the next id, which the returned one carries."""
        stored = replace(entry, id=self._storage.take_id())
        self._put(RECURRING, stored.id, encode_recurring(stored))
        return stored

    def put_recurring(self, entry: RecurringJob) -> None:
        """Store the next version of a recurring job."""
        document = keep_unknown(encode_recurring(entry), self._recurring(entry.id), RecurringJob)
        self._put(RECURRING, entry.id, document)

    def remove_recurring(self, recurring: JobId) -> None:
        """Remove a recurring job; raises NotFoundError."""
        self._recurring(recurring)
        self._storage.stage(RECURRING, {str(recurring): None})

    def audit(self, entry: AuditEntry) -> None:
        """Add an entry to the audit log."""
        self._storage.stage_audit(encode_audit(entry))

    def end(self) -> None:
        """End the transaction: further calls raise StoreError."""
        self._is_over = True

    @property
    def _storage(self) -> JournalStorage:
        """Storage of the store; raises StoreError once the transaction is over."""
        if self._is_over:
            raise StoreError("this transaction is over")
        return self._open_storage

    def _put(self, table: str, key: JobId, document: Document) -> None:
        self._storage.stage(table, {str(key): document})

    def _recurring(self, recurring: JobId) -> Document:
        document = self._storage.document(RECURRING, str(recurring))
        if document is None:
            raise no_recurring(recurring)
        return document

    def _job_or_entry(self, job_id: JobId) -> Job:
        """Return the job, or the entry it is in."""
        key, document = self._document_of(job_id)
        return self._cache.decode(key, document)

    def _document_of(self, job_id: JobId) -> tuple[str, Document]:
        """Return key and document of the job, or of the entry it is in; raises NotFoundError."""
        document = self._storage.document(JOBS, str(job_id))
        if document is not None:
            return str(job_id), document
        entry = self._entry_around(job_id)
        if entry is not None:
            return str(entry.id), self._document_at(entry.id)
        found = self._history.find(job_id)
        if found is None:
            raise NotFoundError(f"there is no job {job_id}")
        return found

    def _document_at(self, key: JobId) -> Document:
        document = self._storage.document(JOBS, str(key))
        assert document is not None
        return document

    def _entry_around(self, job_id: JobId) -> Job | None:
        """Return the entry in the queue that contains this element, including this transaction's changes."""
        entry, changes = self._stored().entry(job_id), self._changes()
        if entry is None or str(entry.id) in changes:
            return self._changed(runs_in).entry(job_id)
        return entry

    def _overlapping(self, job: Job) -> Iterator[Job]:
        """Yield the entries in the queue that share jobs with this one, including this transaction's changes."""
        changes = self._changes()
        yield from (entry for entry in self._stored().overlapping(job) if str(entry.id) not in changes)
        yield from self._changed(bool if job.runs else runs_in).overlapping(job)

    def _changed(self, suits: Callable[[Document], object]) -> Entries:
        """Return the jobs stored by this transaction whose documents satisfy the predicate."""
        found = {key: document for key, document in self._changes().items() if document and suits(document)}
        return Entries({int(key): self._cache.decode(key, document) for key, document in found.items()})

    def _changes(self) -> Mapping[str, Document | None]:
        pending = self._storage.pending
        return (pending.changes.get(JOBS) if pending else None) or {}


FOLD_WHEN_IDLE_AT = 64 * 1024
"""Journal size in bytes from which maintenance folds it."""
SWEEP_EVERY = 3600.0
"""Seconds between removals of unused warrants."""
DEFAULTS = StoreSettings()


class TinyJobStore:
    """JobStore of one state directory, which is created if missing. Opening it does not load the queue."""

    def __init__(
        self,
        directory: Path,
        settings: StoreSettings = DEFAULTS,
        waiting: Callable[[str], None] = log_waiting,
        migrating: Callable[[int], object] = lambda _: None,
    ) -> None:
        """`waiting` is called with a sentence when another process holds the lock for long.

        `migrating` is called with the schema of files that are about to be converted; it may raise StoreError.
        """
        self._settings = settings
        access = open_directory(directory, settings.group)
        self._path = directory / QUEUE
        patience = settings.lock_timeout.total_seconds()
        lock = StoreLock(lock_path(self._path), access, patience, waiting)
        self._database = JournalDB(self._path, access, lock)
        storage = self._database.storage
        assert isinstance(storage, JournalStorage)
        self.storage = storage
        """TinyDB storage with the journal."""
        self._history = HistoryFiles(directory, access)
        self._trimmer = Trimmer(directory, settings, access)
        self._warrants = Warrants(directory)
        self._swept_at = time.monotonic()
        self._cache = JobCache()
        self._controls: tuple[Document, Controls] = ({}, decode_controls({}))
        self._recurring: KnownRecurring = {}
        self._unreadable: dict[str, Unreadable] = {}
        """Recurring jobs that could not be decoded, by key."""
        self._unreadable_history: set[str] = set()
        """Keys of jobs in history that could not be decoded."""
        storage.migrating = migrating
        storage.unreadable_jobs = self._unreadable_jobs
        self._store_id = self._open()

    @property
    def store_id(self) -> str:
        """Identifier of twelve characters [a-z0-9], generated once per state directory."""
        return self._store_id

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin an all-or-nothing change; a nested one is part of the outer one."""
        with self.storage.transaction(), self.storage.savepoint():
            transaction = JournalTransaction(self.storage, self._history, self._cache, self.jobs)
            try:
                yield transaction
            finally:
                transaction.end()

    def lock_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """Within the block, limit this thread's waits for other writers to so many seconds."""
        return self.storage.lock.lock_timeout(seconds)

    def time_writes(self, wrote: Callable[[float], object]) -> None:
        """Call `wrote` with the seconds of each write to the journal by this process from now on."""
        self.storage.wrote = wrote

    def submit(self, jobs: Iterable[Job], *, actor: Actor) -> tuple[JobId, ...]:
        """Append new jobs with their audit entries, all or none, without loading the queue; return their ids.

        The id of an entry is that of its first element.
        """
        batch = list(jobs)
        added: list[Job] = []

        def entry(next_id: JobId) -> JournalEntry:
            added[:] = numbered(batch, next_id)
            audit = [encode_audit(entry) for entry in submission_entries(added, actor)]
            return JournalEntry({JOBS: encode_jobs(added)}, audit, next_id + sum(job.count for job in added))

        if batch:
            self.storage.add_unread(entry)
        return tuple(job.id for job in added)

    def with_warrant(self, spec: JobSpec, uid: int) -> JobSpec:
        """Return the spec, with a warrant if other users may write the queue."""
        if not self._warrants.are_needed():
            return spec
        if uid == 0 and spec.is_host:
            text = "host jobs of root do not run in a state directory that a group shares"
            raise InputError(text, where="--host", hint="submit it as the user it is to run as")
        return replace(spec, warrant=self._warrants.issue(spec, self._store_id, uid))

    def run_as(self, spec: JobSpec) -> RunAs:
        """Return the user to run as: owner of the warrant, or of a private state directory; raises WarrantError."""
        if not self._warrants.are_needed():
            return RunAs(self._warrants.owner())
        uid = self._warrants.issuer(spec, self._store_id)
        if uid == 0 and spec.is_host:
            raise WarrantError("host jobs of root do not run in a state directory that a group shares")
        return RunAs(uid, is_strict=True)

    def caps_waiting(self) -> bool:
        """Return whether the operators' controls cap any tenant's waiting jobs or priorities, without loading the
        queue."""
        return self.storage.caps_waiting()

    def jobs(self) -> Entries:
        """Return all jobs in the queue by id."""
        with self.storage.memory:
            state = self.storage.replica.refresh()
            return self._cache.updated(state.tables[JOBS], self.storage.replica.take_touched())

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        """Return the elements of each array in the queue: by array, ids by index. Decodes no job."""
        with self.storage.memory:
            return elements_of(self.storage.replica.refresh().tables[JOBS])

    def unreadable(self) -> tuple[Unreadable, ...]:
        """Return the entries that were left out when they were read; empty before the first read."""
        with self.storage.memory:
            return (*self._cache.unreadable.values(), *self._unreadable.values())

    def _unreadable_jobs(self) -> Iterable[str]:
        """Return the keys of the jobs that cannot be decoded now."""
        self.jobs()
        return self._cache.unreadable

    def get(self, job_id: JobId) -> Job:
        """Return the job from the queue or from history; for an entry, only that element; raises NotFoundError."""
        with self.storage.memory:
            state = self.storage.replica.refresh()
            if str(job_id) in state.tables[JOBS]:
                return self._cache.decode(str(job_id), state.tables[JOBS][str(job_id)]).element(job_id)
            if 0 < job_id < state.next_id and (element := self.jobs().get(job_id)):
                return element
        found = self._history.find(job_id) if 0 < job_id < state.next_id else None
        if found is None:
            raise NotFoundError(f"there is no job {job_id}")
        return decode_job(int(found[0]), found[1]).element(job_id)

    def controls(self) -> Controls:
        """Return the operator's controls."""
        with self.storage.memory:
            document = self.storage.replica.refresh().tables.get(CONTROLS, {}).get("1", {})
            if document is not self._controls[0]:
                self._controls = (document, decode_controls(document))
            return self._controls[1]

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        """Return all readable recurring jobs by id."""
        with self.storage.memory:
            self._unreadable.clear()
            table = self.storage.replica.refresh().tables.get(RECURRING, {})
            return decode_recurring_table(table, self._recurring, self._unreadable)

    def version(self) -> object:
        """Return a token that changes with every write by any process."""
        with self.storage.memory:
            return self.storage.replica.version()

    def watch(self) -> ChangeWatch | None:
        """Return a watch that reports every write; None if the kernel allows no more watches."""
        try:
            return self.storage.lock.watch()
        except (OSError, StoreError):  # inotify watches are limited per user
            return None

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        """Yield finished jobs that were moved out of the queue, by month and then by id; with `since`, ended since."""
        in_queue = self.jobs().spans
        for found in self._history.documents(None if since is None else month_of(since)):
            left = without_ids(*found, in_queue)
            if left is None:
                continue
            job = self._decode_past(*left)
            if job is not None and (since is None or ended_at(job) >= since):
                yield job

    def past(self, since: datetime | None = None) -> Iterator[Job]:
        """Yield finished jobs that were moved out of the queue, latest month first; with `since`, ended since."""
        months = None if since is None else month_of(since)
        for job in latest(self._history.latest_first(Job, months, self._decode_past), self.jobs().spans):
            if since is None or ended_at(job) >= since:
                yield job

    def records(self, since: datetime | None = None) -> Iterator[JobRecord]:
        """Yield the records of all jobs in the queue, and of finished jobs that left it; with `since`, ended since."""
        from gputui.domain.job_record import JobRecord, record_of

        def decode(key: str, document: Document) -> JobRecord | None:
            job = self._decode_past(key, document)
            return None if job is None else record_of(job)

        queue = self.jobs()
        yield from map(record_of, queue.values())
        months = None if since is None else month_of(since)
        for job in latest(self._history.latest_first(JobRecord, months, decode), queue.spans):
            if since is None or (job.ended_at or job.submitted_at) >= since:
                yield job

    def _decode_past(self, key: str, document: Document) -> Job | None:
        """Return a job of the history.

        None, and a record of it, if it cannot be decoded: the others are still readable.
        """
        try:
            return decode_job(int(key), document)
        except StoreFormatError:
            self._unreadable_history.add(key)
            return None

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        """Yield the audit log, oldest entry first."""
        unfolded = self.storage.unfolded_audit()  # first, so that entries folded meanwhile are found in the files
        seen = set()
        for key, document in self.storage.audit.read(target):
            seen.add(key)
            if target is None or document.get("target") == target:
                yield decode_audit(document)
        for key, document in unfolded:
            if key not in seen and (target is None or document.get("target") == target):
                yield decode_audit(document)

    def maintain(self, now: datetime) -> None:
        """Move old finished jobs to history, fold the journal, and keep history and audit log within their limits."""
        self._move(jobs_to_archive(self.jobs().values(), self._settings, now))
        if self.storage.journal_length >= FOLD_WHEN_IDLE_AT:
            self.storage.checkpoint()
        self._sweep_warrants()
        self._trimmer.step(now)

    def _sweep_warrants(self) -> None:
        """Remove unused warrants once an hour, unless part of the queue, which may name any, is unreadable."""
        if time.monotonic() - self._swept_at < SWEEP_EVERY or self.unreadable():
            return
        self._swept_at = time.monotonic()
        named = {job.spec.warrant for job in self.jobs().values()}
        self._warrants.remove_unused(named | {entry.submission.spec.warrant for entry in self.recurring().values()})

    def damage(self) -> tuple[str, ...]:
        """Return sentences about damage found since the store was opened, and about journals kept because of damage."""
        with self.storage.memory:
            self.storage.replica.refresh()
            found = tuple(self.storage.replica.damage)
        told = {sentence.partition(":")[0] for sentence in found}
        kept = [path for path in kept_journals(self._path) if str(path.with_suffix("")) not in told]
        return found + tuple(f"{path}: kept for its damaged lines, which are lost to the queue" for path in kept)

    def unread(self) -> tuple[str, ...]:
        return (*(entry.sentence for entry in self.unreadable()), *self.history_damage())

    def history_damage(self) -> tuple[str, ...]:
        """Return sentences about finished jobs that were left out of history as read so far."""
        found = tuple(self._history.damage())
        if not self._unreadable_history:
            return found
        count, first = len(self._unreadable_history), min(self._unreadable_history, key=lambda key: (len(key), key))
        which = f"job {first}" if count == 1 else f"{count} jobs, the first of them job {first},"
        return (*found, f"{self._path.parent}/history-*: {which} cannot be read: left out")

    def check(self) -> None:
        """Raise StoreDamagedError if acknowledged changes are missing, as far as the queue was read."""
        self.storage.check()

    def close(self) -> None:
        """Close all files."""
        self._database.close()

    def _move(self, jobs: list[Job]) -> None:
        """Append jobs to history, then remove from the queue those that have not changed meanwhile.

        The lock is not held during the append. A crash in between leaves jobs in both places; then the queue counts.
        """
        documents = {job.id: document for job in jobs if (document := self._document_of(job)) is not None}
        by_month = sorted((job for job in jobs if job.id in documents), key=_month)
        for month, group in groupby(by_month, key=_month):
            self._history.add(month, {str(job.id): documents[job.id] for job in group})
        if documents:
            with self.storage.transaction():
                table = self.storage.table(JOBS)
                same = [str(job_id) for job_id, document in documents.items() if table.get(str(job_id)) == document]
                self.storage.stage(JOBS, dict.fromkeys(same))

    def _document_of(self, job: Job) -> Document | None:
        """Return the document of a job; None if the job has changed since."""
        with self.storage.memory:
            document = self.storage.replica.state.tables[JOBS].get(str(job.id))
            is_so = document is not None and self._cache.decode(str(job.id), document) == job
            return document if is_so else None

    def _open(self) -> str:
        """Return the store's id, creating the queue if there is none."""
        found = read_meta(self._path)
        if found is not None and is_lone(self._path):
            self.storage.begin_journal(found[0])
        store_id = self._make() if found is None else found[0].store_id
        self.storage.remove_leftovers()
        return store_id

    def _make(self) -> str:
        with self.storage.lock.held():
            found = read_meta(self._path)
            if found is not None:
                return found[0].store_id  # another process created it meanwhile
            check_not_orphaned(self._path)
            meta = Meta(generation=1, next_id=self._history.highest_id() + 1, store_id=new_store_id())
            self.storage.make_first(meta)
            return meta.store_id


def _month(job: Job) -> str:
    return month_of(ended_at(job).astimezone(UTC))
