"""The server of the socket: HTTP/1.1 by h11, on asyncio, in a thread of its own.

Every account of the machine may send it anything. So whatever a client can make large, slow or many has a limit
(`Limits`), and a request is parsed only when its head is complete and of a sane size. Handlers run in a small pool.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote_to_bytes

import h11
from msgspec import Struct, field

from gputui.api import connections
from gputui.api.connections import LIMITS, OF_NAMESPACES, PIECE, Allowance, Allowances, Buffer, Limits, Pool
from gputui.api.http import Answer, Handle, Handoff, HttpError, Peer, Request, Response, Stream, answer_to, credentials
from gputui.threads import Watcher

log = logging.getLogger(__name__)

THREADS = 4
"""Requests that are answered at a time."""
AGAIN_AFTER = 1.0
"""Seconds after which a server that failed starts again, and after which an accept that failed is tried again."""
ACCEPTED_AT_ONCE = 16
BEAT_EVERY = 1.0
"""Seconds between two calls of `beat`."""
FIRST_WITHIN = 1.0
"""Seconds for which a server that ends waits for the first request of a new connection."""
LINGER = 1.0
"""Seconds in which a client may read a refusal although it still sends."""
_RECEIVE = 64 << 10
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_MOST_PARAMETERS = 64
_FREE_CHUNKS, _LEAST_CHUNK = 1000, 1024
"""Chunks that may have any size, and the mean bytes of those beyond: a mebibyte in single bytes takes a second each."""
_AGAIN = (("Retry-After", "1"),)


class DoorServer:
    """Serves listening sockets until stopped. An error of its loop is logged, and the loop begins anew."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        handle: Handle,
        *,
        given: Iterable[socket.socket] = (),
        is_operator: Callable[[int], bool] = lambda uid: uid == 0,
        limits: Limits = LIMITS,
        beat: Callable[[], object] = lambda: None,
        failed: Callable[[BaseException], object] = lambda _: None,
    ) -> None:
        """`given` are connections besides.

        `is_operator` tells by the uid, without blocking, whether the wider limits hold; it gives no rights.

        `beat` is called once a second in the server's loop, `failed` with each error of the loop.
        """
        self.handle = handle
        self.limits = limits
        self.pool = Pool(THREADS, "gputui-api")
        self.bodies = 0
        """Bytes of all bodies that are being received."""
        self._listeners = tuple(listeners)
        self._given = list(given)
        self._is_operator = is_operator
        self._beat = beat
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._within = 0.0
        self._connections: dict[_ServedClient, asyncio.Task[None]] = {}
        self._allowances = Allowances(limits)
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        """Timers of the listeners at which an accept failed, which try again."""
        self.of_users: asyncio.Semaphore | None = None

        def run() -> None:
            if not self._stopping.is_set():
                asyncio.run(self._serve())

        self._thread = Watcher("gputui-api", run, failed)

    def start(self) -> None:
        for listener in self._listeners:
            listener.setblocking(False)
        self._thread.start()

    def stop(self, within: float = 2.0) -> None:
        """Accept no more, and end all connections; requests under way are answered, if they are within the time.

        The listening sockets stay open: who connects waits for another server of them, or for their end.
        """
        self._within = within
        self._stopping.set()
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(stop.set)
        self._thread.join(within + LINGER)
        self.pool.close()

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def streams(self) -> int:
        return sum(connection.is_streaming for connection in tuple(self._connections))

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._connections, self._allowances, self.bodies = {}, Allowances(self.limits), 0
        self.of_users = asyncio.Semaphore(self.limits.of_users_at_once)
        if self._stopping.is_set():
            return
        self._pauses = {}
        for listener in self._listeners:
            self._listen(listener)
        while self._given:
            self._admit(self._given.pop())

        async def beat() -> None:
            while True:
                self._beat()
                await asyncio.sleep(BEAT_EVERY)

        beating = asyncio.create_task(beat())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({beating, stop}, return_when=asyncio.FIRST_COMPLETED)
            if beating.done():
                beating.result()
        finally:
            self._stop_accepting()
            for part in (beating, stop):
                part.cancel()
            await asyncio.gather(beating, stop, return_exceptions=True)
            # streams and idle connections end at once; the others, and those that have just come, within the time
            for connection, task in tuple(self._connections.items()):
                if not connection.is_busy:
                    task.cancel()
            tasks = tuple(self._connections.values())
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=self._within)
                for task in late:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def _listen(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept some connections, so that others are served between many.

        It is no coroutine: one that ends could lose a connection that it has just accepted.
        """
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # too many open files
                log.warning("no connection can be accepted: %s", error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener.fileno())
                self._pauses[listener] = loop.call_later(AGAIN_AFTER, self._listen, listener)
                return
            try:
                self._admit(accepted)
            except OSError as error:
                log.debug("a connection was lost: %s", error)
                accepted.close()

    def _stop_accepting(self) -> None:
        for pause in self._pauses.values():
            pause.cancel()
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener.fileno())

    def _admit(self, accepted: socket.socket) -> None:
        """Serve the connection, unless its user has too many."""
        pid, uid, _ = credentials(accepted)
        is_operator = self._is_operator(uid) and (uid != 0 or connections.shares_namespace(pid))
        counted = OF_NAMESPACES if not is_operator and connections.is_mapped(pid) else uid
        allowance = self._allowances.find(counted, is_operator=is_operator)
        refusal = self._allowances.refusal(allowance)
        peer = None if refusal else connections.peer_of(accepted)
        if peer is None:
            if refusal:
                _refuse(accepted, answer_to(HttpError(429, refusal, hint="close some, and try again", headers=_AGAIN)))
            accepted.close()
            return
        accepted.setblocking(False)
        connection = _ServedClient(self, self.limits, accepted, peer, allowance)
        allowance.connections += 1

        def forget(_: asyncio.Task[None]) -> None:
            self._connections.pop(connection, None)
            allowance.connections -= 1

        task = asyncio.create_task(connection.serve())
        self._connections[connection] = task
        task.add_done_callback(forget)


def _refuse(accepted: socket.socket, answer: Response) -> None:
    """Send an answer to a connection from which nothing was read; never blocks."""
    with suppress(OSError):
        accepted.setblocking(False)
        accepted.send(b"".join(_parts(answer, h11.Connection(h11.SERVER))))


class _ServedClient(Struct, eq=False):
    """Connection of one client."""

    _server: DoorServer
    _limits: Limits
    _socket: socket.socket
    _peer: Peer
    _allowance: Allowance
    _received: bytes = b""
    """Bytes behind the last request."""
    _protocol: h11.Connection = field(default_factory=partial(h11.Connection, h11.SERVER))
    _is_answering: bool = False
    """True while a request is being answered; a stream is not waited for."""
    _awaited_until: float = field(default_factory=lambda: time.monotonic() + FIRST_WITHIN)
    is_streaming: bool = False

    @property
    def is_busy(self) -> bool:
        """Return whether it is being answered, or may be about to send its first request."""
        return self._is_answering or time.monotonic() < self._awaited_until

    async def serve(self) -> None:
        """Answer requests until the client leaves, or breaks a rule."""
        try:
            while await self._serve_one() and not self._server.is_stopping:
                pass
        except HttpError as error:
            await self._refuse(error)
        except h11.RemoteProtocolError as error:
            await self._refuse(HttpError(error.error_status_hint or 400, str(error)))
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the client has left or is too slow, or the server ends
        except Exception:  # a border: the others are served
            log.exception("a connection failed")
        finally:
            self._is_answering = False
            self._socket.close()

    async def _serve_one(self) -> bool:
        """Answer one request; return whether there may be another."""
        if not await self._receive_head():
            return False
        head = self._protocol.next_event()
        if not isinstance(head, h11.Request):
            raise HttpError(400, "this is no request")
        if head.http_version not in {b"1.1", b"1.0"}:
            raise HttpError(505, "this is HTTP/1.1")
        headers: dict[str, str] = {}
        for name, value in head.headers:  # values of the same name are joined, as HTTP has it
            key, text = name.decode("ascii"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        if "content-length" in headers and "transfer-encoding" in headers:
            raise HttpError(400, "a request has Content-Length or Transfer-Encoding, not both")
        method, (path, query) = head.method.decode("ascii"), _path_and_query(head.target)
        body = await self._receive_body(int(headers.get("content-length", "0")))
        request = Request(method, path, query, headers, body, self._peer)
        self._is_answering, self._awaited_until = True, 0.0
        of_users = self._server.of_users
        assert of_users is not None
        async with self._allowance.turn:
            if self._allowance.is_operator:
                answer = await self._handled(request)
            else:
                async with of_users:
                    answer = await self._handled(request)
        if isinstance(answer, Handoff):
            early, given = self._protocol.trailing_data[0], self._socket.dup()
            given.setblocking(True)

            def give() -> None:
                try:
                    answer.take(given, early)
                except Exception:
                    given.close()
                    raise

            self._server.pool.submit(give)
            return False
        if isinstance(answer, Stream):
            await self._stream(answer)
            return False
        await self._respond(answer, is_head=request.method == "HEAD")
        self._is_answering = False
        protocol = self._protocol
        if protocol.our_state is not h11.DONE or protocol.their_state is not h11.DONE:
            return False
        self._received = protocol.trailing_data[0]
        return True

    async def _receive_head(self) -> bool:
        """Receive bytes up to the end of a head; False if the client has left or stays idle.

        Nothing is parsed before: many small pieces cost no more than one, and the sum of their lines is known.
        """
        received, begun = bytearray(self._received), 0
        if not received:
            async with asyncio.timeout(self._limits.idle):
                received += await self._receive()
            if not received:
                return False
        if delay := self._allowance.delay():
            await asyncio.sleep(delay)
        try:
            async with asyncio.timeout(self._limits.head_within):
                while (end := _END_OF_HEAD.search(received, max(0, begun - 2))) is None:
                    self._check_head(received, len(received))
                    begun = len(received)
                    piece = await self._receive()
                    if not piece:
                        return False
                    received += piece
        except TimeoutError as error:
            raise HttpError(408, "the head of the request takes too long") from error
        self._check_head(received, end.end())
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head)
        self._protocol.receive_data(bytes(received))
        return True

    async def _receive_body(self, size: int) -> bytes:
        """Receive the body, of the size that its head tells, or of unknown size."""
        longest = self._limits.operator_body if self._allowance.is_operator else self._limits.body
        parts, chunks = bytearray(), 0
        too_long = HttpError(413, f"the body may have {longest} bytes")
        if size > longest:
            raise too_long
        try:
            async with asyncio.timeout(self._limits.body_within):
                while (event := self._protocol.next_event()) is not h11.PAUSED and type(event) is not h11.EndOfMessage:
                    if event is h11.NEED_DATA:
                        if self._protocol.they_are_waiting_for_100_continue:
                            await self._put(h11.InformationalResponse(status_code=100, headers=[]))
                        self._protocol.receive_data(await self._receive())
                    elif isinstance(event, h11.Data):
                        parts += event.data
                        self._server.bodies += len(event.data)
                        chunks += event.chunk_start
                        if len(parts) > longest:
                            raise too_long
                        if self._server.bodies > self._limits.bodies:
                            what = "many large requests are being received; try again"
                            raise HttpError(503, what, headers=_AGAIN)
                        if chunks > _FREE_CHUNKS + len(parts) // _LEAST_CHUNK:
                            raise HttpError(400, "the body comes in chunks that are too small")
        except TimeoutError as error:
            raise HttpError(408, "the body of the request takes too long") from error
        finally:
            self._server.bodies -= len(parts)
        return bytes(parts)

    async def _receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, _RECEIVE)

    def _check_head(self, received: bytearray, end: int) -> None:
        if end > self._limits.head or received.count(b"\n", 0, end) > self._limits.lines:
            raise HttpError(431, "the head of the request is too long")

    async def _handled(self, request: Request) -> Answer:
        try:
            return await self._server.pool.run(partial(self._server.handle, request))
        except Exception:  # a border: a handler that fails must not end the server
            log.exception("a request failed: %s %s", request.method, request.path)
            return answer_to(
                HttpError(500, "the request failed", hint="gputui.log in the state directory has the details")
            )

    async def _respond(self, answer: Response, *, is_head: bool = False) -> None:
        has_body = not is_head and answer.status not in {204, 304}
        for part in _parts(answer, self._protocol, has_body=has_body, closes=self._server.is_stopping):
            await self._write(part)

    async def _put(self, event: h11.Event) -> None:
        await self._write(self._protocol.send(event) or b"")

    async def _write(self, data: bytes) -> None:
        """Send all; a client that takes nothing for `idle` seconds is given up."""
        loop, view = asyncio.get_running_loop(), memoryview(data)
        for start in range(0, len(view), PIECE):
            async with asyncio.timeout(self._limits.idle):
                await loop.sock_sendall(self._socket, view[start : start + PIECE])

    async def _stream(self, answer: Stream) -> None:
        """Send parts as they come, until the client leaves or is too slow."""
        buffer, pool = Buffer(self._limits.unsent), self._server.pool
        try:
            end = await pool.run(partial(answer.open, buffer))
        except Exception:  # a border, as of a handler
            buffer.close()
            log.exception("a stream failed")
            await self._respond(answer_to(HttpError(500, "the stream failed")))
            return
        self._is_answering, self.is_streaming = False, True
        try:
            headers = [("Content-Type", answer.content_type), ("Cache-Control", "no-store"), ("Connection", "close")]
            await self._put(_head(200, headers))

            async def send_parts() -> None:
                loop = asyncio.get_running_loop()
                while (piece := await buffer.take()) is not None:
                    data = self._protocol.send(h11.Data(data=bytes(piece))) or b""
                    await loop.sock_sendall(self._socket, data)
                    buffer.sent(len(piece))
                if not buffer.is_cut:
                    await self._put(h11.EndOfMessage())

            ends = send_parts(), self._until_gone(), buffer.cut.wait()
            parts = [asyncio.create_task(part) for part in ends]
            try:
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for part in parts:
                    part.cancel()
                await asyncio.gather(*parts, return_exceptions=True)
        finally:
            buffer.close()
            pool.submit(end)

    async def _until_gone(self) -> None:
        while await self._receive():
            pass

    async def _refuse(self, refusal: HttpError) -> None:
        """Tell why, and end the connection once the client has read that, or a second later."""
        with suppress(OSError, TimeoutError, h11.LocalProtocolError, asyncio.CancelledError):
            is_ready = self._protocol.our_state in {h11.IDLE, h11.SEND_RESPONSE}
            protocol = self._protocol if is_ready else h11.Connection(h11.SERVER)
            await self._write(b"".join(_parts(answer_to(refusal), protocol)))
            self._socket.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER):
                await self._until_gone()


def _parts(
    answer: Response, protocol: h11.Connection, *, has_body: bool = True, closes: bool = True
) -> Iterator[bytes]:
    """Yield an answer as it is sent: a short one whole, a long one in parts, so that there is no copy of it."""
    headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body))), *answer.headers]
    headers += [("Connection", "close")] if closes else []
    body = memoryview(answer.body if has_body else b"")
    part = protocol.send(_head(answer.status, headers)) or b""
    for at in range(0, len(body), PIECE):
        if at:
            yield part
            part = b""
        part += protocol.send(h11.Data(data=bytes(body[at : at + PIECE]))) or b""
    yield part + (protocol.send(h11.EndOfMessage()) or b"")


def _head(status: int, headers: list[tuple[str, str]]) -> h11.Response:
    return h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())


def _path_and_query(target: bytes) -> tuple[str, dict[str, str]]:
    """Return path and query, decoded. Raises HttpError for what is no path, or names a parameter twice."""
    raw, _, asked = target.partition(b"?")
    if raw.startswith(b"http://"):  # as a proxy sends it
        raw = b"/" + raw.removeprefix(b"http://").partition(b"/")[2]
    try:
        path = unquote_to_bytes(raw).decode()
        pairs = parse_qsl(
            asked.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS
        )
    except ValueError as error:
        raise HttpError(400, "the path or the query is not UTF-8, or has too many parameters") from error
    query = dict(pairs)
    if not path.startswith("/") or "\0" in path:
        raise HttpError(400, "the path has to begin with /")
    if len(query) != len(pairs):
        raise HttpError(400, "a parameter is given twice")
    return path, query
