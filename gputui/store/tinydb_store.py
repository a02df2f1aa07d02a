"""Durable job store over TinyDB, shared between threads and processes, and its transactions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.access import Actor, AuditEntry, requests_of
from gputui.domain.arrays import ArrayPlaces, Entries, changes_of, chosen, numbered
from gputui.domain.errors import InputError, NotFoundError, StoreBusyError, StoreError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.recurring import RecurringJob
from gputui.domain.runs import Run, joined_spans
from gputui.domain.settings import StoreSettings
from gputui.domain.snapshot import Controls, Unreadable
from gputui.store.codec import (
    CONTROLS,
    JOBS,
    RECURRING,
    Document,
    JobCache,
    KnownRecurring,
    decode_audit,
    decode_controls,
    decode_job,
    decode_recurring_table,
    encode,
    encode_job,
    is_id,
    no_recurring,
    runs_in,
)
from gputui.store.files import QUEUE, FileAccess, StoreLock, log_waiting, open_directory
from gputui.store.history import NO_MONTH, HistoryFiles, Trimmer, jobs_to_archive, latest, month_of, submission_entries
from gputui.store.queue_files import JournalEntry, Meta, lock_path, new_store_id, read_meta
from gputui.store.storage import JournalDB, JournalStorage, begin_queue, check_not_orphaned

if TYPE_CHECKING:
    from gputui.domain.accounting import JobRecord
    from gputui.ports import Transaction

FOLD_WHEN_IDLE_AT = 64 * 1024
"""Journal size in bytes from which maintenance folds it."""
NOTE_WITHIN = 1.0
"""Seconds after which an entry of the audit log does not wait for other writers."""
DEFAULTS = StoreSettings()


class JournalTransaction(Struct):
    """Transaction whose changes become one journal line when the surrounding block ends."""

    storage: JournalStorage
    entry: JournalEntry
    """Changes so far."""
    history: HistoryFiles
    cache: JobCache
    stored: Callable[[], Entries]
    """Returns the jobs without its changes."""
    is_over: bool = False

    def add(self, job: Job) -> Job:
        [stored] = numbered([job], self._entry.take_id(job.count))
        self.entry.stage(JOBS, {str(stored.id): encode_job(stored)})
        return stored

    def get(self, job_id: JobId) -> Job:
        return self.cache.decode(*self._document_of(job_id)).element(job_id)

    def chosen(self, ids: Iterable[JobId]) -> Iterator[Job]:
        for found in chosen(self.jobs(), ids):
            yield found if isinstance(found, Job) else self.get(found)

    def put(self, job: Job) -> None:
        before = self.storage.document(JOBS, str(job.id), self._entry)
        if before is not None and not job.runs and not runs_in(before):
            self.entry.stage(JOBS, {str(job.id): encode_job(job, before)})
            return
        known = {entry.id: self._document_at(entry.id) for entry in self._overlapping(job)}
        old = known.get(job.id) or next(iter(known.values()), None) or self._document_of(job.id)[1]
        changes = changes_of((self.cache.decode(str(key), document) for key, document in known.items()), job)
        self.entry.stage(JOBS, {str(key): encode_job(one, old) if one else None for key, one in changes.items()})

    def jobs(self) -> Entries:
        stored, changes = self.stored(), self._entry.changes.get(JOBS)
        if not changes:
            return stored
        jobs = dict(stored.items())
        for key, document in changes.items():
            if document is None:
                jobs.pop(int(key), None)
            else:
                jobs[int(key)] = self.cache.decode(key, document)
        return Entries(dict(sorted(jobs.items())))

    def controls(self) -> Controls:
        return decode_controls(self.storage.document(CONTROLS, "1", self._entry) or {})

    def set_controls(self, controls: Controls) -> None:
        self._entry.stage(CONTROLS, {"1": encode(controls)})

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        return decode_recurring_table(self.storage.table(RECURRING, self._entry), {}, {})

    def add_recurring(self, entry: RecurringJob) -> RecurringJob:
        stored = replace(entry, id=self._entry.take_id())
        self.entry.stage(RECURRING, {str(stored.id): encode_job(stored)})
        return stored

    def put_recurring(self, entry: RecurringJob) -> None:
        self._entry.stage(RECURRING, {str(entry.id): encode_job(entry, self._recurring(entry.id))})

    def remove_recurring(self, recurring: JobId) -> None:
        self._recurring(recurring)
        self.entry.stage(RECURRING, {str(recurring): None})

    def audit(self, entry: AuditEntry) -> None:
        self._entry.audit.append(encode(entry))

    @property
    def _entry(self) -> JournalEntry:
        """Changes so far; raises StoreError once the transaction is over."""
        if self.is_over:
            raise StoreError("this transaction is over")
        return self.entry

    def _recurring(self, recurring: JobId) -> Document:
        document = self.storage.document(RECURRING, str(recurring), self._entry)
        if document is None:
            raise no_recurring(recurring)
        return document

    def _document_of(self, job_id: JobId) -> tuple[str, Document]:
        """Return key and document of the job, or of the entry it is in; raises NotFoundError."""
        document = self.storage.document(JOBS, str(job_id), self._entry)
        if document is not None:
            return str(job_id), document
        entry = self.stored().entry(job_id)
        if entry is None or str(entry.id) in self.entry.changes.get(JOBS, {}):
            entry = self._changed(runs_in).entry(job_id)
        found = self.history.find(job_id) if entry is None else (str(entry.id), self._document_at(entry.id))
        if found is None:
            raise NotFoundError(f"there is no job {job_id}")
        return found

    def _document_at(self, key: JobId) -> Document:
        document = self.storage.document(JOBS, str(key), self.entry)
        assert document is not None
        return document

    def _overlapping(self, job: Job) -> Iterator[Job]:
        """Yield the entries in the queue that share jobs with this one, including this transaction's changes."""
        changes = self.entry.changes.get(JOBS, {})
        yield from (entry for entry in self.stored().overlapping(job) if str(entry.id) not in changes)
        yield from self._changed(bool if job.runs else runs_in).overlapping(job)

    def _changed(self, suits: Callable[[Document], object]) -> Entries:
        changes = self.entry.changes.get(JOBS, {}).items()
        found = {key: document for key, document in changes if document and suits(document)}
        return Entries({int(key): self.cache.decode(key, document) for key, document in found.items()})


