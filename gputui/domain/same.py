"""Key for caches about all jobs of a snapshot."""

from __future__ import annotations

from gputui.domain.job import Job


class Same:
    """Compares tuples of jobs by identity: comparing ten thousand jobs would cost more than recomputing."""

    def __init__(self, jobs: tuple[Job, ...]) -> None:
        self.jobs = jobs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.jobs is other.jobs

    def __hash__(self) -> int:
        return id(self.jobs)
