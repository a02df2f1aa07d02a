"""Users who wait to attach to a job: a lock for each in `viewers/`, which the kernel releases when its process ends.

A container that no client is attached to at its start loses the beginning of its output. So the scheduler starts an
interactive one only when the lock of its job is free, or after some seconds. The directory also holds input marks.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gputui.domain.job_spec import JobId
from gputui.engine.files.file_modes import file_mode, folder_in, open_file, open_regular

FOLDER = "viewers"
PATIENCE = 5.0
"""Seconds that a start waits for a client to attach."""
_LOOK_EVERY = 0.01
_MARK_EVERY = 1.0


class AttachWait:
    """Wait of a user who attaches to a job. Without rights to create the lock, the start does not wait."""

    def __init__(self, directory: Path, job_id: JobId) -> None:
        self._directory = directory
        self._name = str(job_id)
        self._lock: int | None = None
        with suppress(OSError), folder_in(directory, FOLDER) as folder:
            self._lock = open_file(folder / self._name, os.O_RDWR | os.O_CREAT, file_mode(directory))
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def is_attached(self) -> None:
        """Unlock the start of the job."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(OSError), folder_in(self._directory, FOLDER) as folder:
                (folder / self._name).unlink()
            os.close(lock)


def wait_for_viewer(directory: Path, job_id: JobId, pause: Callable[[float], None] = time.sleep) -> None:
    """Return when no user waits to attach to the job any more, after `PATIENCE` seconds at the latest."""
    for _ in range(round(PATIENCE / _LOOK_EVERY)):
        if not _is_awaited(directory / FOLDER / str(job_id)):
            return
        pause(_LOOK_EVERY)


def _is_awaited(path: Path) -> bool:
    try:
        lock = open_regular(path)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


class InputMark:
    """Record of a job's last input, for its idle timeout: the modification time of a file."""

    def __init__(self, directory: Path, job_id: JobId) -> None:
        self._directory = directory
        self._name = _input_name(job_id)
        self._marked_at = float("-inf")

    def set(self) -> None:
        """Record input now, at most once in `_MARK_EVERY` seconds."""
        if time.monotonic() - self._marked_at < _MARK_EVERY:
            return
        self._marked_at = time.monotonic()
        with suppress(OSError), folder_in(self._directory, FOLDER) as folder:
            mark = open_file(folder / self._name, os.O_RDWR | os.O_CREAT, file_mode(self._directory))
            try:
                os.utime(mark)
            finally:
                os.close(mark)


def last_input(directory: Path, job_id: JobId) -> int:
    """Return the time of the last recorded input in nanoseconds; 0 for none."""
    with suppress(OSError):
        status = (directory / FOLDER / _input_name(job_id)).stat(follow_symlinks=False)
        return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else 0
    return 0


def forget_input(directory: Path, job_id: JobId) -> None:
    """Remove the record of a job's input."""
    if last_input(directory, job_id):
        with suppress(OSError), folder_in(directory, FOLDER) as folder:
            (folder / _input_name(job_id)).unlink()


def _input_name(job_id: JobId) -> str:
    return f"{job_id}.input"
