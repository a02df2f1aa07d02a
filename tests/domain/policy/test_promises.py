"""Invariants of plans: no GPU twice, promises kept, forecasts that come true."""

from __future__ import annotations

from datetime import datetime, timedelta
from heapq import heappop, heappush

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import GpuState
from gputui.domain.job import Attempt, Job
from gputui.domain.policy.cluster_state import ClusterState, PolicyRules, UsageLedger
from gputui.domain.policy.decide import decide
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.placement import Ask, NodeLayout
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.settings import PolicySettings, Settings, TenantSettings
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState, PendingReason
from tests.factories import NOW, job, uuid, view
from tests.lane import examples

GPUS = 8
COMING = st.lists(
    st.tuples(st.integers(0, 600), st.integers(1, 400), st.sampled_from([1, 1, 1, 2, 4, 8]), st.sampled_from("abc")),
    min_size=1,
    max_size=40,
)


@given(COMING, st.sampled_from([1, 2]))
def test_the_head_never_starts_later_than_first_promised_when_limits_are_exact(
    coming: list[tuple[int, int, int, str]], nodes: int
) -> None:
    """Order is that of submission here: who comes later cannot push ahead."""
    rules = PolicyRules(promote_after=0.0)
    mask = (1 << GPUS) - 1
    cluster = ClusterState(rules, [NodeLayout(mask)] * nodes, [mask] * nodes, UsageLedger(1e6, 0.0))
    asks = {width: Ask(width, width, (mask,) * nodes) for width in (1, 2, 4, 8)}
    arriving = sorted((at, number, lasts, width, who) for number, (at, lasts, width, who) in enumerate(coming))
    promised: dict[int, float] = {}
    ends: list[tuple[float, int]] = []
    started = set()
    while arriving or ends:
        now = float(min([*(at for at, *_ in arriving[:1]), *(at for at, _ in ends[:1])]))
        while ends and ends[0][0] <= now:
            cluster.end(heappop(ends)[1], now)
        while arriving and arriving[0][0] <= now:
            at, number, lasts, width, tenant = arriving.pop(0)
            cluster.add(LaneKey(tenant, asks[width], 50, float(lasts)), Waiting(float(at), number), now)
        outcome = decide(cluster, now)
        if outcome.hold:
            promised.setdefault(outcome.hold.id, outcome.hold.at)
        for run in outcome.starts:
            assert now <= promised.get(run.id, now)
            started.add(run.id)
            heappush(ends, (now + run.duration, run.id))
        held = [(node, bit) for run in cluster.runs.values() for node, bits in run.grant for bit in _bits(bits)]
        free = [(node, bit) for node, bits in enumerate(cluster.free) for bit in _bits(bits)]
        assert sorted(held + free) == [(node, bit) for node in range(nodes) for bit in range(GPUS)]
    assert started == set(range(len(coming)))


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(GPUS) if mask >> bit & 1]


WAITING = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 2, 3, 4, (1, 3), (2, 4)]),
        st.integers(1, 300),
        st.sampled_from([0, 50, 50, 100]),
        st.sampled_from(["alice", "bob"]),
        st.one_of(st.integers(0, 400), st.integers(0, 90_000)),
    ),
    min_size=1,
    max_size=12,
)
SETTINGS = Settings(
    policy=PolicySettings(
        predict=False, forecast_jobs=1000, tenants=(TenantSettings("alice", weight=2.0), TenantSettings("bob", gpus=4))
    )
)
UP = (RuntimeStatus("docker", True, "Docker"),)


COMING_LATER = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 2, 3, 4, (1, 3), (2, 4)]),
        st.integers(1, 300),
        st.sampled_from([0, 50, 100]),
        st.sampled_from(["alice", "bob", "carol"]),
        st.one_of(st.integers(0, 400), st.integers(0, 90_000)),
        st.sampled_from(["", "", "", "begins", "after", "held"]),
    ),
    min_size=1,
    max_size=12,
)


@given(WAITING)
@settings(max_examples=examples(150), deadline=None, derandomize=True)
def test_the_forecast_comes_true_with_exact_limits(
    waiting: list[tuple[int | tuple[int, int], int, int, str, int]],
) -> None:
    check_forecast({number: exact(number, *wanted) for number, wanted in enumerate(waiting, 1)})


def test_the_forecast_plans_again_when_the_patience_of_a_capped_range_ends() -> None:
    """The order has changed by then, and the plan made then starts a job that the forecast must foresee."""
    narrow = [(1, minutes, 0, "bob", 0) for minutes in (92, 1, 1, 1)]
    others = [(1, 6, 50, "alice", 0), (1, 7, 50, "alice", 0), (2, 6, 50, "bob", 0), (2, 7, 100, "bob", 0)]
    jobs = {number: exact(number, *wanted) for number, wanted in enumerate([*narrow, *others], 1)}
    check_forecast({**jobs, 9: exact(9, (2, 4), 1, 0, "bob", 0)})


@given(COMING_LATER)
@settings(max_examples=examples(100), deadline=None, derandomize=True)
def test_the_forecast_includes_later_and_dependent_jobs_but_no_held_ones(
    waiting: list[tuple[int | tuple[int, int], int, int, str, int, str]],
) -> None:
    jobs = {}
    for number, (gpus, minutes, priority, tenant, age, kind) in enumerate(waiting, 1):
        one = exact(number, gpus, minutes, priority, tenant, age)
        spec = one.spec
        if kind == "begins":
            spec = replace(spec, begin_at=NOW + timedelta(seconds=40 * number))
        if kind == "after" and number > 1:
            spec = replace(spec, after=(number - 1,))
        jobs[number] = replace(one, spec=spec, held=kind == "held")
    check_forecast(jobs)


