"""Connection of a console to one server: a `gputui remote` process there, over ssh, opened again when it ends."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from itertools import count
from typing import Any

import msgspec
from msgspec import Raw

from gputui import __version__
from gputui.api.deltas import SnapshotDecoder, json
from gputui.domain.action import Action
from gputui.domain.decoding import decode_json
from gputui.domain.errors import GputuiError
from gputui.domain.settings import ServerSettings, Settings
from gputui.domain.snapshot import CONNECTING, EMPTY, ServerView, Snapshot
from gputui.domain.ssh_address import parse_ssh_address
from gputui.domain.text import plain
from gputui.servers.merging import IdMapper
from gputui.servers.protocol import (
    ALIVE_EVERY,
    ASK_EVERY,
    CALLS,
    LONGEST,
    OLDEST,
    PROTOCOL,
    Answer,
    ChangeNote,
    ConsoleRequest,
    Hello,
    Message,
    encoded,
)

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 15
"""Seconds for ssh to connect."""
SILENT_AFTER = 5 * ALIVE_EVERY
"""Seconds without a message after which a connection is given up."""
HELLO_WITHIN = 30.0
"""Seconds for the first message."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the first new try, and at most."""
_EXIT_WITHIN = 5.0
"""Seconds from the end of its output to that of the process."""
ANSWER_WITHIN = 90.0
"""Seconds for an answer; the server's lock of the queue is waited for up to 60."""
_GARBLED = 20
"""Lines that are no messages after which a connection is given up; before the first message a shell may write some."""
_SSH = (
    "ssh",
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    f"ConnectTimeout={CONNECT_TIMEOUT}",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
    "-o",
    "Compression=yes",
)


def command_of(server: ServerSettings, *words: str) -> list[str]:
    """Return the command that runs gputui with these arguments on a server; without an address, on this machine."""
    if not server.address:
        return [sys.executable, "-P", "-m", "gputui", *words]
    address = parse_ssh_address(server.address, f"servers.{server.name}")
    remote = f"{server.command} {shlex.join(words)}"
    return [*_SSH, *address.words, remote]


