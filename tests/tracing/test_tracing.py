"""Traces of jobs, as received by a collector."""

from __future__ import annotations

import gzip
import re
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gputui.config import Options
from gputui.console.serving import monitor_opener
from gputui.domain.arrays import Entries
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.job import Attempt, Job
from gputui.domain.settings import Settings, TracesSettings
from gputui.domain.state import JobState
from gputui.tracing import JobTracer, root_id, spans_of, trace_id
from tests.factories import NOW, job, snapshot, uuid
from tests.machine_load import stretched

STORE = "store0000000"


def at(seconds: float) -> Any:
    return NOW + timedelta(seconds=seconds)


def retried() -> Job:
    """Return a job that failed once and then completed."""
    failed = Attempt(1, (uuid(0),), at(10), "c1", at(12), at(20), 1, Cause(CauseCode.NON_ZERO_EXIT, "exit code 1"))
    good = Attempt(2, (uuid(1),), at(30), "c2", at(31), at(60), 0)
    return job(7, gpus=1, after=(5,)).evolve(state=JobState.COMPLETED, attempts=(failed, good), ended_at=at(60))


class Collector(ThreadingHTTPServer):
    """Collector that decodes the received spans."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        for batch in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.resources.append({each.key: each.value.string_value for each in batch.resource.attributes})
            self.server.spans += [span for scope in batch.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    yield server
    server.shutdown()
    server.server_close()


def test_the_life_of_a_job_is_seen_in_a_collector(collector: Collector) -> None:
    before, waiting = job(5), job(7, gpus=1, after=(5,))
    settings = TracesSettings(enabled=True, endpoint=collector.endpoint)
    tracer = JobTracer(settings, [before, waiting], STORE, "gpu1")
    tracer.published(snapshot([before, waiting]))
    ended = retried()
    tracer.published(snapshot([before, ended]))
    tracer.published(snapshot([before, ended]))
    tracer.close()
    spans = {span.name: span for span in collector.spans}
    assert [span.name for span in collector.spans] == [
        *("job", "queued", "attempt", "start", "run", "queued", "attempt", "start", "run")
    ]
    [resource] = collector.resources
    assert (resource["service.name"], resource["service.instance.id"], resource["host.name"]) == (
        "gputui",
        STORE,
        "gpu1",
    )
    root = spans["job"]
    assert int.from_bytes(root.trace_id, "big") == trace_id(STORE, ended)
    assert (root.parent_span_id, root.status.code) == (b"", 0)
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (NOW.timestamp() * 1e9, at(60).timestamp() * 1e9)
    [link] = root.links
    assert int.from_bytes(link.span_id, "big") == root_id(STORE, before)
    attempts = [span for span in collector.spans if span.name == "attempt"]
    assert [span.status.code for span in attempts] == [2, 0]
    assert {span.parent_span_id for span in attempts} == {root.span_id}
    about = {each.key: each.value for each in attempts[0].attributes}
    assert about["process.exit.code"].int_value == 1
    assert about["error.type"].string_value == "NonZeroExit"
    assert [value.string_value for value in about["gputui.gpu.uuids"].array_value.values] == [uuid(0)]


def test_an_unreachable_collector_delays_no_tick() -> None:
    settings = TracesSettings(enabled=True, endpoint="http://127.0.0.1:9/v1/traces", timeout=timedelta(seconds=1))
    tracer = JobTracer(settings, [], STORE, "gpu1")
    begun = time.monotonic()
    tracer.published(snapshot([retried()]))
    assert time.monotonic() - begun < stretched(0.5)
    tracer.close()


def test_a_requeued_job_has_a_root_of_its_own() -> None:
    spans = list(spans_of(STORE, retried(), {}, first=2))
    assert [span.name for span in spans] == ["job", "queued", "attempt", "start", "run"]
    assert spans[0].begin == at(20)
    assert spans[0].span_id != root_id(STORE, retried())


def test_a_job_that_never_started_waited_until_its_end() -> None:
    cancelled = job(3).evolve(state=JobState.CANCELLED, ended_at=at(5))
    [root, queued] = spans_of(STORE, cancelled, {})
    assert (root.error, queued.begin, queued.end) == (None, NOW, at(5))


def test_traces_are_off_by_default_and_missing_packages_are_named(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert monitor_opener(Options(tmp_path), STORE) is None
    monkeypatch.setitem(__import__("sys").modules, "gputui.tracing", None)
    said: list[str] = []
    options = Options(tmp_path, settings=Settings(traces=TracesSettings(enabled=True)))
    opener = monitor_opener(options, STORE, said.append)
    assert opener is not None
    [notice] = opener(Entries({})).notices()
    assert re.search(r"OpenTelemetry is not installed: (uv )?pip install .*'gputui\[otel\]'$", notice.text)
    assert said == [notice.text]
