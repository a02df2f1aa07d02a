"""Marks of the last input to jobs, for their idle timeouts: files in the state directory.

Processes of streams write them, which outlive the scheduler that reads them. They may be lost at any time.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from gputui.domain.job_spec import JobId
from gputui.engine.files.file_modes import folder_in, open_file

FOLDER = "input"
_MARK_EVERY = 1.0


class InputMark:
    """Record of a job's last input, for its idle timeout: the modification time of a file."""

    def __init__(self, directory: Path, job_id: JobId) -> None:
        self._directory = directory
        self._name = str(job_id)
        self._marked_at = float("-inf")

    def set(self) -> None:
        """Record input now, at most once in `_MARK_EVERY` seconds."""
        if time.monotonic() - self._marked_at < _MARK_EVERY:
            return
        self._marked_at = time.monotonic()
        with suppress(OSError), folder_in(self._directory, FOLDER) as folder:
            mark = open_file(folder / self._name, os.O_RDWR | os.O_CREAT)
            try:
                os.utime(mark)
            finally:
                os.close(mark)


def last_input(directory: Path, job_id: JobId) -> int:
    """Return the time of the last recorded input in nanoseconds; 0 for none."""
    with suppress(OSError):
        status = (directory / FOLDER / str(job_id)).stat(follow_symlinks=False)
        return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else 0
    return 0


def forget_input(directory: Path, job_id: JobId) -> None:
    """Remove the record of a job's input."""
    if last_input(directory, job_id):
        with suppress(OSError), folder_in(directory, FOLDER) as folder:
            (folder / str(job_id)).unlink()
