"""Properties of the queue's order on whole traces: newcomers get in, and tricks do not pay."""

from __future__ import annotations

import statistics

from bench.tricks import Trick, gains, in_slices, without_limits
from gputui.domain.settings import PolicySettings
from gputui.replay.policies import plan
from gputui.replay.trace import HOUR, Site, TraceJob, generate
from tests.cases import cases

EIGHT = Site(8)
AS_IT_IS = PolicySettings()


@cases("after", [1, 60, 200])
def test_a_newcomer_waits_at_most_two_hours_behind_any_dump(after: int) -> None:
    blocks = [TraceJob(number, 0.0, after * HOUR, 1, "ann", limit=after * HOUR) for number in range(8)]
    dump = [TraceJob(8 + number, 1.0, HOUR, 1, "ann", limit=HOUR) for number in range(300)]
    late = TraceJob(308, (after + 0.5) * HOUR, HOUR, 1, "ben", limit=HOUR)
    [wait] = [ran.start - ran.job.submit for ran in plan([*blocks, *dump, late], EIGHT) if ran.job is late]
    assert wait <= 2 * HOUR


def mean_gain(trick: Trick, seeds: int) -> float:
    """Return the mean wait with the trick relative to that without it, over tenants of generated traces."""
    traces = [generate(300, seed, widest=8, days=28 * 300 / 2500) for seed in range(seeds)]
    return statistics.fmean(ratio for trace in traces for ratio in gains(trick, trace, AS_IT_IS, 1.0))


def test_a_tenant_without_limits_waits_longer() -> None:
    assert mean_gain(without_limits, 1) >= 3.0


def test_slicing_jobs_does_not_shorten_the_mean_wait() -> None:
    assert mean_gain(in_slices, 4) >= 1.0
