"""Output of a container: followed line by line, or saved whole."""

from __future__ import annotations

import errno
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.errors import RuntimeFault
from gputui.runtime.docker_faults import fault
from gputui.runtime.kept_log import kept

if TYPE_CHECKING:
    import requests
    from docker import APIClient

Part: TypeAlias = tuple[int, bytes]
"""Of which stream, and what."""

_HEADER = 8
"""Of a frame: the stream's number, three zeros, and the length of what follows, big-endian."""
_CHUNK = 64 * 1024
_LONGEST_LINE = 1024 * 1024
"""Bytes after which a line without an end is handed out in pieces."""


@dataclass(frozen=True)
class LogQuery:
    """Which part of a container's output is asked for."""

    container_id: str
    tail: int | None = None
    follow: bool = False
    stamped: bool = False
    """Each message begins with the time at which the engine took it."""
    since: str | None = None


class DockerLog:
    """Lines of a container's two streams. A lost engine ends it: whoever follows opens it again."""

    def __init__(self, client: APIClient, query: LogQuery) -> None:
        self._client = client
        self._query = replace(query, stamped=query.follow or query.stamped)
        self.is_stamped = query.stamped
        """Lines begin with the time at which the engine took them."""
        self._response = open_log(client, self._query)
        self._closed = threading.Event()
        self._is_read = False

    def __iter__(self) -> Iterator[bytes]:
        from requests import RequestException

        self._is_read = True
        try:
            yield from lines(self._stamped() if self.is_stamped else (part[:2] for part in self._parts()))
        # closed from another thread, or the engine went away: both end a stream, in one of many ways
        except (RequestException, RuntimeFault, OSError, ValueError, AttributeError):
            return
        finally:
            self._let_go()

    def close(self) -> None:
        """End the iteration, from any thread."""
        if not self._closed.is_set():
            self._closed.set()
            hang_up(self._response)
            if not self._is_read:
                self._let_go()

    def _stamped(self) -> Iterator[Part]:
        """The time in front of what begins a line: a long line comes in several messages, each with its own."""
        begins: dict[int, bool] = {}
        for stream, content, stamp in self._parts():
            yield stream, stamp + b" " + content if begins.get(stream, True) else content
            begins[stream] = content.endswith(b"\n")

    def _parts(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Of which stream, what, and when where that was asked for."""
        if not self._query.stamped:
            for stream, message in frames(self._response.iter_content(_CHUNK)):
                yield stream, message, b""
            return
        last, alike = b"", 0
        for stream, message in frames(self._response.iter_content(_CHUNK)):
            stamp, _, content = message.partition(b" ")
            last, alike = stamp, alike + 1 if stamp == last else 1
            yield stream, content, stamp
        if self._query.follow and not self._closed.is_set():
            yield from self._missed(last, alike)

    def _missed(self, last: bytes, alike: int) -> Iterator[tuple[int, bytes, bytes]]:
        """What came after the last message seen: Docker 20.10 drops the final ones of a container that is followed."""
        self._response.close()
        query = replace(self._query, follow=False)
        if last:
            query = replace(query, tail=None, since=_unix(last))
        self._response = open_log(self._client, query)
        for stream, message in frames(self._response.iter_content(_CHUNK)):
            stamp, _, content = message.partition(b" ")
            if stamp == last and alike:
                alike -= 1
            elif stamp >= last:
                yield stream, content, stamp

    def _let_go(self) -> None:
        self._closed.set()
        self._response.close()
        self._client.close()


def _unix(stamp: bytes) -> str:
    """Seconds since 1970 with nanoseconds, as the engine takes them for `since`."""
    whole, _, fraction = stamp.decode("ascii").removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return f"{seconds}.{fraction or 0:0<9}"


def open_log(client: APIClient, query: LogQuery) -> requests.Response:
    """The engine's answer, whose content is yet to be read.

    Asked for by hand: docker-py's streams end without a word when the engine is lost, so that half a log would pass
    for a whole one, and they cannot tell stdout from stderr.
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
            raise fault(_message(response), status=response.status_code)
    return response


def hang_up(response: requests.Response) -> None:
    """End a stream that another thread reads: closing the response alone would wait for that thread."""
    from docker.errors import DockerException
    from docker.types import CancellableStream

    # over paramiko it cannot be done; then the reader ends with the next line, or with the process
    with suppress(OSError, AttributeError, DockerException):
        CancellableStream(iter(()), response).close()


def frames(chunks: Iterator[bytes]) -> Iterator[Part]:
    """(stream, bytes) of the engine's multiplexed format; raises ValueError where it breaks off inside a frame."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        start = 0
        while len(buffer) - start >= _HEADER:
            stream, length = struct.unpack_from(">BxxxL", buffer, start)
            end = start + _HEADER + length
            if end > len(buffer):
                break
            yield stream, bytes(buffer[start + _HEADER : end])
            start = end
        del buffer[:start]
    if buffer:
        raise ValueError("the log breaks off inside a frame")


def lines(parts: Iterator[Part]) -> Iterator[bytes]:
    """Whole lines, without their ends; a line's pieces are put together per stream."""
    rests: dict[int, bytes] = {}
    for stream, part in parts:
        *whole, rest = (rests.get(stream, b"") + part).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r")
        if len(rest) > _LONGEST_LINE:
            yield rest
            rest = b""
        rests[stream] = rest
    yield from filter(None, rests.values())


def save(client: APIClient, container_id: str, path: Path) -> None:
    """Write all output to the file, whole or not at all. Raises RuntimeFault."""
    from requests import RequestException

    try:
        with open_log(client, LogQuery(container_id)) as response, kept(path) as file:
            for _, content in frames(response.iter_content(_CHUNK)):
                file.write(content)
    except RequestException:
        raise  # an OSError too, but the engine's fault and not the disk's
    except OSError as error:
        code = CauseCode.DISK_FULL if error.errno in {errno.ENOSPC, errno.EDQUOT} else CauseCode.RUNTIME_ERROR
        raise RuntimeFault(Cause(code, f"cannot keep the log at {path}: {error.strerror or error}")) from error


def _message(response: requests.Response) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(response.json()["message"])
    return response.text
