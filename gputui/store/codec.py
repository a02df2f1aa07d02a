"""Documents of jobs, recurring jobs, controls and audit entries: encoded, decoded, and read without decoding them.

Fields with default values are omitted to keep documents small. So a changed default in the domain is a schema change
and needs a migration.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import NODEFAULT, Struct, structs

from gputui.domain.audit import AuditEntry
from gputui.domain.decoding import JsonDecoder, convert
from gputui.domain.entries import ArrayPlaces, Entries
from gputui.domain.errors import GputuiError, InputError, NotFoundError, StoreFormatError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.recurring import RecurringJob
from gputui.domain.runs import Run, Runs, Spans, divided, joined_spans
from gputui.domain.snapshot import Controls, Unreadable
from gputui.domain.state import JobState

Document = dict[str, Any]
_LONGEST_ID = 18
"""Digits of an id that fits into 64 bits."""
Rows = Mapping[str, Mapping[str, Any]]


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
    """Return the number of jobs that a document represents."""
    return sum(run.count for run in runs_in(document)) or 1


def id_ranges(table: Mapping[str, Any]) -> Iterator[tuple[JobId, JobId]]:
    """Yield the ranges of ids in a table as (first, end), skipping hand-written keys that are not ids."""
    for key, document in table.items():
        if is_id(key):
            if isinstance(document, dict) and "runs" in document:
                yield from ((run.id, run.end) for run in runs_in(document))
            yield int(key), int(key) + 1


def ids_in(table: Mapping[str, Any]) -> Spans:
    """Return the ids of all jobs in a table, elements included."""
    return joined_spans(id_ranges(table))


def highest_id(table: Mapping[str, Any]) -> JobId:
    """Return the highest id in a table; 0 if it is empty."""
    return max((end for _, end in id_ranges(table)), default=1) - 1


def elements_of(table: Mapping[str, Any]) -> dict[JobId, ArrayPlaces]:
    """Return the ids of elements by array and index, without documents that cannot be read as elements."""
    found: dict[JobId, ArrayPlaces] = {}
    for key, document in table.items():
        array = document.get("array") if isinstance(document, dict) else None
        if not isinstance(array, dict):
            continue
        array_id, index = array.get("id"), array.get("index")
        if isinstance(array_id, int) and isinstance(index, int) and is_id(key):
            found.setdefault(array_id, ArrayPlaces()).add(runs_in(document) or (Run(int(key), index, 1),))
    return found


def part_of_entry(document: Document, runs: Runs) -> tuple[str, Document]:
    """Return key and document of an entry reduced to these elements."""
    is_one = len(runs) == 1 and runs[0].count == 1
    rest = {name: value for name, value in document.items() if name != "runs"}
    rest["array"] = {**document.get("array", {}), "index": runs[0].index}
    return str(runs[0].id), rest if is_one else {**rest, "runs": [list(run) for run in runs]}


def without_ids(key: str, document: Document, ids: Spans) -> tuple[str, Document] | None:
    """Return key and document of a job or entry without these ids; None if nothing is left."""
    runs = runs_in(document)
    if not runs:
        return None if int(key) in ids else (key, document)
    taken, left = divided(runs, ids)
    if not taken:
        return key, document
    return part_of_entry(document, left) if left else None


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
    known = ids_in(jobs)
    for _, key in entries:
        taken, left = divided(divided(runs_in(table[key]), known)[1], apart)
        parts = [run.part(job_id, job_id + 1) for run in taken for job_id in run.ids]
        jobs.update(part_of_entry(table[key], runs) for runs in (*((part,) for part in parts), left) if runs)
        known = joined_spans((*known.parts, *((run.id, run.end) for run in (*taken, *left))))
    return jobs


def caps_waiting(controls: Rows) -> bool:
    """Return whether any tenant has limits on users, waiting jobs or priority; submit must then load the queue."""
    rows = controls.get("1", {}).get("tenants", ())
    return any(name in tenant for tenant in rows for name in ("pending", "max_priority", "users"))


def count_waiting(jobs: Rows) -> Mapping[str, int]:
    """Return the number of waiting jobs per tenant, without decoding jobs."""
    waiting = str(JobState.PENDING)
    counts: Counter[str] = Counter()
    for job in jobs.values():
        spec = job.get("spec") if isinstance(job, dict) and job.get("state") == waiting else None
        if isinstance(spec, dict):
            counts[spec.get("tenant", "")] += count_in(job)
    return counts


T = TypeVar("T")
CANNOT = "it cannot be read: "
_UNREADABLE = (msgspec.MsgspecError, GputuiError, ValueError, TypeError, OverflowError, RecursionError)
"""Errors of values that do not form a valid document."""


def encode_job(job: Job) -> Document:
    """Return the document of a job, without its id: TinyDB keeps that as the key."""
    document: Document = _encode(job)
    del document["id"]
    return document | {"state": str(job.state)}  # even the default state, for human readers of the file


def encode_spec(spec: JobSpec) -> Document:
    """Return the document of a spec."""
    document: Document = _encode(spec)
    return document


def encode_jobs(jobs: Iterable[Job]) -> dict[str, Document | None]:
    """Return the documents of new jobs by their ids."""
    return {str(job.id): encode_job(job) for job in jobs}


def decode_job(job_id: JobId, document: Document) -> Job:
    """Return the job of a document, ignoring keys of a newer gputui; raises StoreFormatError."""
    return _check_runs(_decode(with_id(document, job_id), Job, f"job {job_id}"))


def _check_runs(job: Job) -> Job:
    """Return the job; raises StoreFormatError if its runs are not those of an entry with its id."""
    if job.runs:
        in_order = all(before.end <= run.id for before, run in pairwise(job.runs))
        are_sound = all(run.count > 0 and run.step > 0 for run in job.runs)
        if not (in_order and are_sound and job.array and job.runs[0].id == job.id):
            hint = "correct it in queue.json"
            raise StoreFormatError(f"{CANNOT}its runs are not in order", where=f"job {job.id}", hint=hint)
    return job


class SharedSpecs:
    """Cache of specs of arrays: elements with equal specs share one object, in documents and in jobs."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Document, JobSpec]] = {}

    def decode_job(self, job_id: JobId, document: Any) -> Job:
        """Return the job of a document, and make both share their spec with others of the array."""
        array = document.get("array") if isinstance(document, dict) else None
        key = array.get("id") if isinstance(array, dict) else None
        if not isinstance(key, int):
            return decode_job(job_id, document)
        known = self._known.get(key)
        if known is None or known[0] != document.get("spec"):
            job = decode_job(job_id, document)
            self._known[key] = (document["spec"], job.spec)
            return job
        document["spec"] = known[0]
        job = _check_runs(_decode({**document, "id": job_id, "spec": {}}, Job, f"job {job_id}"))
        structs.force_setattr(job, "spec", known[1])  # the job is new: no other code has a reference to it
        return job


