"""Output of attempts: from the runtime while the container exists, else from the saved file."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct, field

from gputui.domain.errors import NotFoundError, RuntimeFault, RuntimeUnavailableError
from gputui.domain.job import Job, attempt_with_output
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.kept_data import KeepLimits, KeptData
from gputui.domain.settings import StoreSettings
from gputui.domain.text import tail_start
from gputui.engine.files import folder_in
from gputui.ports import LogStream, Queue, Runtime
from gputui.ports.backend import WHOLE_LOG, LogRequest

LONGEST_LINE = 1024**2
"""Maximum bytes of a line, as in running attempts: a longer one is several, since a job may never end one."""


def log_path(job_id: JobId, attempt: int) -> str:
    return f"logs/{job_id}/{attempt}.log"


class Logs(Struct, eq=False):
    _job_of: Callable[[JobId], Job]
    _directory: Path
    _runtime: Callable[[JobSpec], Runtime | None]

    def open(self, job_id: JobId, request: LogRequest = WHOLE_LOG) -> LogStream:
        """Return the lines of the attempt that is asked for, the latest for none, starting at the last `tail` lines.

        With `follow` the stream of a running attempt continues until it ends or is closed. With `stamped` lines begin
        with their times if the runtime knows them; a saved log has none.
        """
        job = self._job_of(job_id)
        chosen = attempt_with_output(job, request.attempt)
        path = self._directory / log_path(job_id, chosen.number)
        if path.exists():
            return FileLog(path, request.tail)
        runtime = self._runtime(job.spec)
        if runtime is None or chosen.container_id is None:
            raise NotFoundError(f"attempt {chosen.number} of job {job.shown_id} has no output")
        try:
            return runtime.logs(chosen.container_id, tail=request.tail, follow=request.follow, stamped=request.stamped)
        except RuntimeUnavailableError:
            raise
        except RuntimeFault as fault:
            if path.exists():  # saved, and its container removed, since the check above
                return FileLog(path, request.tail)
            if not chosen.is_over:
                raise
            output = f"the output of attempt {chosen.number} of job {job.shown_id}"
            if chosen.log_path is None:
                raise NotFoundError(f"{output} was removed with its container") from fault
            limits = "store.logs_max_age and store.logs_max_size limit what is kept"
            raise NotFoundError(f"{output} is no longer kept", hint=limits) from fault


class FileLog:
    def __init__(self, path: Path, tail: int | None) -> None:
        self._path = path
        self._tail = tail
        self._closed = False
        self.size = path.stat().st_size
        """Size of the whole log in bytes."""

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            file.seek(self._start(file.fileno()))
            while not self._closed and (line := file.readline(LONGEST_LINE)):
                yield line.removesuffix(b"\n")

    def part(self, first: int, count: int) -> bytes:
        """Return at most so many bytes from there on, in whichever lines they are."""
        with self._path.open("rb") as file:
            return os.pread(file.fileno(), count, self._start(file.fileno()) + first)

    def _start(self, descriptor: int) -> int:
        if self._tail is None:
            return 0
        size = os.fstat(descriptor).st_size
        return tail_start(size, self._tail, lambda at, count: os.pread(descriptor, count, at))

    def close(self) -> None:
        self._closed = True


PASS_EVERY = timedelta(hours=1)
STEP = 500
"""Directories of jobs that one step looks at, at most."""
STEP_SECONDS = 0.25
"""Time after which a step leaves the rest to the next one."""
COUNT_SECONDS = 0.5
"""Seconds that `gputui doctor` spends on counting, unless told otherwise."""
LOGS = "logs"
TELEMETRY = "telemetry"
_EMPTY_FOR = 86400.0
"""Seconds after which an empty directory is removed: a log may be about to be written into a new one."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Measure(Struct):
    limits: KeepLimits
    remove_to: float = 0.0
    """Modification time up to which files are removed to meet the size limit."""
    size: int = 0
    files: int = 0
    oldest: float | None = None
    removable: list[tuple[float, int]] = field(default_factory=list)
    """Modification time and size of each file that may be removed."""

    def is_surplus(self, status: os.stat_result, now: datetime) -> bool:
        """Return whether a file is too old, or among the oldest of too many."""
        age = self.limits.max_age
        is_old = age is not None and status.st_mtime < (now - age).timestamp()
        return is_old or status.st_mtime <= self.remove_to

    def add(self, status: os.stat_result, *, is_removable: bool) -> None:
        self.size += status.st_size
        self.files += 1
        self.oldest = status.st_mtime if self.oldest is None else min(self.oldest, status.st_mtime)
        if is_removable and self.limits.max_size is not None:
            self.removable.append((status.st_mtime, status.st_size))

    def next_pass(self) -> _Measure:
        """Return the measure of the next pass, which removes what is too much now."""
        surplus = 0 if self.limits.max_size is None else self.size - self.limits.max_size
        remove_to = 0.0
        for modified, size in sorted(self.removable) if surplus > 0 else ():
            if surplus <= 0:
                break
            remove_to, surplus = modified, surplus - size
        return _Measure(self.limits, remove_to)


