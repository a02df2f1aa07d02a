"""Many pods: only those of jobs and those with GPUs are kept, and a command that looks once stays small and fast."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest

from gputui.domain.gpu import GpuState
from tests.kubernetes.fake.controller import GPU
from tests.kubernetes.fake.objects import Manifest, selected
from tests.kubernetes.fake.server import kubeconfig
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.waiting import until

AT_MOST_MB = 60
AT_MOST_SECONDS = 1.0
"""Processor time: others use this machine too."""


def pod_of_a_service(name: str, gpus: int, node: str = "gpu1") -> Manifest:
    resources = {"limits": {GPU: str(gpus)}} if gpus else {"requests": {"cpu": "1"}}
    return {
        "metadata": {"name": name, "namespace": "lab", "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "x", "resources": resources}]},
        "status": {"phase": "Running"},
    }


def test_gpus_of_other_pods_are_in_use_until_they_end(harness: KubernetesHarness) -> None:
    objects = harness.fake.objects

    def in_use() -> int:
        return sum(view.state is GpuState.ALLOCATED for view in harness.kube.snapshot().gpus)

    service = objects.create("pods", pod_of_a_service("web", 2))
    until(in_use, lambda used: used == 2, "it is seen")
    until(harness.kube.snapshot, lambda _: "GET /api/v1/pods watch" in harness.fake.requests, "pods are watched")
    objects.create("pods", pod_of_a_service("log-shipper", 0))
    late = objects.create("pods", pod_of_a_service("notebook", 1, "gpu2"))
    until(in_use, lambda used: used == 3, "another one is seen")
    objects.change("pods", service, lambda item: item["status"].update(phase="Succeeded"))
    until(in_use, lambda used: used == 1, "its end is seen")
    objects.remove("pods", late)
    until(in_use, lambda used: used == 0, "the other's end is seen")


def _state(number: int) -> Manifest:
    began, ended = "2026-11-27T10:00:05Z", "2026-11-27T10:10:05Z"
    if number % 2:
        return {"running": {"startedAt": began}}
    return {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": began, "finishedAt": ended}}


def _meta(kind: str, number: int, labels: dict[str, str], owner: tuple[str, str]) -> Manifest:
    fields: Manifest = {"f:metadata": {f"f:field{each}": {".": {}, "f:name": {}} for each in range(30)}}
    return {
        "name": f"{kind}{number}",
        "namespace": "lab",
        "uid": f"{kind}-{number:032}",
        "resourceVersion": str(number + 1),
        "creationTimestamp": "2026-11-27T10:00:00Z",
        "labels": labels,
        "ownerReferences": [{"kind": owner[0], "name": f"{owner[1]}{number}", "uid": f"{owner[1]}-{number:032}"}],
        "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields}]
        * 3,
    }


def many(jobs: int, pods: int) -> dict[str, list[Manifest]]:
    """Return objects as servers have them: half of the jobs run; the pods that are of no job have no GPU."""
    found: dict[str, list[Manifest]] = {"jobs": [], "pods": [], "nodes": [], "events": []}
    for number in range(pods):
        is_job = number < jobs
        limits = {"limits": {GPU: "1"}} if is_job else {"requests": {"cpu": "100m", "memory": "1Gi"}}
        container = {"name": "job", "image": "registry.example.org/image:1", "command": ["train"], "resources": limits}
        spec = {"containers": [container], "nodeName": f"node{number % 64}", "restartPolicy": "Never"}
        met = [
            {"type": each, "status": "True", "lastTransitionTime": "2026-11-27T10:00:05Z"}
            for each in ("Ready", "PodScheduled")
        ]
        labels, owner = (
            ({"job-name": f"job{number}"}, ("Job", "job")) if is_job else ({"app": "x"}, ("ReplicaSet", "rs"))
        )
        status: Manifest = {"phase": "Running" if number % 2 or not is_job else "Succeeded", "conditions": met}
        status["containerStatuses"] = [
            {"name": "job", "state": _state(number), "containerID": f"containerd://{number:064x}"}
        ]
        found["pods"].append({"metadata": _meta("pod", number, labels, owner), "spec": spec, "status": status})
        if is_job:
            done = (
                []
                if number % 2
                else [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-11-27T10:10:05Z"}]
            )
            found["jobs"].append(
                {
                    "metadata": _meta("job", number, {}, ("CronJob", "nightly")),
                    "spec": {"template": {"spec": spec}},
                    "status": {"startTime": "2026-11-27T10:00:00Z", "conditions": done},
                }
            )
    for number in range(64):
        status = {"capacity": {GPU: "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
        found["nodes"].append({"metadata": {"name": f"node{number}", "uid": f"node{number}"}, "status": status})
    return found


class Prepared(ThreadingHTTPServer):
    """A server that has its answers ready, as one in Go nearly has."""

    daemon_threads = True

    def __init__(self, objects: dict[str, list[Manifest]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = objects
        self.pages: dict[str, bytes] = {}
        self.sent = 0

    def page(self, path: str) -> bytes:
        if path not in self.pages:
            kind, query = urlsplit(path).path.rpartition("/")[2], dict(parse_qsl(urlsplit(path).query))
            found = list(selected(self.objects[kind], query if kind == "pods" else {}))
            start, limit = int(query.get("continue", 0)), int(query.get("limit", len(found)))
            meta = {"resourceVersion": "9999", "continue": str(start + limit) if start + limit < len(found) else ""}
            self.pages[path] = json.dumps({"metadata": meta, "items": found[start : start + limit]}).encode()
        return self.pages[path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Prepared

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(201, b'{"status": {"allowed": true}}')

    def do_GET(self) -> None:
        if self.path == "/version":
            self._send(200, b'{"gitVersion": "v1.31.2"}')
        elif self.path.partition("?")[0].rpartition("/")[2] in self.server.objects:
            self._send(200, self.server.page(self.path))
        else:
            self._send(404, b'{"message": "there is no such thing"}')

    def _send(self, code: int, data: bytes) -> None:
        self.server.sent += len(data)
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Run(NamedTuple):
    """What a command needed."""

    lines: int
    seconds: float
    megabytes: float


COMMAND = """
import re, sys
from pathlib import Path
from gputui.cli.main import run
code = run(sys.argv[1:])
print(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(code)
"""


def run(environ: dict[str, str], *words: str) -> Run:
    """Run a command; return its lines of output, its processor time and the most memory that it had."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", COMMAND, *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(len(done.stdout.splitlines()), seconds, int(done.stderr.splitlines()[-1]) / 1024)


def clean(tmp_path: Path, **more: str) -> dict[str, str]:
    places = {name: str(tmp_path / "home") for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    return {"PATH": os.environ["PATH"], "GPUTUI_SCHEDULER_HAND_OVER": "never", **places, **more}


@pytest.fixture
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Prepared, dict[str, str]]]:
    jobs, pods = request.param
    with Prepared(many(jobs, pods)) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        file = tmp_path / "kubeconfig"
        file.write_text(kubeconfig(f"http://127.0.0.1:{server.server_port}", "t"))
        yield server, clean(tmp_path, KUBECONFIG=str(file), GPUTUI_CLUSTER="kubernetes")
        server.shutdown()
        thread.join(10)


