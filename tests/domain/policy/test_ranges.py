"""Many jobs with ranges of GPUs: planned as if each was considered in its turn, and quickly."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.plan import NOW as BENCH_NOW
from bench.plan import queue_of
from gputui.domain.container import RuntimeStatus
from gputui.domain.job import Job
from gputui.domain.job_spec import GpuRequest, JobSpec
from gputui.domain.policy import decide as deciding
from gputui.domain.policy import plan as forecasting
from gputui.domain.policy.decide import can_decide, decide
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.plan import Plan, decide_starts, plan
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.policy.whatif import explain, timeline
from gputui.domain.settings import PolicySettings, Settings, TenantSettings, Window
from gputui.domain.snapshot import Snapshot
from tests.domain.policy.cases import HOUR, MINUTE, Case, any_of, cases
from tests.domain.policy.checker import check
from tests.domain.policy.test_growth import calls
from tests.factories import NOW, job, running, uuid
from tests.factories import snapshot as made
from tests.lane import examples

SLOW = settings(max_examples=examples(50), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
RANGES = st.sampled_from([(1, 2), (2, 4), (1, 8), (2, 3)])


def snapshot(jobs: Iterable[Job], gpus: int) -> Snapshot:
    """Return a snapshot of those jobs on one node, whose engine answers."""
    seen = made(jobs, gpus=gpus)
    up = (RuntimeStatus("docker", up=True, text="Docker"),)
    return replace(seen, nodes=tuple(replace(node, runtimes=up) for node in seen.nodes))


@st.composite
def crowds(draw: st.DrawFn) -> list[Job]:
    """Jobs of one range or two; some have waited long enough to settle for fewer GPUs, some will soon."""
    ranges = draw(st.lists(RANGES, min_size=1, max_size=2))
    limits, ages = st.integers(1, 90), st.one_of(st.integers(0, 400), st.integers(290, 310))
    found = []
    for number in range(20, 20 + draw(st.integers(2, 14))):
        low, high = draw(st.sampled_from(ranges))
        limit = draw(limits) * MINUTE
        spec = JobSpec(image="busybox", tenant=draw(any_of("alice", "bob")), time_limit=limit)
        spec = replace(spec, gpus=GpuRequest(low, high), priority=draw(any_of(50, 50, 80)))
        found.append(Job(number, spec, NOW - timedelta(seconds=draw(ages)), priority=spec.priority))
    return found


@given(cases(), crowds())
@SLOW
def test_plans_of_crowds_are_right_by_brute_force(case: Case, crowd: list[Job]) -> None:
    """Crowds with caps, reservations, preemption, shared GPUs, and everything else a server may have."""
    seen = replace(case.snapshot, jobs=(*case.snapshot.jobs, *crowd))
    check(seen, case.settings, NOW, plan(seen, case.settings, NOW))


@given(cases(), crowds())
@SLOW
def test_no_job_that_would_start_is_passed_over(case: Case, crowd: list[Job]) -> None:
    seen = replace(case.snapshot, jobs=(*case.snapshot.jobs, *crowd))
    found = plan(seen, case.settings, NOW)
    with pytest.MonkeyPatch.context() as patch:
        ask_each(patch)
        slow = plan(seen, case.settings, NOW)
    assert (found.starts, found.reservations, found.preemptions) == (slow.starts, slow.reservations, slow.preemptions)


@given(cases(), crowds())
@SLOW
def test_no_job_starts_without_being_considered(case: Case, crowd: list[Job]) -> None:
    """A forecast examines only the lanes that may matter, and a plan examines all."""
    seen = replace(case.snapshot, jobs=(*case.snapshot.jobs, *crowd))
    asked, found = (decide_starts(seen, case.settings, NOW) for _ in range(2))
    context = PlanningContext.at(seen, case.settings, NOW)
    context.cluster.tenants = found.context.cluster.tenants
    able = [entry for entry in asked.waiting if entry.job.id not in asked.gated.why]
    for _, key, item in able:
        context.cluster.add(context.key(job_of(seen, item.id), key.duration), item, context.second)
    outcome = decide(context.cluster, context.second)
    assert [run.id for run in outcome.starts] == [run.id for run in found.outcome.starts]
    if can_decide(context.cluster):
        assert (outcome.hold and outcome.hold.id) == (found.outcome.hold and found.outcome.hold.id)


def job_of(seen: Snapshot, job_id: int) -> Job:
    return next(one for one in seen.jobs if one.id == job_id)


def ask_each(patch: pytest.MonkeyPatch) -> None:
    """Refuse no job because another was refused."""
    turn = deciding.Pass.give_turn

    def alone(self: Any, key: LaneKey, item: Waiting) -> None:
        turn(self, key, item)
        self.refused.clear()
        self.known.clear()
        self.capped.clear()
        self.same.clear()

    patch.setattr(deciding.Pass, "give_turn", alone)


@given(crowds(), st.integers(2, 8), st.integers(0, 3))
@SLOW
def test_the_forecast_equals_a_plan_at_every_end_of_patience(crowd: list[Job], gpus: int, held: int) -> None:
    """Jobs of one tenant that are planned alike: others may change places with the clock, at a look more or less."""
    alone = [one.evolve(spec=replace(one.spec, tenant="alice", time_limit=HOUR)) for one in crowd]
    busy = [running(1 + n, on=(uuid(n),), time_limit=(1 + n) * HOUR, tenant="alice") for n in range(min(held, gpus))]
    seen = snapshot([*busy, *alone], gpus=gpus)
    found = plan(seen, PATIENT, NOW)
    assert found.starts or found.forecast
    assert found.forecast == _every_look(seen).forecast


PATIENT = Settings(policy=PolicySettings(patience=5 * MINUTE))


def _every_look(seen: Snapshot) -> Plan:
    """Return the plan whose forecast plans again whenever the patience of a job ends."""
    settling = sorted((one.submitted_at + 5 * MINUTE).timestamp() for one in seen.jobs)
    run_forward = forecasting.simulate

    def looking(*args: Any, **kwargs: Any) -> Any:
        return run_forward(*args, **{**kwargs, "moments": [*kwargs["moments"], *settling]})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecasting, "simulate", looking)
        return plan(seen, PATIENT, NOW)


@pytest.mark.parametrize("fresh", [False, True])
def test_ranges_cost_little_more_than_plain_jobs(fresh: bool) -> None:
    """However many have waited just short of the time after which they settle."""
    few, many = (calls(queue_of(1000, count, fresh=fresh)) for count in (500, 3000))
    assert many < 6 * 1.3 * few
    assert many < 100 * 4000


def test_ranges_under_every_rule_stay_bounded() -> None:
    window = Window("w", BENCH_NOW + 2 * HOUR, BENCH_NOW + 9 * HOUR, 16, tenant="zoe", priority=90)
    capped = tuple(TenantSettings(name, gpus=3) for name in ("alice", "bob"))
    for policy in (PolicySettings(reservations=(window,)), PolicySettings(tenants=capped, standing_priority=80)):
        assert calls(queue_of(0, 1000, fresh=True), policy=policy) < 1_500_000


def test_an_incomplete_forecast_says_how_far_it_reaches() -> None:
    jobs = [job(n, gpus=1, time_limit=HOUR) for n in range(1, 6)]
    seen = snapshot(jobs, gpus=1)
    short = Settings(policy=PolicySettings(forecast_jobs=2))
    found = plan(seen, short, NOW)
    assert (sorted(found.forecast), found.forecast_until) == ([2, 3], NOW + 2 * HOUR)
    assert plan(seen, Settings(), NOW).forecast_until is None
    assert timeline(seen, short, NOW, most=3).until == NOW + 3 * HOUR


def test_the_number_of_steps_bounds_the_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasting, "WORK", 1600)
    monkeypatch.setattr(forecasting, "WORK_A_START", 0)
    seen = snapshot([job(n, gpus=1, time_limit=HOUR) for n in range(1, 6)], gpus=1)
    found = plan(seen, Settings(), NOW)
    assert (dict(found.forecast), found.forecast_until) == ({2: NOW + HOUR}, NOW + HOUR)
    told = explain(seen, seen.jobs[4], Settings(), NOW)
    assert told.expected_start_at is None
    assert told.certainty == "not known: the forecast reaches to 13:00 UTC, and it does not start until then"
