"""Decoded jobs: those whose documents did not change stay the same objects."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

from gputui.domain.errors import StoreFormatError
from gputui.domain.job import Job, JobId
from gputui.domain.unreadable import Unreadable
from gputui.store.codec import CANNOT, SharedSpecs
from gputui.store.journal import Document
from gputui.store.replica import no_collection


class JobCache:
    """Jobs by document. What it hands out is never changed afterwards; its callers let one thread at a time in."""

    def __init__(self) -> None:
        self._specs = SharedSpecs()
        self._entries: dict[str, tuple[Document, Job]] = {}
        self._jobs: Mapping[JobId, Job] = MappingProxyType({})
        self._unreadable: dict[str, Unreadable] = {}

    def updated(self, table: Mapping[str, Document], touched: set[str] | None) -> Mapping[JobId, Job]:
        """All jobs, in the order of their ids; only documents of `touched` (None: all) are looked at."""
        if touched is None:
            self._rebuild(table)
        elif touched:
            self._change(table, touched)
        return self._jobs

    @property
    def unreadable(self) -> Mapping[str, Unreadable]:
        """Jobs that were left out, by key."""
        return self._unreadable

    def decoded(self, key: str, document: Document) -> Job:
        """The job of a document, the same object as before where the document says the same."""
        entry = self._entries.get(key)
        if entry is not None and (entry[0] is document or entry[0] == document):
            return entry[1]
        return self._specs.decode_job(int(key), document)

    def _rebuild(self, table: Mapping[str, Document]) -> None:
        self._unreadable = {}
        with no_collection():
            found = ((key, document, self._readable(key, document)) for key, document in table.items())
            self._entries = {key: (document, job) for key, document, job in found if job is not None}
            self._jobs = _in_order({job.id: job for _, job in self._entries.values()})

    def _readable(self, key: str, document: Document) -> Job | None:
        """The job of a document; None, and word of it, where it cannot be read."""
        try:
            return self.decoded(key, document)
        except StoreFormatError as error:
            self._unreadable[key] = Unreadable("job", key, error.what.removeprefix(CANNOT), may_hold(document))
        except ValueError:
            self._unreadable[key] = Unreadable("job", key, "its id is no number", may_hold(document))
        return None

    def _change(self, table: Mapping[str, Document], touched: set[str]) -> None:
        jobs = dict(self._jobs)
        for key in sorted(touched, key=lambda key: (len(key), key)):
            self._unreadable.pop(key, None)
            job = self._readable(key, table[key]) if key in table else None
            if job is None:
                _, before = self._entries.pop(key, (None, None))
                if before is not None:
                    jobs.pop(before.id, None)
            else:
                self._entries[key] = (table[key], job)
                jobs[job.id] = job
        self._jobs = _in_order(jobs)


def may_hold(document: object) -> tuple[str, ...]:
    """The GPUs that a job holds whose document cannot be read: those of attempts that are not known to be over."""
    attempts = document.get("attempts") if isinstance(document, dict) else None
    listed = attempts if isinstance(attempts, list) else []
    under_way = [one for one in listed if isinstance(one, dict) and not one.get("ended_at")]
    found = [gpus for one in under_way if isinstance(gpus := one.get("gpus"), list)]
    return tuple(dict.fromkeys(uuid for gpus in found for uuid in gpus if isinstance(uuid, str)))


def _in_order(jobs: dict[JobId, Job]) -> Mapping[JobId, Job]:
    ids = list(jobs)
    if any(first > second for first, second in pairwise(ids)):
        jobs = dict(sorted(jobs.items()))  # one came back from history
    return MappingProxyType(jobs)
