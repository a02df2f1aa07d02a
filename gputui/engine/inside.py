"""The way into jobs that run: a shell, and what their processes are."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.process import ProcessRow, Shell
from gputui.domain.state import JobState
from gputui.ports import Interior


class Inside:
    """Finds the runtime of a job. Calls block, and come from any thread, one at a time."""

    def __init__(self, make: Callable[[], dict[str, Interior]]) -> None:
        self._make = make
        self._interiors: dict[str, Interior] = {}
        self._lock = threading.Lock()

    def shell(self, job: Job) -> Shell:
        """What opens a shell beside it."""
        container_id = _running(job)
        with self._lock:
            return self._of(job).shell(container_id)

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        """All that it runs now."""
        container_id = _running(job)
        with self._lock:
            return self._of(job).processes(container_id)

    def close(self) -> None:
        """Let go of connections."""
        with self._lock:
            for interior in self._interiors.values():
                interior.close()

    def _of(self, job: Job) -> Interior:
        self._interiors = self._interiors or self._make()
        found = self._interiors.get("process" if job.spec.is_host else "docker")
        if found is None:
            raise GputuiError(f"job {job.id} has an image, and this console was started without an engine")
        return found


def _running(job: Job) -> str:
    attempt = job.attempt
    if job.state is not JobState.RUNNING or attempt is None or attempt.container_id is None:
        raise GputuiError(f"job {job.id} is {job.state}: there is no inside to look at", hint="it must be RUNNING")
    return attempt.container_id
