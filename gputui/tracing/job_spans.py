"""Spans of the life of a job, as plain values without a tracing library.

A trace has one job. Its root lasts from the submission to the end. Below it are `queued`, for each wait, and `attempt`,
from the claim of its GPUs to its end, with `start` and `run`. Ids are hashes of the job: links can point to jobs that
have not ended yet, and a later scheduler sends the same ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TypeAlias

from msgspec import Struct

from gputui.domain.job import Attempt, Job, JobState
from gputui.domain.job_spec import JobId

Value: TypeAlias = str | int | float | bool | list[str]


class JobSpan(Struct, frozen=True):
    """Span of a job's life."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    begin: datetime
    end: datetime
    attributes: Mapping[str, Value]
    links: tuple[tuple[int, int], ...] = ()
    """Trace and span of the jobs that it depends on, or that preempted it."""
    error: str | None = None
    """Reason for its failure; None if it did not fail."""


def trace_id(store_id: str, job: Job) -> int:
    """Return the id of a job's trace."""
    return _hash(16, store_id, job.id, job.submitted_at.isoformat())


def root_id(store_id: str, job: Job, first: int = 1) -> int:
    """Return the id of the root span of a job whose attempts begin with number `first`: later ones after a requeue."""
    return _hash(8, store_id, job.id, "job", first)


def spans_of(store_id: str, job: Job, jobs: Mapping[JobId, Job], first: int = 1) -> Iterator[JobSpan]:
    """Yield the spans of a job that has ended, the root first; `jobs` are those that links may lead to."""
    trace, root = trace_id(store_id, job), root_id(store_id, job, first)
    attempts = [attempt for attempt in job.attempts if attempt.number >= first and attempt.claimed_at is not None]
    earlier = [attempt.ended_at for attempt in job.attempts if attempt.number < first and attempt.ended_at is not None]
    begin = max([job.submitted_at, *earlier])
    end = max(begin, job.ended_at or begin)
    after = [jobs[each] for each in (*job.spec.after, *job.spec.after_any) if each in jobs]
    error = None if job.state in {JobState.COMPLETED, JobState.CANCELLED} else _cause(job)
    about: dict[str, Value] = {
        "gputui.job.id": job.id,
        "gputui.job.name": job.name,
        "gputui.job.state": str(job.state),
        "gputui.job.priority": job.priority,
        "gputui.job.gpus": job.spec.gpus.minimum,
        "gputui.tenant": job.spec.tenant,
        "user.name": job.submitted_by,
    }
    if job.spec.image:
        about["container.image.name"] = job.spec.image
    if job.array is not None:
        about["gputui.array.id"] = job.array.id
        about["gputui.array.count"] = job.count
    if job.state is not JobState.COMPLETED:
        about["error.type"] = str(job.state)
    yield JobSpan("job", trace, root, None, begin, end, about, _links(store_id, after), error)
    waits_since = begin
    for attempt in attempts:
        claimed = attempt.claimed_at or begin
        yield _queued(store_id, job, root, waits_since, claimed, attempt.number)
        yield from _of_attempt(store_id, job, root, attempt, jobs, end)
        waits_since = attempt.ended_at or end
    if not attempts:
        yield _queued(store_id, job, root, begin, end, first)


def _queued(store_id: str, job: Job, root: int, begin: datetime, end: datetime, number: int) -> JobSpan:
    own = _hash(8, store_id, job.id, "queued", number)
    about: dict[str, Value] = {"gputui.job.id": job.id, "gputui.attempt": number}
    return JobSpan("queued", trace_id(store_id, job), own, root, min(begin, end), end, about)


def _of_attempt(
    store_id: str, job: Job, root: int, attempt: Attempt, jobs: Mapping[JobId, Job], job_end: datetime
) -> Iterator[JobSpan]:
    trace, own = trace_id(store_id, job), _hash(8, store_id, job.id, "attempt", attempt.number)
    begin = attempt.claimed_at or job.submitted_at
    end = max(begin, attempt.ended_at or job_end)
    about = _about_attempt(job, attempt)
    preemptor = jobs.get(attempt.preempted_by) if attempt.preempted_by is not None else None
    links = _links(store_id, [preemptor] if preemptor is not None else [])
    error = str(attempt.cause) if attempt.cause is not None else None
    yield JobSpan("attempt", trace, own, root, begin, end, about, links, error)
    started = min(max(attempt.started_at or end, begin), end)
    yield JobSpan("start", trace, _hash(8, own, "start"), own, begin, started, about)
    if attempt.started_at is not None:
        yield JobSpan("run", trace, _hash(8, own, "run"), own, started, end, about, (), error)


def _links(store_id: str, jobs: list[Job]) -> tuple[tuple[int, int], ...]:
    return tuple((trace_id(store_id, job), root_id(store_id, job)) for job in jobs)


def _about_attempt(job: Job, attempt: Attempt) -> dict[str, Value]:
    about: dict[str, Value] = {
        "gputui.job.id": job.id,
        "gputui.attempt": attempt.number,
        "gputui.gpu.uuids": list(attempt.gpus),
    }
    if attempt.container_id and not job.spec.is_host:
        about["container.id"] = attempt.container_id
    if job.spec.image:
        about["container.image.name"] = job.spec.image
    if attempt.exit_code is not None:
        about["process.exit.code"] = attempt.exit_code
    if attempt.cause is not None:
        about["error.type"] = str(attempt.cause.code)
    return about


def _cause(job: Job) -> str:
    attempt = job.attempt
    return str(attempt.cause) if attempt is not None and attempt.cause is not None else str(job.state)


def _hash(size: int, *parts: object) -> int:
    """Return an id of `size` bytes, a hash of the parts; never 0, which means no id."""
    found = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=size).digest()
    return int.from_bytes(found, "big") or 1
