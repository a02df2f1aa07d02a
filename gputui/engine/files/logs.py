"""Output of attempts: from the runtime while the container exists, else from the saved file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from gputui.domain.errors import NotFoundError, RuntimeFault, RuntimeUnavailableError
from gputui.domain.job import Attempt, Job, attempt_with_output
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.text import tail_start
from gputui.ports import LogStream, Runtime

LONGEST_LINE = 1024**2
"""Maximum bytes of a line, as in running attempts: a longer one is several, since a job may never end one."""


def log_path(job_id: JobId, attempt: int) -> str:
    """Return the path of an ended attempt's saved output, relative to the state directory."""
    return f"logs/{job_id}/{attempt}.log"


class Logs:
    """Opens the output of any attempt, running or ended."""

    def __init__(
        self, job_of: Callable[[JobId], Job], directory: Path, runtime: Callable[[JobSpec], Runtime | None]
    ) -> None:
        self._job_of = job_of
        self._directory = directory
        self._runtime = runtime

    def open(
        self,
        job_id: JobId,
        attempt: int | None = None,
        *,
        tail: int | None = None,
        follow: bool = False,
        stamped: bool = False,
    ) -> LogStream:
        """Return the lines of the attempt (None: the latest), starting at the last `tail` lines.

        With `follow` the stream of a running attempt continues until it ends or is closed. With `stamped` lines begin
        with their times if the runtime knows them; a saved log has none.
        """
        job = self._job_of(job_id)
        chosen = attempt_with_output(job, attempt)
        path = self._directory / log_path(job_id, chosen.number)
        if path.exists():
            return FileLog(path, tail)
        runtime = self._runtime(job.spec)
        if runtime is None or chosen.container_id is None:
            raise NotFoundError(f"attempt {chosen.number} of job {job.shown_id} has no output")
        try:
            return runtime.logs(chosen.container_id, tail=tail, follow=follow, stamped=stamped)
        except RuntimeUnavailableError:
            raise
        except RuntimeFault as fault:
            if path.exists():  # saved, and its container removed, since the check above
                return FileLog(path, tail)
            if not chosen.is_over:
                raise
            raise _gone(job, chosen) from fault


def _gone(job: Job, attempt: Attempt) -> NotFoundError:
    """Return the error about output that nothing holds any more."""
    output = f"the output of attempt {attempt.number} of job {job.shown_id}"
    if attempt.log_path is None:
        return NotFoundError(f"{output} was removed with its container")
    limits = "store.logs_max_age and store.logs_max_size limit what is kept"
    return NotFoundError(f"{output} is no longer kept", hint=limits)


class FileLog:
    """Stream of a saved log."""

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
