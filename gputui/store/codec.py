"""Documents of jobs, recurring jobs, controls and audit entries: encoded, decoded, and read without decoding them.

Fields with default values are omitted to keep documents small. So a changed default in the domain is a schema change
and needs a migration.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import NODEFAULT, Struct, field, structs

from gputui.domain.access import AuditEntry
from gputui.domain.arrays import Entries
from gputui.domain.decoding import convert
from gputui.domain.errors import GputuiError, InputError, NotFoundError, StoreFormatError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.recurring import RecurringJob
from gputui.domain.runs import Run, Runs, Spans, divided, joined_spans
from gputui.domain.snapshot import Controls, Unreadable

JOBS = "jobs"
CONTROLS = "controls"
RECURRING = "recurring"
Document = dict[str, Any]
_LONGEST_ID = 18
"""Digits of an id that fits into 64 bits."""


def is_id(key: str) -> bool:
    """Return whether a key is that of a job; by hand anything may be there."""
    return key.isascii() and key.isdigit() and len(key) <= _LONGEST_ID


def runs_in(document: object) -> Runs:
    """Return the runs of an entry; empty for a single job and for an unreadable document."""
    listed = document.get("runs") if isinstance(document, dict) else None
    if not isinstance(listed, list) or not all(map(_is_run, listed)):
        return ()
    return tuple(Run(*numbers) for numbers in listed)


def _is_run(numbers: object) -> bool:
    if not isinstance(numbers, list | tuple) or not 3 <= len(numbers) <= 4:
        return False
    return all(type(number) is int for number in numbers) and numbers[2] > 0 and numbers[-1] > 0


def count_in(document: object) -> int:
    return sum(run.count for run in runs_in(document)) or 1


def id_ranges(table: Mapping[str, Any]) -> Iterator[tuple[JobId, JobId]]:
    """Yield the ranges of ids in a table as (first, end), skipping hand-written keys that are not ids."""
    for key, document in table.items():
        if is_id(key):
            if isinstance(document, dict) and "runs" in document:
                yield from ((run.id, run.end) for run in runs_in(document))
            yield int(key), int(key) + 1


def part_of_entry(document: Document, runs: Runs) -> tuple[str, Document]:
    is_one = len(runs) == 1 and runs[0].count == 1
    rest = {name: value for name, value in document.items() if name != "runs"}
    rest["array"] = {**document.get("array", {}), "index": runs[0].index}
    return str(runs[0].id), rest if is_one else {**rest, "runs": [list(run) for run in runs]}


def iter_ids(table: Mapping[str, Any]) -> Iterator[JobId]:
    """Yield the ids of all jobs in a table, elements included; some ids occur twice."""
    return chain.from_iterable(range(start, end) for start, end in id_ranges(table))


def resolve_overlaps(table: Mapping[str, Document], apart: Spans) -> dict[str, Document]:
    """Return the jobs of a table that was recovered from several sources, each job in exactly one document.

    An element with its own document has left its entry. Of two overlapping entries the smaller one is later, because
    entries only lose elements. Elements with ids in `apart` get their own documents.
    """
    entries = sorted((count_in(document), key) for key, document in table.items() if runs_in(document))
    jobs = {key: document for key, document in table.items() if not runs_in(document)}
    known = joined_spans(id_ranges(jobs))
    for _, key in entries:
        taken, left = divided(divided(runs_in(table[key]), known)[1], apart)
        parts = [run.part(job_id, job_id + 1) for run in taken for job_id in run.ids]
        jobs.update(part_of_entry(table[key], runs) for runs in (*((part,) for part in parts), left) if runs)
        known = joined_spans((*known.parts, *((run.id, run.end) for run in (*taken, *left))))
    return jobs


T = TypeVar("T")
CANNOT = "it cannot be read: "
UNREADABLE = (msgspec.MsgspecError, GputuiError, ValueError, TypeError, OverflowError, RecursionError)
"""Errors of values that do not form a valid document."""


def encode(value: Any) -> Any:
    """Return plain values for JSON; of a struct, only the fields that differ from their defaults."""
    if isinstance(value, Struct):
        defaults = _defaults(value.__class__)
        pairs = ((name, getattr(value, name), default) for name, default in defaults.items())
        return {name: encode(field) for name, field, default in pairs if field is not default and field != default}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict | MappingProxyType):
        return {str(key): encode(item) for key, item in value.items()}
    if type(value) is float and not math.isfinite(value):
        raise InputError(f"{value} cannot be stored")  # JSON would make it null
    if value is None or type(value) in (str, int, float, bool):
        return value
    return msgspec.to_builtins(value)


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    """Return the defaults of a struct by field; NODEFAULT, which equals no value, for a required one."""
    return {
        each.name: each.default if each.default_factory is NODEFAULT else each.default_factory()
        for each in structs.fields(kind)
    }


def encode_job(job: Job | RecurringJob, before: Document | None = None) -> Document:
    """Return the document of a job or a recurring job, without its id: TinyDB keeps that as the key.

    Keys that a newer gputui had written into the document before are kept.
    """
    document: Document = encode(job)
    del document["id"]
    if isinstance(job, Job):
        document["state"] = str(job.state)  # even the default state, for human readers of the file
    return {**document, **{key: value for key, value in (before or {}).items() if key not in _defaults(type(job))}}


def decode_job(job_id: JobId, document: Document, spec: JobSpec | None = None) -> Job:
    """Return the job of a document, ignoring keys of a newer gputui; raises StoreFormatError.

    With `spec`, the job gets that object, and the one in the document, known to be equal, is not decoded.
    """
    where = f"job {job_id}"
    if spec is None:
        job = _decode(document, Job, where, job_id)
    else:
        job = _decode({**document, "id": job_id, "spec": {}}, Job, where)
        structs.force_setattr(job, "spec", spec)  # the job is new: no other code has a reference to it
    if job.runs:
        in_order = all(before.end <= run.id for before, run in pairwise(job.runs))
        are_sound = all(run.count > 0 and run.step > 0 for run in job.runs)
        if not (in_order and are_sound and job.array and job.runs[0].id == job_id):
            hint = "correct it in queue.json"
            raise StoreFormatError(f"{CANNOT}its runs are not in order", where=where, hint=hint)
    return job


def decode_recurring(recurring: JobId, document: Document) -> RecurringJob:
    return _decode(document, RecurringJob, f"recurring job {recurring}", recurring)


def decode_controls(document: Document) -> Controls:
    """Return the operator's controls, deeply frozen; raises StoreFormatError."""
    controls = _decode(document, Controls, "controls")
    names = ("drains", "resumed", "faults", "claimed", "released")
    return structs.replace(controls, **{name: MappingProxyType(dict(getattr(controls, name))) for name in names})


