"""Streams of jobs as their clients see them: connections that the owner has upgraded and given to other processes."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress

from gputui.api.client import ApiClient
from gputui.api.routes import UPGRADE
from gputui.domain import frames
from gputui.domain.errors import GputuiError, NoOwnerError
from gputui.domain.frames import MalformedFrameError
from gputui.domain.job_spec import JobId
from gputui.ports import Channel
from gputui.ports.backend import Attach, Entry, FollowLog
from gputui.ports.frame_channel import FrameChannel

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
        """What the process said when it had entered the job; None: it has not."""
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


class StreamClient:
    """Asks the owner for streams of jobs. Calls raise GputuiError: what the owner answers, or a stream's refusal."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

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

        `jobs` are `messages.NewJobs` as JSON.
        """
        awaited = AwaitedStream(*self._client.upgrade(SUBMIT, UPGRADE, jobs, query=query, key=key))
        return awaited.job_id(), awaited

    def log(self, job_id: JobId, wanted: FollowLog) -> OutputStream:
        """Return the output of an attempt, line by line."""
        return OutputStream(*self._log(job_id, wanted))

    def output(self, job_id: JobId, attempt: int) -> Iterator[tuple[bool, bytes]]:
        """Yield the output of an ended attempt in pieces, each with whether it is known to be standard error."""
        channel = entered(*self._log(job_id, FollowLog(attempt, follow=False, apart=True)))
        with closing(channel):
            while (parts := channel.receive()) is not None:
                yield from parts
            if channel.exit_code() is None:
                raise GputuiError(_CUT)

    def _log(self, job_id: JobId, wanted: FollowLog) -> tuple[socket.socket, bytes]:
        query: dict[str, object] = {"stamped": wanted.stamped, "follow": wanted.follow, "apart": wanted.apart}
        if wanted.tail is not None:
            query["tail"] = wanted.tail
        attempt = "latest" if wanted.attempt is None else wanted.attempt
        path = f"/v1/jobs/{job_id}/attempts/{attempt}/log"
        return self._client.upgrade(path, UPGRADE, query=query, method="GET")


def entered(link: socket.socket, early: bytes) -> Channel:
    """Return the streams of a job once they are there. Raises GputuiError with the words of a refusal."""
    stream, deadline = JobStream(link, early), time.monotonic() + PATIENCE
    while stream.greeting is None:
        if not stream.advance(deadline):
            stream.close()
            raise GputuiError(f"the stream of the job has not begun for {PATIENCE:.0f} s")
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
        self._stream = JobStream(link, early)
        deadline = time.monotonic() + PATIENCE
        while self._stream.greeting is None:
            if not self._stream.advance(deadline):
                self._stream.close()
                raise GputuiError(f"the output of the job has not begun for {PATIENCE:.0f} s")
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
        try:
            yield from self._lines()
        finally:
            self._stream.close()

    def _lines(self) -> Iterator[bytes]:
        rest = bytearray()
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

    def close(self) -> None:
        """End the iteration, from any thread."""
        self._closed.set()
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads, which closes it
        if not self._is_read:
            self._stream.close()
