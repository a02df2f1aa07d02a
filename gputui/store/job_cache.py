"""Decoded jobs: those whose documents did not change stay the same objects."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

from gputui.domain.job import Job, JobId
from gputui.store.codec import decode_job
from gputui.store.journal import Document
from gputui.store.replica import no_collection


class JobCache:
    """Jobs by document. What it hands out is never changed afterwards; its callers let one thread at a time in."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Document, Job]] = {}
        self._jobs: Mapping[JobId, Job] = MappingProxyType({})

    def updated(self, table: Mapping[str, Document], touched: set[str] | None) -> Mapping[JobId, Job]:
        """All jobs, in the order of their ids; only documents of `touched` (None: all) are looked at."""
        if touched is None:
            self._rebuild(table)
        elif touched:
            self._change(table, touched)
        return self._jobs

    def decoded(self, key: str, document: Document) -> Job:
        """The job of a document, the same object as before where the document says the same."""
        entry = self._entries.get(key)
        if entry is not None and (entry[0] is document or entry[0] == document):
            return entry[1]
        return decode_job(int(key), document)

    def _rebuild(self, table: Mapping[str, Document]) -> None:
        with no_collection():
            jobs = [(document, self.decoded(key, document)) for key, document in table.items()]
        self._entries = dict(zip(table, jobs, strict=True))
        self._jobs = _in_order({job.id: job for _, job in jobs})

    def _change(self, table: Mapping[str, Document], touched: set[str]) -> None:
        jobs = dict(self._jobs)
        for key in sorted(touched, key=int):
            document = table.get(key)
            if document is None:
                self._entries.pop(key, None)
                jobs.pop(int(key), None)
            else:
                job = self.decoded(key, document)
                self._entries[key] = (document, job)
                jobs[job.id] = job
        self._jobs = _in_order(jobs)


def _in_order(jobs: dict[JobId, Job]) -> Mapping[JobId, Job]:
    ids = list(jobs)
    if any(first > second for first, second in pairwise(ids)):
        jobs = dict(sorted(jobs.items()))  # one came back from history
    return MappingProxyType(jobs)
