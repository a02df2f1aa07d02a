"""The files of a state directory as of one moment, while others go on writing.

Under the writers' lock they are only opened and measured, which takes microseconds. What was there stays readable:
`queue.json` and files that are shortened are replaced by others, and journals, history and audit log only grow. The
record of the last write, in the lock file, is read at once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from gputui.domain.errors import StoreFormatError
from gputui.store.directory import QUEUE
from gputui.store.files import open_file, os_errors
from gputui.store.lock import StoreLock
from gputui.store.replica import LoadedQueue, Replica, lock_path
from gputui.store.verify import line_paths

_PIECE = 1 << 20


class CapturedFile(Struct):
    """Open file, of which the first `status.st_size` bytes count."""

    name: str
    fd: int
    status: os.stat_result
    content: bytes | None = None
    """Content that was read at once; None: it is read from the file when it is needed."""

    def pieces(self) -> Iterator[bytes]:
        """Yield its content; raises StoreFormatError when it has become shorter."""
        if self.content is not None:
            yield self.content
            return
        position = 0
        while position < self.status.st_size:
            data = os.pread(self.fd, min(_PIECE, self.status.st_size - position), position)
            if not data:
                raise StoreFormatError("it became shorter while it was read", where=self.name, hint="try again")
            position += len(data)
            yield data

    def lines(self) -> Iterator[bytes]:
        """Yield its whole lines, without their ends."""
        rest = b""
        for data in self.pieces():
            *whole, rest = (rest + data).split(b"\n")
            yield from whole


@contextmanager
def captured(directory: Path, lock: StoreLock) -> Iterator[list[CapturedFile]]:
    """Yield queue, journal, history and audit log as of this moment, the queue first."""
    with ExitStack() as files:
        with lock.held():
            _check_queue(directory)
            queue = [path for path in sorted(directory.glob(f"{QUEUE}*")) if path.suffix != ".tmp"]
            found = [opened(path, files) for path in (*queue, *_records(directory))]
            for file in found:
                if file.name == lock_path(directory / QUEUE).name:
                    file.content = os.pread(file.fd, file.status.st_size, 0)
        yield found


@contextmanager
def captured_queue(directory: Path, lock: StoreLock) -> Iterator[tuple[LoadedQueue, list[CapturedFile]]]:
    """Yield the queue, read, and history and audit log, as of this moment; raises StoreDamagedError for a loss."""
    replica = Replica(directory / QUEUE)
    try:
        with ExitStack() as files:
            with lock.held():
                _check_queue(directory)
                state = replica.refresh()
                if replica.loss is not None:
                    raise replica.loss.error
                found = [opened(path, files) for path in _records(directory)]
            yield state, found
    finally:
        replica.close()


def _check_queue(directory: Path) -> None:
    if not (directory / QUEUE).exists():
        raise StoreFormatError("there is no queue", where=str(directory), hint="name its directory by --state")


def _records(directory: Path) -> list[Path]:
    return [*sorted(directory.glob("history-????-??.json")), *line_paths(directory)]


def opened(path: Path, files: ExitStack) -> CapturedFile:
    """Open and measure a file; one of lines when none is being appended. It is closed with `files`."""
    with os_errors(path):
        fd = open_file(path, os.O_RDONLY)
        files.callback(os.close, fd)
        if path.suffix == ".jsonl":
            fcntl.flock(fd, fcntl.LOCK_SH)
            status = os.fstat(fd)
            fcntl.flock(fd, fcntl.LOCK_UN)
        else:
            status = os.fstat(fd)
        return CapturedFile(path.name, fd, status)
