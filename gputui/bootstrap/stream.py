"""Processes that serve on stdin: one stream of a job for the owner of a queue, and `gputui api-stdio`.

`python -m gputui.bootstrap.stream OPTIONS DECISION PIPE` serves one connection. The owner of the queue has decided who
may have which stream (`engine/streams.py`); the decision is in a file in memory, and the pipe tells the owner that the
job was entered. The store is not opened for it.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from gputui import bootstrap, thin
from gputui.bootstrap.backend import entrance_for, logs_for, output_of
from gputui.config import Options, present_directory, resolve
from gputui.domain import frames
from gputui.domain.decoding import decode_json
from gputui.domain.errors import GputuiError, NoOwnerError, NotFoundError, RuntimeFault, StoreBusyError
from gputui.domain.frames import PendingInput
from gputui.domain.snapshot import Leader, Notice
from gputui.engine.streams import Decision
from gputui.ports import Channel, LiveLogStream
from gputui.ports.backend import LogRequest
from gputui.ports.runtime import wait_for
from gputui.threads import Watcher

if TYPE_CHECKING:
    from gputui.api.handlers import OwnerServices
    from gputui.api.http import Peer
    from gputui.api.wire import Dial
    from gputui.domain.access import Caller
    from gputui.domain.job_spec import JobId
    from gputui.domain.snapshot import Snapshot
    from gputui.ports import LogStream
    from gputui.ports.backend import DirectBackend, StreamRequest

_PIECE = 65536
_FLUSH_AFTER = 0.02
"""Seconds that output of a log waits for more."""
_MOST_WAITING = 1 << 20
"""Bytes of a log that wait for their client; then its source waits."""


class _Client:
    def __init__(self, connection: socket.socket, early: bytes) -> None:
        self.connection = connection
        self._frames = frames.Frames()
        self.early = list(self._frames.feed(early))

    def receive(self) -> list[tuple[bytes, bytes]] | None:
        piece = self.connection.recv(_PIECE)
        return list(self._frames.feed(piece)) if piece else None

    def send(self, kind: bytes, content: bytes = b"") -> None:
        self.connection.sendall(frames.frame(kind, content))


def serve(options: Options, decision: Decision, connection: socket.socket, pipe: int) -> None:
    """Serve one connection to its end. Raises OSError when the client has hung up."""
    if decision.log is not None:
        os.close(pipe)
        _serve_log(options, decision, decision.log, connection)
    elif (request := decision.attach or decision.execute) is not None:
        client = _Client(connection, decision.early)

        def entered(*_: object) -> None:
            with suppress(OSError):  # the owner has ended
                os.write(pipe, b"y")
            os.close(pipe)

        with closing(entrance_for(options, lambda: decision.store_id, decision.caller, entered)) as entrance:
            try:
                channel = entrance.enter(decision.job, request)
            except GputuiError as error:
                may_pass = isinstance(error, RuntimeFault) and error.may_pass
                client.send(frames.UNREACHABLE if may_pass else frames.REFUSED, str(error).encode())
                return
            with closing(channel):
                client.send(frames.READY, b"tty" if channel.is_tty else b"pipes")
                if _pass_on(client, channel) and (code := channel.exit_code()) is not None:
                    connection.sendall(frames.exit_frame(code))


def _pass_on(client: _Client, channel: Channel) -> bool:
    """Pass on what both sides send, until one ends; return whether it was the command."""
    pending = PendingInput(channel.send, channel.end_input)
    _obey(client.early, channel, pending)
    while True:
        ready = wait_for(channel, pending, {client.connection.fileno(): 0 if pending.is_full else select.POLLIN})
        if client.connection.fileno() in ready:
            found = client.receive()
            if found is None:
                return False
            _obey(found, channel, pending)
        if pending.is_waiting:
            out = channel.input_fileno()
            if out < 0 or ready.get(out, 0) & ~select.POLLIN:
                with suppress(OSError):  # it reads no more
                    pending.send_piece()
        if channel.has_pending or ready.get(channel.fileno(), 0) & ~select.POLLOUT:
            parts = channel.receive()
            if parts is None:
                return True
            for is_error, piece in parts:
                client.send(frames.ERRORS if is_error else frames.OUTPUT, piece)


def _obey(messages: list[tuple[bytes, bytes]], channel: Channel, pending: PendingInput) -> None:
    for kind, content in messages:
        if kind == frames.INPUT:
            pending.put(content)
        elif kind == frames.END_OF_INPUT:
            pending.put_end()
        elif kind == frames.SIZE:
            with suppress(OSError):
                channel.resize(*frames.size_of(content))


class _Framed:
    """Frames: READY, with `stamped` if lines begin with times, OUTPUT, ERRORS with a notice, and EXIT at the end."""

    def begin(self, *, is_stamped: bool) -> bytes:
        return frames.frame(frames.READY, b"stamped" if is_stamped else b"")

    def part(self, data: bytes) -> bytes:
        return b"".join(
            frames.frame(frames.OUTPUT, data[at : at + frames.LARGEST]) for at in range(0, len(data), frames.LARGEST)
        )

    def end(self, notice: str) -> bytes:
        return (frames.frame(frames.ERRORS, notice.encode()) if notice else b"") + frames.exit_frame(0)

    def failed(self, error: GputuiError, *, has_begun: bool) -> bytes:
        return frames.frame(frames.REFUSED, str(error).encode())


class _Plain:
    """The body of an HTTP answer in chunks; the last one is missing unless the output is complete."""

    def begin(self, *, is_stamped: bool) -> bytes:
        stamped = b"Gputui-Stamped: true\r\n" if is_stamped else b""
        about = b"Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n"
        return b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + about + stamped + b"\r\n"

    def part(self, data: bytes) -> bytes:
        return f"{len(data):x}\r\n".encode() + data + b"\r\n"

    def end(self, notice: str) -> bytes:
        return b"0\r\n\r\n"

    def failed(self, error: GputuiError, *, has_begun: bool) -> bytes:
        if has_begun:
            return b""
        status = b"404 Not Found" if isinstance(error, NotFoundError) else b"503 Service Unavailable"
        body = str(error).encode() + b"\n"
        about = f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        return b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n" + about + body


class _LogWriter:
    """Sends output as it comes: what comes together in one piece, and a line that has not ended as it grows."""

    def __init__(self, connection: socket.socket, answer: _Framed | _Plain) -> None:
        self._connection = connection
        self._answer = answer
        self._lock = threading.Condition()
        self._waiting = bytearray()
        self._is_over = False
        self._known = 0
        """Bytes of the present line that were taken already."""
        self._thread = threading.Thread(target=self._send, name="log", daemon=True)
        self._thread.start()

    def show_rest(self, line: bytes) -> None:
        self._put(line[self._known :])
        self._known = len(line)

    def put_line(self, line: bytes) -> None:
        self._put(line[self._known :] + b"\n")
        self._known = 0

    def finish(self) -> None:
        with self._lock:
            self._is_over = True
            self._lock.notify_all()
        self._thread.join()

    def _put(self, data: bytes) -> None:
        with self._lock:
            while len(self._waiting) >= _MOST_WAITING:
                self._lock.wait()
            self._waiting += data
            self._lock.notify_all()

    def _send(self) -> None:
        while True:
            with self._lock:
                while not (self._waiting or self._is_over):
                    self._lock.wait()
                if not self._is_over and len(self._waiting) < _PIECE:
                    self._lock.wait(_FLUSH_AFTER)
                data = bytes(self._waiting)
                self._waiting.clear()
                self._lock.notify_all()
                if not data and self._is_over:
                    return
            try:
                self._connection.sendall(self._answer.part(data))
            except OSError:
                os._exit(0)  # the user has disconnected, and the log may be silent for hours


def _serve_log(options: Options, decision: Decision, request: LogRequest, connection: socket.socket) -> None:
    logs = logs_for(options, lambda _: decision.job, lambda: decision.store_id)
    job = decision.job
    ended = [each for each in job.attempts if request.attempt in {None, each.number} and each.is_over]
    if request.apart and request.in_frames and ended:
        attempt = ended[-1]
        lines = partial(logs.open, job.id, LogRequest(attempt.number))
        pieces = output_of(options, decision.store_id, job, attempt, lines)
        threading.Thread(target=_end_with, args=(connection,), name="client", daemon=True).start()
        try:
            connection.sendall(frames.frame(frames.READY))
            for is_error, piece in pieces:
                connection.sendall(frames.frame(frames.ERRORS if is_error else frames.OUTPUT, piece))
            connection.sendall(frames.exit_frame(0))
        except GputuiError as error:
            connection.sendall(_Framed().failed(error, has_begun=False))
        return
    send_log(partial(logs.open, job.id, request), request, connection)


def send_log(open_log: Callable[[], LogStream], request: LogRequest, connection: socket.socket) -> None:
    """Send output. Ends the process when the client hangs up; raises OSError if it has."""
    answer = _Framed() if request.in_frames else _Plain()
    threading.Thread(target=_end_with, args=(connection,), name="client", daemon=True).start()
    has_begun = False
    try:
        stream = open_log()
        connection.sendall(answer.begin(is_stamped=getattr(stream, "is_stamped", False)))
        has_begun = True
        writer = _LogWriter(connection, answer)
        if isinstance(stream, LiveLogStream):
            stream.watch(writer.show_rest)
        try:
            for line in stream:
                writer.put_line(line)
        finally:
            writer.finish()
            stream.close()
    except GputuiError as error:
        connection.sendall(answer.failed(error, has_begun=has_begun))
    else:
        connection.sendall(answer.end(getattr(stream, "notice", "")))


def _end_with(connection: socket.socket) -> None:
    """End this process when the client hangs up, also while nothing is written."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


