"""Jobs, recurring ones and controls as documents, and back. What has its default is left out: documents stay small.

So a default of the domain that changes is a change of schema: it needs a migration.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from gputui.domain.audit import AuditEntry
from gputui.domain.errors import GputuiError, InputError, StoreFormatError
from gputui.domain.job import Job, JobId, JobSpec
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import Controls
from gputui.store.journal import Document

T = TypeVar("T")
CANNOT = "it cannot be read: "


def encode_job(job: Job) -> Document:
    """The document of a job. Its id is not in it: TinyDB keeps that as the key."""
    document: Document = _encoded(job)
    del document["id"]
    return document | {"state": str(job.state)}  # also the default one: whoever opens the file looks for it


def encode_spec(spec: JobSpec) -> Document:
    """The document of a spec alone."""
    document: Document = _encoded(spec)
    return document


def encode_jobs(jobs: Iterable[Job]) -> dict[str, Document | None]:
    """The documents of new jobs by their ids. What the elements of an array share is worked out once."""
    documents: dict[str, Document | None] = {}
    like: Job | None = None
    shared: Document = {}
    for job in jobs:
        if like is None or not _is_alike(job, like):
            like, shared = job, encode_job(job)
        documents[str(job.id)] = {**shared, "array": _encoded(job.array)} if job.array else shared
    return documents


def _is_alike(job: Job, other: Job) -> bool:
    """Return whether both are elements, whose documents differ by their place in an array alone."""
    if job.array is None or other.array is None:
        return False
    return all(getattr(job, name) is getattr(other, name) for name in _SHARED)


_SHARED = tuple(each.name for each in dataclasses.fields(Job) if each.name not in {"id", "array"})


def decode_job(job_id: JobId, document: Document) -> Job:
    """The job of a document. Keys of a newer gputui are passed over."""
    return _decoded(with_id(document, job_id), Job, f"job {job_id}")


class SharedSpecs:
    """Specs of arrays: elements that say the same share one object, of their documents and of their jobs."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Document, JobSpec]] = {}

    def decode_job(self, job_id: JobId, document: Any) -> Job:
        """Return the job of a document; makes the document share its spec with others of its array."""
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
        job = _decoded({**document, "id": job_id, "spec": {}}, Job, f"job {job_id}")
        object.__setattr__(job, "spec", known[1])  # nobody else has seen it yet
        return job


def with_id(document: object, entry: JobId) -> object:
    """The document with its id; what somebody stored in the place of a document is left as it is."""
    return {**document, "id": entry} if isinstance(document, dict) else document


def encode_recurring(entry: RecurringJob) -> Document:
    """The document of a recurring job, without its id."""
    document: Document = _encoded(entry)
    del document["id"]
    return document


def decode_recurring(recurring: JobId, document: Document) -> RecurringJob:
    """The recurring job of a document."""
    return _decoded(with_id(document, recurring), RecurringJob, f"recurring job {recurring}")


def keep_unknown(document: Document, before: Document, kind: Hashable = Job) -> Document:
    """The new document, with what a newer gputui had written into the one before."""
    known = _defaults(kind).keys()
    return document | {key: value for key, value in before.items() if key not in known}


def encode_controls(controls: Controls) -> Document:
    """The document of the operator's wishes."""
    encoded: Document = _encoded(controls)
    return encoded


def decode_controls(document: Document) -> Controls:
    """The operator's wishes, frozen all through."""
    controls = _decoded(document, Controls, "controls")
    return dataclasses.replace(
        controls,
        drains=MappingProxyType(dict(controls.drains)),
        resumed=MappingProxyType(dict(controls.resumed)),
        claimed=MappingProxyType(dict(controls.claimed)),
        released=MappingProxyType(dict(controls.released)),
    )


def encode_audit(entry: AuditEntry) -> Document:
    """The document of an audit entry."""
    encoded: Document = _encoded(entry)
    return encoded


def decode_audit(document: Document) -> AuditEntry:
    """The audit entry of a document."""
    return _decoded(document, AuditEntry, "audit")


def _decoded(document: object, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(document, kind)
    except (msgspec.MsgspecError, GputuiError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise StoreFormatError(
            f"{CANNOT}{error}", where=where, hint="upgrade gputui, or correct it in queue.json"
        ) from None


def _encoded(value: Any) -> Any:
    """Plain values for JSON; of a dataclass only the fields that differ from their default."""
    if dataclasses.is_dataclass(value):
        defaults = _defaults(value.__class__)
        pairs = ((name, getattr(value, name), default) for name, default in defaults.items())
        return {name: _encoded(field) for name, field, default in pairs if field is not default and field != default}
    if isinstance(value, tuple | list):
        return [_encoded(item) for item in value]
    if isinstance(value, dict | MappingProxyType):
        return {str(key): _encoded(item) for key, item in value.items()}
    if type(value) is float and not math.isfinite(value):
        raise InputError(f"{value} cannot be stored")  # JSON would make it null
    if value is None or type(value) in (str, int, float, bool):
        return value
    return msgspec.to_builtins(value)


class _Required:
    """Stands for the default of a field that has none: equal to nothing."""


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    """By field, its default."""
    return {field.name: _default_of(field) for field in dataclasses.fields(kind)}


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _Required
