"""Order of waiting jobs, and reasons that are computed on demand."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import GpuState
from gputui.domain.job import Job
from gputui.domain.policy.plan import plan
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.policy.queue_order import OrderCache, order_queue
from gputui.domain.settings import PolicySettings, Settings, TenantSettings
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState
from tests.domain.policy.slow_facts import Facts
from tests.factories import NOW, job, running, uuid, view

WEEK = 7 * 86400
WAITING = st.lists(
    st.builds(
        lambda number, age, priority, nice, top, tenant, gpus, held: job(
            number,
            gpus=gpus,
            age=age,
            nice=nice,
            tenant=tenant,
            priority=priority,
            held=held,
            topped_at=NOW - timedelta(seconds=top) if top else None,
        ),
        st.integers(10, 60),
        st.sampled_from([0, 0, 5, 5, 3600, 2 * 86400, 4 * 86400, WEEK, WEEK + 1]),
        st.sampled_from([0, 50, 50, 100]),
        st.sampled_from([0, 0, 20]),
        st.sampled_from([0, 0, 0, 7, 60]),
        st.sampled_from("abc"),
        st.sampled_from([0, 1, 2, 8]),
        st.sampled_from([False, False, True]),
    ),
    max_size=30,
    unique_by=lambda one: one.id,
)
SETTINGS = Settings(policy=PolicySettings(tenants=(TenantSettings("a", running=1),)))
PROMOTING = Settings(policy=PolicySettings(promote_after=timedelta(days=3)))


def picture(jobs: list[Job]) -> Snapshot:
    """Return a snapshot in which tenant c holds half of four GPUs."""
    busy = [uuid(0), uuid(1)]
    states = [GpuState.ALLOCATED, GpuState.ALLOCATED, GpuState.FREE, GpuState.FREE]
    up = (RuntimeStatus("docker", True, ""), RuntimeStatus("process", True, ""))
    node = Node("n", tuple(view(number, state=state) for number, state in enumerate(states)), runtimes=up)
    return Snapshot(nodes=(node,), jobs=(*jobs, running(1, on=busy, tenant="c")))


@given(WAITING, st.sampled_from([SETTINGS, PROMOTING]))
def test_the_queue_is_ordered_by_rank(jobs: list[Job], settings: Settings) -> None:
    snapshot = picture(jobs)
    context = PlanningContext.at(snapshot, settings, NOW)
    facts = Facts(snapshot, settings, NOW, {})
    entries = order_queue(context)
    for one, other in pairwise(entries):
        assert facts.goes_before(one.job, other.job) is not False
    assert sorted(entry.job.id for entry in entries) == sorted(one.id for one in jobs)
    assert all(entry.key == context.key(entry.job, entry.key.duration) for entry in entries)


@given(WAITING)
def test_reasons_do_not_depend_on_the_order_of_requests(jobs: list[Job]) -> None:
    snapshot = picture(jobs)
    forwards, backwards = (plan(snapshot, SETTINGS, NOW).reasons for _ in range(2))
    told = {job_id: forwards[job_id] for job_id in forwards}
    assert told == {job_id: backwards[job_id] for job_id in reversed(list(backwards))}
    assert forwards == backwards == told
    assert len(forwards) == len(told)


@given(WAITING, WAITING, st.booleans(), st.booleans())
def test_the_cache_of_the_last_plan_changes_nothing(
    first: list[Job], second: list[Job], predicted: bool, heavier: bool
) -> None:
    """Jobs that stay the same objects, jobs changed, gone and new; planned durations and weights that change."""
    known, settings = OrderCache(), SETTINGS
    assert plan(picture(first), settings, NOW, known) == plan(picture(first), settings, NOW)
    if heavier:
        settings = replace(settings, policy=replace(settings.policy, newcomer_credit=timedelta(0)))
    changed = [*second, *(one for one in first if all(one.id != other.id for other in second))]
    if predicted:
        changed += [ended(number) for number in (100, 101)]
    for now in (NOW, NOW + timedelta(days=1)):
        assert plan(picture(changed), settings, now, known) == plan(picture(changed), settings, now)


def ended(number: int) -> Job:
    """Return a job that took a minute."""
    since = NOW - timedelta(hours=1)
    return job(number, gpus=1, tenant="a").evolve(
        state=JobState.COMPLETED, started_at=since, ended_at=since + timedelta(minutes=1)
    )


def test_only_waiting_jobs_have_reasons() -> None:
    reasons = plan(picture([job(10, gpus=2), job(11, gpus=2)]), SETTINGS, NOW).reasons
    assert list(reasons) == [11]
    assert 10 not in reasons
    assert reasons.get(1) is None
    assert reasons != {}
