"""Commands in host jobs, their streams, and their processes from /proc."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import ContainerState, ExecRequest, ProcessRow
from gputui.domain.errors import RuntimeFault
from gputui.domain.job_spec import Interactive
from gputui.ports import Channel, Permit
from gputui.runtime.accounts import account_name
from gputui.runtime.host_processes import ProcessSampler
from gputui.runtime.process.attach import PipesChannel, TerminalChannel
from gputui.runtime.process.attempt_folder import AttemptFolder, AttemptIndex, OpenFolder

_PIECE = 65536
_LOOK_EVERY = 0.5
"""Seconds between two checks of whether the job has ended."""
_GRACE = 2.0
"""Seconds between hanging up a command whose job has ended and killing it."""


class HostExecution:
    """Channel of a command inside a host job."""

    def __init__(self, folder: AttemptFolder, request: ExecRequest, is_over: Callable[[], bool]) -> None:
        self.is_tty = request.tty
        self.on_input: Callable[[], None] = lambda: None
        self._is_over = is_over
        self._ready = select.epoll()
        self._sources: dict[int, bool] = {}
        """Descriptors with output, each with whether it is standard error."""
        self._input: int | None = None
        self._process = self._start(folder, request)
        for source in self._sources:
            self._ready.register(source, select.EPOLLIN)
        threading.Thread(target=self._end_with_job, daemon=True).start()

    def _start(self, folder: AttemptFolder, request: ExecRequest) -> subprocess.Popen[bytes]:
        place = folder.open_directory()
        theirs = self._open_tty(request) if request.tty else self._open_pipes(request)
        streams = "tty" if request.tty else "pipes"
        enter = [sys.executable, "-I", "-m", "gputui.runtime.process.enter", str(place), streams, request.term]
        loader = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        stdin, stdout, stderr = theirs
        try:
            return subprocess.Popen(
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
            for descriptor in {place, *theirs}:
                os.close(descriptor)

    def _open_tty(self, request: ExecRequest) -> tuple[int, int, int]:
        ours, theirs = os.openpty()
        self._sources, self._input = {ours: False}, ours
        self.resize(request.rows, request.columns)
        return theirs, theirs, theirs

    def _open_pipes(self, request: ExecRequest) -> tuple[int, int, int]:
        stdin, self._input = os.pipe() if request.stdin else (os.open(os.devnull, os.O_RDONLY), None)
        out, out_theirs = os.pipe()
        err, err_theirs = os.pipe()
        self._sources = {out: False, err: True}
        return stdin, out_theirs, err_theirs

    @property
    def has_pending(self) -> bool:
        return not self._sources

    def fileno(self) -> int:
        return self._ready.fileno()

    def input_fileno(self) -> int:
        """Return the descriptor of its standard input; -1 when that is closed."""
        return -1 if self._input is None else self._input

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Return output; None when no process holds the streams any more."""
        if not self._sources:
            return None
        found = [(source, self._read(source)) for source, _ in self._ready.poll()]
        parts = [(self._sources[source], piece) for source, piece in found if piece]
        for source, piece in found:
            if not piece:
                self._ready.unregister(source)
                del self._sources[source]
                if source != self._input:
                    os.close(source)
        return parts

    @staticmethod
    def _read(source: int) -> bytes:
        try:
            return os.read(source, _PIECE)
        except OSError:  # EIO: no process holds the terminal any more
            return b""

    def send(self, data: bytes) -> None:
        """Write to standard input. Raises OSError."""
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

    def _end_with_job(self) -> None:
        """Hang up the command when its job has ended, and kill it a little later."""
        while self._process.poll() is None:
            if self._is_over():
                self._signal(signal.SIGHUP)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_GRACE)
                self._signal(signal.SIGKILL)
                return
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_EVERY)

    def _signal(self, number: int) -> None:
        with suppress(OSError):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:  # it has no process group yet
                self._process.send_signal(number)


def check_ours(folder: AttemptFolder) -> None:
    """Raise a fault unless this user's scheduler created the attempt: its plan determines the command's user."""
    try:
        if folder.is_ours():
            return
        owner = account_name(folder.status().st_uid)
    except OSError as error:
        raise RuntimeFault(Cause(CauseCode.CONTAINER_LOST, f"{folder.path.name} is gone")) from error
    text = f"it runs under the scheduler of {owner}, which alone can start commands in it"
    raise RuntimeFault(Cause(CauseCode.NOT_ALLOWED, text))


class ProcessExec:
    """JobExec for host jobs of one store."""

    def __init__(self, store_id: str, directory: Path) -> None:
        self._root = directory / "attempts"
        self._index = AttemptIndex(store_id, self._root)
        self._sampler = ProcessSampler()

    def processes(self, container_id: str) -> tuple[ProcessRow, ...]:
        """Return the job's processes, without the wrapper's."""
        return tuple(self._sampler.sample(sorted(self._members(container_id))))

    def attach(self, name: str, interactive: Interactive, permit: Permit, detach_keys: str = "") -> Channel:
        """Attach to the terminal of an interactive attempt, or to its log and standard input.

        Its wrapper asks the kernel which user connects, and refuses all except its submitter and root.
        """
        del detach_keys
        with self._entered(name, permit) as folder:
            return TerminalChannel(folder) if interactive.tty else PipesChannel(folder)

    def execute(self, name: str, request: ExecRequest, permit: Permit) -> Channel:
        """Run a command with the environment, limits and user of the attempt."""

        def is_over() -> bool:
            try:
                record = self._index.find(name)
            except OSError:
                return False
            return record is None or record.state is ContainerState.EXITED

        with self._entered(name, permit) as folder:
            check_ours(folder)
            self._members(name)
            return HostExecution(folder, request, is_over)

    @contextmanager
    def _entered(self, name: str, permit: Permit) -> Iterator[OpenFolder]:
        """Open the attempt's directory once, so that the same directory is checked and used."""
        try:
            folder = OpenFolder.open(self._root / name)
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

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def _members(self, container_id: str) -> tuple[int, ...]:
        pids = self._index.members(container_id)
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
