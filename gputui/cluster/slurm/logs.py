"""Output of jobs: a file on a file system that login node and nodes share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen
from threading import Event, Thread

from gputui.cluster.slurm.commands import SlurmCommands
from gputui.domain.errors import NotFoundError
from gputui.domain.tail import tail_start

_PAUSE = 0.25
"""Seconds between two looks at a file, which may grow on another machine."""
_REMOTE_PAUSE = 2.0
_CHUNK = 64 * 1024
_LONGEST_LINE = 1024**2


class SharedFileLog:
    """Lines of a file; with `is_over`, those that are still to come until that returns True."""

    is_stamped = False

    def __init__(self, path: Path, tail: int | None, is_over: Callable[[], bool] | None) -> None:
        if is_over is None and not path.exists():
            raise NotFoundError("it has no output here yet, or the file is gone", where=str(path))
        self._path = path
        self._tail = tail
        self._is_over = is_over
        self._closed = Event()

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines without their ends."""
        rest, offset = b"", _offset_of_tail(self._path, self._tail)
        while not self._closed.is_set():
            was_over = self._is_over is None or self._is_over()  # asked first: the last lines are read after the end
            for chunk in _chunks(self._path, offset):
                offset += len(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
                if len(rest) > _LONGEST_LINE:
                    yield rest
                    rest = b""
            if was_over:
                break
            self._closed.wait(_PAUSE)
        if rest:
            yield rest

    def close(self) -> None:
        """End the iteration."""
        self._closed.set()


class RemoteLog:
    """Lines of a file on the login node, read by `tail` there."""

    is_stamped = False

    def __init__(
        self, commands: SlurmCommands, path: str, tail: int | None, is_over: Callable[[], bool] | None
    ) -> None:
        if is_over is None and commands.run("test", "-e", path).code:
            raise NotFoundError("it has no output there yet, or the file is gone", where=f"{commands.place}:{path}")
        start = ["-n", "+1" if tail is None else str(tail)]
        self._process: Popen[bytes] = commands.popen("tail", *start, *(["-F"] if is_over else []), "--", path)
        self._is_over = is_over
        self._is_read = False
        self._closed = Event()

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines without their ends."""
        if self._is_over is not None:
            Thread(target=self._end_with_job, args=(self._is_over,), name="log-end", daemon=True).start()
        self._is_read = True
        try:
            if self._process.stdout is not None:
                with self._process.stdout as lines:
                    for line in lines:
                        yield line.rstrip(b"\n")
        finally:
            self.close()

    def close(self) -> None:
        """End the iteration, from any thread."""
        self._closed.set()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None and not self._is_read:
            self._process.stdout.close()

    def _end_with_job(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            if self._closed.wait(_REMOTE_PAUSE):
                return
        if not self._closed.wait(_REMOTE_PAUSE):  # tail looks at the file each second
            self.close()


def _chunks(path: Path, offset: int) -> Iterator[bytes]:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        while chunk := file.read(_CHUNK):
            yield chunk


def _offset_of_tail(path: Path, tail: int | None) -> int:
    """Return the offset of the last `tail` lines: of the whole file for None, or while there is none."""
    if tail is None:
        return 0
    try:
        with path.open("rb") as file:
            descriptor = file.fileno()
            size = os.fstat(descriptor).st_size
            return tail_start(size, tail, lambda at, count: os.pread(descriptor, count, at))
    except FileNotFoundError:
        return 0
