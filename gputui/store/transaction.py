"""A change of the store under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from gputui.domain.audit import AuditEntry
from gputui.domain.errors import NotFoundError, StoreError
from gputui.domain.job import Job, JobId
from gputui.domain.numbering import numbered
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import Controls
from gputui.store.caps import count_waiting
from gputui.store.codec import (
    decode_controls,
    encode_audit,
    encode_controls,
    encode_job,
    encode_recurring,
    keep_unknown,
)
from gputui.store.history import HistoryFiles
from gputui.store.job_cache import JobCache
from gputui.store.journal import Document
from gputui.store.recurring import RECURRING, decoded, no_recurring
from gputui.store.replica import CONTROLS, JOBS
from gputui.store.storage import JournalStorage
from gputui.store.table import JournalDB, JournalTable


class JournalTransaction:
    """What is done here is one line of the journal, written when the block around it ends."""

    def __init__(
        self,
        database: JournalDB,
        history: HistoryFiles,
        cache: JobCache,
        stored: Callable[[], Mapping[JobId, Job]],
    ) -> None:
        self._database = database
        self._history = history
        self._cache = cache
        self._stored = stored
        self._is_over = False

    def add(self, job: Job) -> Job:
        """Store a new job under the next id, which the returned job carries."""
        [stored] = numbered([job], self._storage.take_id())
        self._table(JOBS).put(stored.id, encode_job(stored))
        return stored

    def get(self, job_id: JobId) -> Job:
        """The job, from the queue or from history; raises NotFoundError."""
        return self._cache.decoded(str(job_id), self._document(job_id))

    def put(self, job: Job) -> None:
        """Store the next version of a job."""
        self._table(JOBS).put(job.id, keep_unknown(encode_job(job), self._document(job.id)))

    def jobs(self) -> Mapping[JobId, Job]:
        """All jobs of the queue file, in the order of their ids."""
        stored = self._stored()
        pending = self._storage.pending
        changes = pending.changes.get(JOBS) if pending else None
        if not changes:
            return stored
        jobs = dict(stored)
        for key, document in changes.items():
            if document is None:
                jobs.pop(int(key), None)
            else:
                jobs[int(key)] = self._cache.decoded(key, document)
        return MappingProxyType(dict(sorted(jobs.items())))

    def waiting(self) -> Mapping[str, int]:
        """How many jobs of each tenant are PENDING."""
        return count_waiting(self._storage.table(JOBS))

    def controls(self) -> Controls:
        """The operator's standing wishes."""
        return decode_controls(self._storage.document(CONTROLS, "1") or {})

    def set_controls(self, controls: Controls) -> None:
        """Replace them."""
        self._table(CONTROLS).put(1, encode_controls(controls))

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        """All recurring jobs, in the order of their ids."""
        return decoded(self._storage.table(RECURRING), {})

    def add_recurring(self, entry: RecurringJob) -> RecurringJob:
        """Store a new recurring job under the next id, which the returned one carries."""
        stored = replace(entry, id=self._storage.take_id())
        self._table(RECURRING).put(stored.id, encode_recurring(stored))
        return stored

    def put_recurring(self, entry: RecurringJob) -> None:
        """Store the next version of a recurring job."""
        document = keep_unknown(encode_recurring(entry), self._recurring(entry.id), RecurringJob)
        self._table(RECURRING).put(entry.id, document)

    def remove_recurring(self, recurring: JobId) -> None:
        """Forget a recurring job."""
        self._recurring(recurring)
        self._storage.stage(RECURRING, {str(recurring): None})

    def audit(self, entry: AuditEntry) -> None:
        """Write down who wished what."""
        self._storage.stage_audit(encode_audit(entry))

    def end(self) -> None:
        """Refuse whatever is asked from now on."""
        self._is_over = True

    @property
    def _storage(self) -> JournalStorage:
        if self._is_over:
            raise StoreError("this transaction is over")
        storage = self._database.storage
        assert isinstance(storage, JournalStorage)
        return storage

    def _table(self, name: str) -> JournalTable:
        if self._is_over:
            raise StoreError("this transaction is over")
        table = self._database.table(name)
        assert isinstance(table, JournalTable)
        return table

    def _recurring(self, recurring: JobId) -> Document:
        document = self._storage.document(RECURRING, str(recurring))
        if document is None:
            raise no_recurring(recurring)
        return document

    def _document(self, job_id: JobId) -> Document:
        document = self._storage.document(JOBS, str(job_id)) or self._history.find(str(job_id))
        if document is None:
            raise NotFoundError(f"there is no job {job_id}")
        return document
