"""The job store over TinyDB: durable, and shared between threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from gputui.domain.audit import Actor, AuditEntry
from gputui.domain.container import RunAs
from gputui.domain.errors import InputError, NotFoundError, StoreError, StoreFormatError, WarrantError
from gputui.domain.job import Job, JobId, JobSpec
from gputui.domain.numbering import numbered
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import StoreSettings
from gputui.domain.snapshot import Controls
from gputui.domain.unreadable import Unreadable
from gputui.ports import Transaction
from gputui.store.arrays import elements_of
from gputui.store.codec import decode_audit, decode_controls, decode_job, encode_audit, encode_jobs
from gputui.store.directory import QUEUE, open_directory
from gputui.store.history import HistoryFiles
from gputui.store.job_cache import JobCache
from gputui.store.journal import Document, Entry
from gputui.store.leftovers import check_not_orphaned, is_lone, kept_journals
from gputui.store.lock import StoreLock, log_waiting
from gputui.store.recurring import RECURRING, Known, decoded
from gputui.store.replica import CONTROLS, JOBS, lock_path
from gputui.store.retention import ended_at, month_of, outdated
from gputui.store.snapshot_file import Meta, new_store_id, read_meta
from gputui.store.storage import JournalStorage
from gputui.store.submissions import submission_entry
from gputui.store.table import JournalDB
from gputui.store.transaction import JournalTransaction
from gputui.store.warrants import Warrants
from gputui.store.watch import Watch

FOLD_WHEN_IDLE_AT = 64 * 1024
"""Bytes of journal worth folding when there is nothing else to do."""
SWEEP_EVERY = 3600.0
"""Seconds between two looks for warrants that no job needs any more."""
DEFAULTS = StoreSettings()


class TinyJobStore:
    """The queue of one state directory, which is made if need be. To open it does not load the queue."""

    def __init__(
        self,
        directory: Path,
        settings: StoreSettings = DEFAULTS,
        waiting: Callable[[str], None] = log_waiting,
    ) -> None:
        """`waiting` is called with a sentence when another process keeps the lock for long."""
        self._settings = settings
        permissions = open_directory(directory, settings.group)
        self._path = directory / QUEUE
        patience = settings.lock_timeout.total_seconds()
        lock = StoreLock(lock_path(self._path), permissions, patience, waiting)
        self._database = JournalDB(self._path, permissions, lock)
        storage = self._database.storage
        assert isinstance(storage, JournalStorage)
        self._storage = storage
        self._history = HistoryFiles(directory, permissions)
        self._warrants = Warrants(directory)
        self._swept_at = time.monotonic()
        self._cache = JobCache()
        self._controls: tuple[Document, Controls] = ({}, decode_controls({}))
        self._recurring: Known = {}
        self._unreadable: dict[str, Unreadable] = {}
        """Recurring jobs that cannot be read."""
        self._unreadable_history: set[str] = set()
        """Keys of finished jobs that could not be read."""
        storage.unreadable_jobs = self._unreadable_jobs
        self._store_id = self._open()

    @property
    def store_id(self) -> str:
        """Twelve characters of [a-z0-9], made once per state directory."""
        return self._store_id

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """One all-or-nothing change. One begun inside another is part of it."""
        with self._storage.transaction(), self._storage.savepoint():
            transaction = JournalTransaction(self._database, self._history, self._cache, self.jobs)
            try:
                yield transaction
            finally:
                transaction.end()

    def hurried(self, seconds: float) -> AbstractContextManager[None]:
        """In the block, let this thread wait no longer than so many seconds for other writers."""
        return self._storage.lock.hurried(seconds)

    def submit(self, jobs: Iterable[Job], *, actor: Actor) -> tuple[JobId, ...]:
        """Append new jobs, all or none, each with its audit entry, without loading the queue; their ids."""
        batch = list(jobs)
        added: list[Job] = []

        def entry(next_id: JobId) -> Entry:
            added[:] = numbered(batch, next_id)
            audit = [encode_audit(submission_entry(job, actor)) for job in added]
            return Entry({JOBS: encode_jobs(added)}, audit, next_id + len(added))

        if batch:
            self._storage.add_unread(entry)
        return tuple(job.id for job in added)

    def vouch(self, spec: JobSpec, uid: int) -> JobSpec:
        """Return the spec with a warrant, where others may write the queue."""
        if not self._warrants.are_needed():
            return spec
        if uid == 0 and spec.is_host:
            text = "host jobs of root do not run in a state directory that a group shares"
            raise InputError(text, where="--host", hint="submit it as the user it is to run as")
        return replace(spec, warrant=self._warrants.issue(spec, self._store_id, uid))

    def voucher(self, spec: JobSpec) -> RunAs:
        """Return the owner of the spec's warrant; of the state directory where nobody else may write that."""
        if not self._warrants.are_needed():
            return RunAs(self._warrants.owner())
        uid = self._warrants.voucher(spec, self._store_id)
        if uid == 0 and spec.is_host:
            raise WarrantError("host jobs of root do not run in a state directory that a group shares")
        return RunAs(uid, is_strict=True)

    def caps_waiting(self) -> bool:
        """Whether the operator's wishes cap the waiting jobs of any tenant, without loading the queue."""
        return self._storage.caps_waiting()

    def jobs(self) -> Mapping[JobId, Job]:
        """All jobs of the queue file, in the order of their ids."""
        with self._storage.memory:
            state = self._storage.replica.refresh()
            return self._cache.updated(state.tables[JOBS], self._storage.replica.take_touched())

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        """Return the elements of each array in the queue: by array, ids by index. Decodes no job."""
        with self._storage.memory:
            return elements_of(self._storage.replica.refresh().tables[JOBS])

    def unreadable(self) -> tuple[Unreadable, ...]:
        """Entries that were left out when they were read; empty where nothing was read."""
        with self._storage.memory:
            return (*self._cache.unreadable.values(), *self._unreadable.values())

    def _unreadable_jobs(self) -> Iterable[str]:
        """Keys of the jobs that cannot be read, now."""
        self.jobs()
        return self._cache.unreadable

    def get(self, job_id: JobId) -> Job:
        """The job, from the queue or from history; raises NotFoundError."""
        with self._storage.memory:
            state = self._storage.replica.refresh()
            if str(job_id) in state.tables[JOBS]:
                return self._cache.decoded(str(job_id), state.tables[JOBS][str(job_id)])
        document = self._history.find(str(job_id)) if 0 < job_id < state.next_id else None
        if document is None:
            raise NotFoundError(f"there is no job {job_id}")
        return decode_job(job_id, document)

    def controls(self) -> Controls:
        """The operator's standing wishes."""
        with self._storage.memory:
            document = self._storage.replica.refresh().tables.get(CONTROLS, {}).get("1", {})
            if document is not self._controls[0]:
                self._controls = (document, decode_controls(document))
            return self._controls[1]

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        """All recurring jobs, in the order of their ids."""
        with self._storage.memory:
            self._unreadable.clear()
            table = self._storage.replica.refresh().tables.get(RECURRING, {})
            return decoded(table, self._recurring, self._unreadable)

    def version(self) -> object:
        """A token that differs whenever anything was written by any process."""
        with self._storage.memory:
            return self._storage.replica.version()

    def watch(self) -> Watch | None:
        """Word of every write, which the writer leaves in the lock file; None where the kernel passes none on."""
        try:
            return self._storage.lock.watch()
        except (OSError, StoreError):  # a user may watch only so much at a time
            return None

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        """Finished jobs that were moved out of the queue, by month and then by id; with `since`, ended since then."""
        in_queue = self.jobs().keys()
        for key, document in self._history.documents(None if since is None else month_of(since)):
            if int(key) in in_queue:
                continue
            try:
                job = decode_job(int(key), document)
            except StoreFormatError:
                self._unreadable_history.add(key)
                continue  # one that cannot be read keeps nobody from the others
            if since is None or ended_at(job) >= since:
                yield job

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        """What was wished, oldest first."""
        unfolded = self._storage.unfolded_audit()  # first: what is folded meanwhile is then found in the files
        seen = set()
        for key, document in self._storage.audit.read(target):
            seen.add(key)
            if target is None or document.get("target") == target:
                yield decode_audit(document)
        for key, document in unfolded:
            if key not in seen and (target is None or document.get("target") == target):
                yield decode_audit(document)

    def keep_house(self, now: datetime) -> None:
        """Move old finished jobs to history and fold the journal."""
        self._move(outdated(self.jobs().values(), self._settings, now))
        if self._storage.journal_length >= FOLD_WHEN_IDLE_AT:
            self._storage.checkpoint()
        self._sweep_warrants()

    def _sweep_warrants(self) -> None:
        """Once an hour, unless something of the queue cannot be read, which may name any warrant."""
        if time.monotonic() - self._swept_at < SWEEP_EVERY or self.unreadable():
            return
        self._swept_at = time.monotonic()
        named = {job.spec.warrant for job in self.jobs().values()}
        self._warrants.sweep(named | {entry.submission.spec.warrant for entry in self.recurring().values()})

    def damage(self) -> tuple[str, ...]:
        """Sentences about what could not be read: since the store was opened, and in journals kept for that."""
        with self._storage.memory:
            self._storage.replica.refresh()
            found = tuple(self._storage.replica.damage)
        told = {sentence.partition(":")[0] for sentence in found}
        kept = [path for path in kept_journals(self._path) if str(path.with_suffix("")) not in told]
        return found + tuple(f"{path}: kept for its damaged lines, which are lost to the queue" for path in kept)

    def history_damage(self) -> tuple[str, ...]:
        """Return sentences about finished jobs that were left out when history was read, as far as it was."""
        found = tuple(self._history.damage())
        if not self._unreadable_history:
            return found
        count, first = len(self._unreadable_history), min(self._unreadable_history, key=lambda key: (len(key), key))
        which = f"job {first}" if count == 1 else f"{count} jobs, the first of them job {first},"
        return (*found, f"{self._path.parent}/history-*: {which} cannot be read: left out")

    def check(self) -> None:
        """Raise StoreDamagedError where acknowledged changes are missing, as far as the queue was read at all."""
        self._storage.check()

    def close(self) -> None:
        """Let go of files."""
        self._database.close()

    def _move(self, jobs: list[Job]) -> None:
        """Append jobs to history, and then take them out of the queue if they are still the same.

        The lock is not held meanwhile. A crash in between leaves them in both, and the queue is right.
        """
        documents = {job.id: document for job in jobs if (document := self._document_of(job)) is not None}
        by_month = sorted((job for job in jobs if job.id in documents), key=_month)
        for month, group in groupby(by_month, key=_month):
            self._history.add(month, {str(job.id): documents[job.id] for job in group})
        if documents:
            with self._storage.transaction():
                table = self._storage.table(JOBS)
                same = [str(job_id) for job_id, document in documents.items() if table.get(str(job_id)) == document]
                self._storage.stage(JOBS, dict.fromkeys(same))

    def _document_of(self, job: Job) -> Document | None:
        """The document that says what the job does; None where it has changed meanwhile."""
        with self._storage.memory:
            document = self._storage.replica.state.tables[JOBS].get(str(job.id))
            is_so = document is not None and self._cache.decoded(str(job.id), document) == job
            return document if is_so else None

    def _open(self) -> str:
        """The store's id; makes the queue when there is none."""
        found = read_meta(self._path)
        if found is not None and is_lone(self._path):
            self._storage.begin_journal(found[0])
        store_id = self._make() if found is None else found[0].store_id
        self._storage.sweep()
        return store_id

    def _make(self) -> str:
        with self._storage.lock.held():
            found = read_meta(self._path)
            if found is not None:
                return found[0].store_id  # somebody else was faster
            check_not_orphaned(self._path)
            meta = Meta(generation=1, next_id=self._history.highest_id() + 1, store_id=new_store_id())
            self._storage.make_first(meta)
            return meta.store_id


def _month(job: Job) -> str:
    return month_of(ended_at(job).astimezone(UTC))
