"""Relay into jobs for users without access to the engine: a socket in the state directory.

Each connection gets its own process, which asks the kernel who connected (`gputui.console.relay`). So no stream of a
job passes through the scheduler's process, and a stream outlives it.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gputui.domain import frames
from gputui.engine.files.file_modes import file_mode

log = logging.getLogger(__name__)

SOCKET = "relay"
"""Name of the socket in the state directory."""
MOST = 64
"""Maximum number of connections."""
MOST_OF_ONE = 16
"""Maximum number of connections of one user, so that no user keeps the others out."""
RETRY = 1.0
"""Seconds to wait after an error, such as too many open files."""


class Relay:
    """Listener of one state directory; the scheduler opens it while it leads."""

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        self._directory = directory
        self._command = command
        self._listener: socket.socket | None = None
        self._served: list[tuple[int, subprocess.Popen[bytes]]] = []
        """Users and processes of the connections."""

    def open(self) -> None:
        """Start listening. If the directory does not allow sockets, the log says so, and there is no relay."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _at(self._directory) as place:
                with suppress(FileNotFoundError):
                    os.unlink(SOCKET, dir_fd=place)
                listener.bind(f"/proc/self/fd/{place}/{SOCKET}")  # the path itself may be longer than sockets allow
                os.chmod(SOCKET, file_mode(self._directory), dir_fd=place)
            listener.listen(16)
        except OSError as error:
            listener.close()
            log.warning("no relay into jobs in %s: %s", self._directory, error)
            return
        self._listener = listener
        threading.Thread(target=self._serve, args=(listener,), name="gputui-relay", daemon=True).start()

    def close(self) -> None:
        """Stop listening; open streams continue. The socket's file stays, for the next scheduler to replace."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _serve(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if self._listener is listener:
                    log.warning("a connection to the relay into jobs failed: %s", error)
                    time.sleep(RETRY)
                continue
            with connection:
                self._start(connection)

    def _start(self, connection: socket.socket) -> None:
        self._served = [each for each in self._served if each[1].poll() is None]
        try:
            uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if refusal := self._refusal(uid):
                connection.sendall(frames.frame(frames.REFUSED, refusal.encode()))
                return
            process = subprocess.Popen(
                self._command,
                stdin=connection.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            log.warning("a stream of a job cannot be relayed: %s", error)
        else:
            self._served.append((uid, process))

    def _refusal(self, uid: int) -> str:
        """Return why that user gets no further connection; empty if allowed."""
        hint = "detach from a job, or end a command of `gputui exec`"
        if sum(user == uid for user, _ in self._served) >= MOST_OF_ONE:
            return f"you have {MOST_OF_ONE} streams of jobs open, the most for one user: {hint}"
        return f"{MOST} streams of jobs are open, the most for all users: try again later" if self._is_full else ""

    @property
    def _is_full(self) -> bool:
        return len(self._served) >= MOST


@contextmanager
def _at(directory: Path) -> Iterator[int]:
    """Yield a descriptor of the directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