def with_id(document: object, entry: JobId) -> object:
    """Return the document with its id; anything that is not a document is returned unchanged."""
    return {**document, "id": entry} if isinstance(document, dict) else document


def encode_recurring(entry: RecurringJob) -> Document:
    """Return the document of a recurring job, without its id."""
    document: Document = _encode(entry)
    del document["id"]
    return document


def decode_recurring(recurring: JobId, document: Document) -> RecurringJob:
    """Return the recurring job of a document; raises StoreFormatError."""
    return _decode(with_id(document, recurring), RecurringJob, f"recurring job {recurring}")


def keep_unknown(document: Document, before: Document, kind: Hashable = Job) -> Document:
    """Return the new document with the keys that a newer gputui had written into the previous one."""
    known = _defaults(kind).keys()
    return document | {key: value for key, value in before.items() if key not in known}


def encode_controls(controls: Controls) -> Document:
    """Return the document of the operator's controls."""
    encoded: Document = _encode(controls)
    return encoded


def decode_controls(document: Document) -> Controls:
    """Return the operator's controls, deeply frozen; raises StoreFormatError."""
    controls = _decode(document, Controls, "controls")
    return structs.replace(
        controls,
        drains=MappingProxyType(dict(controls.drains)),
        resumed=MappingProxyType(dict(controls.resumed)),
        faults=MappingProxyType(dict(controls.faults)),
        claimed=MappingProxyType(dict(controls.claimed)),
        released=MappingProxyType(dict(controls.released)),
    )


def encode_audit(entry: AuditEntry) -> Document:
    """Return the document of an audit entry."""
    encoded: Document = _encode(entry)
    return encoded


def decode_audit(document: Document) -> AuditEntry:
    """Return the audit entry of a document; raises StoreFormatError."""
    return _decode(document, AuditEntry, "audit")


def decode_lines(decoder: JsonDecoder[T], data: bytes) -> list[T] | None:
    """Return the values of lines of JSON; None if one of them cannot be read."""
    try:
        return decoder.decode_lines(data)
    except _UNREADABLE:
        return None


def _decode(document: object, kind: type[T], where: str) -> T:
    try:
        return convert(document, kind)
    except _UNREADABLE as error:
        raise StoreFormatError(
            f"{CANNOT}{error}", where=where, hint="upgrade gputui, or correct it in queue.json"
        ) from None


def _encode(value: Any) -> Any:
    """Return plain values for JSON; of a struct, only the fields that differ from their defaults."""
    if isinstance(value, Struct):
        defaults = _defaults(value.__class__)
        pairs = ((name, getattr(value, name), default) for name, default in defaults.items())
        return {name: _encode(field) for name, field, default in pairs if field is not default and field != default}
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    if isinstance(value, dict | MappingProxyType):
        return {str(key): _encode(item) for key, item in value.items()}
    if type(value) is float and not math.isfinite(value):
        raise InputError(f"{value} cannot be stored")  # JSON would make it null
    if value is None or type(value) in (str, int, float, bool):
        return value
    return msgspec.to_builtins(value)


class _Required:
    """Stand-in for the default of a required field; equal to no value."""


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    """Return the defaults of a struct by field."""
    return {field.name: _default_of(field) for field in structs.fields(kind)}


def _default_of(field: structs.FieldInfo) -> Any:
    if field.default is not NODEFAULT:
        return field.default
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return _Required


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
