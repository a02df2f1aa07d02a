"""A tenant that used nothing lately is not stuck behind another's dump of jobs of equal priority."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from gputui.domain.policy.cluster_state import ClusterState, PolicyRules, RunningJob, UsageLedger
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.placement import Ask, NodeLayout
from gputui.domain.policy.plan import Arrival, simulate
from gputui.domain.settings import PolicySettings
from tests.cases import cases

HOUR = 3600.0
EIGHT = 0b11111111


def played(arrivals: list[Arrival], policy: PolicySettings) -> Iterator[RunningJob]:
    """Yield the starts of jobs on eight GPUs that are free at first."""
    ledger = UsageLedger(policy.half_life.total_seconds(), 0.0)
    return simulate(ClusterState(PolicyRules.of(policy), [NodeLayout(EIGHT)], [EIGHT], ledger), 0.0, arrivals)


def wait_of_newcomer(dump: int, hours: float, at: float, policy: PolicySettings) -> float:
    """Return the wait in hours of bob's first one-hour job behind a batch of alice's jobs."""
    one = Ask(1, 1, (EIGHT,))
    hers = Arrival(0.0, LaneKey("alice", one, 50, hours * HOUR), Waiting(0.0, 1, dump))
    his = Arrival(at * HOUR, LaneKey("bob", one, 50, HOUR), Waiting(at * HOUR, 10**6))
    return next((run.started / HOUR - at) for run in played([hers, his], policy) if run.id == 10**6)


@cases(("dump", "hours", "at"), [(1000, 1.0, 24.0), (1000, 1.0, 90.0), (3000, 1.0, 48.5), (300, 4.0, 24.1)])
def test_the_first_job_of_a_newcomer_takes_the_next_free_gpu(dump: int, hours: float, at: float) -> None:
    assert wait_of_newcomer(dump, hours, at, PolicySettings()) <= hours


def test_limits_of_the_credit_of_a_newcomer() -> None:
    # without credit a newcomer waits for the whole dump
    assert wait_of_newcomer(1000, 1.0, 24.0, PolicySettings(newcomer_credit=timedelta(0))) > 50
    # a tenant alone gets no credit and still runs all jobs
    one = Ask(1, 1, (EIGHT,))
    hers = [Arrival(n * HOUR, LaneKey("alice", one, 50, 2 * HOUR), Waiting(n * HOUR, 100 * n, 50)) for n in range(1, 4)]
    starts = [run.id for run in played(hers, PolicySettings())]
    assert starts == sorted(starts)
    assert len(starts) == 150
    # a promoted dump goes before a newcomer: starvation behind newcomers is impossible.
    policy = PolicySettings(promote_after=timedelta(hours=12))
    assert wait_of_newcomer(1000, 1.0, 24.0, policy) > 50
