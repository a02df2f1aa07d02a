"""Commands in host jobs, their streams, and their processes from /proc."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct, field

from gputui.domain import frames
from gputui.domain.container import ContainerState, ExecRequest, ProcessRow
from gputui.domain.errors import Cause, CauseCode, RuntimeFault
from gputui.domain.job_spec import Interactive
from gputui.ports import Channel, Permit
from gputui.ports.runtime import FrameChannel
from gputui.runtime.host_processes import ProcessSampler, account_name
from gputui.runtime.process.attempt_folder import AttemptFolder, AttemptIndex, OpenFolder, closed_after
from gputui.runtime.process.terminal import MARK, MARKS, SOCKET

_PIECE = 65536


class TerminalChannel(FrameChannel):
    """Channel of an interactive job with a terminal, from its wrapper."""

    def __init__(self, folder: OpenFolder) -> None:
        """Connect to the wrapper of an attempt. Raises OSError; RuntimeFault if another user answers."""
        super().__init__(_connected(folder), is_tty=True)
        self._folder = folder.held_open()

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Return output; None at the end. Raises GputuiError with the message of a refusal."""
        parts = super().receive()
        if parts is None and self.exit_code() is None:
            self._exit_code = recorded_exit_code(self._folder)
        return parts

    def close(self) -> None:
        super().close()
        self._folder.close()


def recorded_exit_code(folder: AttemptFolder) -> int | None:
    """Return the exit code that the wrapper recorded; None before the end, or when the record cannot be read.

    The scheduler puts the end into the queue later: on a busy machine, much later.
    """
    with suppress(OSError):
        end = folder.records().end
        return None if end is None or end.refusal else end.code
    return None


def _connected(folder: AttemptFolder) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with closed_after(folder.open_directory()) as place:
        try:
            owner = os.fstat(place).st_uid
            connection.connect(f"/proc/self/fd/{place}/{SOCKET}")  # the path itself may be longer than sockets allow
            uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if uid not in {0, owner}:  # as the kernel noted when the wrapper began to listen
                raise RuntimeFault(Cause(CauseCode.RUNTIME_ERROR, "the socket of this job is another user's"))
        except BaseException:
            connection.close()
            raise
    return connection


