"""Channel over a process of this machine that runs a command elsewhere: srun, or ssh and srun.

With a terminal the process gets one of its own, whose size and keys it passes on as it would a user's. Its standard
error is then apart: messages of srun and ssh are shown only if the command's own end does not come. Marks in its output
tell where the command's own begins, and its exit code at the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping, Sequence

from gputui.domain.errors import GputuiError
from gputui.domain.frames import CommandMarks

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
        del has_input
        (ours, theirs), (errors, told) = pty.openpty(), os.pipe()
        self._own(ours)
        self._own(errors)
        try:
            modes = termios.tcgetattr(theirs)
            modes[3] &= ~termios.ECHO  # the terminal at the other end echoes
            termios.tcsetattr(theirs, termios.TCSANOW, modes)
            words = ["setsid", "--ctty", "--", *argv]
            process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=told, env=dict(environ))
        finally:
            os.close(theirs)
            os.close(told)
        self._streams, self._input = {ours: False, errors: True}, ours
        return process

    def _with_pipes(self, argv: Sequence[str], environ: Mapping[str, str], has_input: bool) -> subprocess.Popen[bytes]:
        """Start it with pipes; it ends with this process, and hears no Ctrl-C of this process's terminal."""
        setpriv = shutil.which("setpriv")
        process = subprocess.Popen(
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
