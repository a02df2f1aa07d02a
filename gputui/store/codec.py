"""Encoding of jobs, recurring jobs, controls and audit entries as documents, and decoding.

Fields with default values are omitted to keep documents small. So a changed default in the domain is a schema change
and needs a migration.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import NODEFAULT, Struct, structs

from gputui.domain.audit import AuditEntry
from gputui.domain.decoding import JsonDecoder, convert
from gputui.domain.errors import GputuiError, InputError, StoreFormatError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import Controls
from gputui.store.documents import Document

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