class ServerConnection:
    """Keeps one server connected. Only `call` blocks; it may be called from any thread, and raises GputuiError."""

    def __init__(
        self, settings: ServerSettings, number: int, now: Callable[[], datetime], changed: Callable[[], object]
    ) -> None:
        """`number` is that of the server in this console, from 1; `changed` is called after each change of `view`."""
        self.name = settings.name
        self.settings = settings
        self.mapper = IdMapper(number, settings.name)
        """Translation of its ids."""
        self._now = now
        self._changed = changed
        self.hello: Hello | None = None
        """The server's first message; None before it."""
        self.term = 0
        """Number of connections so far."""
        self._snapshot: Snapshot = EMPTY
        self._seen_at: datetime | None = None
        self._problem = CONNECTING
        self._process: subprocess.Popen[bytes] | None = None
        self._heard_at = 0.0
        self._silence = ""
        """Why the present connection was cut from here; empty if it was not."""
        self._waiting: dict[int, Future[Answer]] = {}
        """Requests that wait for their answers."""
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"server-{settings.name}", daemon=True)

    def start(self) -> None:
        """Begin to connect; a second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def view(self) -> ServerView:
        """Return the server with its last snapshot, whose ids and names are those of this console."""
        hello = self.hello
        settings = Settings(scheduler=hello.scheduler, policy=hello.policy) if hello else Settings()
        return ServerView(self.name, self.mapper.snapshot(self._snapshot), settings, self._seen_at, self._problem)

    @property
    def snapshot(self) -> Snapshot:
        """Return the last snapshot, with the server's own ids; EMPTY before the first."""
        return self._snapshot

    @property
    def is_up(self) -> bool:
        """Return whether the server answers."""
        return not self._problem

    def call(self, name: str, *arguments: object) -> tuple[Any, tuple[ChangeNote, ...]]:
        """Return the result of a request, and its changes that can be undone."""
        if self._problem:
            raise GputuiError(f"it does not answer: {self._problem}", where=self.name)
        wish = arguments[0].verb if arguments and isinstance(arguments[0], Action) else name
        if self.hello is not None and wish not in self.hello.calls:
            text = f"its gputui {plain(self.hello.gputui, 20)} knows no {wish}"
            raise GputuiError(text, where=self.name, hint="update gputui there")
        number, waiting = next(self._numbers), Future[Answer]()
        with self._lock:
            self._waiting[number] = waiting
        try:
            self._write(ConsoleRequest(number, name, Raw(json(arguments))))
            answer = waiting.result(ANSWER_WITHIN)
        except TimeoutError:
            what = f"no answer to {wish} within {ANSWER_WITHIN:.0f}s; it may still be done"
            raise GputuiError(what, where=self.name) from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if answer.error is not None:
            raise answer.error.error(self.name)
        try:
            return decode_json(answer.result, CALLS[name][1]), answer.changes
        except (msgspec.MsgspecError, RecursionError) as error:
            raise GputuiError(f"its answer to {wish} cannot be read: {error}", where=self.name) from error

    def ask(self, name: str, *arguments: object) -> Any:
        """Return the result of a request that changes nothing that could be undone."""
        return self.call(name, *arguments)[0]

    def tell(self, name: str, *arguments: object) -> None:
        """Send a request whose answer nobody needs."""
        self._write(ConsoleRequest(0, name, Raw(json(arguments))))

    def _write(self, request: ConsoleRequest) -> None:
        process = self._process
        try:
            if process is None or process.stdin is None:
                raise BrokenPipeError
            with self._writing:
                process.stdin.write(encoded(request))
                process.stdin.flush()
        except (OSError, ValueError):
            raise GputuiError("the connection is cut", where=self.name) from None

    def close(self) -> None:
        """End the connection, without waiting."""
        self._closed.set()
        self._end_process()

    def join(self, timeout: float) -> None:
        """Wait for the end of the connection."""
        if self._thread.ident is not None:
            self._thread.join(timeout)

    # the connection's thread

    def _run(self) -> None:
        tries = 0
        while not self._closed.is_set():
            began = time.monotonic()
            problem = self._connect()
            tries = 0 if time.monotonic() - began > LONGEST_PAUSE or not self._problem else tries + 1
            self._fail(problem)
            self._closed.wait(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(tries, 5)) * random.uniform(0.8, 1.2))

    def _connect(self) -> str:
        """Open the connection and read it to its end; return why it ended."""
        try:
            process = subprocess.Popen(
                command_of(self.settings, "remote"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
            )
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        self._process, self._heard_at, self._silence = process, time.monotonic(), ""
        errors: deque[bytes] = deque(maxlen=20)
        reader = threading.Thread(target=_read_errors, args=(process, errors), name="server-errors", daemon=True)
        watch = threading.Thread(target=self._watch, args=(process,), name="server-watch", daemon=True)
        reader.start()
        watch.start()
        try:
            why = self._read(process) or self._silence
            if not why:  # it has closed its output, and is about to end with the reason in its exit code
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_EXIT_WITHIN)
        except Exception as error:  # a border: whatever a server sends must not end its thread
            log.exception("%s", self.name)
            why = f"{type(error).__name__}: {error}"
        finally:
            self._end_process()
        code = process.wait()
        reader.join(2)
        watch.join(2)
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.close()  # type: ignore[union-attr]
        return why or self._words_of(code, [plain(line.decode(errors="replace"), 200) for line in errors])

    def _read(self, process: subprocess.Popen[bytes]) -> str:
        """Take all messages; return why the connection is given up, empty if it ended by itself."""
        decoder, garbled, is_greeted = SnapshotDecoder(), 0, False
        assert process.stdout is not None
        while line := process.stdout.readline(LONGEST):
            try:
                message = decode_json(line, Message)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
                garbled += 1
                if garbled > _GARBLED:
                    return f"it sends lines that are not gputui's: {plain(line[:80].decode(errors='replace'), 60)!r}"
                continue
            self._heard_at = time.monotonic()
            if message.hello is not None:
                if problem := _mismatch(message.hello):
                    return problem
                self.hello, is_greeted, garbled = message.hello, True, 0
                self.term += 1
            elif message.update is not None and is_greeted:
                snapshot = decoder.take(message.update, self._now())
                if not message.update.is_partial:
                    self._snapshot, self._seen_at, self._problem = snapshot, self._now(), ""
                    self._changed()
            elif (answer := message.answer) is not None and is_greeted:
                with self._lock:
                    waiting = self._waiting.pop(answer.id, None) if answer.id is not None else None
                if waiting is not None:
                    waiting.set_result(answer)
        return ""

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Ask now and then, so that the server knows that we are there; end a connection that is silent."""
        asked_at = time.monotonic()
        while process.poll() is None and not self._closed.wait(0.5):
            now = time.monotonic()
            patience = SILENT_AFTER if self.is_up else HELLO_WITHIN + CONNECT_TIMEOUT
            if now - self._heard_at > patience:
                self._silence = f"it sent nothing for {now - self._heard_at:.0f}s, and the connection was cut"
                log.warning("%s: %s", self.name, self._silence)
                self._end_process()
                return
            if self.is_up and now - asked_at > ASK_EVERY:
                asked_at = now
                with contextlib.suppress(GputuiError):
                    self.tell("alive")

    def _end_process(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
            return
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    def _fail(self, problem: str) -> None:
        """Note why the server does not answer, and end all requests that wait for it."""
        self._problem = problem
        if not self._closed.is_set():
            log.warning("%s: %s", self.name, problem)
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            text = f"the connection was cut before the answer came: {problem}"
            each.set_exception(GputuiError(text, where=self.name, hint="look whether it was done"))
        self._changed()

    def _words_of(self, code: int, errors: list[str]) -> str:
        """Return why the process ended, in words."""
        last = errors[-1] if errors else ""
        program = self.settings.command.split()[0] if self.settings.address else "gputui"
        if code == 127:
            return f"{program} is not found there; set the server's `command` ({last or 'exit code 127'})"
        if code == 2 and "remote" in last:
            return f"gputui there is too old for this console ({__version__}): it has no command `remote`; update it"
        if code == 255 and self.settings.address:
            command = parse_ssh_address(self.settings.address, self.name).command
            return f"{last or 'ssh cannot connect'} (`{command}` must work without a question)"
        return last or ("the connection was closed" if code == 0 else f"exit code {code}")


def _mismatch(hello: Hello) -> str:
    """Return why the two versions do not understand each other; empty if they do."""
    theirs = plain(hello.gputui, 20)
    if hello.protocol < OLDEST:
        return f"gputui {theirs} there is too old for this console ({__version__}): update it there"
    if hello.oldest > PROTOCOL:
        return f"gputui {theirs} there is too new for this console ({__version__}): update gputui here"
    return ""


def _read_errors(process: subprocess.Popen[bytes], errors: deque[bytes]) -> None:
    """Keep the last lines that the process wrote on stderr."""
    assert process.stderr is not None
    with contextlib.suppress(OSError, ValueError):
        for line in iter(lambda: process.stderr.readline(4096), b""):  # type: ignore[union-attr]
            if line.strip():
                errors.append(line.strip())
