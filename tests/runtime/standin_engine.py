"""Stand-in for a Docker engine: answers gputui's requests as moby's API documentation says.

It serves what real engines of the test machines cannot show: CDI devices, other machines, streams that break off.
"""

from __future__ import annotations

import json
import os
import re
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

VERSION = {"Version": "28.3.0", "ApiVersion": "1.51", "MinAPIVersion": "1.24", "Components": [{"Name": "Engine"}]}
STARTED = "2026-01-01T00:00:00.000000000Z"


def this_machine() -> dict[str, Any]:
    """Return the fields of `/info` that identify a machine, for an engine of this machine."""
    memory = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) * 1024
    system = os.uname()
    return {"Name": system.nodename, "KernelVersion": system.release, "MemTotal": memory}


def frame(content: bytes, stream: int = 1) -> bytes:
    """Return output as the engine multiplexes it."""
    return struct.pack(">BxxxL", stream, len(content)) + content


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass

    def address_string(self) -> str:
        return "client"

    def do_GET(self) -> None:
        self._serve(b"")

    def do_DELETE(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _serve(self, body: bytes) -> None:
        split = urlsplit(self.path)
        version = re.match(r"/v(\d+\.\d+)/", split.path)
        path = split.path[version.end() - 1 :] if version else split.path
        self.server.engine.versions.append((path, version[1] if version else ""))
        query = {key: values[0] for key, values in parse_qs(split.query).items()}
        self.server.engine.answer(self, path, query, json.loads(body) if body else {})

    def reply(self, answer: object, status: int = 200) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, parts: Iterable[bytes], *, ends: bool = True) -> None:
        """Send chunks; without `ends` the connection breaks off where the next chunk would begin."""
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.docker.multiplexed-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in parts:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        if ends:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.break_off()

    def break_off(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    engine: StandInEngine

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients hang up in the middle of streams


class UnixServer(Server):
    address_family = socket.AF_UNIX

    def get_request(self) -> tuple[socket.socket, Any]:
        made, _ = super().get_request()
        return made, ("unix", 0)


Answer = Callable[[Handler, dict[str, str]], None]


class StandInEngine:
    """Engine behind a UNIX socket, or a TCP port with or without TLS."""

    def __init__(self, path: Path | None = None, *, tls: ssl.SSLContext | None = None, **info: Any) -> None:
        self.info: dict[str, Any] = {"NCPU": 8, "Runtimes": {"runc": {}}, "DefaultRuntime": "runc", **info}
        self.version: dict[str, Any] = dict(VERSION)
        self.requests: list[tuple[str, str]] = []
        self.versions: list[tuple[str, str]] = []
        """Paths, each with the API version that was asked for; empty for none."""
        self.created: dict[str, dict[str, Any]] = {}
        self.states: dict[str, dict[str, Any]] = {}
        self.special: dict[str, Answer] = {}
        """Answers to paths in place of the usual ones."""
        self.stopped = threading.Event()
        address: Any = str(path) if path else ("127.0.0.1", 0)
        self._server = (UnixServer if path else Server)(address, Handler)
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._server.engine = self
        self.url = f"unix://{path}" if path else f"tcp://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()

    def runs(self, container_id: str, **state: Any) -> None:
        """Add a container that was not created through the API."""
        self.created[container_id] = {"Labels": {}, "Env": []}
        self.states[container_id] = {"Status": "running", "Running": True, "StartedAt": STARTED, "ExitCode": 0, **state}

    def answer(self, handler: Handler, path: str, query: dict[str, str], body: dict[str, Any]) -> None:
        self.requests.append((handler.command, path))
        if special := self.special.get(path):
            special(handler, query)
        elif path in {"/version", "/info"}:
            handler.reply(self.version if path == "/version" else self.info)
        elif path == "/containers/json":
            handler.reply([self._summary(each) for each in self.created])
        elif path == "/containers/create":
            container_id = f"{len(self.created):064x}"
            self.created[container_id] = body
            self.states[container_id] = {"Status": "created", "ExitCode": 0, "StartedAt": "0001-01-01T00:00:00Z"}
            handler.reply({"Id": container_id, "Warnings": []}, 201)
        elif path == "/events":
            handler.stream(self._no_events())
        elif found := re.fullmatch(r"/containers/(\w+)(/\w+)?", path):
            self._of_container(handler, found[1], found[2])
        elif path.startswith("/images/"):
            handler.reply({"Id": "sha256:1"})
        else:
            handler.reply({"message": f"no such path {path}"}, 404)

    def _no_events(self) -> Iterable[bytes]:
        self.stopped.wait()
        yield from ()

    def _of_container(self, handler: Handler, container_id: str, verb: str | None) -> None:
        if container_id not in self.created:
            handler.reply({"message": f"No such container: {container_id}"}, 404)
        elif verb == "/json":
            config, host = self.created[container_id], self.created[container_id].get("HostConfig") or {}
            state = self.states[container_id]
            handler.reply({"Id": container_id, "Name": "/x", "State": state, "Config": config, "HostConfig": host})
        elif verb == "/start":
            self.states[container_id] |= {"Status": "running", "Running": True, "StartedAt": STARTED}
            handler.send_response(204)
            handler.end_headers()
        else:
            handler.reply({"message": f"no such path {verb}"}, 404)

    def _summary(self, container_id: str) -> dict[str, Any]:
        labels = self.created[container_id].get("Labels") or {}
        return {"Id": container_id, "Labels": labels, "State": self.states[container_id]["Status"], "Created": 1}
