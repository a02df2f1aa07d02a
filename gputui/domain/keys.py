"""Idempotency keys: a request that is repeated with the same key, as its answer was lost, is carried out once.

A key is chosen by its user, and known for that user alone. It is stored with what was done, in the same line of the
journal: `KEY.DIGEST`, with a digest of the request, since another request may not have the same key. A further action
of the same request, as some commands have, is stored as `KEY~1.DIGEST`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b

from gputui.domain.audit import AuditEntry
from gputui.domain.errors import InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId

_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def stored_key(key: str, method: str, path: str, query: Mapping[str, str], body: bytes) -> str:
    """Return the key of a request as it is stored; raises InputError for what is none."""
    if not _KEY.fullmatch(key):
        raise InputError("it is no key", where="Idempotency-Key", hint="1 to 64 letters, digits, - and _")
    words = "&".join(f"{name}={value}" for name, value in sorted(query.items()))
    return f"{key}.{digest(f'{method} {path}?{words} '.encode(errors='surrogateescape') + body)}"


def digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def further_key(stored: str, number: int) -> str:
    """Return the key of the action of that number, from 0, of one request."""
    name, _, rest = stored.partition(".")
    return f"{name}~{number}.{rest}" if number else stored


def name_of_key(stored: str) -> str:
    """Return a key without the digest."""
    return stored.partition(".")[0]


def check_same(stored: str, known: str) -> None:
    """Raise InputError if two stored keys are of different requests."""
    if stored != known:
        hint = "take a new key for each request"
        raise InputError("this key was used for another request", where="Idempotency-Key", hint=hint)


def requests_of(
    uid: int, jobs: Iterable[Job], entries: Iterable[AuditEntry] = ()
) -> Iterator[tuple[str, tuple[JobId, ...]]]:
    """Yield the requests of a user that these jobs and audit entries know: the key as stored, and the jobs in order.

    The jobs of an action are those of its entries, which stand for single jobs.
    """
    found: dict[str, list[JobId]] = {}
    for job in jobs:
        if job.key and job.submitted_uid == uid:
            found.setdefault(job.key, []).extend(job.ids)
    for ids in found.values():
        ids.sort()
    submitted = frozenset(found)
    for entry in entries:
        if entry.key and entry.uid == uid and entry.key not in submitted:
            kind, _, number = entry.target.partition(" ")
            found.setdefault(entry.key, []).extend([int(number)] if kind == "job" and number.isdigit() else ())
    for key, ids in found.items():
        yield key, tuple(ids)
