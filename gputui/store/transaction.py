"""Transaction of the durable store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from gputui.domain.audit import AuditEntry
from gputui.domain.entries import Entries, changes_of, chosen, numbered
from gputui.domain.errors import NotFoundError, StoreError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import Controls
from gputui.store.codec import (
    decode_controls,
    encode_audit,
    encode_controls,
    encode_job,
    encode_recurring,
    keep_unknown,
)
from gputui.store.documents import Document, count_waiting, runs_in
from gputui.store.history import HistoryFiles
from gputui.store.job_cache import RECURRING, JobCache, decode_recurring_table, no_recurring
from gputui.store.replica import CONTROLS, JOBS
from gputui.store.storage import JournalStorage


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
