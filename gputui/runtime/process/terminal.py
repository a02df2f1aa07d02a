"""Terminal or pipes of an interactive host job, and the socket through which its submitter attaches.

With a terminal the command has a pty; without one it has a pipe for each stream. The runner reads the output, appends
it to the log, and passes it to all attached clients. The socket `attach` in the attempt's directory belongs to the
submitter only, and the kernel tells which user connects. The keeper holds the same descriptors, so the terminal
outlives the runner. Without both the command is hung up.

Standard library only, like the wrapper, which imports it only for interactive jobs.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable
from contextlib import suppress

from gputui.domain import frames

SOCKET = "attach"
"""Name of the socket in the attempt's directory."""
MARKS = "errors"
"""File that marks which bytes of the log are standard error: start and end, eight bytes each."""
MARK = struct.Struct(">QQ")
_PIECE = 65536
_UNSEEN = 65536
"""Bytes of a terminal's output that are kept for the next client."""
_BACKLOG = 262144
"""Bytes waiting for a client above which the command is not read, if the client may delay it."""
_MOST = 16 * _BACKLOG
"""Bytes waiting for a client of pipes above which it is cut off; it continues in the log, and attaches again."""
_PATIENCE = 10.0
"""Seconds for which a client that accepts no output may delay a terminal before it is cut off."""
_RETRY = 0.05
"""Seconds between two tries to accept a client."""
_MOST_CLIENTS = 16
"""Maximum number of clients: more would exhaust the wrapper's descriptors and memory."""
_DRAIN = 1.0
"""Seconds to wait for the last output after the end of the command."""


