"""Output of a container, followed line by line or saved as a whole."""

from __future__ import annotations

import errno
import logging
import re
import struct
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.container import ContainerState
from gputui.domain.errors import Cause, CauseCode, InputError, RuntimeFault, RuntimeUnavailableError
from gputui.domain.text import format_size, parse_size
from gputui.runtime.docker.connection import Connection, fault
from gputui.runtime.docker.records import by_name, parse_time, state_of
from gputui.runtime.process.log import kept_log

if TYPE_CHECKING:
    import requests
    from docker import APIClient

    from gputui.runtime.docker.transport import EngineClient


log = logging.getLogger(__name__)
Part: TypeAlias = tuple[int, bytes]
"""Number of the stream, and its bytes."""
Message: TypeAlias = tuple[int, bytes, bytes]
"""Number of the stream, its bytes, and their time; the time is empty where it was not asked for."""
_HEADER = 8
"""Bytes of a frame's header: the stream's number, three zeros, and the big-endian length of the content."""
_CHUNK = 64 * 1024
_LONGEST_FRAME = 16 * 1024**2
"""Bytes of a message that no engine exceeds: it stores them in pieces of 16 KiB."""
_BLOCK = 1024 * 1024
_ENGINE_ERROR = 3
"""Stream on which the engine reports why it cannot continue."""
_RAW = "application/vnd.docker.raw-stream"
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 5.0
"""Shortest and longest pause in seconds before a followed log is reopened."""
_LONGEST_LINE = 1024 * 1024
"""Bytes after which a line without an end is yielded in pieces."""
_REMEMBERED = 4096
"""Number of messages recognised after a followed log was reopened."""
_OVERHEAD = {"json-file": 69, "local": 20}
"""Bytes that each driver adds to a message, at least."""
_DEFAULTS = {"local": ("20m", "5")}
"""Limits of drivers that have some by default."""
_FASTEST = 50 * 1024**2
"""Bytes per second that an engine logs at most."""


class LogLimit(Struct):
    """Limit of a container's log, and how much of it was read."""

    size: int = 0
    """Bytes of one file; 0: unlimited."""
    files: int = 1
    overhead: int = 0
    started_at: datetime | None = None
    read: int = 0
    """Bytes that the messages read so far take on the engine's disk, at least."""

    def count(self, message: bytes) -> None:
        self.read += len(message) + self.overhead

    @property
    def is_reached(self) -> bool:
        """Return whether the log is long enough to be one of which something was dropped.

        Such a log still fills all of its files but the newest.
        """
        return bool(self.size) and self.read >= self.size * (self.files - 1)

    def notice(self, first_at: datetime | None) -> str:
        """Return a sentence about lines that may be missing before the first, of that time; empty if none can be."""
        if not self.is_reached:
            return ""
        took = timedelta(seconds=self.size / _FASTEST)
        since = first_at - self.started_at if first_at and self.started_at else None
        is_start_late = since is not None and since < timedelta(0)  # a loaded engine notes it after the first lines
        if since is not None and since < took and not (is_start_late and self.files > 1):
            return ""  # too soon after the start for a whole file to have been written before it
        kept, limit = format_size(self.size * self.files), f"max-size={format_size(self.size)}, max-file={self.files}"
        return f"the engine keeps only the last {kept} of this output ({limit}): lines may be missing"


def limit_of(client: APIClient, container_id: str) -> LogLimit:
    inspected: Mapping[str, Any] = client.inspect_container(container_id)
    found = inspected["HostConfig"].get("LogConfig") or {}
    kind, config = str(found.get("Type")), found.get("Config") or {}
    default_size, default_files = _DEFAULTS.get(kind, ("-1", "1"))
    with suppress(InputError, ValueError):
        words, files = str(config.get("max-size", default_size)), int(config.get("max-file", default_files))
        size = 0 if words == "-1" else parse_size(words)
        return LogLimit(size, files, _OVERHEAD.get(kind, 0), parse_time(inspected["State"].get("StartedAt")))
    return LogLimit()


class LogQuery(Struct, frozen=True):
    container_id: str
    tail: int | None = None
    follow: bool = False
    stamped: bool = False
    """True if each message begins with the time at which the engine received it."""
    since: str | None = None


