"""Append-only files of JSON lines, shared by the processes of one user."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Generic, TypeVar

import msgspec

from gputui.domain.decoding import JsonDecoder, json_decoder

K = TypeVar("K")
T = TypeVar("T")
MOST_BYTES = 32 * 1024**2
"""Size above which the older half of a file is dropped."""


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold the lock of a file, which is created if missing; yields its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


class Journal(Generic[T]):
    """A file with a value on each line. A line that cannot be read is left out: a crash may have torn it."""

    def __init__(self, path: Path, kind: type[T], most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._kind = kind
        self._most = most_bytes
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._reading = Lock()

    @cached_property
    def _decoder(self) -> JsonDecoder[T]:
        return json_decoder(self._kind)

    def mentions(self, text: bytes) -> bool:
        """Return whether the file has these bytes anywhere; much faster than to read its values."""
        try:
            return text in self._path.read_bytes()
        except FileNotFoundError:
            return False

    @property
    def may_lack_older(self) -> bool:
        """Return whether the file was so long that its older half may have been dropped."""
        return self._offset > self._most // 3

    def append(self, values: Iterable[T]) -> None:
        """Add values durably: they are on the disk when this returns."""
        lines = b"".join(msgspec.json.encode(value) + b"\n" for value in values)
        if not lines:
            return
        with locked(self._path.with_suffix(".lock")):
            self._shorten()
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                try:
                    rest = memoryview(b"\n" + lines if torn else lines)
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
                    os.fsync(descriptor)
                except OSError as error:
                    os.ftruncate(descriptor, size)  # a full disk takes the beginning, which is none of the values
                    raise OSError(error.errno, error.strerror, str(self._path)) from error
            finally:
                os.close(descriptor)

    def fresh(self) -> tuple[bool, list[T]]:
        """Return the values since the last call, and whether they replace all earlier ones."""
        with self._reading:
            return self._fresh()

    def _fresh(self) -> tuple[bool, list[T]]:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                named = (status.st_dev, status.st_ino)
                is_new = named != self._file or status.st_size < self._offset
                if is_new:
                    self._file, self._offset = named, 0
                file.seek(self._offset)
                return is_new, list(self._values(file))
        except FileNotFoundError:
            is_new, self._file, self._offset = self._file is not None, None, 0
            return is_new, []

    def _values(self, file: BinaryIO) -> Iterator[T]:
        for line in file:  # never the whole file at once: each command reads it
            if not line.endswith(b"\n"):
                return
            self._offset += len(line)
            with suppress(msgspec.DecodeError, ValueError):
                yield self._decoder.decode(line)

    def _shorten(self) -> None:
        """Drop the older half of a file that has grown too large."""
        try:
            if self._path.stat().st_size <= self._most:
                return
        except FileNotFoundError:
            return
        content = self._path.read_bytes()
        kept = content[content.index(b"\n", len(content) // 2) + 1 :]
        write_whole(self._path, kept)


class Index(Generic[K, T]):
    """The last value of each key in a journal, in the order in which these were added."""

    def __init__(self, path: Path, kind: type[T], key: Callable[[T], K], most_bytes: int = MOST_BYTES) -> None:
        self._journal = Journal(path, kind, most_bytes)
        self._key = key
        self._last: dict[K, T] = {}
        self.add = self._journal.append
        """Adds values durably: the `append` of the journal."""

    @property
    def may_lack_older(self) -> bool:
        return self._journal.may_lack_older

    def all(self) -> dict[K, T]:
        """Return the values by key, with those that other processes have added."""
        is_new, found = self._journal.fresh()
        if is_new:
            self._last = {}
        for each in found:
            key = self._key(each)
            self._last.pop(key, None)
            self._last[key] = each
        return self._last

    def of(self, key: K) -> T | None:
        return self.all().get(key)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file, readable by its owner only; a reader sees the old or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)
