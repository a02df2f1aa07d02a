"""Promises of the queue's order on whole traces: newcomers get in, and tricks do not pay."""

from __future__ import annotations

import statistics

import pytest

from bench.tricks import Trick, gains, in_slices, without_limits
from gputui.domain.settings import PolicySettings
from gputui.replay.generator import generate
from gputui.replay.policies import plan
from gputui.replay.trace import HOUR, Site, TraceJob

EIGHT = Site(8)
AS_IT_IS = PolicySettings()


@pytest.mark.parametrize("after", [1, 60, 200])
def test_a_newcomer_waits_two_hours_at_most_however_old_the_dump_is(after: int) -> None:
    blocks = [TraceJob(number, 0.0, after * HOUR, 1, "ann", limit=after * HOUR) for number in range(8)]
    dump = [TraceJob(8 + number, 1.0, HOUR, 1, "ann", limit=HOUR) for number in range(300)]
    late = TraceJob(308, (after + 0.5) * HOUR, HOUR, 1, "ben", limit=HOUR)
    [wait] = [ran.start - ran.job.submit for ran in plan([*blocks, *dump, late], EIGHT) if ran.job is late]
    assert wait <= 2 * HOUR


def mean_gain(trick: Trick, seeds: int) -> float:
    """Return the mean wait with the trick over that without it, of tenants of so many made-up traces."""
    traces = [generate(300, seed, widest=8, days=28 * 300 / 2500) for seed in range(seeds)]
    return statistics.fmean(ratio for trace in traces for ratio in gains(trick, trace, AS_IT_IS, 1.0))


def test_a_tenant_that_leaves_limits_out_waits_longer() -> None:
    assert mean_gain(without_limits, 1) >= 3.0


def test_a_tenant_that_cuts_its_jobs_into_slices_waits_no_less_on_average() -> None:
    assert mean_gain(in_slices, 4) >= 1.0
