"""Leadership of a state directory: the process that holds the lock on `scheduler.lock` schedules there.

The kernel releases a flock the moment its holder dies, however it dies, so no lock is ever stale. The file's contents
tell others who leads and when the leader last sent a heartbeat, on the monotonic clock, which all processes of a
machine share and which cannot be set. Leadership does not depend on them: a leader on a full disk has no name until
there is space.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gputui.domain.decoding import decode_json
from gputui.domain.snapshot import Leader
from gputui.engine.files import open_file, open_regular, set_file_mode

LOCK_FILE = "scheduler.lock"
LINE_FILE = "scheduler.waiting"
"""Locked, together, by the services that wait for the leadership."""
WANTED_FILE = "scheduler.wanted"
"""Locked by the service that has the socket of the machine's users, while it waits: consoles make room for it."""
SILENT_AFTER = 10.0
"""Seconds without a heartbeat after which a leader counts as not responding, unless its ticks are rarer."""
BEAT_EVERY = 1.0
"""Seconds between two heartbeats."""
_SIZE = 1024
"""Bytes of the record. It is padded and overwritten in place: that works on a full disk once the block is there."""
_READS = 3


class _Sign(msgspec.Struct):
    """Heartbeat in the record; absent if an older gputui leads."""

    alive_at: float | None = None
    """Seconds of the monotonic clock."""
    patience: float = SILENT_AFTER
    """Seconds without a newer heartbeat after which the leader counts as not responding."""


class Leadership:
    """The right to schedule in one state directory."""

    def __init__(self, directory: Path, patience: float = SILENT_AFTER) -> None:
        self._path = directory / LOCK_FILE
        self._patience = patience
        self._fd: int | None = None
        self._line: int | None = None
        self._wanted: int | None = None
        self._name: dict[str, object] = {}
        self._beat_at = 0.0
        self._is_named = True

    @property
    def is_mine(self) -> bool:
        return self._fd is not None

    def holds(self) -> bool:
        """Return whether this process still holds it; False once the file was removed or replaced."""
        if self._fd is None:
            return False
        try:
            here, there = os.fstat(self._fd), self._path.stat()
        except OSError:
            return False
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def acquire(self, me: Leader) -> bool:
        """Take the leadership if it is free; return whether this process has it now.

        Raises OSError, which names the file, if the file can be neither created nor locked.
        """
        if self._fd is not None:
            return True
        if not self._path.parent.is_dir():  # the state directory was removed
            return False
        fd, is_taken = -1, False
        try:
            fd = open_regular(self._path, os.O_RDWR | os.O_CREAT)
            for pause in (0.002, 0.005, 0.01, 0.05, 0.2, 0):  # a process that reads it holds the lock for an instant
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not _is_shared(fd):
                        break
                    time.sleep(pause)
                else:
                    set_file_mode(fd)
                    is_taken = True
                    break
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise
        finally:
            if fd >= 0 and not is_taken:
                os.close(fd)
        if not is_taken:
            return False
        self._fd, self._name = fd, msgspec.to_builtins(me)
        self._name.pop("silent_for", None)
        self._write()
        self.leave_line()
        return True

    def stand_in_line(self, *, for_users: bool = False) -> None:
        """Tell a stand-in that this process waits for the leadership; consoles too, if users wait for this process.

        On errors, as on a full disk, they are not told.
        """
        self._line = self._line or self._opened(LINE_FILE)
        if for_users:
            self._wanted = self._wanted or self._opened(WANTED_FILE)
        for line in filter(None, (self._line, self._wanted)):
            with contextlib.suppress(OSError):  # a scheduler looks at this instant
                fcntl.flock(line, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def _opened(self, name: str) -> int | None:
        with contextlib.suppress(OSError):
            return open_file(self._path.with_name(name), os.O_RDWR | os.O_CREAT)
        return None

    def leave_line(self) -> None:
        lines, self._line, self._wanted = (self._line, self._wanted), None, None
        for line in filter(None, lines):
            with contextlib.suppress(OSError):
                os.close(line)

    def is_awaited(self) -> bool:
        return self._is_locked(LINE_FILE)

    def is_wanted(self) -> bool:
        return self._is_locked(WANTED_FILE)

    def _is_locked(self, name: str) -> bool:
        try:
            fd = open_regular(self._path.with_name(name), os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # where there are no locks, nobody waits
            return isinstance(error, BlockingIOError)
        finally:
            os.close(fd)
        return False

    def beat(self) -> None:
        """Send a heartbeat, at most one in `BEAT_EVERY` seconds."""
        if time.monotonic() - self._beat_at >= BEAT_EVERY:
            self._write()

    def _write(self) -> None:
        """Write the leader's name and heartbeat. On a full disk the leader has no name until there is space."""
        if self._fd is None:
            return
        self._beat_at = time.monotonic()
        record = {**self._name, "alive_at": self._beat_at, "patience": self._patience}
        try:
            os.pwrite(self._fd, msgspec.json.encode(record).ljust(_SIZE), 0)
        except OSError as error:
            if self._is_named:
                import logging  # rarely needed

                logging.getLogger(__name__).warning("%s: cannot write who schedules: %s", self._path, error.strerror)
            self._is_named = False
            with contextlib.suppress(OSError):  # the name of a previous leader would be taken for ours
                os.ftruncate(self._fd, 0)
        else:
            self._is_named = True

    def release(self) -> None:
        """Release the lock to other processes. The record stays, and is meaningless without the lock."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):  # the descriptor is closed all the same
                os.close(fd)


def _is_shared(fd: int) -> bool:
    """Return whether nobody but readers has the lock: a leader does not share it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def current_leader(directory: Path) -> Leader | None:
    """Return the process that schedules in the directory; None if there is none.

    `silent_for` tells for how long a leader has not responded.
    """
    try:
        fd = open_regular(directory / LOCK_FILE)
    except OSError:
        return None
    try:
        if _is_shared(fd):
            return None
        for _ in range(_READS):
            with contextlib.suppress(msgspec.MsgspecError, OSError):
                text = os.pread(fd, 4 * _SIZE, 0)
                leader, sign = decode_json(text, Leader), decode_json(text, _Sign)
                age = 0.0 if sign.alive_at is None else time.monotonic() - sign.alive_at
                silence = timedelta(seconds=age) if age > sign.patience else timedelta()
                return replace(leader, silent_for=silence)
            time.sleep(0.001)  # read while it was being written
        return Leader(0, os.uname().nodename, "unknown", "console", datetime.fromtimestamp(0, UTC))
    finally:
        os.close(fd)
