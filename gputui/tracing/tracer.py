"""Monitor that sends the spans of each ended job to an OpenTelemetry collector.

Spans go into a queue of bounded length, from which a thread of the SDK sends them. If the collector does not accept
them, further spans are dropped, and no tick is delayed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from gputui import __version__
from gputui.domain.event import JobChanges
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import TracesSettings
from gputui.domain.snapshot import Snapshot
from gputui.ports.monitor import Monitors
from gputui.tracing.job_spans import spans_of

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
            self._take(snapshot)
        except Exception as error:  # a border: a tick must not fail for its traces
            if str(error) != self._slip:
                log.exception("jobs could not be traced")
            self._slip = str(error)

    def _take(self, snapshot: Snapshot) -> None:
        before = dict(self._changes.jobs)
        for change in self._changes.update(snapshot.jobs).changes:
            old = before.get(change.job.id)
            if old is not None and old.state.is_terminal and old.state is not change.job.state:
                self._firsts[change.job.id] = old.next_attempt
            if change.ended:
                self._send(change.job, self._changes.jobs)
        for job_id in self._firsts.keys() - self._changes.jobs.keys():
            del self._firsts[job_id]

    def _send(self, job: Job, jobs: Mapping[JobId, Job]) -> None:
        for span in spans_of(self._store_id, job, jobs, self._firsts.get(job.id, 1)):
            self._ids.trace_id, self._ids.span_id = span.trace_id, span.span_id
            parent = None if span.parent_id is None else NonRecordingSpan(_context(span.trace_id, span.parent_id))
            made = self._tracer.start_span(
                span.name,
                context=set_span_in_context(parent) if parent is not None else None,
                kind=SpanKind.INTERNAL,
                attributes=span.attributes,
                links=[Link(_context(*ids)) for ids in span.links],
                start_time=_nanoseconds(span.begin),
            )
            if span.error is not None:
                made.set_status(Status(StatusCode.ERROR, span.error))
            made.end(_nanoseconds(span.end))

    def close(self) -> None:
        """Send the remaining spans, for at most CLOSE_WITHIN seconds."""
        ending = threading.Thread(target=self._provider.shutdown, name="gputui-traces-end", daemon=True)
        ending.start()
        ending.join(CLOSE_WITHIN)


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000
