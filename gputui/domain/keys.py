"""Idempotency keys: a request that is repeated with the same key, as its answer was lost, is carried out once.

A key is chosen by its user, and known for that user alone. It is stored with what was done, in the same line of the
journal: `KEY.DIGEST`, with a digest of the request, since another request may not have the same key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from gputui.domain.errors import InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId

_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def stored_key(key: str, request: bytes) -> str:
    """Return a key as it is stored; raises InputError for what is none."""
    if not _KEY.fullmatch(key):
        raise InputError("it is no key", where="Idempotency-Key", hint="1 to 64 letters, digits, - and _")
    return f"{key}.{digest(request)}"


def digest(data: bytes) -> str:
    """Return a short digest of data."""
    return blake2b(data, digest_size=8).hexdigest()


def check_same(stored: str, known: str) -> None:
    """Raise InputError if two stored keys are of different requests."""
    if stored != known:
        hint = "take a new key for each request"
        raise InputError("this key was used for another request", where="Idempotency-Key", hint=hint)


def name_of_key(stored: str) -> str:
    """Return a key as its user chose it."""
    return stored.partition(".")[0]


def requests_of(jobs: Iterable[Job]) -> Iterator[tuple[int, str, tuple[JobId, ...]]]:
    """Yield each submission with a key that these jobs are of: its uid, its key as stored, and its jobs in order."""
    found: dict[tuple[int, str], list[JobId]] = {}
    for job in jobs:
        if job.key and job.submitted_uid is not None:
            found.setdefault((job.submitted_uid, job.key), []).extend(job.ids)
    for (uid, key), ids in found.items():
        yield uid, key, tuple(sorted(ids))


def ids_of_key(jobs: Iterable[Job], uid: int, stored: str) -> tuple[JobId, ...]:
    """Return the jobs that this user submitted with a key, in order; none if the key is new.

    Raises InputError if it is that of another request.
    """
    name = name_of_key(stored)
    for _, key, ids in requests_of(job for job in jobs if job.submitted_uid == uid and name_of_key(job.key) == name):
        check_same(stored, key)
        return ids
    return ()
