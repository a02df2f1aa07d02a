"""Client of the owner of a queue: HTTP/1.1 with JSON, blocking, small, and with the patience of a command.

A request whose connection is cut is sent again, with the same `Idempotency-Key` if it changes anything: the next owner
finds the key in the queue, and does nothing twice. A request that waits tells so after two seconds, and gives up after
`store.lock_timeout`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from gputui.api import http
from gputui.api.http import API, Problem
from gputui.api.wire import Dial, Server, SilenceError, Wire
from gputui.domain.decoding import decode_json
from gputui.domain.errors import GputuiError, NoOwnerError, StoreBusyError
from gputui.domain.text import plain

T = TypeVar("T")

TELL_AFTER = 2.0
"""Seconds without an answer after which the user is told."""
LONGEST_HEAD = 64 * 1024
LONGEST_BODY = 512 * 1024**2
"""Bytes of the head and of the body of an answer, at most."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds before a cut request is sent again, and at most."""
_WAITING = frozenset({429, 503})
"""Statuses that ask to come again later: too many requests, the owner begins or is busy."""
_MOST_IDLE = 4
"""Connections kept for the next requests."""


class Reply(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    """Values by name in lower case."""
    body: bytes


class Prepared(Struct, frozen=True):
    data: bytes
    may_repeat: bool


class _CutError(Exception):
    """The connection ended before the answer did."""


def new_key() -> str:
    return os.urandom(16).hex()


class Patience(Struct, eq=False):
    """Time that a request may take, over all of its tries."""

    _limit: float
    _tell: Callable[[str], object]
    _name: Callable[[Server], tuple[str, str]]
    """Returns the name of the owner for a sentence, and what helps if it hangs."""
    _waited: float = 0.0
    """Seconds that the user has waited already."""
    server: Server = Server()
    _began: float = field(default_factory=time.monotonic)
    _is_told: bool = False

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began + self._waited

    def step(self) -> float:
        """Return the seconds until `passed` has something to do."""
        until = self._limit if self._is_told else min(TELL_AFTER, self._limit)
        return max(0.001, until - self.elapsed)

    def passed(self) -> None:
        """Tell the user once that the owner does not answer; raise StoreBusyError when the time is over."""
        elapsed = self.elapsed
        if elapsed >= TELL_AFTER and not self._is_told:
            self._is_told = True
            self._tell(f"{self._name(self.server)[0]} has not answered for {int(elapsed)} s")
        if elapsed >= self._limit:
            who, cure = self._name(self.server)
            what = f"{who} has not answered for {int(elapsed)} s"
            raise StoreBusyError(what, hint=cure)

    def pause(self, seconds: float) -> None:
        time.sleep(max(0.001, min(seconds, self._limit - self.elapsed)))
        self.passed()


def plain_name(server: Server) -> tuple[str, str]:
    """Return the name of an owner of which nothing else is known, and what helps if it hangs."""
    pid = f" (pid {server.pid})" if server.pid > 1 else ""
    return f"the owner of the queue{pid}", cure_of(server.pid)


def cure_of(pid: int) -> str:
    """Return what this user can do about an owner who hangs, by his pid; 0 or 1: it is not known."""
    cure = ""
    if pid > 1:
        cure = f"kill -CONT {pid} if it was stopped, else kill -9 {pid}"
        try:
            os.kill(pid, 0)
        except PermissionError:
            cure = ""
        except OSError:
            pass
    return f"{cure or 'ask an operator to restart gputui.service'}; store.lock_timeout sets how long gputui waits"


class Exchange(Struct, eq=False):
    """An answer that is read from a connection, and its body in parts."""

    wire: Wire
    _patience: Patience
    _read: bytearray = field(default_factory=bytearray)
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    def begin(self, request: bytes) -> None:
        """Send a request, and read status and headers of its answer.

        A server that has refused it already may read no more: its answer still counts. Raises _CutError for an empty or
        broken answer, GputuiError for an absurd one.
        """
        left = memoryview(request)
        with contextlib.suppress(ConnectionError):
            while left:
                self.wire.wait_for(self._patience.step())
                try:
                    left = left[self.wire.send(left) :]
                except SilenceError:
                    self._patience.passed()
        version, _, rest = self._line().partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise _CutError
        self.status = int(rest[:3])
        size = 0
        while line := self._line():
            size += len(line)
            name, colon, value = line.partition(b":")
            if not colon or size > LONGEST_HEAD:
                raise GputuiError("what answers is no owner of a queue", hint=VERSIONS)
            self.headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")

    def _more(self) -> bool:
        while True:
            step = self._patience.step()
            try:
                self.wire.wait_for(step)
                data = self.wire.receive()
            except SilenceError:
                self._patience.passed()
                continue
            except OSError:  # reset, or closed by another thread
                return False
            self._read += data
            return bool(data)

    def _line(self) -> bytes:
        while (end := self._read.find(b"\n")) < 0:
            if len(self._read) > LONGEST_HEAD or not self._more():
                raise _CutError
        line = bytes(self._read[:end]).rstrip(b"\r")
        del self._read[: end + 1]
        return line

    def _take(self, size: int) -> bytes:
        data = bytes(self._read[:size])
        del self._read[:size]
        return data

    def parts(self) -> Iterator[bytes]:
        """Yield the body as it comes; raises _CutError if the connection ends before it does."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := self._chunk_size():
                while len(self._read) < size:
                    if not self._more():
                        raise _CutError
                yield self._take(size)
                self._line()
            while self._line():
                pass
        elif "content-length" in self.headers:
            left = int(self.headers["content-length"])
            while left:
                if not self._read and not self._more():
                    raise _CutError
                data = self._take(left)
                left -= len(data)
                yield data
        elif self.status not in {204, 304}:
            while self._read or self._more():
                yield self.take_rest()

    def _chunk_size(self) -> int:
        try:
            size = int(self._line().partition(b";")[0], 16)
        except ValueError:
            raise _CutError from None
        if not 0 <= size <= LONGEST_BODY:
            raise _CutError
        return size

    def body(self) -> bytes:
        found = bytearray()
        for part in self.parts():
            found += part
            if len(found) > LONGEST_BODY:
                raise _CutError
        return bytes(found)

    @property
    def has_rest(self) -> bool:
        return bool(self._read)

    def take_rest(self) -> bytes:
        return self._take(len(self._read))

    def endless(self, silence: float) -> None:
        """Let the body come for ever from now on, with at most so many seconds between its parts."""
        self._patience = _Silence(silence, lambda _: None, plain_name)


class _Silence(Patience):
    """Patience with a stream: it begins anew with each part."""

    def step(self) -> float:
        return self._limit

    def passed(self) -> None:
        raise _CutError


class ByteStream(Struct, eq=False):
    """Parts of an answer without an end. Iterate in one thread; close from any."""

    exchange: Exchange

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self.exchange.parts()
        except _CutError:
            pass
        finally:
            self.close()

    def close(self) -> None:
        self.exchange.wire.close()


class ApiClient(Struct, eq=False):
    """Asks the owner of one queue. Methods block, may be called from any thread, and raise GputuiError.

    NoOwnerError: nobody owns the queue now. After a request that was sent, the caller may carry it out itself, with the
    same key. StoreBusyError: the owner did not answer in time.
    """

    _dial: Dial
    patience: float = 60.0
    tell: Callable[[str], object] = lambda _: None
    """Called with a sentence while a request waits."""
    name: Callable[[Server], tuple[str, str]] = plain_name
    """Same as in `Patience`, like `waited`."""
    headers: Mapping[str, str] = {}
    """Go with all requests."""
    absence: float = 0.0
    """Seconds for which a next owner is waited for, once one has answered."""
    waited: float = 0.0
    keep: float = 1.0
    """Seconds for which an idle connection serves the next request: later the server may be closing it."""
    _was_owned: bool = False
    _idle: list[tuple[float, Wire]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_closed: bool = False

    def close(self) -> None:
        self._is_closed = True
        with self._lock:
            idle, self._idle = self._idle, []
        for _, wire in idle:
            wire.close()

    def _message(
        self, method: str, path: str, body: Any, query: Mapping[str, object], key: str, headers: Mapping[str, str]
    ) -> Prepared:
        """Return a request; `body` is bytes, or a value that is sent as JSON, or None."""
        data = b"" if body is None else body if isinstance(body, bytes) else http.own_json(body)
        words = []
        for name, value in query.items():
            if value is not None:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                words.append(f"{name}={quote(text, safe='')}")
        target = quote(path, safe="/") + (f"?{'&'.join(words)}" if words else "")
        head = f"{method} {target} HTTP/1.1\r\nHost: gputui\r\nGputui-Api: {API}\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        elif method != "GET":
            head += "Content-Length: 0\r\n"
        if key:
            head += f"Idempotency-Key: {key}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in (*self.headers.items(), *headers.items()))
        return Prepared(head.encode("latin-1") + b"\r\n" + data, bool(key) or method == "GET")

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        result: type[T],
        query: Mapping[str, object] | None = None,
        key: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Return the decoded answer to a request; an error that it tells is raised.

        A request that changes something is sent again only with a key.
        """
        reply = self.request(method, path, body, query=query, key=key, headers=headers)
        try:
            return decode_json(reply.body, result)
        except msgspec.MsgspecError as error:
            raise GputuiError(f"the answer to {method} {path} cannot be read: {error}", hint=VERSIONS) from error

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, object] | None = None,
        key: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Return the whole answer to a request; an error that it tells is raised."""
        message = self._message(method, path, body, query or {}, key, headers or {})

        def finish(exchange: Exchange) -> Reply:
            reply = Reply(exchange.status, exchange.headers, exchange.body())
            self._put_back(exchange)
            return reply

        return self._tried(message, finish)

    def stream(
        self,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float,
    ) -> ByteStream:
        """Open an answer without an end, which is cut after so many seconds without a part."""

        def finish(exchange: Exchange) -> ByteStream:
            exchange.endless(silence)
            return ByteStream(exchange)

        return self._tried(self._message("GET", path, None, query or {}, "", headers or {}), finish)

    def upgrade(
        self,
        path: str,
        protocol: str,
        body: Any = None,
        *,
        query: Mapping[str, object] | None = None,
        key: str = "",
        method: str = "POST",
    ) -> tuple[socket.socket, bytes]:
        """Turn a new connection into a stream; return its socket, and what came behind the answer already."""
        more = {"Connection": "Upgrade", "Upgrade": protocol}

        def finish(exchange: Exchange) -> tuple[socket.socket, bytes]:
            if exchange.status != 101:
                raise GputuiError("the owner of the queue opened no stream", hint=VERSIONS)
            return exchange.wire.detach(), exchange.take_rest()

        return self._tried(self._message(method, path, body, query or {}, key, more), finish)

    # tries

    def _tried(self, message: Prepared, finish: Callable[[Exchange], T]) -> T:
        patience, pause = Patience(self.patience, self.tell, self.name, self.waited), _FIRST_PAUSE
        while True:
            wire = self._idle_wire() or self._dialled(patience)
            patience.server = wire.server
            exchange = Exchange(wire, patience)
            try:
                exchange.begin(message.data)
                if exchange.status < 400:
                    return finish(exchange)
                body = exchange.body()
                self._put_back(exchange)
            except _CutError:
                wire.close()
                if not message.may_repeat:
                    what = "the connection was cut before the answer came"
                    raise GputuiError(what, hint="look whether it was done") from None
                patience.pause(pause)
            except BaseException:
                wire.close()
                raise
            else:
                if exchange.status not in _WAITING or "retry-after" not in exchange.headers:
                    raise error_of(exchange.status, exchange.headers, body)
                with contextlib.suppress(ValueError):
                    pause = max(pause, float(exchange.headers["retry-after"]))
                patience.pause(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    def _idle_wire(self) -> Wire | None:
        with self._lock:
            while self._idle:
                kept_at, wire = self._idle.pop()
                if time.monotonic() - kept_at < self.keep:
                    return wire
                wire.close()
        return None

    def _dialled(self, patience: Patience) -> Wire:
        while True:
            try:
                wire = self._dial(patience.step())
            except SilenceError:
                patience.passed()
            except NoOwnerError:
                if not self._was_owned or patience.elapsed >= self.absence:
                    raise
                patience.pause(_LONGEST_PAUSE)
            except OSError as error:
                raise GputuiError(f"cannot connect to the owner of the queue: {error.strerror}") from error
            else:
                self._was_owned = True
                return wire

    def _put_back(self, exchange: Exchange) -> None:
        """Keep a connection for another request, if it can carry one after the body was read."""
        headers = exchange.headers
        is_framed = "content-length" in headers or "transfer-encoding" in headers
        may_stay = is_framed and headers.get("connection", "").lower() != "close" and not exchange.has_rest
        with self._lock:
            if may_stay and len(self._idle) < _MOST_IDLE and not self._is_closed:
                self._idle.append((time.monotonic(), exchange.wire))
                return
        exchange.wire.close()


VERSIONS = "the owner may run another gputui: restart it with this one"


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> GputuiError:
    try:
        problem = decode_json(body, Problem)
    except msgspec.MsgspecError:
        words = plain(body[:200].decode(errors="replace"), 200).strip()
        return GputuiError(
            f"the owner of the queue answered with status {status}: {words or headers.get('server', '')}"
        )
    return http.error_of(problem)
