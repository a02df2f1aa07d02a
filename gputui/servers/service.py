"""The server's end: sends snapshots to one console, and carries out its requests."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count, islice
from typing import BinaryIO

import msgspec
from msgspec import Raw

from gputui import __version__
from gputui.api.deltas import SnapshotEncoder, SnapshotUpdate, in_parts, json
from gputui.domain.action import Action
from gputui.domain.decoding import decode_json
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.submit_action import Done
from gputui.ports import LiveLogStream, LogStream
from gputui.ports.actions import ActionChange
from gputui.ports.backend import Backend
from gputui.servers.protocol import (
    ACTIONS,
    ALIVE_EVERY,
    ASK_EVERY,
    CALLS,
    LONGEST,
    OLDEST,
    PROTOCOL,
    ActionResult,
    Answer,
    ChangeNote,
    ConsoleRequest,
    Fault,
    Hello,
    LogPart,
    Message,
    OpenedLog,
    arguments_of,
    encoded,
)

LOOK_EVERY = 0.25
"""Seconds between two looks at whether anything has changed."""
SEND_EVERY = 1.0
"""Least seconds between two snapshots."""
SILENT_AFTER = 6 * ASK_EVERY
"""Seconds without a request after which the console is gone, even if its connection seems open."""
MOST_CHANGES = 20_000
"""Maximum number of changes that can be undone."""
_HELD_LINES = 2000
_PART_BYTES = 256 * 1024
_MOST_REST = 4096
"""Bytes of a line that has not ended which are sent: its end, which is what a progress bar shows."""
_LOG_PATIENCE = 1.0


class _OpenLog:
    """A log that a console reads: one thread reads ahead, but no further than the console follows."""

    def __init__(self, stream: LogStream) -> None:
        self._stream = stream
        self._lines: queue.Queue[bytes | None] = queue.Queue(_HELD_LINES)
        self._is_closed = False
        self._error: Exception | None = None
        self._rest = b""
        if isinstance(stream, LiveLogStream):
            stream.watch(self._see_rest)
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def _run(self) -> None:
        try:
            for line in self._stream:
                self._rest = b""
                if not self._put(line):
                    return
        except Exception as error:  # noqa: BLE001 - a border: the console shows it in the log's pane
            self._error = error
        self._put(None)

    def _see_rest(self, line: bytes) -> None:
        self._rest = line[-_MOST_REST:]

    def _put(self, line: bytes | None) -> bool:
        """Wait for room; return False once the log is closed."""
        while not self._is_closed:
            with suppress(queue.Full):
                self._lines.put(line, timeout=1)
                return True
        return False

    def read(self) -> LogPart:
        """Return the next lines, waiting up to a second for the first; raises the error that ended the stream."""
        lines: list[bytes] = []
        size, wait = 0, _LOG_PATIENCE
        while size < _PART_BYTES:
            try:
                line = self._lines.get(timeout=wait) if wait else self._lines.get_nowait()
            except queue.Empty:
                break
            if line is None:
                if self._error is not None and not lines:
                    raise self._error
                self._lines.put(None) if lines and self._error else None
                return LogPart(tuple(lines), is_over=self._error is None)
            lines.append(line)
            size, wait = size + len(line), 0.0
        return LogPart(tuple(lines), rest=self._rest)

    def close(self) -> None:
        """End the reading thread."""
        self._is_closed = True
        self._stream.close()


class _Calls:
    """Carries out requests: each is a method of the backend, or one of these that keep something for the console."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._changes: dict[int, ActionChange] = {}
        self._numbers = count(1)
        self._logs: dict[int, _OpenLog] = {}
        self._turn = threading.Lock()

    def carry_out(self, request: ConsoleRequest) -> Answer:
        """Return the answer to a request; errors are answers too."""
        try:
            arguments = arguments_of(request)
            result = getattr(self if hasattr(self, request.call) else self._backend, request.call)(*arguments)
            notes: tuple[ChangeNote, ...] = ()
            if isinstance(result, Done):
                notes = self._noted(result.changes) if request.call == "act" else ()
                result = ActionResult(result.ids, result.window, result.jobs)
            return Answer(request.id, Raw(json(result)), changes=notes)
        except Exception as error:  # noqa: BLE001 - a border: the console shows it
            return Answer(request.id, error=Fault.of(error))

    def _noted(self, changes: Sequence[ActionChange]) -> tuple[ChangeNote, ...]:
        """Keep changes, to be undone by their numbers."""
        noted = {next(self._numbers): change for change in changes[-MOST_CHANGES:]}
        self._changes |= noted
        while len(self._changes) > MOST_CHANGES:
            del self._changes[next(iter(self._changes))]
        return tuple(ChangeNote(each, change.subject({}), change.done) for each, change in noted.items())

    def alive(self) -> None:
        """Do nothing: the console is still there."""

    def act(self, action: Action) -> Done:
        """Carry out an action, one at a time."""
        with self._turn:
            return self._backend.act(action)

    def undo(self, numbers: tuple[int, ...]) -> tuple[str, ...]:
        """Undo changes; return for each why it was not undone."""
        if unknown := [number for number in numbers if number not in self._changes]:
            raise NotFoundError(f"{len(unknown)} of these changes were made before this connection, or too long ago")
        with self._turn:
            answers = {id(change): why for change, why in self._backend.undo([self._changes[n] for n in numbers])}
        return tuple(answers.get(id(self._changes[number]), "") for number in numbers)

    def history(self, since: datetime | None, most: int) -> Iterable[Job]:
        """Yield at most so many ended jobs."""
        return islice(self._backend.history(since), most)

    def log_open(self, job_id: JobId, attempt: int | None, tail: int | None, follow: bool, stamped: bool) -> OpenedLog:
        """Open a log, to be read in parts."""
        stream = self._backend.log(job_id, attempt, tail=tail, follow=follow, stamped=stamped)
        number = next(self._numbers)
        self._logs[number] = _OpenLog(stream)
        return OpenedLog(number, getattr(stream, "is_stamped", False))

    def log_read(self, number: int) -> LogPart:
        """Return the next lines of an open log."""
        if (log := self._logs.get(number)) is None:
            raise NotFoundError("this log is not open")
        return log.read()

    def log_close(self, number: int) -> None:
        """Close a log."""
        if log := self._logs.pop(number, None):
            log.close()

    def close(self) -> None:
        """Close all logs."""
        for number in tuple(self._logs):
            self.log_close(number)


