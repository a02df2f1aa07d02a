"""A job dragged by keys: those pressed before it is known where the last one took it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_not

from gputui.domain.job import Job, JobId


class Drag:
    """Adds up the steps, and what was wished already that the picture does not show yet."""

    def __init__(self) -> None:
        self._jobs: tuple[Job, ...] = ()
        """As the picture has them."""
        self._steps: tuple[int, ...] = ()
        self._wished = 0
        """So much more priority was asked for since they were these very objects."""

    def press(self, jobs: Sequence[Job], step: int) -> tuple[tuple[int, ...], int]:
        """The steps to be made, and the priority that these jobs have beyond the picture's."""
        if [job.id for job in jobs] != [job.id for job in self._jobs]:
            self._steps = ()
        if len(jobs) != len(self._jobs) or any(map(is_not, jobs, self._jobs)):  # the picture has gone on
            self._wished = 0
        self._jobs = tuple(jobs)
        self._steps = (*self._steps, step)
        return self._steps, self._wished

    def is_answered(self, job_ids: Sequence[JobId], steps: tuple[int, ...]) -> bool:
        """Whether that is all that was asked for: then the next key begins anew."""
        if steps != self._steps or tuple(job_ids) != tuple(job.id for job in self._jobs):
            return False
        self._steps = ()
        return True

    def wish(self, delta: int) -> int:
        """So much in all is wished: what of that was not wished before."""
        more, self._wished = delta - self._wished, delta
        return more