def decode_audit(document: Document) -> AuditEntry:
    return _decode(document, AuditEntry, "audit")


def _decode(document: object, kind: type[T], where: str, entry: JobId | None = None) -> T:
    """Return the value of a document, which may be anything, with this id if it has one."""
    try:
        return convert(document if entry is None or not isinstance(document, dict) else {**document, "id": entry}, kind)
    except UNREADABLE as error:
        raise StoreFormatError(
            f"{CANNOT}{error}", where=where, hint="upgrade gputui, or correct it in queue.json"
        ) from None


_LARGE = 100_000
"""Number of new objects from which they are frozen."""


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection while thousands of documents are created, and freeze a large queue afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_count()[0] > _LARGE:
                gc.freeze()  # else the next allocation triggers a collection over all of them
            gc.enable()


KnownRecurring = dict[str, tuple[Document, RecurringJob]]
"""Documents and their decoded recurring jobs, by key."""


class JobCache(Struct):
    """Jobs by document: unchanged documents keep their decoded jobs, which never change. Callers serialise access."""

    unreadable: dict[str, Unreadable] = field(default_factory=dict)
    """Jobs that could not be decoded, by key."""
    _jobs: Entries = Entries({})
    _entries: dict[str, tuple[Document, Job]] = field(default_factory=dict)
    _specs: dict[JobId, tuple[Document, JobSpec]] = field(default_factory=dict)
    """Latest spec of each array, with its document."""

    def updated(self, table: Mapping[str, Document], touched: set[str] | None) -> Entries:
        """Return all jobs by id, after decoding the documents with keys in `touched` (None: all)."""
        if touched is not None and not touched:
            return self._jobs
        with_runs: dict[JobId, Job] | None = None
        if touched is None:
            self.unreadable = {}
            with gc_paused():
                found = ((key, document, self._readable(key, document)) for key, document in table.items())
                self._entries = {key: (document, job) for key, document, job in found if job is not None}
            jobs = {job.id: job for _, job in self._entries.values()}
        else:
            jobs = dict(self._jobs.items())
            with_runs = {job.id: job for job in self._jobs.with_runs}
            for key in sorted(touched, key=lambda key: (len(key), key)):
                self.unreadable.pop(key, None)
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
        if any(first > second for first, second in pairwise(jobs)):
            jobs = dict(sorted(jobs.items()))  # a job came back from history, or an element left its entry
        self._jobs = Entries(jobs, None if with_runs is None else with_runs.values())
        return self._jobs

    def decode(self, key: str, document: Any) -> Job:
        """Return the job of a document; the same object as before if the document is equal.

        Elements of an array with equal specs share one object, in documents and in jobs.
        """
        before = self._entries.get(key)
        if before is not None and (before[0] is document or before[0] == document):
            return before[1]
        array = document.get("array") if isinstance(document, dict) else None
        array_id = array.get("id") if isinstance(array, dict) else None
        if not isinstance(array_id, int):
            return decode_job(int(key), document)
        known = self._specs.get(array_id)
        if known is None or known[0] != document.get("spec"):
            job = decode_job(int(key), document)
            self._specs[array_id] = (document["spec"], job.spec)
            return job
        document["spec"] = known[0]
        return decode_job(int(key), document, known[1])

    def _readable(self, key: str, document: Any) -> Job | None:
        """Return the job of a document; if it cannot be decoded, None and an entry in `unreadable`."""
        why = "its id is not a number"
        try:
            if is_id(key):
                return self.decode(key, document)
        except StoreFormatError as error:
            why = error.what.removeprefix(CANNOT)
        attempts = document.get("attempts") if isinstance(document, dict) else None
        listed = attempts if isinstance(attempts, list) else []
        # it may hold the GPUs of its attempts that have not ended
        under_way = [one for one in listed if isinstance(one, dict) and not one.get("ended_at")]
        found = [gpus for one in under_way if isinstance(gpus := one.get("gpus"), list)]
        held = dict.fromkeys(uuid for gpus in found for uuid in gpus if isinstance(uuid, str))
        self.unreadable[key] = Unreadable("job", key, why, tuple(held))
        return None


def decode_recurring_table(
    table: Mapping[str, Document], known: KnownRecurring, unreadable: dict[str, Unreadable]
) -> Mapping[JobId, RecurringJob]:
    """Return the readable recurring jobs by id, reusing the objects of unchanged documents in `known`.

    The others are added to `unreadable`.
    """
    entries: dict[JobId, RecurringJob] = {}
    for key, document in table.items():
        why = "its id is not a number"
        try:
            if is_id(key):
                if key not in known or known[key][0] is not document:
                    known[key] = (document, decode_recurring(int(key), document))
                entries[int(key)] = known[key][1]
                continue
        except StoreFormatError as error:
            why = error.what.removeprefix(CANNOT)
        known.pop(key, None)
        unreadable[key] = Unreadable("recurring job", key, why)
    return MappingProxyType(dict(sorted(entries.items())))


def no_recurring(recurring: JobId) -> NotFoundError:
    return NotFoundError(f"there is no recurring job {recurring}", hint="gputui cron list")
