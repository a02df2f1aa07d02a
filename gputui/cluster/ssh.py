"""Commands on a login node, over one ssh connection that all share, and channels over processes that run there.

The user's ssh command is run, so ~/.ssh/config, agents, jump hosts and known hosts apply. It never prompts: it runs in
batch mode, and its first command opens the connection that the next ones use.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from gputui.domain.errors import GputuiError
from gputui.domain.frames import CommandMarks

_FAILED = 255
"""Exit code by which ssh says that it did not run the command."""
_LOGIN_WITHIN = 15
_LONGEST_RUNTIME = 30
"""Characters of a runtime directory: with the socket's own name a path may have about 100."""
_CHANGED = re.compile(r"[\\'!\n]")
_DECODE = """sh -c 'eval "$(printf %b "$1")"' sh"""
_LASTS = 120
"""Seconds that the connection stays open without a command."""


class SshConnection(Struct, eq=False):
    """A multiplexed connection; made by its first command.

    All processes of the user share it by a socket in her runtime directory, and it ends when it is idle; where the
    system has no such directory, it is this process's own and ends with it.
    """

    host: str
    _port: int | None = None
    runtime: Path | None = None
    _name: str = ""
    """Tells this connection from others to the same host; commands share the one without a name."""
    is_compressed: bool = False
    _directory: Path | None = None

    def argv(self, script: str, *, is_tty: bool = False) -> list[str]:
        """Return the command that runs lines of sh there; the user's login shell there may be any.

        What csh or fish would change within quotes is written as numbers.

        With `is_tty` it gets a terminal, of which ssh takes no key for itself.
        """
        terminal = ["-tt", "-oEscapeChar=none", "-oLogLevel=ERROR"] if is_tty else ["-T"]
        coded = _CHANGED.sub(lambda match: f"\\0{ord(match[0]):03o}", script)
        return [*self._ssh(), *terminal, "--", self.host, f"{_DECODE} '{coded}'"]

    def fault(self, words: str, code: int) -> str:
        """Return why ssh did not run the command; empty if it did."""
        if code != _FAILED:
            return ""
        lines = [line.strip() for line in words.splitlines() if line.strip()]
        told = lines[-1] if lines else "the connection was cut"
        return f"{told}; `ssh {self.host}` must work without a password"

    def opened(self) -> str:
        """Open the connection unless it is open, so that commands started at once share it; return why it is not."""
        if self._run("-O", "check").returncode == 0:
            return ""
        done = self._run("-n", command=["true"])
        return self.fault(done.stderr.decode(errors="replace"), done.returncode)

    def _run(self, *options: str, command: Sequence[str] = ()) -> subprocess.CompletedProcess[bytes]:
        words = [*self._ssh(), "-T", *options, "--", self.host, *command]
        with contextlib.suppress(subprocess.TimeoutExpired):
            return subprocess.run(words, capture_output=True, timeout=_LOGIN_WITHIN + 5, check=False)  # noqa: S603 - ssh, whose host follows `--`
        return subprocess.CompletedProcess(words, _FAILED, b"", b"it does not answer")

    def close(self) -> None:
        if self._directory is None or self.runtime is not None:
            return
        atexit.unregister(self.close)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([*self._ssh(), "-O", "exit", "--", self.host], capture_output=True, timeout=5, check=False)  # noqa: S603 - ssh, whose host follows `--`
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None

    def _ssh(self) -> list[str]:
        if self._directory is None and self.runtime is not None:
            (self.runtime / "gputui").mkdir(mode=0o700, exist_ok=True)
            self._directory = self.runtime / "gputui"
        elif self._directory is None:
            atexit.register(self.close)
            self._directory = Path(tempfile.mkdtemp(prefix="gputui-ssh-"))  # a socket's path has to be short
        options = {
            "BatchMode": "yes",
            "ControlMaster": "auto",
            "ControlPath": f"{self._directory}/%C{self._name}",
            "ControlPersist": str(_LASTS),
            "ConnectTimeout": str(_LOGIN_WITHIN),
            "ServerAliveInterval": "10",
            "ServerAliveCountMax": "3",
            **({"Compression": "yes"} if self.is_compressed else {}),
        }
        named = [f"-o{name}={value}" for name, value in options.items()]
        port = ["-p", str(self._port)] if self._port else []
        return ["ssh", *named, *port]


def runtime_directory(environ: Mapping[str, str]) -> Path | None:
    """Return the user's runtime directory if it is there, hers and short enough for sockets."""
    path = Path(environ.get("XDG_RUNTIME_DIR", "").strip() or "/nonexistent")
    with contextlib.suppress(OSError):
        if path.is_absolute() and len(str(path)) <= _LONGEST_RUNTIME and path.stat().st_uid == os.getuid():
            return path
    return None


_PIECE = 65536
_ENDS_WITHIN = 5.0
"""Seconds that the process gets to end, before it is killed."""
_SIGNALLED = range(129, 193)
"""Exit codes that say by which signal a command ended."""