class Service:
    """Serves one console on two streams until the first one ends."""

    def __init__(
        self, backend: Backend, requests: BinaryIO, messages: BinaryIO, give_up: Callable[[], object] = lambda: None
    ) -> None:
        """`give_up` is called on another thread when the console is gone although `requests` has not ended."""
        self._backend = backend
        self._snapshots = backend.snapshots()
        self._requests = requests
        self._messages = messages
        self._calls = _Calls(backend)
        self._give_up = give_up
        self._sending = threading.Lock()
        self._over = threading.Event()
        self._asked_at = time.monotonic()

    def run(self) -> None:
        """Serve the console; returns when its stream of requests ends, or nobody reads the messages."""
        about = self._backend.about()
        hello = Hello(
            gputui=__version__,
            protocol=PROTOCOL,
            oldest=OLDEST,
            host=about.host,
            user=about.user,
            home=about.home,
            calls=(*CALLS, *ACTIONS),
            scheduler=about.scheduler,
            policy=about.policy,
        )
        self._send(Message(hello=hello))
        threading.Thread(target=self._send_snapshots, name="snapshots", daemon=True).start()
        try:
            while not self._over.is_set() and (line := self._requests.readline(LONGEST)):
                self._asked_at = time.monotonic()
                self._take(line)
        finally:
            self._over.set()
            self._calls.close()

    def _take(self, line: bytes) -> None:
        """Begin to carry out a request; each has a thread, since some wait for a log or an engine."""
        try:
            request = decode_json(line, ConsoleRequest)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._send(Message(answer=Answer(None, error=Fault.of(InputError(f"not a request: {error}")))))
            return

        def carry_out() -> None:
            self._send(Message(answer=self._calls.carry_out(request)))

        threading.Thread(target=carry_out, name="request", daemon=True).start()

    def _send(self, message: Message) -> None:
        data = encoded(message)
        try:
            with self._sending:
                self._messages.write(data)
                self._messages.flush()
        except (OSError, ValueError):  # nobody reads them
            if not self._over.is_set():
                self._over.set()
                self._give_up()

    def _send_snapshots(self) -> None:
        """Send the snapshot when it has changed; give up when the console has been silent for too long."""
        encoder, version, sent_at = SnapshotEncoder(), None, 0.0
        while not self._over.wait(LOOK_EVERY if sent_at else 0):
            now = time.monotonic()
            if now - self._asked_at > SILENT_AFTER:
                self._over.set()
                self._give_up()
                return
            present = self._snapshots.version()
            if now - sent_at >= ALIVE_EVERY or (present != version and now - sent_at >= SEND_EVERY):
                version, sent_at = present, now
                for part in in_parts(self._update(encoder)):
                    self._send(Message(update=part))

    def _update(self, encoder: SnapshotEncoder) -> SnapshotUpdate:
        """Return the changes of the snapshot; a notice while the queue cannot be read."""
        try:
            return encoder.update(self._snapshots.read())
        except Exception as error:  # noqa: BLE001 - a border: the console shows it, and the next one may succeed
            text = str(error) if isinstance(error, GputuiError | OSError) else f"{type(error).__name__}: {error}"
            notice = {"severity": "error", "text": text, "halts": True}
            encoder.forget("notices")
            return SnapshotUpdate({"notices": Raw(json([notice]))})