class SplitLog(Struct, eq=False):
    """Log of an interactive job without a terminal, whose marks separate standard error from standard output."""

    _log: int
    _marks: int | None
    _known: list[tuple[int, int]] = field(default_factory=list)
    position: int = 0

    def read(self, until: int | None = None) -> list[tuple[bool, bytes]]:
        """Return output from the position on, at most up to an offset; empty if there is none yet."""
        size = os.fstat(self._log).st_size
        with suppress(OSError):  # the oldest output may have been released from the disk
            if self.position < size:
                self.position = max(self.position, os.lseek(self._log, self.position, os.SEEK_DATA))
        end = min(size if until is None else min(size, until), self.position + _PIECE)
        if end <= self.position:
            return []
        piece = os.pread(self._log, end - self.position, self.position)
        while self._marks is not None and len(content := os.read(self._marks, MARK.size * 4096)) >= MARK.size:
            self._known += MARK.iter_unpack(content[: len(content) // MARK.size * MARK.size])
        start = here = self.position
        end = start + len(piece)
        self._known = [mark for mark in self._known if mark[1] > start]
        parts = []
        for first, last in self._known:
            if first >= end:
                break
            if first > here:
                parts.append((False, piece[here - start : first - start]))
            here = max(here, first)
            parts.append((True, piece[here - start : min(last, end) - start]))
            here = min(last, end)
        if here < end:
            parts.append((False, piece[here - start :]))
        self.position = end
        return parts

    def rest(self) -> Iterator[tuple[bool, bytes]]:
        """Yield the output from the position on, as far as it is available now."""
        while parts := self.read():
            yield from parts

    def close(self) -> None:
        os.close(self._log)
        if self._marks is not None:
            os.close(self._marks)


def live_log(folder: AttemptFolder) -> SplitLog:
    """Open the log of an existing attempt. Raises OSError."""
    log = folder.log()
    try:
        return SplitLog(log, folder.open_file(MARKS))
    except FileNotFoundError:
        return SplitLog(log, None)


def kept_log(path: Path) -> SplitLog:
    """Open a saved log. Raises OSError."""
    log, marks = os.open(path, os.O_RDONLY | os.O_CLOEXEC), None
    with suppress(OSError):
        marks = os.open(marks_path(path), os.O_RDONLY | os.O_CLOEXEC)
    return SplitLog(log, marks)


def marks_path(path: Path) -> Path:
    return path.with_suffix(".errors")


def save_marks(folder: AttemptFolder, start: int, path: Path) -> None:
    """Save the marks of a log that was saved from an offset on; nothing for a log without marks. Raises OSError."""
    try:
        source = folder.open_file(MARKS)
    except FileNotFoundError:
        return
    with open(source, "rb") as file:  # noqa: PTH123 - a descriptor
        content = file.read()
    whole = content[: len(content) // MARK.size * MARK.size]
    moved = [(max(0, first - start), last - start) for first, last in MARK.iter_unpack(whole) if last > start]
    if moved:
        descriptor = os.open(
            marks_path(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        with open(descriptor, "wb") as file:  # noqa: PTH123
            file.write(b"".join(MARK.pack(*mark) for mark in moved))


class PipesChannel:
    """Channel of an interactive job without a terminal: its log so far, then output from its wrapper.

    A broken connection, as of a reader that is too slow, is reopened; without a wrapper the log is read to its end.
    """

    is_tty = False

    def __init__(self, folder: OpenFolder) -> None:
        self._folder = folder = folder.held_open()
        self._log = live_log(folder)
        self._until: int | None = None
        """Offset in the log from which output comes from the wrapper; None: there is no wrapper."""
        self._wrapper: FrameChannel | None = None
        self._early: list[tuple[bool, bytes]] = []
        """Output that arrived with the wrapper's greeting; it follows the log so far."""
        self._exit_code: int | None = None
        self._has_sent = False
        """Whether input was sent. The wrapper drops readers that are too slow, but none that has sent input."""
        self.on_input: Callable[[], None] = lambda: None
        self._connect()

    def _connect(self) -> None:
        self._until, self._early = None, []
        try:
            self._wrapper = wrapper = FrameChannel(_connected(self._folder), is_tty=False)
        except OSError:
            self._wrapper = None
            return
        wrapper.hear = self._hear
        while self._until is None:
            parts = wrapper.receive()
            if parts is None:
                break
            self._early += parts
        if self._until is None:
            wrapper.close()
            self._wrapper = None

    def _hear(self, kind: bytes, content: bytes) -> None:
        if kind == frames.READY:
            self._until = int(content)

    @property
    def has_pending(self) -> bool:
        """Return whether output in the log must be read first."""
        behind = self._until is not None and self._log.position < self._until
        return self._wrapper is None or behind or bool(self._early)

    def fileno(self) -> int:
        return self._wrapper.fileno() if self._wrapper else -1

    input_fileno = fileno

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Return output; None at the end of the job."""
        if self._wrapper is None or (self._until is not None and self._log.position < self._until):
            if kept := self._log.read(self._until):
                return kept
            if self._wrapper is not None:
                # this output was released from the disk, or could not be written to it
                self._log.position = self._until or self._log.position
                return []
            self._exit_code = recorded_exit_code(self._folder)
            return None
        assert self._wrapper is not None
        early, self._early = self._early, []
        parts: list[tuple[bool, bytes]] | None = early or self._wrapper.receive()
        if parts is not None:
            self._log.position += sum(len(part) for _, part in parts)
            return parts
        self._exit_code = self._wrapper.exit_code()
        return self._again() if self._exit_code is None else None

    def _again(self) -> list[tuple[bool, bytes]]:
        if self._wrapper is not None:
            self._wrapper.close()
        self._connect()
        return []

    def send(self, data: bytes) -> None:
        self.on_input()
        try:
            self._connected_wrapper().send(data)
        except OSError:
            if self._has_sent:  # some of it may have arrived
                raise
            self._again()
            self._connected_wrapper().send(data)
        self._has_sent = True

    def _connected_wrapper(self) -> FrameChannel:
        if self._wrapper is None:
            raise BrokenPipeError
        return self._wrapper

    def end_input(self) -> None:
        if self._wrapper is not None and not self._has_sent:
            with suppress(OSError):
                self.send(b"")
        if self._wrapper is not None:
            self._wrapper.end_input()

    def resize(self, rows: int, columns: int) -> None: ...

    def exit_code(self) -> int | None:
        return self._exit_code

    def close(self) -> None:
        if self._wrapper is not None:
            self._wrapper.close()
        self._log.close()
        self._folder.close()


_LOOK_EVERY = 0.5
"""Seconds between two checks of whether the job has ended."""
_GRACE = 2.0
"""Seconds between hanging up a command whose job has ended and killing it."""


class HostExecution:
    """Channel of a command inside a host job."""

    def __init__(self, folder: AttemptFolder, request: ExecRequest, is_over: Callable[[], bool]) -> None:
        self.is_tty = request.tty
        self.on_input: Callable[[], None] = lambda: None
        self._ready = select.epoll()
        self._sources: dict[int, bool] = {}
        """Descriptors with output, each with whether it is standard error."""
        self._input: int | None = None
        self._process = self._start(folder, request)
        for source in self._sources:
            self._ready.register(source, select.EPOLLIN)

        def end_with_job() -> None:
            """Hang up the command when its job has ended, and kill it a little later."""
            while self._process.poll() is None:
                if is_over():
                    self._signal(signal.SIGHUP)
                    with suppress(subprocess.TimeoutExpired):
                        self._process.wait(_GRACE)
                    self._signal(signal.SIGKILL)
                    return
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_LOOK_EVERY)

        threading.Thread(target=end_with_job, daemon=True).start()

    def _start(self, folder: AttemptFolder, request: ExecRequest) -> subprocess.Popen[bytes]:
        place = folder.open_directory()
        if request.tty:
            self._input, stdin = os.openpty()
            stdout = stderr = stdin
            self._sources = {self._input: False}
            self.resize(request.rows, request.columns)
        else:
            stdin, self._input = os.pipe() if request.stdin else (os.open(os.devnull, os.O_RDONLY), None)
            out, stdout = os.pipe()
            err, stderr = os.pipe()
            self._sources = {out: False, err: True}
        streams = "tty" if request.tty else "pipes"
        enter = [sys.executable, "-I", "-m", "gputui.runtime.process.enter", str(place), streams, request.term]
        loader = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        try:
            return subprocess.Popen(  # noqa: S603 - the user's command, with the job's rights
                [*enter, *request.command],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(place,),
                cwd="/",
                env=loader,
            )
        except OSError as error:
            text = f"the command could not be started: {error.strerror}"
            raise RuntimeFault(Cause(CauseCode.RUNTIME_ERROR, text)) from error
        finally:
            for descriptor in {place, stdin, stdout, stderr}:
                os.close(descriptor)

    @property
    def has_pending(self) -> bool:
        return not self._sources

    def fileno(self) -> int:
        return self._ready.fileno()

    def input_fileno(self) -> int:
        return -1 if self._input is None else self._input

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Return output; None when no process holds the streams any more."""
        if not self._sources:
            return None
        parts = []
        for source, _ in self._ready.poll():
            try:
                piece = os.read(source, _PIECE)
            except OSError:  # EIO: no process holds the terminal any more
                piece = b""
            if piece:
                parts.append((self._sources[source], piece))
                continue
            self._ready.unregister(source)
            del self._sources[source]
            if source != self._input:
                os.close(source)
        return parts

    def send(self, data: bytes) -> None:
        self.on_input()
        if self._input is None:
            raise BrokenPipeError
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._input, rest) :]

    def end_input(self) -> None:
        """Close standard input, unless it is a terminal."""
        if not self.is_tty and self._input is not None:
            os.close(self._input)
            self._input = None

    def resize(self, rows: int, columns: int) -> None:
        if self.is_tty and self._input is not None:
            with suppress(OSError):
                fcntl.ioctl(self._input, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def exit_code(self) -> int | None:
        """Return the exit code, 128 + n for a signal."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """Hang up the command, so that it does not outlive its client."""
        if self._process.poll() is None:
            self._signal(signal.SIGHUP)
        if self._input is not None:
            with suppress(OSError):
                os.close(self._input)
            self._input = None
        self._ready.close()

    def _signal(self, number: int) -> None:
        with suppress(OSError):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:  # it has no process group yet
                self._process.send_signal(number)


class ProcessExec:
    """JobExec for host jobs of one store."""

    def __init__(self, store_id: str, directory: Path) -> None:
        self._root = directory / "attempts"
        self._index = AttemptIndex(store_id, self._root)
        self._sampler = ProcessSampler()

    def processes(self, container_id: str) -> tuple[ProcessRow, ...]:
        return tuple(self._sampler.sample(sorted(self._members(container_id))))

    def attach(self, name: str, interactive: Interactive, permit: Permit, detach_keys: str = "") -> Channel:
        """Attach to the terminal of an interactive attempt, or to its log and standard input.

        Its wrapper asks the kernel which user connects, and refuses all except its submitter and root.
        """
        with self._entered(name, permit) as folder:
            return TerminalChannel(folder) if interactive.tty else PipesChannel(folder)

    def execute(self, name: str, request: ExecRequest, permit: Permit) -> Channel:
        """Run a command with the environment, limits and user of the attempt.

        Raises a fault unless this user's scheduler created the attempt: its plan determines the command's user.
        """

        def is_over() -> bool:
            try:
                record = self._index.find(name)
            except OSError:
                return False
            return record is None or record.state is ContainerState.EXITED

        with self._entered(name, permit) as folder:
            try:
                is_ours = folder.is_ours()
                owner = "" if is_ours else account_name(folder.status().st_uid)
            except OSError as error:
                raise RuntimeFault(Cause(CauseCode.CONTAINER_LOST, f"{name} is gone")) from error
            if not is_ours:
                text = f"it runs under the scheduler of {owner}, which alone can start commands in it"
                raise RuntimeFault(Cause(CauseCode.NOT_ALLOWED, text))
            self._members(name)
            return HostExecution(folder, request, is_over)

    @contextmanager
    def _entered(self, name: str, permit: Permit) -> Iterator[OpenFolder]:
        """Open the attempt's directory once, so that the same directory is checked and used."""
        try:
            folder = AttemptFolder(self._root / name).held_open()
        except PermissionError as error:
            permit(None)
            raise _unreachable(error) from error
        except OSError as error:
            raise _unreachable(error) from error
        try:
            permit(folder.submitter())
            yield folder
        except OSError as error:
            raise _unreachable(error) from error
        finally:
            folder.close()

    def close(self) -> None: ...

    def _members(self, container_id: str) -> tuple[int, ...]:
        pids, _ = self._index.reach(container_id)
        if not pids:
            raise RuntimeFault(Cause(CauseCode.CONTAINER_LOST, "all its processes have ended"))
        return pids


def _unreachable(error: OSError) -> RuntimeFault:
    why = error.strerror or str(error)
    if isinstance(error, ConnectionRefusedError):
        why = "the processes that hold its terminal are gone"
    elif isinstance(error, FileNotFoundError):
        why = "its directory or its socket is gone"
    return RuntimeFault(Cause(CauseCode.CONTAINER_LOST, f"nothing can be attached to: {why}"))