class TinyJobStore:
    """JobStore of one state directory, which is created if missing. Opening it does not load the queue."""

    def __init__(
        self,
        directory: Path,
        settings: StoreSettings = DEFAULTS,
        waiting: Callable[[str], None] = log_waiting,
        migrating: Callable[[int], object] = lambda _: None,
        served: Callable[[], bool] = lambda: False,
    ) -> None:
        """`waiting` is called with a sentence when another process holds the lock for long.

        `migrating` is called with the schema of files that are about to be converted; it may raise StoreError.
        `served` returns whether an owner of the queue answers; a transaction then raises StoreOwnedError soon.
        """
        self._settings = settings
        access = open_directory(directory)
        self._path = directory / QUEUE
        patience = settings.lock_timeout.total_seconds()
        lock = StoreLock(lock_path(self._path), access, patience, waiting, served=served)
        self._database = JournalDB(self._path, access, lock)
        storage = self._database.storage
        assert isinstance(storage, JournalStorage)
        self.storage = storage
        """TinyDB storage with the journal."""
        self._history = HistoryFiles(directory, access)
        self._trimmer = Trimmer(directory, settings, access)
        self._cache = JobCache()
        self._controls: tuple[Document, Controls] = ({}, Controls())
        self._recurring: KnownRecurring = {}
        self._unreadable: dict[str, Unreadable] = {}
        """Recurring jobs that could not be decoded, by key."""
        storage.migrating = migrating
        storage.unreadable_jobs = self._unreadable_jobs
        self.store_id = self._open(access)

    def _open(self, access: FileAccess) -> str:
        """Return the store's id, creating the queue if there is none."""
        found = read_meta(self._path)
        if found is not None:
            meta = found[0]
            if [*self._path.parent.iterdir()] == [self._path]:  # it was copied there, and has no journal yet
                self.storage.begin_journal(meta)
        else:
            with self.storage.lock.held():
                found = read_meta(self._path)
                if found is not None:  # another process created it meanwhile
                    meta = found[0]
                else:
                    check_not_orphaned(self._path)
                    meta = Meta(generation=1, next_id=self._history.highest_id() + 1, store_id=new_store_id())
                    begin_queue(self._path, meta, {JOBS: {}}, access, self.storage.lock.fd)
        self.storage.remove_leftovers(meta.generation)
        return meta.store_id

    def whole_id(self, number: JobId) -> JobId:
        return number

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self.storage.transaction() as entry:
            transaction = JournalTransaction(self.storage, entry, self._history, self._cache, self.jobs)
            try:
                yield transaction
            finally:
                transaction.is_over = True

    def on_change(self, changed: Callable[[], object]) -> None:
        self.storage.changed = changed

    def own(self) -> None:
        with self.storage.lock.held():
            self.storage.is_owned = self.storage.lock.keeps = True

    def disown(self) -> None:
        self.storage.is_owned = False
        self.storage.lock.release()

    def lock_timeout(self, seconds: float) -> AbstractContextManager[None]:
        return self.storage.lock.lock_timeout(seconds)

    def note(self, entry: AuditEntry) -> None:
        try:
            with self.lock_timeout(NOTE_WITHIN), self.transaction() as transaction:
                transaction.audit(entry)
        except StoreBusyError:
            self.storage.audit.append([((0, time.time_ns(), os.getpid()), encode(entry))])

    def time_writes(self, wrote: Callable[[float], object]) -> None:
        self.storage.wrote = wrote

    def submit(self, jobs: Iterable[Job], *, actor: Actor) -> tuple[JobId, ...]:
        if not (batch := list(jobs)):
            return ()
        with self.storage.transaction() as entry:
            added = numbered(batch, entry.take_id(sum(job.count for job in batch)))
            entry.stage(JOBS, {str(job.id): encode_job(job) for job in added})
            entry.audit += map(encode, submission_entries(added, actor))
        return tuple(job.id for job in added)

    @property
    def owner(self) -> int:
        return self._path.parent.stat().st_uid

    def run_as(self, spec: JobSpec, submitted_uid: int | None = None) -> int:
        if spec.warrant and submitted_uid is None:  # of a time when a group could write this
            raise InputError("nothing proves any more who submitted it", hint="submit it again")
        return submitted_uid or self.owner

    def jobs(self) -> Entries:
        with self.storage.memory:
            state = self.storage.replica.refresh()
            touched, state.touched = state.touched, set()
            return self._cache.updated(state.tables[JOBS], touched)

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        found: dict[JobId, ArrayPlaces] = {}
        with self.storage.memory:
            for key, document in self.storage.replica.refresh().tables[JOBS].items():
                array = document.get("array") if isinstance(document, dict) else None  # by hand anything may be there
                array_id, index = (array.get("id"), array.get("index")) if isinstance(array, dict) else (None, None)
                if isinstance(array_id, int) and isinstance(index, int) and is_id(key):
                    found.setdefault(array_id, ArrayPlaces()).add(runs_in(document) or (Run(int(key), index, 1),))
        return found

    def unreadable(self) -> tuple[Unreadable, ...]:
        with self.storage.memory:
            return (*self._cache.unreadable.values(), *self._unreadable.values())

    def _unreadable_jobs(self) -> Iterable[str]:
        self.jobs()
        return self._cache.unreadable

    def get(self, job_id: JobId) -> Job:
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
        with self.storage.memory:
            document = self.storage.replica.refresh().tables.get(CONTROLS, {}).get("1", {})
            if document is not self._controls[0]:
                self._controls = (document, decode_controls(document))
            return self._controls[1]

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        with self.storage.memory:
            self._unreadable.clear()
            table = self.storage.replica.refresh().tables.get(RECURRING, {})
            return decode_recurring_table(table, self._recurring, self._unreadable)

    def version(self) -> object:
        with self.storage.memory:
            return self.storage.replica.version()

    def watch(self) -> None:
        return None

    def past(self, since: datetime | None = None, until: datetime | None = None) -> Iterator[Job]:
        first, last, gone = None if since is None else month_of(since), NO_MONTH, self.jobs().spans
        if until is not None:
            last = month_of(until)
            gone = joined_spans((*gone.parts, *self._history.spans(last).parts))
        for job in latest(self._history.latest_first(Job, first, self._history.decoded, last), gone):
            if since is None or job.end >= since:
                yield job

    def records(self, since: datetime | None = None) -> Iterator[JobRecord]:
        from gputui.domain.accounting import JobRecord, record_of

        def decode(key: str, document: Document) -> JobRecord | None:
            job = self._history.decoded(key, document)
            return None if job is None else record_of(job)

        queue = self.jobs()
        yield from map(record_of, queue.values())
        months = None if since is None else month_of(since)
        for job in latest(self._history.latest_first(JobRecord, months, decode), queue.spans):
            if since is None or (job.ended_at or job.submitted_at) >= since:
                yield job

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        with self.storage.memory:  # first, so that entries folded meanwhile are found in the files
            unfolded = list(self.storage.replica.refresh().audit)
        seen = set()
        for key, document in self.storage.audit.read(target):
            seen.add(key)
            if target is None or document.get("target") == target:
                yield decode_audit(document)
        for key, document in unfolded:
            if key not in seen and (target is None or document.get("target") == target):
                yield decode_audit(document)

    def requests(self, uid: int) -> Iterator[tuple[str, tuple[JobId, ...]]]:
        self.storage.settle()
        with self.storage.memory:
            unfolded = list(self.storage.replica.refresh().audit)
            latest = dict([*self.storage.audit.latest_with_keys(), *unfolded])  # a fold moves them
        entries = (decode_audit(document) for document in latest.values() if document.get("key"))
        return requests_of(uid, self.jobs().values(), entries)

    def maintain(self, now: datetime) -> None:
        """Move old finished jobs to history, fold the journal, and keep history and audit log within their limits."""
        self.storage.settle()
        self._move(jobs_to_archive(self.jobs().values(), self._settings, now))
        if self.storage.journal_length >= FOLD_WHEN_IDLE_AT:
            self.storage.checkpoint()
        self._trimmer.step(now)

    def damage(self) -> tuple[str, ...]:
        """Return sentences about damage found since the store was opened, and about journals kept because of damage."""
        with self.storage.memory:
            self.storage.replica.refresh()
            found = tuple(self.storage.replica.damage)
        reported = {sentence.partition(":")[0] for sentence in found}
        kept = sorted(self._path.parent.glob(f"{self._path.name}.wal.*.damaged"))  # by version 0.1, when it folded them
        kept = [path for path in kept if str(path.with_suffix("")) not in reported]
        return found + tuple(f"{path}: kept for its damaged lines, which are lost to the queue" for path in kept)

    def unread(self) -> tuple[str, ...]:
        return (*(entry.sentence for entry in self.unreadable()), *self._history.damage())

    def history_damage(self) -> tuple[str, ...]:
        return tuple(self._history.damage())

    def check(self) -> None:
        with self.storage.memory:
            replica = self.storage.replica
            if replica.loaded is not None:
                replica.refresh()
            if replica.loss is not None:
                raise replica.loss.error

    def close(self) -> None:
        self._database.close()

    def _move(self, jobs: list[Job]) -> None:
        """Append jobs to history, then remove from the queue those that have not changed meanwhile.

        The lock is not held during the append. A crash in between leaves jobs in both places; then the queue counts.
        """
        documents: dict[JobId, Document] = {}
        with self.storage.memory:
            table = self.storage.replica.state.tables[JOBS]
            for job in jobs:
                document = table.get(str(job.id))
                if document is not None and self._cache.decode(str(job.id), document) == job:
                    documents[job.id] = document
        by_month = sorted((job for job in jobs if job.id in documents), key=_month)
        for month, group in groupby(by_month, key=_month):
            self._history.add(month, {str(job.id): documents[job.id] for job in group})
        if documents:
            with self.storage.transaction() as entry:
                table = self.storage.table(JOBS, entry)
                same = [str(job_id) for job_id, document in documents.items() if table.get(str(job_id)) == document]
                entry.stage(JOBS, dict.fromkeys(same))


def _month(job: Job) -> str:
    return month_of(job.end)
