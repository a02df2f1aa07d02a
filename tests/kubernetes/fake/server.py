"""Fake API server: objects over HTTP with lists, watches, patches, logs and reviews of rights."""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.kubernetes.fake.access import ADMIN, Access
from tests.kubernetes.fake.controller import GPU, Controller, unsafe
from tests.kubernetes.fake.kueue import Kueue
from tests.kubernetes.fake.objects import KINDS, ApiError, Manifest, Objects, now, selected
from tests.kubernetes.fake.streams import PodSocket, accept_key, chosen_protocol, request_of

PRIORITIES = {"batch-low": -100, "batch-normal": 0, "batch-high": 100}
_PATH = re.compile(
    r"(?:/api|/apis/(?P<group>[^/]+))/(?P<version>v\w+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>log|exec|attach))?"
)
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
_BOOKMARKS = 0.2
"""Seconds of silence after which a watch gets a bookmark."""


class FakeKubernetes:
    """A cluster of three nodes with two GPUs each, and its API server on a port of this machine."""

    def __init__(
        self,
        release: str = "v1.31.2",
        *,
        kueue: int | None = None,
        claims: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`kueue` is the quota of its queue; None: Kueue is not installed. `claims` is the version of claims."""
        self.claims = claims
        major, minor = release.removeprefix("v").split(".")[:2]
        self.release = (int(major), int(minor))
        self.git_version = release
        self.objects = Objects()
        self.access = Access()
        self.queue = Kueue(self.objects, kueue) if kueue is not None else None
        self.controller = Controller(self.objects, self.release, PRIORITIES, self.queue)
        self.requests: list[str] = []
        """Method and path of each request."""
        self.tells_gone_in_watch = False
        """Whether a watch from a forgotten version fails by an event, as with some releases, or at once."""
        self.silent_nodes: set[str] = set()
        """Nodes that do not answer when they are asked for output."""
        self.forgets_pages = False
        """Whether a list cannot be continued after its first page."""
        self.breaks = False
        """Whether the server cuts every connection."""
        self.streams: list[socket.socket] = []
        """Connections of websockets."""
        self._server = _HttpServer(("127.0.0.1", 0), self)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.address = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        for name in ("gpu1", "gpu2", "gpu3"):
            self.add_node(name)
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), name="fake-kubernetes", daemon=True)
        self._thread.start()

    def add_node(self, name: str, gpus: int = 2, *, model: str = "NVIDIA-H200", taint: str = "") -> None:
        """Add a node; with a taint of this key it takes only pods that tolerate it."""
        capacity = {GPU: str(gpus), "cpu": "64", "memory": "527873Mi", "pods": "110"}
        labels = {"nvidia.com/gpu.product": model, "nvidia.com/gpu.memory": "143771"}
        self.objects.create(
            "nodes",
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {"taints": [{"key": taint, "value": "present", "effect": "NoSchedule"}]} if taint else {},
                "status": {
                    "capacity": capacity,
                    "allocatable": capacity,
                    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                },
            },
        )

    def drop_streams(self) -> None:
        """Cut the connections of all websockets."""
        for connection in self.streams:
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.objects.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], fake: FakeKubernetes) -> None:
        super().__init__(address, _Handler)
        self.fake = fake

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients close connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HttpServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        fake = self.server.fake
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        if fake.breaks:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        path, query = urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query))
        fake.requests.append(f"{self.command} {path}" + (" watch" if "watch" in query else ""))
        try:
            user = fake.access.user_of(self.headers.get("Authorization", ""))
            if user is None:
                raise ApiError(401, "Unauthorized", "Unauthorized")
            self._answer(_Request(fake, user, self.command, path, query, body))
        except ApiError as error:
            self._send(error.code, error.body)

    def _answer(self, request: _Request) -> None:
        plain = request.plain()
        if plain is not None:
            self._send(201 if self.command == "POST" else 200, plain)
            return
        request.check()
        if request.part in {"exec", "attach"}:
            self._upgrade(request)
        elif request.part == "log":
            self._stream(request.lines(), "text/plain")
        elif "watch" in request.query:
            self._stream(request.changes(), "application/json")
        else:
            self._send(*request.result(), request.warning)

    def _upgrade(self, request: _Request) -> None:
        """Serve a websocket until it ends."""
        pod = request.pod()
        protocol = chosen_protocol(self.headers.get("Sec-WebSocket-Protocol", ""), self.server.fake.release)
        if self.headers.get("Upgrade", "").lower() != "websocket" or not protocol:
            raise ApiError(400, "BadRequest", "you must specify at least 1 of the protocols of this server")
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept_key(self.headers["Sec-WebSocket-Key"]))
        self.send_header("Sec-WebSocket-Protocol", protocol)
        self.end_headers()
        self.close_connection = True
        self.server.fake.streams.append(self.connection)
        asked = request_of(str(request.part), parse_qsl(urlsplit(self.path).query), pod)
        PodSocket(self.rfile, self.wfile.write).serve(asked, tells_code=request.part == "exec")

    def _send(self, code: int, value: Any, warning: str = "") -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        if warning:
            self.send_header("Warning", f"299 - {json.dumps(warning)}")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, lines: Iterator[bytes], kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
            if self.server.fake.breaks:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
        self.wfile.write(b"0\r\n\r\n")


class _Request:
    """A request, and what the server does."""

    def __init__(
        self, fake: FakeKubernetes, user: str, method: str, path: str, query: dict[str, str], body: Manifest
    ) -> None:
        self.query = query
        self._fake, self._user, self._method, self._path, self._body = fake, user, method, path, body
        match = _PATH.fullmatch(path)
        found = match.groupdict() if match else {}
        self.part = found.get("part")
        self._group = found.get("group") or ""
        self._kind, self._namespace = found.get("kind") or "", found.get("namespace") or ""
        self._name = unquote(found.get("name") or "")
        self.warning = ""
        """What the server tells beside its answer."""

    def plain(self) -> Manifest | None:
        """Return the answer to a request that needs no rights; None for others."""
        if self._path == "/version":
            major, minor = self._fake.release
            return {"major": str(major), "minor": str(minor), "gitVersion": self._fake.git_version}
        if self._path == "/apis/kueue.x-k8s.io" and self._fake.queue is not None:
            return {"kind": "APIGroup", "preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta2"}}
        if self._path == "/apis/resource.k8s.io" and self._fake.claims:
            return {"kind": "APIGroup", "preferredVersion": {"groupVersion": f"resource.k8s.io/{self._fake.claims}"}}
        if self._kind == "selfsubjectaccessreviews":
            asked = self._body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            place = asked.get("namespace", "")
            allowed = self._fake.access.may(self._user, asked["verb"], asked.get("group", ""), resource, place)
            return {"kind": "SelfSubjectAccessReview", "spec": self._body["spec"], "status": {"allowed": allowed}}
        return None

    def check(self) -> None:
        """Raise ApiError for what does not exist, or what the user may not do."""
        if self._kind not in KINDS or (self._kind == "workloads" and self._fake.queue is None):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        verb = "watch" if "watch" in self.query else _VERBS[self._method]
        verb = "list" if verb == "get" and not self._name else verb
        resource = f"{self._kind}/{self.part}" if self.part else self._kind
        if not self._fake.access.may(self._user, verb, self._group, resource, self._namespace):
            where = f'in the namespace "{self._namespace}"' if self._namespace else "at the cluster scope"
            words = f'{self._kind} "{self._name}" is forbidden: User "{self._user}" cannot {verb} resource '
            raise ApiError(403, "Forbidden", f'{words}"{resource}" in API group "{self._group}" {where}')

    def result(self) -> tuple[int, Manifest]:
        """Return status and object."""
        objects = self._fake.objects
        with objects.lock:
            if self._method == "POST":
                return 201, self._created()
            if self._method == "GET":
                return 200, objects.get(self._kind, self._namespace, self._name) if self._name else self._list()
            if self._method == "PATCH":
                done = objects.patch(self._kind, self._namespace, self._name, self._accepted(self._body))
            else:
                done = self._deleted()
            self._fake.controller.run()
            return 200, done

    def _list(self) -> Manifest:
        objects = self._fake.objects
        if "continue" in self.query and self._fake.forgets_pages:
            raise ApiError(410, "Expired", "The provided continue parameter is too old")
        found = list(selected(objects.all(self._kind, self._namespace), self.query))
        start, limit = int(self.query.get("continue") or 0), int(self.query.get("limit") or 0)
        page = found[start : start + limit] if limit else found
        meta: Manifest = {"resourceVersion": str(objects.version)}
        if start + len(page) < len(found):
            meta["continue"] = str(start + len(page))
        return {"kind": f"{KINDS[self._kind][0]}List", "metadata": meta, "items": page or None}

    def _created(self) -> Manifest:
        objects, item = self._fake.objects, self._accepted(self._body)
        item["metadata"]["namespace"] = self._namespace
        if self._kind != "jobs":
            done = objects.create(self._kind, item)
            self._fake.controller.run()
            return done
        gpus = item["spec"]["template"]["spec"]["containers"][0].get("resources", {}).get("limits", {}).get(GPU, "0")
        if not str(gpus).isdigit():
            raise ApiError(422, "Invalid", f'Job.batch "{item["metadata"]["name"]}" is invalid: {GPU}: {gpus}')
        last = item["spec"].get("completions", 1) - 1
        if item["spec"].get("completionMode") == "Indexed" and len(f"{item['metadata']['name']}-{last}") > 63:
            words = "metadata.name: Invalid value: will not able to create pod with invalid DNS label"
            raise ApiError(422, "Invalid", f'Job.batch "{item["metadata"]["name"]}" is invalid: {words}')
        if self._namespace in self._fake.controller.restricted and (fault := unsafe(item["spec"]["template"]["spec"])):
            self.warning = f'would violate PodSecurity "restricted:latest": {fault}'
        if self.query.get("dryRun") == "All":
            return item
        item["metadata"].setdefault("labels", {})
        item["spec"] = {"parallelism": 1, "completions": 1} | item["spec"]
        done = objects.create(self._kind, item | {"status": {}})
        self._fake.controller.run()
        return done

    def _accepted(self, item: Manifest) -> Manifest:
        """Return the object without the fields that this release does not know."""
        if self._kind == "jobs" and "spec" in item:
            unknown = {"suspend"} if self._fake.release < (1, 21) else set()
            unknown |= {"ttlSecondsAfterFinished"} if self._fake.release < (1, 21) else set()
            unknown |= {"podFailurePolicy"} if self._fake.release < (1, 26) else set()
            unknown |= {"backoffLimitPerIndex"} if self._fake.release < (1, 29) else set()
            item["spec"] = {name: value for name, value in item["spec"].items() if name not in unknown}
        return item

    def _deleted(self) -> Manifest:
        objects = self._fake.objects
        found = objects.get(self._kind, self._namespace, self._name)
        wanted = self._body.get("preconditions", {}).get("uid", found["metadata"]["uid"])
        if wanted != found["metadata"]["uid"]:
            raise ApiError(409, "Conflict", "the UID in the precondition does not match")
        if self._body.get("propagationPolicy") == "Foreground":
            marks = {"deletionTimestamp": now(), "finalizers": ["foregroundDeletion"]}
            return objects.change(self._kind, found, lambda item: item["metadata"].update(marks))
        if self._kind == "pods":
            self._fake.controller.lose(found)
        return objects.remove(self._kind, found)

    def changes(self) -> Iterator[bytes]:
        """Return the lines of a watch: changes, and bookmarks while there are none."""
        objects, version = self._fake.objects, int(self.query["resourceVersion"])
        gone = ApiError(410, "Expired", f"too old resource version: {version}")
        if objects.is_too_old(version) and not self._fake.tells_gone_in_watch:
            raise gone
        return self._changes(version, gone)

    def _changes(self, version: int, gone: ApiError) -> Iterator[bytes]:
        objects, end = self._fake.objects, time.monotonic() + float(self.query["timeoutSeconds"])
        while not objects.is_closed and time.monotonic() < end:
            if objects.is_too_old(version):
                yield json.dumps({"type": "ERROR", "object": gone.body}).encode() + b"\n"
                return
            found = objects.since(version, self._kind, self._namespace, _BOOKMARKS)
            for at, event, data in found:
                version = at
                item = json.loads(data)
                if list(selected([item], self.query)):
                    yield b'{"type":"%s","object":%s}\n' % (event.encode(), data)
                elif list(selected(objects.before(at, item["metadata"]["uid"]), self.query)):  # it has left the watch
                    yield b'{"type":"DELETED","object":%s}\n' % data
            if not found:
                version = self._bookmarked(version)
                mark = {"kind": KINDS[self._kind][0], "metadata": {"resourceVersion": str(version)}}
                yield json.dumps({"type": "BOOKMARK", "object": mark}).encode() + b"\n"

    def _bookmarked(self, version: int) -> int:
        """Return the version up to which nothing has changed for this watch."""
        objects = self._fake.objects
        with objects.lock:
            is_behind = objects.is_too_old(version) or objects.since(version, self._kind, self._namespace, 0)
            return version if is_behind else objects.version

    def pod(self) -> Manifest:
        """Return the pod; raises ApiError unless it runs."""
        pod = self._fake.objects.get("pods", self._namespace, self._name)
        self._check_node(pod)
        if pod["status"].get("phase") != "Running":
            words = f"cannot exec into a container in a completed pod; current phase is {pod['status'].get('phase')}"
            raise ApiError(400, "BadRequest", words)
        return pod

    def _check_node(self, pod: Manifest) -> None:
        """Raise ApiError if the node of the pod does not answer."""
        if pod["spec"].get("nodeName") in self._fake.silent_nodes:
            raise ApiError(500, "InternalError", 'Get "https://10.0.0.1:10250/containerLogs": dial tcp: i/o timeout')

    def lines(self) -> Iterator[bytes]:
        """Return the output of a pod."""
        objects, controller = self._fake.objects, self._fake.controller
        pod = objects.get("pods", self._namespace, self._name)
        self._check_node(pod)
        if not pod["status"].get("containerStatuses") or "waiting" in pod["status"]["containerStatuses"][0]["state"]:
            name = self.query.get("container", "job")
            words = f'container "{name}" in pod "{self._name}" is waiting to start: ContainerCreating'
            raise ApiError(400, "BadRequest", words)
        if pod["metadata"]["uid"] in controller.lost_logs:
            return iter([b"unable to retrieve container logs for docker://b186be65863e"])
        written = controller.logs.setdefault(pod["metadata"]["uid"], [])
        tail = self.query.get("tailLines")
        return self._lines(pod, written, len(written) - min(len(written), int(tail)) if tail else 0)

    def _lines(self, pod: Manifest, written: list[tuple[str, str]], place: int) -> Iterator[bytes]:
        objects, stamps = self._fake.objects, self.query.get("timestamps") == "true"

        def is_over() -> bool:
            try:
                found = objects.get("pods", self._namespace, pod["metadata"]["name"])
            except ApiError:
                return True
            return bool(found["status"]["phase"] != "Running")

        while True:
            with objects.changed:
                while len(written) == place and "follow" in self.query and not is_over() and not objects.is_closed:
                    objects.changed.wait(0.5)
                fresh, has_ended = written[place:], is_over() or objects.is_closed or "follow" not in self.query
            place += len(fresh)
            for at, line in fresh:
                yield f"{at} {line}\n".encode() if stamps else f"{line}\n".encode()
            if has_ended:
                return


def kubeconfig(address: str, token: str = ADMIN, *, namespace: str = "lab", context: str = "test") -> str:
    """Return a kubeconfig with one context."""
    value = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": "fake", "cluster": {"server": address}}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": context, "context": {"cluster": "fake", "user": "user", "namespace": namespace}}],
    }
    return json.dumps(value)