class TerminalClient:
    """Connection of an attached client."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.frames = frames.Frames()
        self.waiting = bytearray()
        """Bytes that it has not accepted yet."""
        self.took_at = time.monotonic()
        self.has_written = False

    def send(self, message: bytes) -> None:
        """Send a message as far as the client accepts it; the rest is kept."""
        if not self.waiting:
            self.took_at = time.monotonic()
        self.waiting += message
        self.flush()

    def flush(self) -> None:
        """Send the kept bytes, as far as the client accepts them. Raises OSError if it is gone."""
        while self.waiting:
            try:
                sent = self.connection.send(self.waiting)
            except BlockingIOError:
                return
            del self.waiting[:sent]
            self.took_at = time.monotonic()


class Terminal:
    """Streams of an interactive command, its log, and the attached clients."""

    def __init__(self, place: int, log: int, *, is_tty: bool, has_input: bool, owner: int) -> None:
        self._log = log
        self._is_tty = is_tty
        self._users = {0, os.geteuid(), owner}
        self._input: int | None = None
        self._is_input_over = False
        self._is_draining = False
        self._pending = bytearray()
        """Input that the command has not accepted yet."""
        self._unseen = bytearray()
        self._clients: list[TerminalClient] = []
        self._sources: dict[int, bytes]
        """Descriptors with output, and the kind of their frames."""
        self._marks = -1
        if is_tty:
            self._input, theirs = os.openpty()
            self._sources = {self._input: frames.OUTPUT}
            self._theirs = (theirs, theirs, theirs)
        else:
            self._marks = os.open(MARKS, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place)
            os.fchmod(self._marks, os.fstat(log).st_mode & 0o777)
            theirs, self._input = os.pipe() if has_input else (os.open(os.devnull, os.O_RDONLY), None)
            out, out_theirs = os.pipe()
            err, err_theirs = os.pipe()
            self._sources = {out: frames.OUTPUT, err: frames.ERRORS}
            self._theirs = (theirs, out_theirs, err_theirs)
        if self._input is not None:
            os.set_blocking(self._input, False)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(f"/proc/self/fd/{place}/{SOCKET}")  # the path itself may be longer than sockets allow
        finally:
            os.umask(before)
        if owner != os.geteuid():  # the submitter, who alone may connect
            os.chown(SOCKET, owner, -1, dir_fd=place, follow_symlinks=False)
        listener.listen(16)
        listener.setblocking(False)
        self._listener = listener
        self._bell, self._ring = os.pipe()

    def enter(self) -> None:
        """Give the calling process, which becomes the command, its streams; a tty in its own session."""
        if self._is_tty:
            os.setsid()
            fcntl.ioctl(self._theirs[0], termios.TIOCSCTTY, 0)
        else:
            os.setpgid(0, 0)
        for number, descriptor in enumerate(self._theirs):
            os.dup2(descriptor, number)

    def leave_to_runner(self) -> None:
        """Close, in the keeper, the descriptors that must end with the runner or with the command."""
        self.close_theirs()
        if self._input is not None and not self._is_tty:
            self._close_input()

    def close_theirs(self) -> None:
        """Close the command's ends, which it now holds itself: the output ends with its last holder."""
        for descriptor in set(self._theirs):
            with suppress(OSError):
                os.close(descriptor)

    def hear_children(self) -> None:
        """Stop a running `serve` when a child ends."""
        os.set_blocking(self._ring, False)
        os.set_blocking(self._bell, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._ring, warn_on_full_buffer=False)

    def serve(self, timeout: float | None = None) -> None:
        """Pass on input and output once there is any; return after that, after a signal, or after `timeout` seconds."""
        is_held_up = not self._is_draining and any(map(self._holds_up, self._clients))
        watched = {self._bell: select.POLLIN, self._listener.fileno(): select.POLLIN}
        if not is_held_up:
            watched |= dict.fromkeys(self._sources, select.POLLIN)
        if self._pending and self._input is not None:
            watched[self._input] = watched.get(self._input, 0) | select.POLLOUT
        for client in self._clients:
            mask = select.POLLIN if len(self._pending) < _BACKLOG else 0
            watched[client.connection.fileno()] = mask | (select.POLLOUT if client.waiting else 0)
        poll = select.poll()
        for descriptor, mask in watched.items():
            poll.register(descriptor, mask)
        pause = timeout if timeout is not None else (_PATIENCE if is_held_up else None)
        ready = dict(poll.poll(None if pause is None else pause * 1000))
        if self._bell in ready:
            os.read(self._bell, _PIECE)
        if self._listener.fileno() in ready:
            self._accept()
        for client in tuple(self._clients):
            if client.connection.fileno() in ready:
                self._guarded(client, self._hear, ready[client.connection.fileno()])
        if self._input in ready and self._pending:
            self._feed()
        for source in [each for each in self._sources if ready.get(each, 0) & ~select.POLLOUT]:
            self._read(source)
        self._cut_off()

    def _holds_up(self, client: TerminalClient) -> bool:
        """Return whether the command waits for this client; cut off, a client that sends input would lose some."""
        sends = client.has_written and self._input is not None and not self._is_input_over
        return len(client.waiting) > _BACKLOG and (self._is_tty or sends)

    def _cut_off(self) -> None:
        """Drop clients that have delayed the job for too long, or are too far behind."""
        late = time.monotonic() - _PATIENCE
        for client in tuple(self._clients):
            if len(client.waiting) > _MOST and not client.has_written:
                self._guarded(client, self._hear, select.POLLIN)  # input that it has sent already would be lost
            is_late = self._is_tty and self._holds_up(client) and client.took_at <= late
            is_behind = len(client.waiting) > _MOST and (self._is_draining or not self._holds_up(client))
            if client in self._clients and (is_late or is_behind):
                self._drop(client)

    def _guarded(self, client: TerminalClient, work: Callable[[TerminalClient, int], None], mask: int) -> None:
        try:
            work(client, mask)
        except (OSError, frames.MalformedFrameError):
            self._drop(client)

    def _accept(self) -> bool:
        """Greet the next client, or refuse it; return False if there is none."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError:
            time.sleep(_RETRY)  # without free descriptors the connection stays ready: avoid a busy loop
            return False
        uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        client = TerminalClient(connection)
        refusal = b""
        if uid not in self._users:
            refusal = b"this job is another user's"
        elif len(self._clients) >= _MOST_CLIENTS:
            refusal = b"%d terminals are attached to this job, the most: leave one" % _MOST_CLIENTS
        if refusal:
            with connection, suppress(OSError):
                client.send(frames.frame(frames.REFUSED, refusal))
            return True
        self._clients.append(client)

        def greet(client: TerminalClient, _mask: int) -> None:
            """Send the size of the log and the output that no client has seen yet."""
            client.send(frames.frame(frames.READY, b"%d" % os.fstat(self._log).st_size))
            if self._unseen:
                client.send(frames.frame(frames.OUTPUT, bytes(self._unseen)))
                self._unseen.clear()

        self._guarded(client, greet, 0)
        return True

    def _drop(self, client: TerminalClient) -> None:
        self._clients.remove(client)
        client.connection.close()
        if client.has_written and not self._is_tty:  # as docker run -i: the input ends with its client
            self._is_input_over = True
            self._feed()

    def _hear(self, client: TerminalClient, mask: int) -> None:
        if mask & select.POLLOUT:
            client.flush()
        if not mask & ~select.POLLOUT:
            return
        piece = client.connection.recv(_PIECE)
        if not piece:
            self._drop(client)
            return
        for kind, content in client.frames.feed(piece):
            self._obey(client, kind, content)

    def _obey(self, client: TerminalClient, kind: bytes, content: bytes) -> None:
        if kind == frames.SIZE and self._is_tty and self._input is not None:
            rows, columns = frames.size_of(content)
            fcntl.ioctl(self._input, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        elif kind == frames.INPUT and self._input is not None:
            client.has_written = True
            self._pending += content
            with suppress(OSError):
                os.utime(self._log)  # input counts as a sign of life
            self._feed()
        elif kind == frames.END_OF_INPUT and not self._is_tty:
            client.has_written = self._is_input_over = True
            self._feed()

    def _feed(self) -> None:
        """Write pending input as far as the command accepts it."""
        while self._pending and self._input is not None:
            try:
                written = os.write(self._input, self._pending[:4096])
            except BlockingIOError:
                return
            except OSError:  # the command has closed it, or has ended
                self._pending.clear()
                if not self._is_tty:
                    self._close_input()
                return
            del self._pending[:written]
        if not self._pending and self._is_input_over:
            self._close_input()

    def _close_input(self) -> None:
        descriptor, self._input = self._input, None
        if descriptor is not None:
            os.close(descriptor)

    def _read(self, source: int) -> None:
        try:
            piece = os.read(source, _PIECE)
        except BlockingIOError:
            return
        except OSError:  # EIO: no process holds the terminal any more
            piece = b""
        if not piece:
            del self._sources[source]
            if source != self._input:
                os.close(source)
            return
        kind = self._sources[source]
        with suppress(OSError):  # on a full disk it is lost, and the job continues
            at = os.fstat(self._log).st_size
            if kind == frames.ERRORS:  # the mark first, so that a reader never assigns these bytes to the other stream
                os.write(self._marks, MARK.pack(at, at + len(piece)))
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(self._log, rest) :]
        if self._is_tty and not self._clients:
            self._unseen += piece
            del self._unseen[:-_UNSEEN]
        for client in tuple(self._clients):
            self._guarded(client, lambda each, _: each.send(frames.frame(kind, piece)), 0)

    def drain(self) -> None:
        self._is_draining = True
        deadline = time.monotonic() + _DRAIN
        while self._sources and (left := deadline - time.monotonic()) > 0:
            self.serve(left)

    def tell_end(self, code: int) -> None:
        """Send all clients the exit code, and disconnect them; also those that have connected but were not accepted."""
        while self._accept():
            pass
        self._listener.close()
        deadline = time.monotonic() + _DRAIN
        for client in tuple(self._clients):
            with suppress(OSError):
                client.connection.settimeout(max(0.01, deadline - time.monotonic()))
                client.connection.sendall(bytes(client.waiting) + frames.exit_frame(code))
                client.connection.close()