class LogSweeper:
    """Keeps saved logs and telemetry within their limits; never those of jobs that wait or run."""

    def __init__(self, directory: Path, settings: StoreSettings, store: Queue, step: int = STEP) -> None:
        self._directory = directory
        self._store = store
        self._step = step
        self._measures = _measures(settings)
        self._left: list[str] = []
        self._is_under_way = False
        self._due: datetime | None = None

    def step(self, now: datetime) -> None:
        """Look at the next directories; begin a pass where one is due."""
        if not any(measure.limits.are_set for measure in self._measures.values()):
            return
        if not self._is_under_way and (self._due is None or not self._due - PASS_EVERY <= now < self._due):
            self._left = sorted(_names(self._directory / LOGS))
            self._is_under_way = True
        if not self._is_under_way:
            return
        jobs, unreadable = self._store.jobs(), {entry.key for entry in self._store.unreadable()}
        until = time.monotonic() + STEP_SECONDS
        with folder_in(self._directory, LOGS) as logs:
            for _ in range(min(self._step, len(self._left))):
                name = self._left.pop()
                job = jobs.get(JobId(int(name)))
                is_live = name in unreadable if job is None else not job.has_ended
                with suppress(OSError):  # it is gone, or is no directory
                    _visit(logs / name, self._measures, now, is_live=is_live)
                if time.monotonic() > until:
                    break
        if self._left:
            return
        self._is_under_way = False
        self._measures = {kind: measure.next_pass() for kind, measure in self._measures.items()}
        has_more = any(measure.remove_to for measure in self._measures.values())
        self._due = None if has_more else now + PASS_EVERY


def kept(directory: Path, settings: StoreSettings, seconds: float = COUNT_SECONDS) -> list[KeptData]:
    """Return number and size of kept logs and telemetry; counts the oldest jobs first, for so many seconds at most."""
    measures, now = _measures(settings), datetime.now(UTC)
    names, visited = sorted(_names(directory / LOGS), key=lambda name: (len(name), name)), 0
    until = time.monotonic() + seconds
    for name in names:
        with suppress(OSError):
            _visit(directory / LOGS / name, measures, now, is_live=True)
        visited += 1
        if time.monotonic() > until:
            break
    counted = (visited, len(names)) if visited < len(names) else None
    return [
        KeptData(
            kind,
            found.size,
            found.files,
            None if found.oldest is None else datetime.fromtimestamp(found.oldest, UTC),
            found.limits,
            counted,
        )
        for kind, found in measures.items()
    ]


def _measures(settings: StoreSettings) -> dict[str, _Measure]:
    return {
        LOGS: _Measure(KeepLimits(settings.logs_max_age, settings.logs_max_size)),
        TELEMETRY: _Measure(KeepLimits(settings.telemetry_max_age, settings.telemetry_max_size)),
    }


def _names(logs: Path) -> Iterator[str]:
    try:
        yield from (path.name for path in logs.iterdir() if path.name.isascii() and path.name.isdigit())
    except FileNotFoundError:
        return


def _visit(path: Path, measures: dict[str, _Measure], now: datetime, *, is_live: bool) -> None:
    """Remove the files of a job that are surplus, and measure the others. Follows no link; raises OSError."""
    fd = os.open(path, _DIRECTORY)
    try:
        with os.scandir(fd) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or name.startswith("."):
                continue
            measure = measures[TELEMETRY if name.endswith(".telemetry") else LOGS]
            if not is_live and measure.is_surplus(status, now):
                os.unlink(name, dir_fd=fd)
            else:
                measure.add(status, is_removable=not is_live)
        if not names and not is_live and now.timestamp() - os.fstat(fd).st_mtime > _EMPTY_FOR:
            path.rmdir()
    finally:
        os.close(fd)
