"""Distribution of the tests over workers, for runs of thousands of tests."""

from __future__ import annotations

import os

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

WAITING_WORKERS = 2
"""Number of workers that begin with tests that wait, beside one for each core that begins with those that compute.

Four kept two slow cores no busier than two do, and each test took twice as long.
"""
YIELDS = 5
"""Niceness of workers that compute: a test that waits for a container's start has a processor at once."""


def number_of_workers() -> int:
    """Return the workers of `-n auto`."""
    return _cores() + WAITING_WORKERS


def computes(worker: str) -> bool:
    """Return whether the worker of that id ("gw0") begins with tests that compute."""
    return int(worker.removeprefix("gw")) < _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


class Distributor(LoadGroupScheduling):
    """Distributor of groups of tests from both ends of their list, to workers of two kinds.

    Tests that wait come first in the list, tests that compute last: while some workers wait, others have the
    processors. A worker whose tests are done goes on with those of the other kind.
    """

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget a test, and give its worker the next ones.

        After each test xdist 3.8 counts all that its worker was ever given: in a whole run nine million, seven seconds.
        """
        super().mark_test_complete(node, item_index, duration)
        given = self.assigned_work[node]
        for group in [group for group, tests in given.items() if all(tests.values())]:
            del given[group]

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the first group of tests, or the last one if it computes."""
        if computes(node.gateway.id):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