def best(environ: dict[str, str], fits: Any) -> Run:
    """Return the first of some runs that fits, else the last: on a busy machine most are disturbed."""
    run(environ, "queue")  # which asks for rights
    for _ in range(9):
        if fits(found := run(environ, "queue")):
            break
    return found


@pytest.mark.long
@pytest.mark.parametrize("queue", [(200, 4000), (4000, 4000)], indirect=True, ids=["200 jobs", "4000 jobs"])
def test_a_look_at_4000_pods_is_small_and_fast(queue: tuple[Prepared, dict[str, str]]) -> None:
    server, environ = queue
    found = best(environ, lambda found: found.seconds <= AT_MOST_SECONDS)
    assert found.lines == len(server.objects["jobs"]) // 2 + 1
    assert found.seconds <= AT_MOST_SECONDS
    assert found.megabytes <= AT_MOST_MB


@pytest.mark.long
@pytest.mark.parametrize("queue", [(20, 40)], indirect=True)
def test_a_look_costs_at_most_twice_a_local_one(queue: tuple[Prepared, dict[str, str]], tmp_path: Path) -> None:
    local = clean(tmp_path, GPUTUI_PROBE="sim:8", GPUTUI_RUNTIME="process")
    run(local, "submit", "--host", "--hold", "--", "true")
    most = 2 * min(run(local, "queue").seconds for _ in range(5))
    assert best(queue[1], lambda found: found.seconds <= most).seconds <= most
