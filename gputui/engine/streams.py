"""Streams of jobs that leave the owner's process: each connection gets a process of its own.

So no stream flows through the process that schedules, and a stream outlives it. The process gets the connection as its
standard input, and a decision of the owner that nobody else can write: who asks, for which job, and for what. It tells
the owner over a pipe once it has entered the job; only then the audit log has it.

A container to which nobody is attached when its command starts loses the beginning of its output. So connections that
ask for a stream from the start are held here, without a process, until the container is created; its start waits until
they are attached, or for `PATIENCE`.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import msgspec
from msgspec import Struct, field

from gputui.domain import frames
from gputui.domain.access import Caller
from gputui.domain.container import ExecRequest
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from gputui.ports.backend import Attach, LogRequest, StreamRequest

log = logging.getLogger(__name__)

MOST = 64
"""Maximum number of streams of all users together, operators' not counted."""
MOST_OF_ONE = 16
"""Maximum number of streams of one user, so that no user keeps the others out."""
MOST_OF_OPERATORS = 256
PATIENCE = 5.0
"""Seconds that a start waits for those who want to see its job from the start."""
_SEND_WITHIN = 5.0
"""Seconds within which a client takes the first bytes of the answer."""
_UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: gputui-stream/1\r\n\r\n"
_TOO_MANY = (
    "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    "Content-Length: {}\r\n\r\n"
)


class Decision(Struct, frozen=True, omit_defaults=True):
    """Decision of the owner, as the process of a stream is told it."""

    caller: Caller
    store_id: str
    job: Job
    attach: Attach | None = None
    execute: ExecRequest | None = None
    log: LogRequest | None = None
    early: bytes = b""
    """Bytes that the client sent behind its request."""


class _Asked(Struct, frozen=True):
    caller: Caller
    request: StreamRequest
    connection: socket.socket
    early: bytes

    def decided(self, store_id: str, job: Job) -> Decision:
        kinds = {Attach: "attach", LogRequest: "log", ExecRequest: "execute"}
        request: dict[str, Any] = {kinds[type(self.request)]: self.request}
        return Decision(self.caller, store_id, job, early=self.early, **request)

    @property
    def is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        return bool(poll.poll(0))

    def refuse(self, text: str) -> None:
        if isinstance(self.request, LogRequest) and not self.request.in_frames:
            body = text.encode() + b"\n"
            self.send(_TOO_MANY.format(len(body)).encode() + body)
        else:
            self.send(frames.frame(frames.REFUSED, text.encode()))
        self.connection.close()

    def send(self, data: bytes) -> None:
        with suppress(OSError):  # the client is gone
            self.connection.settimeout(_SEND_WITHIN)
            self.connection.sendall(data)
            self.connection.settimeout(None)


def greeting(job_id: JobId, request: StreamRequest) -> bytes:
    """Return the begin of the answer; empty for plain bytes, whose head depends on the output."""
    if isinstance(request, LogRequest) and not request.in_frames:
        return b""
    return _UPGRADED + frames.frame(frames.JOB, str(job_id).encode())