def exact(number: int, gpus: int | tuple[int, int], minutes: int, priority: int, tenant: str, age: int) -> Job:
    """Return a job that runs for exactly `minutes`."""
    return job(number, gpus=gpus, priority=priority, tenant=tenant, age=age, time_limit=timedelta(minutes=minutes))


def check_forecast(jobs: dict[int, Job]) -> None:
    """Assert that each job starts when the first plan says that it will."""
    first = plan(snapshot_of(jobs, NOW), SETTINGS, NOW)
    expected = {**{start.job_id: NOW for start in first.starts}, **first.forecast}
    assert play(jobs) == expected


IN_TURN = replace(SETTINGS, policy=replace(SETTINGS.policy, promote_after=timedelta(microseconds=1)))


@given(WAITING)
@settings(max_examples=examples(100), deadline=None, derandomize=True)
def test_no_job_starts_later_than_first_promised_with_caps_and_ranges(
    waiting: list[tuple[int | tuple[int, int], int, int, str, int]],
) -> None:
    """Order is that of submission here: nobody's turn comes sooner for what another has used.

    A job ahead that waits for its tenant's cap may go first after all, so what is promised beside one is not counted.
    """
    jobs = {number: exact(number, *wanted) for number, wanted in enumerate(waiting, 1)}
    promised: dict[int, datetime] = {}
    began = play({number: replace(one, priority=50) for number, one in jobs.items()}, IN_TURN, promised)
    late = {number: at for number, at in promised.items() if began[number] > at}
    assert not late, began


def play(
    jobs: dict[int, Job], site: Settings = SETTINGS, promised: dict[int, datetime] | None = None
) -> dict[int, datetime]:
    """Play the plans of jobs that run exactly as long as their limits; return starts and first promises."""
    now, began = NOW, {}
    patience = site.policy.patience
    ranges = [one for one in jobs.values() if one.spec.gpus.minimum < one.spec.gpus.maximum]
    settle = [(one.id, one.submitted_at + patience) for one in ranges]
    settle += [(one.id, one.spec.begin_at) for one in jobs.values() if one.spec.begin_at]
    while True:
        found = plan(snapshot_of(jobs, now), site, now)
        if promised is not None and found.promised_at is not None:
            head = found.reservations[0].job_id
            if not any(is_capped(found, ahead) for ahead in found.order[: found.order.index(head)]):
                promised.setdefault(head, found.promised_at)
        for start in found.starts:
            began[start.job_id] = now
            attempt = Attempt(1, start.gpus, claimed_at=now, started_at=now)
            jobs[start.job_id] = replace(
                jobs[start.job_id], state=JobState.RUNNING, started_at=now, attempts=(attempt,)
            )
        coming = [ends(one) for one in jobs.values() if one.state is JobState.RUNNING]
        coming += [at for number, at in settle if at > now and began.get(number) != NOW]
        if not coming:
            return began
        now = min(coming)
        for one in list(jobs.values()):
            if one.state is JobState.RUNNING and ends(one) <= now:
                over = replace(one.attempts[0], ended_at=now)
                jobs[one.id] = replace(one, state=JobState.COMPLETED, ended_at=now, attempts=(over,))


def is_capped(found: Plan, job_id: int) -> bool:
    """Return whether the job waits for its tenant's cap; after that it goes before jobs with a later promise."""
    return job_id in found.reasons and found.reasons[job_id].code is PendingReason.QUOTA_EXCEEDED


def ends(one: Job) -> datetime:
    assert one.started_at is not None
    assert one.spec.time_limit is not None
    return one.started_at + one.spec.time_limit


def snapshot_of(jobs: dict[int, Job], now: datetime) -> Snapshot:
    held = {name for one in jobs.values() for name in one.gpus}
    rows = tuple(view(i, GpuState.ALLOCATED if uuid(i) in held else GpuState.FREE) for i in range(4))
    return Snapshot(taken_at=now, nodes=(Node("here", rows, runtimes=UP),), jobs=tuple(jobs.values()))


@given(WAITING)
@settings(max_examples=examples(60))
def test_caps_hold_and_a_gang_is_all_or_none(waiting: list[tuple[int | tuple[int, int], int, int, str, int]]) -> None:
    jobs = {
        number: job(number, gpus=gpus, priority=priority, tenant=tenant, age=age)
        for number, (gpus, _, priority, tenant, age) in enumerate(waiting, 1)
    }
    capped = Settings(
        policy=PolicySettings(tenants=(TenantSettings("alice", gpus=2), TenantSettings("bob", running=1)))
    )
    found = plan(snapshot_of(jobs, NOW), capped, NOW)
    given_out = [name for start in found.starts for name in start.gpus]
    assert len(given_out) == len(set(given_out))
    by_tenant = {"alice": 0, "bob": 0}
    for start in found.starts:
        request = jobs[start.job_id].spec.gpus
        assert request.minimum <= len(start.gpus) <= request.maximum
        by_tenant[jobs[start.job_id].spec.tenant] += len(start.gpus)
    assert by_tenant["alice"] <= 2
    assert sum(jobs[start.job_id].spec.tenant == "bob" for start in found.starts) <= 1
    assert found == plan(snapshot_of(dict(reversed(jobs.items())), NOW), capped, NOW)
