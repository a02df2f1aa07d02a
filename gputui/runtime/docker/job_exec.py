"""Commands in containers and their processes, and the upgraded connections to the engine that carry their streams."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from gputui.domain.container import COLUMNS, ExecRequest, ProcessRow, process_rows
from gputui.domain.errors import Cause, CauseCode, RuntimeFault
from gputui.domain.job_spec import Interactive
from gputui.domain.settings import RuntimeSettings
from gputui.ports import Channel, EngineBook, Permit
from gputui.runtime.docker.connection import Connection, fault
from gputui.runtime.docker.engine import EngineJson, admitted, runs_here
from gputui.runtime.docker.records import by_name, submitter_of
from gputui.runtime.host_processes import ProcessSampler

if TYPE_CHECKING:
    from docker import APIClient

    from gputui.runtime.docker.transport import EngineSocket

_PIECE = 65536
_LARGEST_HEAD = 65536
_HEADER = struct.Struct(">BxxxL")
_STDERR = 2
_RESIZE_EVERY, _RESIZES = 0.03, 300
"""Seconds between two tries to set the size of a terminal that does not exist yet, and the number of tries."""


class ContainerChannel:
    """Channel over an upgraded connection to the engine."""

    def __init__(
        self,
        connection: EngineSocket,
        rest: bytes,
        *,
        is_tty: bool,
        resize: Callable[[int, int], None],
        exit_code: Callable[[], int | None],
    ) -> None:
        self._connection = connection
        self._rest = bytearray(rest)
        self._frames = bytearray()
        self._left = 0
        """Bytes of the present frame that have not come yet."""
        self._is_error = False
        self._resize = resize
        self._exit_code = exit_code
        self.is_tty = is_tty
        self.on_input: Callable[[], None] = lambda: None
        self._size = (0, 0)
        self._is_resizing = False
        self._closed = threading.Event()

    @property
    def has_pending(self) -> bool:
        """Return whether output was received already: with the engine's answer, or by TLS."""
        return bool(self._rest) or self._connection.has_pending

    def fileno(self) -> int:
        return self._connection.fileno()

    input_fileno = fileno

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Return output; None at its end. Of a frame what has come is returned: none is kept until it is complete."""
        piece, self._rest = bytes(self._rest), bytearray()
        with suppress(ConnectionError):
            piece = piece or self._connection.recv(_PIECE)
        if not piece:
            return None
        if self.is_tty:
            return [(False, piece)]
        self._frames += piece
        found = []
        while self._frames:
            if not self._left:
                if len(self._frames) < _HEADER.size:
                    break
                stream, self._left = _HEADER.unpack_from(self._frames)
                self._is_error = stream == _STDERR
                del self._frames[: _HEADER.size]
            if content := bytes(self._frames[: self._left]):
                found.append((self._is_error, content))
                self._left -= len(content)
                del self._frames[: len(content)]
        return found

    def send(self, data: bytes) -> None:
        """Write to standard input. Raises OSError."""
        self.on_input()
        self._connection.sendall(data)

    def end_input(self) -> None:
        if not self.is_tty:
            with suppress(OSError):
                self._connection.end_sending()

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal; if the container does not run yet, as soon as it does."""

        def resize_later() -> None:
            for _ in range(_RESIZES):
                if self._closed.wait(_RESIZE_EVERY) or self._is_sized():
                    break
            self._is_resizing = False

        self._size = (rows, columns)
        if not self._is_resizing and not self._is_sized():
            self._is_resizing = True
            threading.Thread(target=resize_later, daemon=True).start()

    def _is_sized(self) -> bool:
        """Set the last requested size; return whether the engine accepted it."""
        asked = self._size
        try:
            self._resize(*asked)
        except RuntimeFault:
            return False
        return asked == self._size

    def exit_code(self) -> int | None:
        with suppress(RuntimeFault):
            return self._exit_code()
        return None

    def close(self) -> None:
        self._closed.set()
        self._connection.close()


def upgraded(
    connection: Connection, path: str, query: Mapping[str, str] | None = None, body: Mapping[str, object] | None = None
) -> tuple[EngineSocket, bytes]:
    """Send a request with a raw stream as answer; return the connection and the already received part of the stream.

    docker-py reads its answers through a buffer, which would keep the beginning of the stream. Raises RuntimeFault.
    """
    content = b"" if body is None else json.dumps(body).encode()
    with connection.translated():
        made, version = connection.dial()
        lines = [
            f"POST /v{version}{path}{f'?{urlencode(query)}' if query else ''} HTTP/1.1",
            "Host: docker",
            "Connection: Upgrade",
            "Upgrade: tcp",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
        ]
        try:
            made.sendall("\r\n".join([*lines, "", ""]).encode() + content)
            received = b""
            while b"\r\n\r\n" not in received:
                piece = made.recv(_PIECE)
                if not piece or len(received) > _LARGEST_HEAD:
                    raise ConnectionError("the engine ended the connection")
                received += piece
            head, _, rest = received.partition(b"\r\n\r\n")
            status = int(head.split(None, 2)[1])
            if status not in (101, 200):
                raise fault(_error_text(made, head, rest), status=status)
            made.settimeout(None)
        except BaseException:
            made.close()
            raise
        return made, rest


