"""Connections to the owner of a queue: by a socket, or through a command such as ssh."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import socket
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from gputui.api.http import credentials
from gputui.domain.errors import GputuiError, NoOwnerError
from gputui.domain.frames import CommandMarks
from gputui.domain.text import plain

_PIECE = 256 * 1024
_EXIT_WITHIN = 5.0
"""Seconds from the end of a command's output to that of its process."""
_MOST_LINES = 20
"""Lines of a command before its first answer: that may be a script which prints some."""
_MOST_BEFORE = 64 * 1024**2
"""Bytes before its mark."""
_ANSWER = re.compile(rb"^HTTP/1\.", re.MULTILINE)
_ABSENT = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED, errno.EACCES, errno.EPERM, errno.ENOTSOCK, errno.ELOOP}
)
"""Errors of a connect that mean: not for us, or nobody is there."""


class Server(Struct, frozen=True):
    """Process at the other end, as the kernel knows it: the one that listens, or that listened first."""

    uid: int | None = None
    """None: it is on another machine."""
    pid: int = 0


class SilenceError(TimeoutError):
    """Nothing came, or could be sent, within the time that was set."""


class Wire:
    """A connection. One thread uses it at a time, but any may close it, which ends what the other one waits for."""

    def __init__(self, link: socket.socket, server: Server, ended: Callable[[], object] = lambda: None) -> None:
        """`ended` is called once, after the socket is closed."""
        self._link = link
        self.server = server
        self._ended = ended
        self._is_closed = False

    def wait_for(self, seconds: float) -> None:
        """Set how long `send` and `receive` wait before they raise SilenceError."""
        set_patience(self._link, seconds)

    def send(self, data: bytes | memoryview) -> int:
        """Send a part of the data; return its length. Raises SilenceError and OSError."""
        try:
            return self._link.send(data)
        except BlockingIOError as error:
            raise SilenceError from error

    def receive(self) -> bytes:
        """Return what has come, at least a byte; empty at the end. Raises SilenceError and OSError."""
        try:
            return self._link.recv(_PIECE)
        except BlockingIOError as error:
            raise SilenceError from error

    def detach(self) -> socket.socket:
        """Give the socket away, without limits of time; this connection may not be used afterwards."""
        set_patience(self._link, 0)
        self._is_closed = True
        return self._link

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        self._link.close()
        self._ended()


Dial: TypeAlias = Callable[[float], Wire]
"""Connects within so many seconds. Raises NoOwnerError if nobody listens, and SilenceError if nobody accepts."""


def set_patience(link: socket.socket, seconds: float) -> None:
    """Set how long the blocking calls of a socket wait, its connect included; 0: without an end.

    A connect with `settimeout` does not wait at all while the backlog of a Unix socket is full.
    """
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        link.setsockopt(socket.SOL_SOCKET, option, limit)


def to_sockets(paths: Iterable[Path]) -> Dial:
    """Return what connects to the first of these sockets at which somebody listens and this user may connect."""
    known = tuple(paths)

    def connected(path: Path, seconds: float) -> Wire | None:
        try:
            place = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            set_patience(link, max(0.001, seconds))
            link.connect(f"/proc/self/fd/{place}/{path.name}")  # a longer path fits into no address
            pid, uid, _ = credentials(link)
            server = Server(uid, pid)
            check_server(server, {0, os.geteuid(), os.fstat(place).st_uid}, path)
        except BaseException as error:
            link.close()
            if isinstance(error, BlockingIOError):
                raise SilenceError from error
            if isinstance(error, OSError) and error.errno in _ABSENT:
                return None
            raise
        finally:
            os.close(place)
        return Wire(link, server)

    def dial(seconds: float) -> Wire:
        for path in known:
            if (wire := connected(path, seconds)) is not None:
                return wire
        raise NoOwnerError(f"nobody listens on {' or '.join(map(str, known))}")

    return dial


def check_server(server: Server, trusted: Collection[int], path: Path) -> None:
    """Raise GputuiError unless the one who listens is among those whom the caller may tell his secrets."""
    if server.uid in trusted:
        return
    who = f"uid {server.uid}, who is neither root nor the owner of its directory"
    raise GputuiError(f"somebody else listens there: {who}", where=str(path), hint="remove that socket")


