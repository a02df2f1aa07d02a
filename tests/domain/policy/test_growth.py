"""What a plan costs grows little faster than the queue: counted in calls, which no load of the machine changes."""

from __future__ import annotations

import math
import sys
from types import FrameType

from bench.plan import NOW, queue_of
from gputui.domain.policy.lineup import Known
from gputui.domain.policy.plan import plan
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot

FEW, MANY = 2_000, 16_000
"""Jobs; enough for what each costs to outweigh the forecast, which costs the same for any number."""


def calls(snapshot: Snapshot, known: Known | None = None) -> int:
    """Functions called by one plan, of Python's and of C's."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(counted)
    try:
        plan(snapshot, Settings(), NOW, known)
    finally:
        sys.setprofile(None)
    return count


def test_calls_grow_no_worse_than_n_log_n() -> None:
    few, many = calls(queue_of(FEW)), calls(queue_of(MANY))
    assert many / few < MANY * math.log(MANY) / (FEW * math.log(FEW))
    assert many < 26 * MANY


def test_the_next_plan_asks_nothing_of_jobs_that_are_the_same() -> None:
    snapshot, known = queue_of(MANY), Known()
    first = calls(snapshot, known)
    assert calls(snapshot, known) < first - 5 * MANY