def _error_text(made: EngineSocket, head: bytes, rest: bytes) -> str:
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    length = int(fields.get(b"content-length", b"0"))
    with suppress(OSError):
        while len(rest) < length and (piece := made.recv(_PIECE)):
            rest += piece
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        return str(json.loads(rest[rest.index(b"{") : rest.rindex(b"}") + 1])["message"])
    return rest.decode(errors="replace").strip() or head.decode(errors="replace").splitlines()[0]


_EXEC_LOOKS = 1000
"""Number of times to look, ten milliseconds apart, for the exit code of a command whose stream has ended."""


class DockerExec:
    """JobExec for containers of one engine."""

    def __init__(self, settings: RuntimeSettings, book: EngineBook | None = None) -> None:
        self._connection = Connection(settings, partial(admitted, book) if book else None)
        self._sampler = ProcessSampler()
        self._runs_here: bool | None = None

    def processes(self, container_id: str) -> tuple[ProcessRow, ...]:
        """Return its processes, sampled from /proc for a local engine, else from the engine's ps."""
        from docker.errors import APIError

        def top(client: APIClient) -> tuple[ProcessRow, ...]:
            try:
                found = client.top(container_id, f"-eo {COLUMNS}")
            except APIError as error:
                if error.status_code in (404, 409):  # gone, or not running
                    raise
                found = client.top(container_id)  # a ps without column options, like busybox's
            return tuple(process_rows(found["Titles"], found["Processes"] or ()))

        listed = self._connection.call(top)
        if self._runs_here is None:
            info = self._connection.call(lambda client: client.info())
            self._runs_here = runs_here(info, self._connection.endpoint)
        if not self._runs_here:
            return listed
        sampled = {row.pid: row for row in self._sampler.sample(row.pid for row in listed)}
        return tuple(sampled.get(row.pid, row) for row in listed)

    def attach(self, name: str, interactive: Interactive, permit: Permit, detach_keys: str = "") -> Channel:
        """Attach to a container by its name. Earlier output comes first, unless it has a terminal."""
        inspected = self._inspected(name)
        permit(submitter_of(inspected))
        container = str(inspected["Id"])
        query = {"stream": "1", "stdout": "1", "stderr": "1", "stdin": str(int(interactive.stdin))}
        query["logs"] = str(int(inspected["State"]["Status"] != "created" and not interactive.tty))
        if detach_keys:
            query["detachKeys"] = detach_keys
        made, rest = upgraded(self._connection, f"/containers/{container}/attach", query)
        return ContainerChannel(
            made,
            rest,
            is_tty=interactive.tty,
            resize=lambda rows, columns: self._call(lambda client: client.resize(container, rows, columns)),
            exit_code=lambda: self._call(lambda client: _exit_code(client, container)),
        )

    def execute(self, name: str, request: ExecRequest, permit: Permit) -> Channel:
        """Run a command in the container, as its own user."""
        inspected = self._inspected(name)
        permit(submitter_of(inspected))
        container = str(inspected["Id"])
        made = self._call(
            lambda client: client.exec_create(
                container,
                list(request.command),
                stdin=request.stdin,
                tty=request.tty,
                environment={"TERM": request.term} if request.tty else None,
                detach_keys=request.detach_keys or None,
            )
        )
        run = str(made["Id"])

        def exit_code(client: APIClient) -> int | None:
            for _ in range(_EXEC_LOOKS):  # the engine may notice its end shortly after the stream's
                found = client.exec_inspect(run)
                if not found.get("Running"):
                    return None if found.get("ExitCode") is None else int(found["ExitCode"])
                time.sleep(0.01)
            return None

        body: dict[str, object] = {"Detach": False, "Tty": request.tty}
        if request.tty:
            body["ConsoleSize"] = [request.rows, request.columns]
        stream, rest = upgraded(self._connection, f"/exec/{run}/start", body=body)
        return ContainerChannel(
            stream,
            rest,
            is_tty=request.tty,
            resize=lambda rows, columns: self._call(lambda client: client.exec_resize(run, rows, columns)),
            exit_code=lambda: self._call(exit_code),
        )

    def _inspected(self, name: str) -> EngineJson:
        found: EngineJson | None = self._call(lambda client: by_name(client, name))
        if found is None:
            raise RuntimeFault(Cause(CauseCode.CONTAINER_LOST, f"there is no container {name}"))
        return found

    def _call(self, ask: Callable[[APIClient], Any]) -> Any:
        return self._connection.call(ask)

    def close(self) -> None:
        self._connection.close()


def _exit_code(client: APIClient, container: str) -> int | None:
    found = by_name(client, container)
    if found is None or found["State"].get("Running") or found["State"].get("Status") == "created":
        return None  # one that was only created has the exit code 0 as well
    return int(found["State"]["ExitCode"])