def to_command(
    words: Sequence[str] | Callable[[CommandMarks], Sequence[str]], explain: Callable[[int, Sequence[bytes]], str]
) -> Dial:
    """Return what starts a command that serves on its standard input and output, such as `ssh gpu1 gputui api-stdio`.

    Where login shells may print lines of their own, `words` are called for a command that begins with a mark.
    Of one that ends before it has answered, `explain` returns why, by its exit code and the last lines that it wrote on
    stderr; that is raised as a GputuiError. Empty: its end is that of any connection.
    """

    def dial(seconds: float) -> Wire:
        marks = CommandMarks()
        marks.has_begun = not callable(words)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - the ssh command that `words` makes
                list(words(marks) if callable(words) else words),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
            )
        except OSError as error:
            ours.close()
            raise GputuiError(f"{error.filename}: {error.strerror}") from error
        finally:
            theirs.close()
        set_patience(ours, seconds)
        return CommandWire(ours, process, explain, marks)

    return dial


class CommandWire(Wire):
    """A connection through a command. What precedes its mark is skipped, and some lines before its first answer."""

    def __init__(
        self,
        link: socket.socket,
        process: subprocess.Popen[bytes],
        explain: Callable[[int, Sequence[bytes]], str],
        marks: CommandMarks,
    ) -> None:
        def end() -> None:
            """Ask the command to end; it has lost its standard input already."""
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

        super().__init__(link, Server(None, process.pid), end)
        self._process = process
        self._explain = explain
        self._marks = marks
        self._before = 0
        """Bytes before the mark."""
        self._skipped: bytes | None = b""
        """Bytes before the first answer; None: that has come."""
        self._errors: deque[bytes] = deque(maxlen=20)
        self._has_ended = threading.Event()
        threading.Thread(target=self._tend, name="command", daemon=True).start()

    def _tend(self) -> None:
        """Keep the last lines of stderr until the command ends, and reap it: others may keep that stream open."""
        poll, process = select.poll(), self._process
        assert process.stderr is not None
        pidfd, errors, rest = os.pidfd_open(process.pid), process.stderr.fileno(), b""
        os.set_blocking(errors, False)
        for descriptor in (pidfd, errors):
            poll.register(descriptor, select.POLLIN)
        ready: dict[int, int] = {}
        try:
            while pidfd not in ready:
                ready = dict(poll.poll())
                with contextlib.suppress(BlockingIOError):
                    data = os.read(errors, _PIECE)
                    *lines, rest = (rest + data).split(b"\n")
                    self._errors += [line.strip() for line in lines if line.strip()]
                    rest = rest[-_PIECE:]
                    if not data and errors in ready:
                        poll.unregister(errors)
        finally:
            os.close(pidfd)
            process.stderr.close()
            self._errors += [rest.strip()] if rest.strip() else []
            process.wait()
            self._has_ended.set()

    def receive(self) -> bytes:
        while self._skipped is not None:
            try:
                data = super().receive()
            except ConnectionError:  # it has not read the request
                data = b""
            if not data:
                self._has_ended.wait(_EXIT_WITHIN)
                code = self._process.returncode
                if code is not None and (why := self._explain(code, tuple(self._errors))):
                    raise GputuiError(why)
                if not self._marks.has_begun:
                    told = self._marks.told(200) or "it ended without a word"
                    raise GputuiError(f"its login shell did not run gputui: {told}")
                return b""
            if not self._marks.has_begun:
                self._before += len(data)
                if self._before > _MOST_BEFORE:
                    raise GputuiError(f"its login shell sends lines without an end: {self._marks.told()!r}")
                data = self._marks.first(data)  # what is the command's
            skipped = self._skipped + data
            if start := _ANSWER.search(skipped):
                self._skipped = None
                return skipped[start.start() :]
            if skipped.count(b"\n") > _MOST_LINES or len(skipped) > _PIECE:
                first = plain(skipped[:80].decode(errors="replace"), 60)
                raise GputuiError(f"it sends lines that are not gputui's: {first!r}")
            self._skipped = skipped
        return super().receive()