class Streams(Struct, eq=False):
    """Streams of one owner. Calls are safe in any thread; those in the scheduler's do not wait.

    `command` serves a stream; the descriptors of the decision and of the pipe are its last arguments.

    `record` writes into the audit log that a caller has entered a job.
    """

    _command: Sequence[str]
    _store_id: Callable[[], str]
    _job_of: Callable[[JobId], Job]
    _record: Callable[[Caller, Job, str, ExecRequest | None], object]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _served: list[Caller] = field(default_factory=list)
    _held: dict[JobId, list[_Asked]] = field(default_factory=dict)
    _is_closed: bool = True

    def serve(
        self, caller: Caller, job_id: JobId, request: StreamRequest, connection: socket.socket, early: bytes = b""
    ) -> None:
        """Answer a request for a stream, whose caller may have it; the connection is given away."""
        asked = _Asked(caller, request, connection, early)
        if begin := greeting(job_id, request):
            asked.send(begin)
        if refusal := self._refusal(caller):
            asked.refuse(refusal)
            return
        try:
            job = self._job_of(job_id)
            waits = isinstance(request, Attach) and request.from_start
            if not waits or job.has_ended or job.state is JobState.RUNNING:
                self._start(asked, job)
                return
            with self._lock:
                if self._is_closed:  # the next owner is asked
                    asked.connection.close()
                else:
                    self._held.setdefault(job.id, []).append(asked)
            self.look()  # it may have started meanwhile
        except GputuiError as error:
            asked.refuse(str(error))

    def _refusal(self, caller: Caller) -> str:
        """Return why that user gets no further stream; empty if allowed."""
        with self._lock:
            held = [asked.caller for some in self._held.values() for asked in some]
            users = [each.uid for each in (*held, *self._served) if not each.operates]
            ours = len(held) + len(self._served) - len(users)
        if caller.operates:
            return f"operators have {MOST_OF_OPERATORS} streams of jobs open" if ours >= MOST_OF_OPERATORS else ""
        if users.count(caller.uid) >= MOST_OF_ONE:
            hint = "detach from a job, or end a command of `gputui exec`"
            return f"you have {MOST_OF_ONE} streams of jobs open, the most for one user: {hint}"
        return f"{MOST} streams of jobs are open, the most for all users: try again later" if len(users) >= MOST else ""

    def before_start(self, job_id: JobId) -> None:
        """Attach those who want to see a job from its start, whose container is created; wait for `PATIENCE` at most.

        Call it in the thread of a worker.
        """
        deadline = time.monotonic() + PATIENCE
        for entered in self._hand_over(job_id):
            entered.wait(max(0.0, deadline - time.monotonic()))

    def look(self) -> None:
        """Serve those who wait for jobs that run by now, as host jobs, whose output is kept; forget who has left."""
        with self._lock:
            waiting = [(job_id, tuple(some)) for job_id, some in self._held.items()]
        for job_id, some in waiting:
            gone = [asked for asked in some if asked.is_gone]
            with self._lock:
                left = self._held.get(job_id, [])
                for asked in gone:
                    if asked in left:
                        left.remove(asked)
                        asked.connection.close()
                if not left:
                    self._held.pop(job_id, None)
            try:
                job = self._job_of(job_id)
            except NotFoundError:
                over = True
            except GputuiError:  # the store cannot be read now
                continue
            else:
                over = job.has_ended
            if over or job.state is JobState.RUNNING:
                threading.Thread(target=self._hand_over, args=(job_id,), name="gputui-streams", daemon=True).start()

    def _hand_over(self, job_id: JobId) -> list[threading.Event]:
        """Start the processes of those who wait for a job; return what is set once each has entered, or failed."""
        with self._lock:
            some = self._held.pop(job_id, [])
        found = []
        for asked in some:
            try:
                job = self._job_of(job_id)
                if job.has_ended:
                    asked.refuse(f"job {job.shown_id} is {job.state}")
                elif not asked.is_gone:
                    found.append(self._start(asked, job))
                else:
                    asked.connection.close()
            except GputuiError as error:
                asked.refuse(str(error))
        return found

    def _start(self, asked: _Asked, job: Job) -> threading.Event:
        entered = threading.Event()
        try:
            with asked.connection, ExitStack() as opened:
                rest = memoryview(msgspec.json.encode(asked.decided(self._store_id(), job)))
                # a file in memory, which the process inherits and nobody else can open
                decision = os.memfd_create("gputui-stream", os.MFD_CLOEXEC)
                opened.callback(os.close, decision)
                while rest:
                    rest = rest[os.write(decision, rest) :]
                os.lseek(decision, 0, os.SEEK_SET)
                pipe = os.pipe2(os.O_CLOEXEC)
                for end in pipe:
                    opened.callback(os.close, end)
                process = subprocess.Popen(  # noqa: S603 - this Python, and our own module
                    [*self._command, str(decision), str(pipe[1])],
                    stdin=asked.connection.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(decision, pipe[1]),
                    cwd="/",
                    start_new_session=True,
                )
                heard = os.dup(pipe[0])
        except OSError as error:
            log.warning("a stream of job %d cannot be served: %s", job.id, error)
            entered.set()
            return entered
        with self._lock:
            self._served.append(asked.caller)
        arguments = (process, heard, asked, job, entered)
        threading.Thread(target=self._tend, args=arguments, name="gputui-streams", daemon=True).start()
        return entered

    def _tend(
        self, process: subprocess.Popen[bytes], heard: int, asked: _Asked, job: Job, entered: threading.Event
    ) -> None:
        """Record that a stream has entered its job, once its process says so; then wait for its end."""
        try:
            has_entered = bool(os.read(heard, 1))
            os.close(heard)
            entered.set()
            if has_entered and not isinstance(asked.request, LogRequest):
                execute = asked.request if isinstance(asked.request, ExecRequest) else None
                try:
                    self._record(asked.caller, job, "exec" if execute else "attach", execute)
                except (GputuiError, OSError) as error:
                    text = "%s has entered job %d, and the audit log cannot say so: %s"
                    log.warning(text, asked.caller.user, job.id, error)
        finally:
            process.wait()
            with self._lock:
                self._served.remove(asked.caller)

    def open(self) -> None:
        with self._lock:
            self._is_closed = False

    def close(self) -> None:
        """Hang up on those who wait, who ask the next owner; open streams continue."""
        with self._lock:
            self._is_closed = True
            held = [asked for some in self._held.values() for asked in some]
            self._held.clear()
        for asked in held:
            asked.connection.close()
