"""Output of a host attempt, read from its file."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gputui.domain.text import tail_start

_ABANDONED = 24 * 3600
"""Seconds without a write after which a partial file counts as abandoned and is removed."""


@contextmanager
def kept_log(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that is renamed to `path`, durably, when the block ends without an exception. Raises OSError.

    Each caller writes its own partial file, so concurrent writers of one log cannot mix their output.
    """
    for left in path.parent.glob(f".{path.name}.*.part"):  # of killed processes
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink()
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(part, flags, 0o600), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        sync_folder(path.parent)  # the attempt, with its output, is removed next
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Sync a directory, so that its new names survive a power loss."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


_BLOCK = 65536
_LONGEST = 1024**2
"""Maximum bytes of a line, since a job may never end a line."""
_QUICK, _SLOW = 0.02, 0.2
"""Polling intervals in seconds for a growing file and for a quiet one."""


class FileLogStream:
    """LogStream of a file that may still grow."""

    def __init__(self, path: Path | int, *, tail: int | None, follow: bool, is_over: Callable[[], bool]) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: PTH123, SIM115 - may be a descriptor
        self._follow = follow
        self._is_over = is_over
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._is_read = False
        self._rest = b""
        """Beginning of a line that has not ended yet."""
        self._tell: Callable[[bytes], None] = lambda _: None
        descriptor = self._file.fileno()
        start = first_byte(descriptor)
        if tail is not None:
            size = os.fstat(descriptor).st_size
            start = max(start, tail_start(size, tail, lambda at, count: os.pread(descriptor, count, at)))
        self._file.seek(start)
        self._start = start
        self.size = os.fstat(descriptor).st_size - start
        """Bytes available when it was opened."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines without their ends, until it is closed, or the attempt is over and all was read."""
        with self._lock:
            if self._closed.is_set():
                return
            self._is_read = True
        try:
            for block in self._blocks():
                *lines, self._rest = (self._rest + block).split(b"\n")
                yield from lines
                if len(self._rest) > _LONGEST:
                    yield self._rest
                    self._rest = b""
            if self._rest and not self._closed.is_set():
                yield self._rest
        finally:
            self._file.close()

    def part(self, first: int, count: int) -> bytes:
        """Return at most so many bytes from there on, in whichever lines they are."""
        return os.pread(self._file.fileno(), count, self._start + first)

    def watch(self, tell: Callable[[bytes], None]) -> None:
        self._tell = tell

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            if not self._is_read:  # else the iteration closes the file at its end
                self._file.close()

    def _blocks(self) -> Iterator[bytes]:
        pause, was_over, told = _QUICK, not self._follow, 0
        while not self._closed.is_set():
            here = self._file.tell()  # output before `there` was already released from the disk
            there = first_byte(self._file.fileno(), here)
            self._file.seek(there)
            if there > here:
                yield b"\n"  # end of the partial line
            if block := self._file.read(_BLOCK):
                pause = _QUICK
                yield block
            elif was_over:
                return
            else:  # read once more: output between the last read and the end
                was_over = self._is_over()
                if not was_over:
                    if self._rest and self._file.tell() != told:
                        told = self._file.tell()
                        self._tell(self._rest)
                    self._closed.wait(pause)
                    pause = min(_SLOW, pause * 1.5)


def save(log: Path | int, path: Path) -> int:
    """Copy the kept output to a file, atomically; return the offset of its beginning. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(log, "rb") as source, kept_log(path) as copy:  # noqa: PTH123 - may be a descriptor
        start = source.seek(first_byte(source.fileno()))
        shutil.copyfileobj(source, copy, 1024**2)
    return start


def first_byte(descriptor: int, here: int = 0) -> int:
    """Return the offset of the first kept line from `here` on; older output was released from the disk."""
    try:
        start = os.lseek(descriptor, here, os.SEEK_DATA)
    except OSError:  # only a hole, or a file system without holes
        return here
    if start == here:
        return here
    newline = os.pread(descriptor, _BLOCK, start).find(b"\n")
    return start + newline + 1
