"""Numbers of jobs. Kubernetes names jobs by text, and gputui's users and commands by number.

A job's number is made of its uid alone, so all consoles agree without sharing a file, and the number means the same
job for ever. It always has twelve digits: short enough to copy, long enough that among 10,000 jobs two have the same in
one of 18,000 clusters. Elements of an array have the number that is made of the array's key, and their index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from gputui.cluster.kubernetes.manifest import ARRAY, INDEX
from gputui.cluster.kubernetes.objects import KubeJob
from gputui.domain.cluster import INDEX_BITS, element_id
from gputui.domain.job_spec import JobId

_LEAST = 10**11
_ARRAYS = 1 << 30
"""Least number of an array: always ten digits; ids of its elements stay within 56 bits."""
_MOST_INDEX = (1 << INDEX_BITS) - 2


def single_number(uid: str, salt: int = 0) -> JobId:
    """Return the number of a job; with `salt` another one."""
    return _LEAST + _hash(uid, salt) % (9 * _LEAST)


def array_number(namespace: str, key: str) -> int:
    """Return the number of an array."""
    return _ARRAYS | _hash(f"{namespace}/{key}", 0) % _ARRAYS


def place_of(job: KubeJob) -> tuple[int, int] | None:
    """Return number and index of an array's element; None for other jobs."""
    meta = job.metadata
    key, index = meta.label(ARRAY), meta.label(INDEX)
    if not key or not (index.isascii() and index.isdigit()) or len(index) > 8 or int(index) > _MOST_INDEX:
        return None
    return array_number(meta.namespace, key), int(index)


def number_of(job: KubeJob) -> JobId:
    """Return the number of a job alone."""
    place = place_of(job)
    return element_id(*place) if place else single_number(job.metadata.uid)


def numbers_of(jobs: Iterable[KubeJob]) -> Mapping[str, JobId]:
    """Return the numbers of jobs by uid. Where two would have the same, the later job gets another one."""
    found: dict[str, JobId] = {}
    taken: set[JobId] = set()
    for job in sorted(jobs, key=_age):
        number, salt = number_of(job), 0
        while number in taken:
            salt += 1
            number = single_number(job.metadata.uid, salt)
        taken.add(number)
        found[job.metadata.uid] = number
    return found


def _age(job: KubeJob) -> tuple[float, str]:
    created = job.metadata.creation_timestamp
    return created.timestamp() if created else 0.0, job.metadata.uid


def _hash(text: str, salt: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{text}#{salt}".encode()).digest()[:8], "big")
