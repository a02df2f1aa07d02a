"""Receivers of what an owner sends without an end: its events, and the streams of its jobs."""

from __future__ import annotations

import logging
import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial

from msgspec import Struct, field

from gputui.api.client import ApiClient, ByteStream
from gputui.api.deltas import SnapshotDecoder, SnapshotUpdate
from gputui.api.http import AboutView, Focus, StreamHello
from gputui.api.routes import UPGRADE
from gputui.domain import frames
from gputui.domain.decoding import decode_json
from gputui.domain.errors import GputuiError, NoOwnerError
from gputui.domain.frames import MalformedFrameError
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import CONNECTING, EMPTY, Snapshot
from gputui.ports import Channel
from gputui.ports.backend import Attach, Entry, LogRequest
from gputui.ports.runtime import FrameChannel
from gputui.threads import Watcher

log = logging.getLogger(__name__)

SILENT_AFTER = 15.0
"""Seconds without a byte after which a stream is cut: the owner comments every five."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
"""Seconds before the first new try, and at most."""
_SHORT = 2.0
"""Seconds after which a stream that ended counts as a failure no longer."""
LONGEST_EVENT = 64 * 1024**2


class Follower:
    """Keeps the newest snapshot of an owner, in a thread of its own. Methods may be called from any thread."""

    def __init__(
        self,
        client: ApiClient,
        changed: Callable[[], object] = lambda: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        longest_pause: float = LONGEST_PAUSE,
    ) -> None:
        """`changed` is called in the thread after each snapshot, and when the owner is lost."""
        self._client = client
        self._changed = changed
        self._now = now
        self._longest_pause = longest_pause
        self._heard = threading.Condition()
        self._closed = threading.Event()
        self._stream: ByteStream | None = None
        self._decoder = SnapshotDecoder()
        self._last_id = ""
        self._heard_at = 0.0
        self._focus: str | None = None
        self._name = ""
        self.about: AboutView | None = None
        """The owner's first message; None before it."""
        self.snapshot: Snapshot = EMPTY
        self.number = 0
        """Number of snapshots and losses so far."""
        self.problem: str = CONNECTING
        """Why the owner does not answer; empty while he does."""
        self.is_owned: bool | None = None
        """True if somebody listens; None before the first try."""
        self._thread = Watcher("follower", self._run)

    def start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    @property
    def age(self) -> float:
        """Seconds since the owner was last heard, while he does not answer; else 0."""
        return time.monotonic() - self._heard_at if self.problem and self._heard_at else 0.0

    @property
    def has_snapshot(self) -> bool:
        return self.snapshot is not EMPTY

    def wait(self, number: int, seconds: float) -> bool:
        """Wait until there is more than `number` tells; return False if there was nothing for so long."""
        with self._heard:
            return self._heard.wait_for(lambda: self.number > number or self._closed.is_set(), seconds)

    def look_at(self, gpu: str | None) -> None:
        """Have the throughput of this GPU read for as long as the follower lives. Blocks for a request."""
        if gpu != self._focus:
            self._focus = gpu
            self._send_focus()

    def _send_focus(self) -> None:
        if self._name:
            with suppress(GputuiError):  # its readings stay unknown
                self._client.request("PUT", "/v1/focus", Focus(self._name, self._focus))

    def close(self) -> None:
        self._closed.set()
        if (stream := self._stream) is not None:
            stream.close()
        with self._heard:
            self._heard.notify_all()

    def join(self, timeout: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout)

    # the thread

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                problem, is_owned = self._follow(), True
            except GputuiError as error:
                problem, is_owned = str(error), not isinstance(error, NoOwnerError)
            except Exception as error:  # a border: whatever an owner sends must not end the thread
                log.exception("events cannot be read")
                problem, is_owned = f"{type(error).__name__}: {error}", True
                self._last_id, self._decoder = "", SnapshotDecoder()
            failures = 0 if time.monotonic() - began > _SHORT else failures + 1
            self.problem, self.is_owned = problem or "it ended", is_owned
            self._tell()
            pause = min(self._longest_pause, FIRST_PAUSE * 2 ** min(failures, 8))
            self._closed.wait(pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads consoles, no secret

    def _follow(self) -> str:
        self._stream = stream = open_events(self._client, self._last_id)

        def heard() -> Iterator[bytes]:
            for part in stream:
                self._heard_at = time.monotonic()
                yield part

        try:
            if self._closed.is_set():
                return ""
            for event, number, data in events_of(heard()):
                if event == "hello":
                    hello = decode_json(data, StreamHello)
                    self.about, self._name = hello.about, hello.stream
                    if self._focus is not None:
                        self._send_focus()
                elif event == "reset":
                    self._decoder, self._last_id = SnapshotDecoder(), ""
                elif event == "snapshot":
                    update = decode_json(data, SnapshotUpdate)
                    snapshot = self._decoder.take(update, self._now())
                    if not update.is_partial:
                        self._last_id = number or self._last_id
                        self.snapshot = snapshot
                        self.problem, self.is_owned = "", True
                        self._tell()
        finally:
            self._stream = None
            self._name = ""
            stream.close()
        silence = time.monotonic() - self._heard_at
        return f"it sent nothing for {silence:.0f} s" if silence >= SILENT_AFTER else "the connection was closed"

    def _tell(self) -> None:
        with self._heard:
            self.number += 1
            self._heard.notify_all()
        if not self._closed.is_set():
            self._changed()


def open_events(client: ApiClient, after: str = "", kinds: str | None = None) -> ByteStream:
    """Open a stream of events, of those after the one with this id if there is one; it is cut if it falls silent.

    `kinds` of events for programs, with commas between; None: changes of the snapshot.
    """
    headers = {"Last-Event-ID": after} if after else {}
    return client.stream("/v1/events", query={"kinds": kinds}, headers=headers, silence=SILENT_AFTER)


def events_of(parts: Iterable[bytes]) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the id and the data of each event of a stream; raises GputuiError for a line without an end."""

    def lines() -> Iterator[bytes]:
        rest: list[bytes] = []
        size = 0
        for part in parts:
            *whole, last = part.split(b"\n")
            for line in whole:
                yield b"".join((*rest, line))
                rest, size = [], 0
            if last:
                rest.append(last)
                size += len(last)
                if size > LONGEST_EVENT:
                    raise GputuiError("the owner of the queue sends an event without an end")

    name, number, data = "message", "", b""
    for line in lines():
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if data:
                yield name, number, data
            name, number, data = "message", "", b""
        elif field == b"event":
            name = value.decode(errors="replace")
        elif field == b"id":
            number = value.decode(errors="replace")
        elif field == b"data":
            data = data + b"\n" + value if data else value


class EventWatch(Struct, eq=False, weakref=True):
    """Descriptor that becomes readable with each news of a follower; see `ports.store.StoreWatch`."""

    _fd: int = field(default_factory=partial(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self) -> None:
        with self._lock, suppress(BlockingIOError):
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def fileno(self) -> int:
        return self._fd

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


SUBMIT = "/v1/jobs"
"""Path of the route that submits."""
PATIENCE = 30.0
"""Seconds within which a stream begins: its process starts, and an engine answers."""
_CUT = "the output of the job was cut off: the connection ended"


class JobStream(FrameChannel):
    """Channel to the process of a stream, or to the owner while the job has not started."""

    def __init__(self, link: socket.socket, early: bytes = b"") -> None:
        """`early` are bytes that came behind the answer to the request. Raises GputuiError if they refuse it."""
        super().__init__(link, is_tty=False)
        self.job_id: JobId | None = None
        self.greeting: bytes | None = None
        """Words of the process once it has entered the job; None: it has not."""
        self.hear = self._heard
        self.take(early)

    def take(self, early: bytes) -> None:
        """Take bytes that were received before. Raises GputuiError if they refuse the stream, and closes it."""
        try:
            self.feed(early)
        except MalformedFrameError as error:
            self.close()
            raise GputuiError(f"what answers is no stream of a job: {error}") from error
        except GputuiError:
            self.close()
            raise

    def _heard(self, kind: bytes, content: bytes) -> None:
        if kind == frames.JOB and content.isdigit():
            self.job_id = int(content)
        elif kind == frames.READY:
            self.greeting = content
            self.is_tty = content == b"tty"

    def advance(self, deadline: float | None) -> bool:
        """Read what comes next; return False if nothing came until a time of the monotonic clock. None: do not wait.

        Raises GputuiError for a refusal, and NoOwnerError at the end of the connection; both close it.
        """
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        if not poll.poll(0 if deadline is None else 1000 * max(0.0, deadline - time.monotonic())):
            return False
        known, self._early = self._early, []
        try:
            parts = self.receive()
        except GputuiError:
            self.close()
            raise
        if parts is None:
            self.close()
            raise NoOwnerError("the owner of the queue has ended the connection", hint="see gputui.log")
        self._early = known + parts
        return True


class StreamClient(Struct, eq=False):
    """Asks the owner for streams of jobs. Calls raise GputuiError: what the owner answers, or a stream's refusal."""

    _client: ApiClient

    def enter(self, job_id: JobId, request: Entry) -> Channel:
        """Return the streams of a job, or of a command in it, once they are there."""
        verb = "attach" if isinstance(request, Attach) else "exec"
        return entered(*self._client.upgrade(f"/v1/jobs/{job_id}/{verb}", UPGRADE, request))

    def await_start(self, job_id: JobId, detach_keys: str = "") -> AwaitedStream:
        """Return the streams of a job from its next start on."""
        request = Attach(detach_keys, from_start=True)
        return AwaitedStream(*self._client.upgrade(f"/v1/jobs/{job_id}/attach", UPGRADE, request))

    def submit(self, jobs: bytes, query: Mapping[str, str], key: str) -> tuple[JobId, AwaitedStream]:
        """Submit a job, and wait for its start on the same connection; with the same key it is the same job.

        `jobs` are `http.NewJobs` as JSON.
        """
        awaited = AwaitedStream(*self._client.upgrade(SUBMIT, UPGRADE, jobs, query=query, key=key))
        return awaited.job_id(), awaited

    def log(self, job_id: JobId, wanted: LogRequest) -> OutputStream:
        return OutputStream(*self._log(job_id, wanted))

    def _log(self, job_id: JobId, wanted: LogRequest) -> tuple[socket.socket, bytes]:
        query = {"stamped": wanted.stamped, "follow": wanted.follow, "apart": wanted.apart, "tail": wanted.tail}
        attempt = "latest" if wanted.attempt is None else wanted.attempt
        path = f"/v1/jobs/{job_id}/attempts/{attempt}/log"
        return self._client.upgrade(path, UPGRADE, query=query, method="GET")

    def output(self, job_id: JobId, attempt: int) -> Iterator[tuple[bool, bytes]]:
        """Yield the output of an ended attempt in pieces, each with whether it is known to be standard error."""
        channel = entered(*self._log(job_id, LogRequest(attempt, apart=True)))
        with closing(channel):
            while (parts := channel.receive()) is not None:
                yield from parts
            if channel.exit_code() is None:
                raise GputuiError(_CUT)


def entered(link: socket.socket, early: bytes, what: str = "the stream of the job") -> JobStream:
    """Return the streams of a job once they are there. Raises GputuiError with the words of a refusal."""
    stream, deadline = JobStream(link, early), time.monotonic() + PATIENCE
    while stream.greeting is None:
        if not stream.advance(deadline):
            stream.close()
            raise GputuiError(f"{what} has not begun for {PATIENCE:.0f} s")
    return stream


class AwaitedStream:
    """Streams of a job from its start on; see `ports.backend.AwaitedChannel`."""

    def __init__(self, link: socket.socket, early: bytes) -> None:
        self._stream = JobStream(link)
        self._refusal: GputuiError | None = None
        try:
            self._stream.take(early)
        except GputuiError as error:  # the job may be submitted nevertheless
            self._refusal = error

    def job_id(self) -> JobId:
        """Return the job's number, which the owner tells first. Raises GputuiError."""
        deadline = time.monotonic() + PATIENCE
        while self._stream.job_id is None:
            if self._refusal is not None:
                raise self._refusal
            if not self._stream.advance(deadline):
                raise GputuiError(f"the owner of the queue has not told the job's number for {PATIENCE:.0f} s")
        return self._stream.job_id

    def fileno(self) -> int:
        return self._stream.fileno()

    def channel(self) -> Channel | None:
        if self._refusal is not None:
            raise self._refusal
        while self._stream.greeting is None:
            if not self._stream.advance(None):
                return None
        return self._stream

    def close(self) -> None:
        self._stream.close()


class OutputStream:
    """Output of an attempt that a process of the owner sends. Raises GputuiError if it is not complete."""

    def __init__(self, link: socket.socket, early: bytes) -> None:
        self._stream = entered(link, early, "the output of the job")
        self.is_stamped = self._stream.greeting == b"stamped"
        self.notice = ""
        """Sentence about output that is not shown, known at the end."""
        self._link = link
        self._tell: Callable[[bytes], None] = lambda line: None
        self._closed, self._is_read = threading.Event(), False

    def watch(self, tell: Callable[[bytes], None]) -> None:
        """Have `tell` called with a line that has not ended, as often as it grew."""
        self._tell = tell

    def __iter__(self) -> Iterator[bytes]:
        self._is_read = True
        rest = bytearray()
        try:
            while not self._closed.is_set():
                parts = self._stream.receive()
                if parts is None:
                    if self._closed.is_set() or self._stream.exit_code() == 0:
                        return
                    raise GputuiError(_CUT)
                for is_notice, piece in parts:
                    if is_notice:
                        self.notice += piece.decode(errors="replace")
                        continue
                    *lines, last = piece.split(b"\n")
                    for line in lines:
                        yield bytes(rest) + line
                        rest.clear()
                    rest += last
                if rest and not self._stream.has_pending:
                    self._tell(bytes(rest))
        finally:
            self._stream.close()

    def close(self) -> None:
        """End the iteration, from any thread."""
        self._closed.set()
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads, which closes it
        if not self._is_read:
            self._stream.close()