CONNECT_WITHIN = 10.0
"""Seconds for an owner to accept the connection."""
LOOK_EVERY = 0.5
"""Seconds between two looks at a queue that nobody owns, and at its socket."""
STOP_WITHIN = 5.0
"""Seconds that a request has to end when an owner has come."""


def serve_stdio(options: Options, source: int = 0, target: int = 1) -> None:
    """Serve the queue on these descriptors until either ends; raises NoOwnerError if the service alone may do that."""
    if options.in_cluster:
        _serve_here(options, source, target)
        return
    from gputui.bootstrap.owner import to_owner

    try:
        link = to_owner(options)(CONNECT_WITHIN).detach()
    except NoOwnerError:
        if not options.sockets.in_process:
            raise
        _serve_here(options, source, target)
    except TimeoutError:
        raise StoreBusyError("the owner of the queue accepts no connection", hint="look whether it hangs") from None
    else:
        thin.pass_on(link, source, target)


def _serve_here(options: Options, source: int, target: int) -> None:
    from gputui.api.events import EventHub
    from gputui.api.handlers import Handlers, Router
    from gputui.api.server import DoorServer

    ours, theirs = socket.socketpair()
    with closing(bootstrap.open_backend(options)) as backend:
        looker = _Looker(options, backend)
        services = _services(options, backend, looker)
        # nobody's ticks are waited for
        events = EventHub(services.latest, services.subscribe, services.visibility, patience=float("inf"))
        handle = Router(services, Handlers(services, events))
        server = DoorServer([], handle, given=[theirs], is_operator=lambda uid: True)
        looker.start(lambda: server.stop(STOP_WITHIN))
        server.start()
        thin.pass_on(ours, source, target)
        looker.close()
        server.stop(0)


