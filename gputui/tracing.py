"""Spans of the life of a job, and the monitor that sends those of ended jobs to an OpenTelemetry collector.

A trace has one job. Its root lasts from the submission to the end. Below it are `queued`, for each wait, and `attempt`,
from the claim of its GPUs to its end, with `start` and `run`. Ids are hashes of the job: links can point to jobs that
have not ended yet, and a later scheduler sends the same ids.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TypeAlias

from msgspec import Struct
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from gputui import __version__
from gputui.domain.event import JobChanges
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import TracesSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.ports.monitor import Monitors

Value: TypeAlias = str | int | float | bool | list[str]


class JobSpan(Struct, frozen=True):
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
    cause = job.attempt.cause if job.attempt is not None else None
    error = str(job.state) if cause is None else str(cause)
    error = "" if job.state in {JobState.COMPLETED, JobState.CANCELLED} else error
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
    yield JobSpan("job", trace, root, None, begin, end, about, _links(store_id, after), error or None)
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


def _hash(size: int, *parts: object) -> int:
    """Return an id of `size` bytes, a hash of the parts; never 0, which means no id."""
    found = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=size).digest()
    return int.from_bytes(found, "big") or 1


log = logging.getLogger(__name__)

QUEUE = 16384
"""Maximum number of spans that wait to be sent; further ones are dropped."""
CLOSE_WITHIN = 1.0
"""Seconds in which the last spans may be sent when the scheduler ends."""


class _GivenIds(IdGenerator):
    """Generator of the ids set for the next span. Used by one thread."""

    trace_id = 1
    span_id = 1

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class JobTracer(Monitors):
    """Monitor of one term that sends the spans of jobs when they end."""

    def __init__(self, settings: TracesSettings, jobs: Iterable[Job], store_id: str, host: str) -> None:
        about = {"service.name": "gputui", "service.version": __version__}
        about |= {"service.instance.id": store_id, "host.name": host}
        self._store_id = store_id
        self._ids = _GivenIds()
        self._changes = JobChanges(jobs)
        self._firsts: dict[JobId, int] = {}
        """First attempt of jobs that were requeued after their end."""
        self._slip = ""
        exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=settings.timeout.total_seconds())
        self._processor = BatchSpanProcessor(exporter, max_queue_size=QUEUE)
        self._provider = TracerProvider(resource=Resource.create(about), id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("gputui", __version__)

    def published(self, snapshot: Snapshot) -> None:
        """Send the jobs that have ended since the last snapshot."""
        try:
            before = dict(self._changes.jobs)
            for change in self._changes.update(snapshot.jobs).changes:
                old = before.get(change.job.id)
                if old is not None and old.state.is_terminal and old.state is not change.job.state:
                    self._firsts[change.job.id] = old.next_attempt
                if change.ended:
                    self._send(change.job, self._changes.jobs)
            for job_id in self._firsts.keys() - self._changes.jobs.keys():
                del self._firsts[job_id]
        except Exception as error:  # a border: a tick must not fail for its traces
            if str(error) != self._slip:
                log.exception("jobs could not be traced")
            self._slip = str(error)

    def _send(self, job: Job, jobs: Mapping[JobId, Job]) -> None:
        for span in spans_of(self._store_id, job, jobs, self._firsts.get(job.id, 1)):
            self._ids.trace_id, self._ids.span_id = span.trace_id, span.span_id
            parent = None if span.parent_id is None else NonRecordingSpan(_context(span.trace_id, span.parent_id))
            made = self._tracer.start_span(
                span.name,
                context=set_span_in_context(parent) if parent is not None else None,
                attributes=span.attributes,
                links=[Link(_context(*ids)) for ids in span.links],
                start_time=_nanoseconds(span.begin),
            )
            if span.error is not None:
                made.set_status(Status(StatusCode.ERROR, span.error))
            made.end(_nanoseconds(span.end))

    def close(self) -> None:
        ending = threading.Thread(target=self._provider.shutdown, name="gputui-traces-end", daemon=True)
        ending.start()
        ending.join(CLOSE_WITHIN)


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000
