"""Key of caches about all jobs of a snapshot."""

from __future__ import annotations

from gputui.domain.job import Job


class Same:
    """The very tuple of jobs: to compare ten thousand of them would cost more than to count."""

    def __init__(self, jobs: tuple[Job, ...]) -> None:
        self.jobs = jobs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.jobs is other.jobs

    def __hash__(self) -> int:
        return id(self.jobs)