class CommandChannel:
    """Streams of the process, without the messages that precede and follow the command's own output.

    `refused` turns these messages and the process's exit code into the error that says why the command did not begin.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        marks: CommandMarks,
        out_marks: CommandMarks | None = None,
        *,
        is_tty: bool,
        has_input: bool,
        refused: Callable[[str, int], GputuiError],
    ) -> None:
        """`out_marks` are those on standard output, if there are some besides those on standard error."""
        self.is_tty = is_tty
        self._out_marks = out_marks
        self.on_input: Callable[[], None] = lambda: None
        self._marks = marks
        self._refused = refused
        self._ready = select.epoll()
        self._streams: dict[int, bool] = {}
        """Descriptors of output that has not ended, each with whether it is standard error."""
        self._has_output = False
        """Whether standard output has come, which may overtake the mark on standard error."""
        self._complaints = b""
        """Messages beside a terminal."""
        self._input = -1
        self._input_lock = threading.Lock()
        self._owned: list[int] = []
        try:
            start = self._with_terminal if is_tty else self._with_pipes
            self._process = start(argv, environ, has_input)
        except BaseException:
            self._release()
            raise
        for descriptor in self._streams:
            self._ready.register(descriptor, select.EPOLLIN)

    def _with_terminal(
        self, argv: Sequence[str], environ: Mapping[str, str], has_input: bool
    ) -> subprocess.Popen[bytes]:
        (ours, theirs), (errors, told) = pty.openpty(), os.pipe()
        self._own(ours)
        self._own(errors)
        try:
            modes = termios.tcgetattr(theirs)
            modes[3] &= ~termios.ECHO  # the terminal at the other end echoes
            termios.tcsetattr(theirs, termios.TCSANOW, modes)
            words = ["setsid", "--ctty", "--", *argv]
            process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=told, env=dict(environ))  # noqa: S603 - ssh, whose host follows `--`
        finally:
            os.close(theirs)
            os.close(told)
        self._streams, self._input = {ours: False, errors: True}, ours
        return process

    def _with_pipes(self, argv: Sequence[str], environ: Mapping[str, str], has_input: bool) -> subprocess.Popen[bytes]:
        """Start it with pipes; it ends with this process, and hears no Ctrl-C of this process's terminal."""
        setpriv = shutil.which("setpriv")
        process = subprocess.Popen(  # noqa: S603 - ssh, whose host follows `--`
            [*([setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []), *argv],
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = (self._own(os.dup(stream.fileno())) for stream in (process.stdout, process.stderr))
        if process.stdin is not None:
            self._input = self._own(os.dup(process.stdin.fileno()))
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        self._streams = {out: False, err: True}
        return process

    def _own(self, descriptor: int) -> int:
        os.set_inheritable(descriptor, False)
        self._owned.append(descriptor)
        return descriptor

    @property
    def has_pending(self) -> bool:
        """Return whether all output has ended, which no descriptor tells."""
        return not self._streams

    def fileno(self) -> int:
        return self._ready.fileno()

    def input_fileno(self) -> int:
        return self._input

    def receive(self) -> list[tuple[bool, bytes]] | None:
        if not self._streams:
            return self._last()
        parts = []
        for descriptor, _ in self._ready.poll():
            parts += self._read(descriptor)
        return parts

    def _last(self) -> list[tuple[bool, bytes]] | None:
        """Return None, after the messages of a connection that was lost.

        It may have brought some output, but not the mark before it on the other stream.
        """
        self._wait()
        marks, told = self._marks, self._complaints
        if not marks.has_begun:
            words = marks.words + told.decode(errors="replace")
            if not self._has_output:
                raise self._refused(words, self._process.returncode)
            marks.has_begun, told = True, words.encode()
        self._complaints = b""
        return [(True, told.replace(b"\n", b"\r\n") if self.is_tty else told)] if told and marks.code is None else None

    def _read(self, descriptor: int) -> list[tuple[bool, bytes]]:
        is_error = self._streams[descriptor]
        try:
            data = os.read(descriptor, _PIECE)
        except OSError:  # EIO: the process has closed its terminal
            data = b""
        if not data:
            self._ready.unregister(descriptor)
            del self._streams[descriptor]
        if is_error and self.is_tty:
            self._complaints += data
            return []
        if is_error or self.is_tty:  # marks are there
            data = self._marks.feed(data) if data else self._marks.rest()
            if self._marks.code is not None:
                self.end_input()
        elif self._out_marks:
            data = self._out_marks.feed(data) if data else self._out_marks.rest()
        self._has_output |= bool(data) and not is_error and not self.is_tty
        return [(is_error, data)] if data else []

    def send(self, data: bytes) -> None:
        self.on_input()
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._input, rest) :]

    def end_input(self) -> None:
        """Close standard input, from any thread; a terminal has no end."""
        if self.is_tty:
            return
        with self._input_lock:  # the command's end, which this may cause, closes it too
            descriptor, self._input = self._input, -1
        if descriptor >= 0:
            self._owned.remove(descriptor)
            os.close(descriptor)

    def resize(self, rows: int, columns: int) -> None:
        if self.is_tty:
            fcntl.ioctl(self._input, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def exit_code(self) -> int | None:
        """Return the command's exit code; None if it or the connection was lost."""
        if self._marks.code is not None:
            return self._marks.code
        code = self._process.poll()
        return code if code in _SIGNALLED else None

    def close(self) -> None:
        """End the process, and with it the command unless that stays in a container."""
        self._release()
        self.terminate()
        self._wait()

    def terminate(self) -> None:
        """Ask the process to end; `receive` then returns the rest of its output, and None."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGTERM)  # it leads a session of its own

    def _release(self) -> None:
        for descriptor in self._owned:
            os.close(descriptor)
        self._owned.clear()
        self._streams.clear()
        self._ready.close()

    def _wait(self) -> None:
        try:
            self._process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
