"""Cost of a plan grows little faster than the queue: counted in calls, which no load of the machine changes."""

from __future__ import annotations

import math
import sys
from datetime import timedelta
from types import FrameType

from bench.plan import NOW, mixture_of, queue_of
from gputui.domain.policy.plan import plan
from gputui.domain.policy.queue_order import OrderCache
from gputui.domain.settings import PolicySettings, Settings, Window
from gputui.domain.snapshot import Snapshot

POLICY = PolicySettings()
FEW, MANY = 2_000, 16_000
"""Jobs; enough for what each costs to outweigh the forecast, which costs the same for any number."""


def calls(snapshot: Snapshot, known: OrderCache | None = None, policy: PolicySettings = POLICY) -> int:
    """Return the number of functions called by one plan, Python's and C's."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(counted)
    try:
        plan(snapshot, Settings(policy=policy), NOW, known)
    finally:
        sys.setprofile(None)
    return count


def test_calls_grow_no_worse_than_n_log_n() -> None:
    few, many = calls(queue_of(FEW)), calls(queue_of(MANY))
    assert many / few < MANY * math.log(MANY) / (FEW * math.log(FEW))
    assert many < 32 * MANY


def test_jobs_that_are_all_different_cost_little_more() -> None:
    """Different jobs are lanes of their own, and a forecast that compares them all stops earlier."""
    few, many = calls(mixture_of(FEW, 200)), calls(mixture_of(MANY, 200))
    assert many / few < MANY * math.log(MANY) / (FEW * math.log(FEW))
    assert many < 70 * MANY


def test_a_reservation_costs_little_for_however_many_jobs_it_keeps_back() -> None:
    """Otherwise each of them would be tried at every step of the forecast."""
    snapshot = queue_of(FEW)
    plain = calls(snapshot)
    for priority in (None, 80):
        window = Window("w", NOW + timedelta(hours=2), NOW + timedelta(hours=9), 16, tenant="zoe", priority=priority)
        assert calls(snapshot, policy=PolicySettings(reservations=(window,))) < 2 * plain


def test_the_next_plan_asks_nothing_of_jobs_that_are_the_same() -> None:
    snapshot, known = queue_of(MANY), OrderCache()
    first = calls(snapshot, known)
    assert calls(snapshot, known) < first - 5 * MANY
