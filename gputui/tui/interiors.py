"""What the console asks of the inside of jobs."""

from __future__ import annotations

from typing import Protocol

from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.process import ProcessRow, Shell


class Interiors(Protocol):
    """Calls block, come from any thread, and raise GputuiError."""

    def shell(self, job: Job) -> Shell:
        """What opens a shell beside it."""
        ...

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        """All that it runs now."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class Closed:
    """Where there is no way in."""

    def shell(self, job: Job) -> Shell:
        """There is none."""
        raise GputuiError(f"there is no way into job {job.id} from here")

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        """There are none to be seen."""
        raise GputuiError(f"there is no way into job {job.id} from here")

    def close(self) -> None:
        """Nothing to let go of."""