class DockerLog:
    """Lines of a container's two streams, complete or with an error.

    A followed log continues until its container has ended: a broken stream is reopened after the last message received.
    """

    def __init__(self, connection: Connection, query: LogQuery) -> None:
        self._connection = connection
        self._query = replace(query, stamped=query.follow or query.stamped)
        self.is_stamped = query.stamped
        """Lines begin with the time at which the engine received them."""
        self._closed = threading.Event()
        self._is_read = False
        self._client: EngineClient | None = None
        self._seen: deque[tuple[int, bytes]] = deque(maxlen=_REMEMBERED)
        """Stream and time of the latest messages, for recognising repeated ones."""
        self._limit = LogLimit()
        self.notice = ""
        """Sentence about lines that may be missing, once all was read; empty: none are."""
        self._response = self._open(self._query)

    def __iter__(self) -> Iterator[bytes]:
        self._is_read = True
        try:
            yield from lines(self._parts())
            if self._limit.is_reached:
                container_id, limit = self._query.container_id, self._limit
                with suppress(RuntimeFault):  # its container may be gone by now
                    self.notice = self._connection.call(lambda client: _notice(client, container_id, limit))
        except Exception:
            # a close from another thread ends a stream with one of many errors
            if not self._closed.is_set():
                raise
        finally:
            self._close_all()

    def close(self) -> None:
        self._closed.set()
        if client := self._client:
            client.shut_down()
        if not self._is_read:
            self._close_all()

    def _parts(self) -> Iterator[Part]:
        """Yield output, with the time before each line if stamped; long lines arrive in several messages."""
        begins: dict[int, bool] = {}
        for stream, content, stamp in self._followed() if self._query.follow else self._messages(self._query):
            self._limit.count(content)
            is_stamped = self.is_stamped and begins.get(stream, True)
            yield stream, stamp + b" " + content if is_stamped else content
            begins[stream] = content.endswith(b"\n")

    def _followed(self) -> Iterator[Message]:
        """Yield messages until the container has ended, reconnecting as needed.

        Raises RuntimeFault if it is gone and output was not read.
        """
        query, pause, before = self._query, _FIRST_PAUSE, None
        while not self._closed.is_set():
            broke: RuntimeFault | None = None
            try:
                yield from self._messages(query)
            except (_BrokenOffError, RuntimeUnavailableError) as error:
                broke = error
            if broke is None and not query.follow:
                return
            latest = self._seen[-1] if self._seen else None
            if latest != before:
                pause, before = _FIRST_PAUSE, latest
            runs = True
            with suppress(RuntimeUnavailableError):
                found = self._connection.call(lambda client: by_name(client, self._query.container_id), patient=False)
                if found is None and broke:
                    raise _IncompleteError("its container was removed before all of it was read") from broke
                if found is None:
                    return
                runs = state_of(found["State"]["Status"]) is not ContainerState.EXITED
            # after its end the rest is read without following: else Docker 20.10 drops the last messages
            query = replace(self._query, follow=runs)
            if self._seen:  # times of the two streams may be slightly out of order: start well before the last message
                stamps = sorted(unix_time(stamp) for _, stamp in self._seen)
                is_all = len(stamps) < _REMEMBERED
                query = replace(query, tail=None, since=stamps[0 if is_all else _REMEMBERED // 2])
            if broke:
                self._closed.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _messages(self, query: LogQuery) -> Iterator[Message]:
        """Yield the engine's messages, without repeated ones. Raises RuntimeFault when the stream breaks off."""
        response, self._response = self._response or self._open(query), None
        if response is None:
            return
        from requests import RequestException

        known = Counter(self._seen)
        try:
            for stream, message in frames_of(response, is_stamped=query.stamped):
                if not query.stamped:
                    yield stream, message, b""
                    continue
                stamp, _, content = message.partition(b" ")
                key = (stream, stamp)
                if known and known[key] > 0:
                    known[key] -= 1
                    continue
                self._seen.append(key)
                yield stream, content, stamp
        except (RequestException, OSError, ValueError, AttributeError) as error:
            raise _BrokenOffError(f"the connection to Docker at {self._connection.where} broke off") from error
        finally:
            response.close()

    def _open(self, query: LogQuery) -> requests.Response | None:
        """Open the log on its own connection; None if it was closed meanwhile. Raises RuntimeFault."""
        if self._client:
            self._client.close()
        client = self._client = self._connection.open(patient=not query.follow)
        if self._closed.is_set():
            client.close()
            return None
        try:
            with self._connection.translated():
                if query.tail is None and not self._limit.size:
                    self._limit = limit_of(client, query.container_id)
                return open_log(client, query)
        except BaseException:
            client.close()
            raise

    def _close_all(self) -> None:
        self._closed.set()
        if self._response:
            self._response.close()
        if self._client:
            self._client.close()


class _IncompleteError(RuntimeFault):
    """The rest of a log cannot be read."""

    def __init__(self, why: str) -> None:
        super().__init__(Cause(CauseCode.RUNTIME_ERROR, f"the log is incomplete: {why}"), hint="read it again")
        self.args = (why,)


class _BrokenOffError(_IncompleteError):
    """The connection ended before the log, which can be reopened."""


def unix_time(stamp: bytes) -> str:
    """Return an RFC 3339 time as the engine's `since` parameter: seconds since 1970 with nanoseconds."""
    found = _STAMP.fullmatch(stamp.decode("ascii", "replace"))
    if not found:
        raise _IncompleteError(f"the engine's time {stamp!r} is not understood")
    zone = "+00:00" if found[3] == "Z" else found[3]
    return f"{int(datetime.fromisoformat(found[1] + zone).timestamp())}.{found[2] or '0':0<9}"


def open_log(client: APIClient, query: LogQuery) -> requests.Response:
    """Return the engine's response, whose content has not been read yet.

    docker-py's own streams are not used: they end silently when the engine is lost, so that half a log would look
    complete, and they do not separate stdout from stderr.
    """
    wanted = {
        "stdout": "1",
        "stderr": "1",
        "follow": str(int(query.follow)),
        "timestamps": str(int(query.stamped)),
        "tail": "all" if query.tail is None else str(query.tail),
        **({"since": query.since} if query.since else {}),
    }
    response = client.get(
        f"{client.base_url}/v{client.api_version}/containers/{query.container_id}/logs",
        params=wanted,
        stream=True,
        timeout=(client.timeout, None if query.follow else client.timeout),
    )
    if response.status_code != 200:
        with response:
            text = response.text
            with suppress(ValueError, KeyError, TypeError):
                text = str(response.json()["message"])
            raise fault(text, status=response.status_code)
    is_told = "Content-Type" in response.headers
    if not is_told and client.inspect_container(query.container_id).get("Config", {}).get("Tty"):
        response.headers["Content-Type"] = _RAW  # engines before API 1.42 do not send it
    return response


def frames_of(response: requests.Response, *, is_stamped: bool = False) -> Iterator[Part]:
    """Yield (stream, bytes) of a log; with times, each begins with one.

    Raises ValueError when it breaks off, RuntimeFault for errors of the engine.
    """
    chunks = response.iter_content(_CHUNK)
    if response.headers.get("Content-Type") == _RAW:
        rest = b""  # a container with a terminal has one stream; each line has its own time if times are requested
        for chunk in chunks:
            *whole, rest = (rest + chunk).split(b"\n")
            yield from ((1, line + b"\n") for line in whole)
            if len(rest) > _LONGEST_LINE:
                yield 1, rest
                rest = rest.partition(b" ")[0] + b" " if is_stamped else b""
        if rest:
            yield 1, rest
    else:
        for stream, content in frames(chunks):
            if stream == _ENGINE_ERROR:
                raise _IncompleteError(f"the engine says: {content.decode(errors='replace').strip()}")
            yield stream, content
    if not (response.raw.chunked or "Content-Length" in response.headers):
        raise ValueError("the engine did not say where the log ends")


def frames(chunks: Iterator[bytes]) -> Iterator[Part]:
    """Yield (stream, bytes) of the engine's multiplexed format. Raises ValueError for a frame without its end."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        start = 0
        while len(buffer) - start >= _HEADER:
            stream, length = struct.unpack_from(">BxxxL", buffer, start)
            end = start + _HEADER + length
            if length > _LONGEST_FRAME:
                raise ValueError("a frame of the log is too long")
            if end > len(buffer):
                break
            yield stream, bytes(buffer[start + _HEADER : end])
            start = end
        del buffer[:start]
    if buffer:
        raise ValueError("the log breaks off inside a frame")


def lines(parts: Iterator[Part]) -> Iterator[bytes]:
    """Yield complete lines without their ends, joining pieces per stream."""
    rests: dict[int, bytes] = {}
    try:
        for stream, part in parts:
            *whole, rest = (rests.get(stream, b"") + part).split(b"\n")
            for line in whole:
                yield line.removesuffix(b"\r")
            if len(rest) > _LONGEST_LINE:
                yield rest
                rest = b""
            rests[stream] = rest
    except RuntimeFault:
        yield from filter(None, rests.values())
        raise
    yield from filter(None, rests.values())


def save(client: APIClient, container_id: str, path: Path) -> None:
    """Write all output to the file, atomically; its first line tells if output may be missing. Raises RuntimeFault."""
    from requests import RequestException

    try:
        try:
            _save(client, container_id, path)
        except RuntimeFault:
            if not client.inspect_container(container_id)["State"].get("Dead"):
                raise
            with kept_log(path) as file:  # a removal has begun, which the engine's own end interrupted
                file.write(b"[gputui: the output is gone, as the engine had begun to remove the container]\n")
    except RequestException:
        raise  # also an OSError, but of the engine, not of the disk
    except ValueError as error:
        raise _IncompleteError(str(error)) from error
    except OSError as error:
        code = CauseCode.DISK_FULL if error.errno in {errno.ENOSPC, errno.EDQUOT} else CauseCode.RUNTIME_ERROR
        raise RuntimeFault(Cause(code, f"cannot keep the log at {path}: {error.strerror or error}")) from error


def _save(client: APIClient, container_id: str, path: Path) -> None:
    limit = limit_of(client, container_id)
    with open_log(client, LogQuery(container_id)) as response, kept_log(path) as file:
        for _, content in frames_of(response):
            file.write(content)
            limit.count(content)
        if notice := _notice(client, container_id, limit):
            line, end = f"[gputui: {notice}]\n".encode(), file.tell()
            for at in reversed(range(0, end, _BLOCK)):  # the content may be larger than the memory
                file.seek(at)
                block = file.read(min(_BLOCK, end - at))
                file.seek(at + len(line))
                file.write(block)
            file.seek(0)
            file.write(line)


def _notice(client: APIClient, container_id: str, limit: LogLimit) -> str:
    if not limit.is_reached:
        return ""
    with open_log(client, LogQuery(container_id, stamped=True)) as response:
        for _, message in frames_of(response):
            return limit.notice(parse_time(message.partition(b" ")[0].decode("ascii", "replace")))
    return ""
