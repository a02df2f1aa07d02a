"""Ends of jobs: how commands wait for them, and the exit codes that commands derive from them."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

from gputui.domain import event
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from gputui.ports import JobStore, StoreWatch

TIMED_OUT = 124
"""Exit code of a wait that timed out, as in timeout(1)."""
LOOK_EVERY, LOOK_EVERY_WATCHED = 0.2, 2.0
"""Seconds between two checks of the store's version: without a watch, and with one."""
_TOGETHER = 0.05
"""Minimum seconds between two reads of a queue that changes all the time."""


class Changes:
    """Waits for changes of the store: on a watch where the system allows one, else by its version."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._watch: StoreWatch | None = store.watch()
        self._poll = select.poll()
        if self._watch is not None:
            self._poll.register(self._watch.fileno(), select.POLLIN)
        self._seen = store.version()

    def wait(self, deadline: float | None = None, *others: int) -> bool:
        """Wait for a write, or for input on another descriptor; return False at `deadline`, on the monotonic clock."""
        for other in others:
            self._poll.register(other, select.POLLIN)
        try:
            while (version := self._store.version()) == self._seen:
                left = float("inf") if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return False
                ready = self._poll.poll(1000 * min(left, LOOK_EVERY_WATCHED if self._watch else LOOK_EVERY))
                if any(descriptor in others for descriptor, _ in ready):
                    return True
                if ready and self._watch is not None:
                    self._watch.clear()
                    time.sleep(_TOGETHER)
            self._seen = version
            return True
        finally:
            for other in others:
                self._poll.unregister(other)

    def close(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.close()


@contextmanager
def changes_of(store: JobStore) -> Iterator[Changes]:
    """Yield a wait for changes of the store, closed at the end."""
    with closing(Changes(store)) as changes:
        yield changes


def has_ended(job: Job) -> bool:
    """Return whether the job has ended and will not be retried, as far as is known."""
    return job.state.is_terminal and not job.requeue_requested


def exit_code(job: Job) -> int:
    """Return the exit code for an ended job: its own, or 1 for a job that failed without one or with 0."""
    if job.state is JobState.COMPLETED:
        return 0
    return job.exit_code or 1


def sentence(job: Job) -> str:
    """Return a sentence about the end of a job, with its exit code unless the cause already contains it."""
    told = event.ended(job).text
    return told if not job.exit_code or str(job.exit_code) in told else f"{told}, exit code {job.exit_code}"


def ended_among(store: JobStore, waiting: set[JobId]) -> Iterator[Job]:
    """Remove the ids of ended jobs from the set, and yield these jobs; elements of one entry together."""
    jobs = store.jobs()
    live: set[JobId] = set()
    for entry in jobs.values():
        if not has_ended(entry):
            live.update(entry.ids)
    ended = waiting - live
    waiting -= ended
    for entry in jobs.values():
        if not ended:
            return
        mine = ended.intersection(entry.ids)
        ended -= mine
        if mine and (part := entry.divided(mine)[0]) is not None:
            yield part
    yield from map(store.get, sorted(ended))


def wait_for(
    store: JobStore, ids: Iterable[JobId], deadline: float | None = None, *, is_one_enough: bool = False
) -> Iterator[Job]:
    """Yield jobs as they end, until all have, or the first if one is enough. Raises TimeoutError at the deadline."""
    waiting = set(ids)
    with changes_of(store) as changes:
        while True:
            found = list(ended_among(store, waiting))
            yield from found
            if not waiting or (found and is_one_enough):
                return
            if not changes.wait(deadline):
                raise TimeoutError
