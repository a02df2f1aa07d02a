"""Stand-in for the kubelets of three nodes with two GPUs each: pods run without containers until a test ends them."""

from __future__ import annotations

import ssl
import urllib.error
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.kubernetes.control_plane import ControlPlane

GPU = "nvidia.com/gpu"
_MERGE = "application/merge-patch+json"
_PAUSE = 0.1


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Kubelets:
    """Nodes, and what happens to pods on them."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._closed = Event()
        self._server = _LogServer(("127.0.0.1", 0), _Logs)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(plane.certificate, plane.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._threads = [
            Thread(target=self._server.serve_forever, args=(0.1,), daemon=True),
            Thread(target=self._run, name="kubelets", daemon=True),
        ]

    def start(self) -> None:
        for name in ("gpu1", "gpu2", "gpu3"):
            self._add_node(name)
        for thread in self._threads:
            thread.start()

    def finish(self, pod: dict[str, Any], exit_code: int) -> None:
        """End a pod's container."""
        terminated = {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}
        terminated |= {"startedAt": pod["status"]["startTime"], "finishedAt": _now()}
        state = {"terminated": terminated}
        self._tell(pod, {"phase": "Failed" if exit_code else "Succeeded"}, state)

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join(30)

    def _add_node(self, name: str) -> None:
        labels = {"nvidia.com/gpu.product": "NVIDIA-H200", "kubernetes.io/hostname": name}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        self._plane.ask("POST", "/api/v1/nodes", node)
        capacity = {GPU: "2", "cpu": "64", "memory": "512Gi", "pods": "110"}
        status = {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
        }
        self._plane.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, _MERGE)

    def _run(self) -> None:
        while not self._closed.wait(_PAUSE):
            try:
                for pod in self._plane.ask("GET", "/api/v1/pods")["items"]:
                    self._look_after(pod)
            except urllib.error.HTTPError as error:
                if error.code not in {404, 409, 503}:  # it has changed in the meantime, or the server has just started
                    raise
            except OSError:
                continue  # the server is being started again

    def _look_after(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        if "deletionTimestamp" in meta:
            if pod["status"]["phase"] == "Running":
                self.finish(pod, 143)
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            self._plane.ask("DELETE", path, {"gracePeriodSeconds": 0})
        elif pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
            self._tell(pod, {"phase": "Running", "startTime": _now()}, {"running": {"startedAt": _now()}})

    def _tell(self, pod: dict[str, Any], status: dict[str, Any], state: dict[str, Any]) -> None:
        meta, container = pod["metadata"], pod["spec"]["containers"][0]
        told = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        told |= {"ready": "running" in state, "state": state, "lastState": {}}
        body = {"status": status | {"containerStatuses": [told]}}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        self._plane.ask("PATCH", path, body, _MERGE)


class _LogServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: the API server closes connections."""


class _Logs(BaseHTTPRequestHandler):
    """Output of every container: one line."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "000Z")
        line = (f"{at} ready\n" if query.get("timestamps") == ["true"] else "ready\n").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(line)))
        self.end_headers()
        self.wfile.write(line)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""