class _Looker:
    """Looks at a queue that nobody owns, as long as its events are followed, and sees when an owner has come."""

    def __init__(self, options: Options, backend: DirectBackend) -> None:
        from gputui.bootstrap.owner import sockets_of
        from gputui.engine.feed import Feed

        self._feed = Feed()
        self._followers = 0
        self._snapshots = backend.snapshots()
        self._dial: Dial | None = None if options.in_cluster else sockets_of(options)
        self._is_over = threading.Event()
        self._looking = threading.Lock()
        self._version: object = None

    def start(self, owned: Callable[[], object]) -> None:
        """Look at the queue; call `owned` once an owner has come."""

        def run() -> None:
            while not self._is_over.wait(LOOK_EVERY):
                if self._is_owned():
                    owned()
                    return
                if self._followers:
                    self._look()

        Watcher("looker", run).start()

    def latest(self) -> Snapshot:
        self._look()
        return self._feed.latest

    def subscribe(self, tell: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call `tell` with each snapshot from now on; return a function that ends that."""
        self._followers += 1
        unsubscribe = self._feed.subscribe(tell)

        def end() -> None:
            self._followers -= 1
            unsubscribe()

        return end

    def close(self) -> None:
        self._is_over.set()

    def _is_owned(self) -> bool:
        if self._dial is not None:
            with suppress(GputuiError, OSError):
                self._dial(LOOK_EVERY).close()
                return True
        return False

    def _look(self) -> None:
        with self._looking:
            try:
                if (version := self._snapshots.version()) == self._version:
                    return
                self._version = version
                self._feed.publish(self._snapshots.read())
            except Exception as error:  # noqa: BLE001 - a border: consoles show it, and the next look may succeed
                text = str(error) if isinstance(error, GputuiError | OSError) else f"{type(error).__name__}: {error}"
                self._feed.publish(replace(self._feed.latest, notices=(Notice("error", text, halts=True),)))
                self._version = None


class _Shared(Struct, eq=False):
    """A backend that stays open when a request closes it."""

    _backend: DirectBackend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def close(self) -> None:
        """Do nothing."""


def _services(options: Options, backend: DirectBackend, looker: _Looker) -> OwnerServices:
    """Return what the handlers need, with the rights of this process's user; each write locks the queue for itself."""
    from gputui.api.handlers import OwnerServices
    from gputui.api.rights import Visibility, via_of
    from gputui.bootstrap.backend import LocalBackend

    who, began_at = bootstrap.caller(), bootstrap.clock().now()
    me = Leader(os.getpid(), socket.gethostname(), who.user, "api-stdio", began_at, uid=os.geteuid())

    def backend_of(caller: Caller) -> DirectBackend:
        return cast("DirectBackend", _Shared(backend)) if options.in_cluster else LocalBackend(options, caller=caller)

    def caller_of(peer: Peer, headers: Mapping[str, str]) -> Caller:
        return replace(who, via=f"{who.via} {via_of(headers)}".strip())

    def stream(caller: Caller, job_id: JobId, request: StreamRequest, link: socket.socket, early: bytes) -> None:
        threading.Thread(target=_send_log, args=(backend_of(caller), job_id, request, link), daemon=True).start()

    return OwnerServices(
        settings=options.settings,
        store_id=backend.queue.store_id,
        leader=lambda: me,
        caller_of=caller_of,
        backend=backend_of,
        latest=looker.latest,
        visibility=Visibility(options.settings.access),
        subscribe=looker.subscribe,
        refused=lambda caller, rule, asked: None,
        focus=lambda gpu: None,
        stream=stream,
        home=lambda uid: str(present_directory() or ""),
    )


def _send_log(backend: DirectBackend, job_id: JobId, request: StreamRequest, link: socket.socket) -> None:
    """Send the output of a job; the other streams need an owner. This process ends with the connection."""
    from gputui.engine.streams import greeting

    with link, closing(backend), suppress(OSError):  # the client may hang up
        link.sendall(greeting(job_id, request))
        if isinstance(request, LogRequest):
            send_log(partial(backend.log, job_id, request), request, link)
        else:
            link.sendall(frames.frame(frames.REFUSED, b"no scheduler runs: nobody owns this queue"))
        link.shutdown(socket.SHUT_WR)  # closed alone it would stay open as long as a thread waits for its end


def main(arguments: list[str]) -> None:
    *words, decision, pipe = arguments
    given: dict[str, Any] = dict(zip((name.removeprefix("--") for name in words[::2]), words[1::2], strict=True))
    os.set_inheritable(int(pipe), False)
    with os.fdopen(int(decision), "rb") as file:
        decided = decode_json(file.read(), Decision)
    with socket.socket(fileno=0) as connection:
        try:
            serve(resolve(**given), decided, connection, int(pipe))
        except (OSError, frames.MalformedFrameError):
            return  # the user has disconnected
        except Exception as error:  # a border: the user sees it, since nobody reads this process's stderr
            with suppress(OSError):
                text = f"the process of this stream failed: {type(error).__name__}: {error}"
                connection.sendall(frames.frame(frames.REFUSED, text.encode()))
            raise


if __name__ == "__main__":
    main(sys.argv[1:])
