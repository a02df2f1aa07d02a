"""What consoles and commands leave for the leader: the GPU shown in detail, users who wait for a job, their last input.

Only the leader's probe can read PCIe and NVLink, so a file names the GPU that a console shows in detail. The console
renews it while the page is open; it expires by itself, so a killed console leaves nothing behind.

Each user who waits to attach to a job has a lock in `viewers/`, which the kernel releases when its process ends. A
container that no client is attached to at its start loses the beginning of its output. So the scheduler starts an
interactive one only when the lock of its job is free, or after some seconds. The directory also holds input marks.

All of this may be lost at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gputui.domain.job_spec import JobId
from gputui.engine.files.file_modes import file_mode, folder_in, open_file, open_regular, replace_file
from gputui.ports import GpuProbe

FOCUS_FILE = "gpu-focus"
LAPSES_AFTER = 5.0
"""Seconds after which a focus expires unless it is renewed."""
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}")


class GpuFocus:
    """GPU to read in detail: the one that this console shows, or else the one that another console shows."""

    def __init__(self, directory: Path, mode: int) -> None:
        self._directory = directory
        self._mode = mode
        self._shown: str | None = None
        """UUID of the GPU that this process shows in detail."""
        self._read: str | None = None
        """UUID of the GPU that the probe was asked to read in detail."""
        self._probe: GpuProbe | None = None

    def use(self, probe: GpuProbe | None) -> None:
        """Set the probe of this process; None: it does not schedule."""
        self._probe, self._read = probe, None

    def show(self, uuid: str | None) -> None:
        """Request readings of the GPU that this process shows. Never blocks."""
        self._shown = uuid
        if self._probe is not None:
            self._probe.want_pcie(uuid)

    def follow(self) -> None:
        """Have the probe read the GPU that is shown, here or elsewhere."""
        wanted = self._shown or read_focus(self._directory)
        if self._probe is not None and wanted != self._read:
            self._read = wanted
            self._probe.want_pcie(wanted)

    def publish(self) -> None:
        """Tell the leader, in another process, which GPU this one shows."""
        if self._shown is not None:
            write_focus(self._directory, self._shown, self._mode)


def write_focus(directory: Path, uuid: str, mode: int) -> None:
    """Write the GPU that this console shows. If the directory is not writable, its readings stay unknown."""
    with contextlib.suppress(OSError):
        replace_file(directory / FOCUS_FILE, uuid.encode(), mode)


def read_focus(directory: Path) -> str | None:
    """Return the UUID of the GPU that some console shows now; None if none does."""
    try:
        fd = open_regular(directory / FOCUS_FILE)
    except OSError:
        return None
    try:
        if abs(time.time() - os.fstat(fd).st_mtime) > LAPSES_AFTER:
            return None
        uuid = os.read(fd, 100).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)
    return uuid if _UUID.fullmatch(uuid) else None


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
