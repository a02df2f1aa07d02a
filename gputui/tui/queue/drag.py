"""A job dragged by keys: those pressed before it is known where the last one took it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import is_not

from gputui.domain.job import Job, JobId


class Drag:
    """Adds up the steps, and what was wished already that the picture does not show yet."""

    def __init__(self) -> None:
        self._ids: tuple[JobId, ...] = ()
        self._jobs: tuple[weakref.ref[Job], ...] = ()
        """As the picture has them, while it has: they may be the whole queue."""
        self._steps: tuple[int, ...] = ()
        self._wished = 0
        """So much more priority was asked for since they were these very objects."""

    def press(self, jobs: Sequence[Job], step: int) -> tuple[tuple[int, ...], int]:
        """The steps to be made, and the priority that these jobs have beyond the picture's."""
        ids = tuple(job.id for job in jobs)
        if ids != self._ids:
            self._steps = ()
        before = [known() for known in self._jobs]
        if len(jobs) != len(before) or any(map(is_not, jobs, before)):  # the picture has gone on
            self._wished = 0
        self._ids, self._jobs = ids, tuple(map(weakref.ref, jobs))
        self._steps = (*self._steps, step)
        return self._steps, self._wished

    def is_answered(self, job_ids: Sequence[JobId], steps: tuple[int, ...]) -> bool:
        """Whether that is all that was asked for: then the next key begins anew."""
        if steps != self._steps or tuple(job_ids) != self._ids:
            return False
        self._steps = ()
        return True

    def wish(self, delta: int) -> int:
        """So much in all is wished: what of that was not wished before."""
        more, self._wished = delta - self._wished, delta
        return more
