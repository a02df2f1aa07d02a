"""Cache of decoded jobs and recurring jobs: unchanged documents keep their decoded objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType

from gputui.domain.entries import Entries
from gputui.domain.errors import NotFoundError, StoreFormatError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import Unreadable
from gputui.store.codec import CANNOT, SharedSpecs, decode_recurring
from gputui.store.documents import Document, is_id
from gputui.store.replica import gc_paused

RECURRING = "recurring"
KnownRecurring = dict[str, tuple[Document, RecurringJob]]
"""Documents and their decoded recurring jobs, by key."""


class JobCache:
    """Cache of jobs by document. Returned objects never change. Callers serialise access."""

    def __init__(self) -> None:
        self._specs = SharedSpecs()
        self._entries: dict[str, tuple[Document, Job]] = {}
        self._jobs = Entries({})
        self._unreadable: dict[str, Unreadable] = {}

    def updated(self, table: Mapping[str, Document], touched: set[str] | None) -> Entries:
        """Return all jobs by id, after decoding the documents with keys in `touched` (None: all)."""
        if touched is None:
            self._rebuild(table)
        elif touched:
            self._change(table, touched)
        return self._jobs

    @property
    def unreadable(self) -> Mapping[str, Unreadable]:
        """Jobs that could not be decoded, by key."""
        return self._unreadable

    def decode(self, key: str, document: Document) -> Job:
        """Return the job of a document; the same object as before if the document is equal."""
        entry = self._entries.get(key)
        if entry is not None and (entry[0] is document or entry[0] == document):
            return entry[1]
        return self._specs.decode_job(int(key), document)

    def _rebuild(self, table: Mapping[str, Document]) -> None:
        self._unreadable = {}
        with gc_paused():
            found = ((key, document, self._readable(key, document)) for key, document in table.items())
            self._entries = {key: (document, job) for key, document, job in found if job is not None}
            self._jobs = _in_order({job.id: job for _, job in self._entries.values()})

    def _readable(self, key: str, document: Document) -> Job | None:
        """Return the job of a document; if it cannot be decoded, None and an entry in `unreadable`."""
        try:
            if not is_id(key):
                raise ValueError
            return self.decode(key, document)
        except StoreFormatError as error:
            self._unreadable[key] = Unreadable(
                "job", key, error.what.removeprefix(CANNOT), gpus_possibly_held(document)
            )
        except ValueError:
            self._unreadable[key] = Unreadable("job", key, "its id is not a number", gpus_possibly_held(document))
        return None

    def _change(self, table: Mapping[str, Document], touched: set[str]) -> None:
        jobs = dict(self._jobs.items())
        with_runs = {job.id: job for job in self._jobs.with_runs}
        for key in sorted(touched, key=lambda key: (len(key), key)):
            self._unreadable.pop(key, None)
            job = self._readable(key, table[key]) if key in table else None
            if job is None:
                _, before = self._entries.pop(key, (None, None))
                if before is not None:
                    jobs.pop(before.id, None)
                    with_runs.pop(before.id, None)
            else:
                self._entries[key] = (table[key], job)
                jobs[job.id] = job
                with_runs.pop(job.id, None)
                if job.runs:
                    with_runs[job.id] = job
        self._jobs = _in_order(jobs, with_runs.values())


def gpus_possibly_held(document: object) -> tuple[str, ...]:
    """Return the GPUs that an undecodable job may hold: those of its attempts that have not ended."""
    attempts = document.get("attempts") if isinstance(document, dict) else None
    listed = attempts if isinstance(attempts, list) else []
    under_way = [one for one in listed if isinstance(one, dict) and not one.get("ended_at")]
    found = [gpus for one in under_way if isinstance(gpus := one.get("gpus"), list)]
    return tuple(dict.fromkeys(uuid for gpus in found for uuid in gpus if isinstance(uuid, str)))


def _in_order(jobs: dict[JobId, Job], with_runs: Iterable[Job] | None = None) -> Entries:
    ids = list(jobs)
    if any(first > second for first, second in pairwise(ids)):
        jobs = dict(sorted(jobs.items()))  # a job came back from history, or an element left its entry
    return Entries(jobs, with_runs)


def decode_recurring_table(
    table: Mapping[str, Document], known: KnownRecurring, unreadable: dict[str, Unreadable] | None = None
) -> Mapping[JobId, RecurringJob]:
    """Return the readable recurring jobs by id, reusing the objects of unchanged documents in `known`.

    Unreadable ones are added to `unreadable`.
    """
    entries: dict[JobId, RecurringJob] = {}
    for key, document in table.items():
        try:
            if not is_id(key):
                raise ValueError
            if key not in known or known[key][0] is not document:
                known[key] = (document, decode_recurring(int(key), document))
            entries[int(key)] = known[key][1]
        except (StoreFormatError, ValueError) as error:
            known.pop(key, None)
            if unreadable is not None:
                why = (
                    error.what.removeprefix(CANNOT) if isinstance(error, StoreFormatError) else "its id is not a number"
                )
                unreadable[key] = Unreadable("recurring job", key, why)
    return MappingProxyType(dict(sorted(entries.items())))


def no_recurring(recurring: JobId) -> NotFoundError:
    """Return the error for an unknown id."""
    return NotFoundError(f"there is no recurring job {recurring}", hint="gputui cron list")
