"""Backfill, promises, patience, caps and windows, on plans made from snapshots."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from gputui.domain.action import Cancel, DrainGpus, SetPriority
from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import Drain, GpuState, GpuView, Health, HealthCode
from gputui.domain.job import Job
from gputui.domain.policy.availability import AWAITED
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.policy.planning_context import Durations, DurationSource
from gputui.domain.policy.whatif import Shift, change_of, compared, submitted
from gputui.domain.settings import PolicySettings, SchedulerSettings, Settings, TenantSettings, Window
from gputui.domain.snapshot import Node, Snapshot, Usage
from gputui.domain.state import JobState, PendingReason
from tests.cases import cases
from tests.factories import GIB, NOW, job, running, sample, uuid, view

HOUR = timedelta(hours=1)
UP = (RuntimeStatus("docker", True, "Docker 28"),)


def seen(jobs: list[Job], gpus: int = 8, **changes: Any) -> Snapshot:
    held = {name: one.id for one in jobs for name in one.gpus}
    rows = [view(i, GpuState.ALLOCATED, job_id=held[uuid(i)]) if uuid(i) in held else view(i) for i in range(gpus)]
    return of_rows(jobs, rows, **changes)


def of_rows(jobs: list[Job], rows: list[GpuView], **changes: Any) -> Snapshot:
    return Snapshot(taken_at=NOW, nodes=(Node("here", tuple(rows), runtimes=UP),), jobs=tuple(jobs), **changes)


def planned(jobs: list[Job], gpus: int = 8, **policy: Any) -> Plan:
    return plan(
        seen(jobs, gpus), Settings(policy=PolicySettings(**{"promote_after": timedelta(microseconds=1), **policy})), NOW
    )


def starts(found: Plan) -> dict[int, int]:
    return {start.job_id: len(start.gpus) for start in found.starts}


def holder(job_id: int, first: int, count: int, hours: float) -> Job:
    """Return a job that runs on some GPUs for `hours` from now."""
    left = timedelta(hours=hours) + timedelta(seconds=60)
    return running(job_id, on=[uuid(first + n) for n in range(count)], time_limit=left)


def test_a_short_job_overtakes_a_wide_one_and_a_long_one_does_not() -> None:
    jobs = [
        holder(1, 0, 4, hours=2),
        job(2, gpus=8, age=100),
        job(3, gpus=2, age=50, time_limit=HOUR),
        job(4, gpus=2, age=40, time_limit=3 * HOUR),
        job(5, gpus=2, age=30, time_limit=2 * HOUR),
    ]
    found = planned(jobs)
    assert starts(found) == {3: 2, 5: 2}
    assert [kept.job_id for kept in found.reservations] == [2]
    assert found.forecast[2] == NOW + 2 * HOUR
    words = "needs 8 GPUs: 0 free, 8 held by jobs; expected 14:00 UTC when job 1 ends by its limit"
    assert (found.reasons[2].code, found.reasons[2].text) == (PendingReason.RESOURCES, words)
    assert found.reasons[4].code is PendingReason.PRIORITY


def test_a_long_job_may_have_gpus_that_the_head_does_not_need() -> None:
    jobs = [
        holder(1, 0, 4, hours=2),
        job(2, gpus=6, age=100),
        job(3, gpus=2, age=50, time_limit=9 * HOUR),
        job(4, gpus=1, age=40, time_limit=9 * HOUR),
    ]
    found = planned(jobs)
    assert starts(found) == {3: 2}
    assert "would run past 14:00 UTC, when 6 GPUs are reserved for job 2" in found.reasons[4].text
    assert found.forecast[2] == NOW + 2 * HOUR


@cases("priority", [0, 50, 100])
def test_a_job_without_a_limit_is_planned_as_the_longest_allowed_in_every_class(priority: int) -> None:
    one = job(1, gpus=1, priority=priority)
    assert Durations([one], PolicySettings()).planned_for(one) == (72 * 3600, DurationSource.DEFAULT)
    assert Durations([one], PolicySettings(max_time=2 * HOUR)).seconds(one) == 7200
    stated = [one, job(2, gpus=1, time_limit=100 * HOUR), job(3, time_limit=500 * HOUR, held=True)]
    assert Durations(stated, PolicySettings()).seconds(one) == 100 * 3600, "never shorter than a stated limit"


def test_jobs_without_a_limit() -> None:
    # a job without a limit is not backfilled before the start of the head
    blocked = [holder(1, 0, 4, hours=5), job(2, gpus=8, topped_at=NOW), job(3, gpus=1, priority=100), job(4, gpus=1)]
    assert starts(planned(blocked)) == {}
    limited = [*blocked[:3], job(4, gpus=1, time_limit=4 * HOUR)]
    assert starts(planned(limited)) == {4: 1}

    # plans assume at most the longest permitted time
    def seconds(one: Job, **policy: Any) -> float:
        return Durations([], PolicySettings(**policy), 2 * HOUR).planned_for(one).seconds

    assert seconds(job(1, gpus=1)) == 7200
    assert seconds(job(1, gpus=1, time_limit=9 * HOUR)) == 7200
    assert seconds(job(1, gpus=1), max_time=5 * HOUR) == 18_000
    blocked = [holder(1, 0, 4, hours=5), job(2, gpus=8, topped_at=NOW)]
    site = Settings(scheduler=SchedulerSettings(max_time=2 * HOUR))
    found = plan(seen(blocked), site, NOW)
    assert found.forecast[2] == NOW + 2 * HOUR - timedelta(seconds=60)


def test_the_last_two_runs_of_a_tenant_predict_the_end_of_a_running_job_without_a_limit() -> None:
    def done(job_id: int, hours: float) -> Job:
        ended = NOW - timedelta(hours=job_id)
        return job(job_id, state=JobState.COMPLETED, started_at=ended - timedelta(hours=hours), ended_at=ended)

    history = [done(11, 1.5), done(12, 3.0), done(13, 50.0)]
    jobs = [running(1, on=[uuid(n) for n in range(4)]), job(2, gpus=8, topped_at=NOW, name="wide")]
    foreseen = planned([*jobs, *history])
    assert foreseen.forecast[2] == NOW + 2.25 * HOUR - timedelta(seconds=60)
    assert "when job 1 ends if it runs as long as the last ones did" in foreseen.reasons[2].text
    for fewer in (planned([*jobs, *history], predict=False), planned([*jobs, *history[:1]])):
        assert fewer.forecast[2] == NOW + 72 * HOUR - timedelta(seconds=60)


@cases("limit", [None, 4 * HOUR])
def test_past_runs_do_not_shorten_a_waiting_job(limit: timedelta | None) -> None:
    ended = [running(n, on=[]).evolve(state=JobState.COMPLETED, ended_at=NOW) for n in (11, 12)]
    one = job(1, gpus=1, time_limit=limit)
    assert Durations([one, *ended], PolicySettings()).seconds(one) == (4 * 3600 if limit else 72 * 3600)


def test_a_job_that_outruns_its_prediction_is_expected_later_not_now() -> None:
    late = running(1, on=[uuid(0)], time_limit=timedelta(seconds=45))
    found = planned([late, job(2, gpus=1)], gpus=1)
    assert found.forecast[2] == NOW + timedelta(seconds=60)


def test_ranges_take_their_maximum() -> None:
    # a range waits for its maximum until its patience ends
    jobs = [holder(1, 0, 2, hours=1), job(2, gpus=(2, 4), age=60)]
    found = planned(jobs, gpus=4, patience=timedelta(minutes=5))
    assert starts(found) == {}
    assert found.forecast[2] == NOW + timedelta(minutes=4)
    assert found.reasons[2].text.startswith(
        "wants 4 GPUs, will take 2 from 12:04 UTC; 2 free, 2 held by jobs; expected"
    )
    settled = [jobs[0], job(2, gpus=(2, 4), age=300)]
    assert starts(planned(settled, gpus=4, patience=timedelta(minutes=5))) == {2: 2}
    assert starts(planned(jobs, gpus=4)) == {2: 2}
    busy = planned([holder(1, 0, 3, hours=1), jobs[1]], gpus=4)
    assert busy.reasons[2].text.startswith("wants 4 GPUs, will take 2; 1 free, 3 held by jobs; expected 13:")
    # a range takes its maximum at once if it is free
    assert starts(planned([job(2, gpus=(2, 4))])) == {2: 4}


def test_used_gpu_time_moves_a_tenant_back() -> None:
    hour = timedelta(hours=1)
    jobs = [job(1, gpus=1, tenant="greedy", time_limit=hour, age=1), job(2, gpus=1, tenant="modest", time_limit=hour)]
    usage = Usage(NOW, {"greedy": 1e6})
    found = plan(seen(jobs, usage=usage), Settings(), NOW)
    assert found.order == (2, 1)
    assert planned(jobs).order == (1, 2)


def test_caps_of_tenants() -> None:
    # a cap holds and its reason has the numbers
    jobs = [holder(1, 0, 2, hours=1), job(2, gpus=3, age=5), job(3, gpus=2), job(4, gpus=1, tenant="bob")]
    capped = (TenantSettings("alice", gpus=4),)
    found = planned(jobs, tenants=capped)
    assert starts(found) == {3: 2, 4: 1}
    reason = found.reasons[2]
    assert (reason.code, reason.text) == (
        PendingReason.QUOTA_EXCEEDED,
        "needs 3 GPUs: alice holds 4 GPUs; at most 4 allowed",
    )
    counted = planned(jobs, tenants=(TenantSettings("alice", running=1),))
    assert starts(counted) == {4: 1}
    assert counted.reasons[3].text == "1 job of alice is running; at most 1 may run"
    # a range stays below its tenants cap
    assert starts(planned([job(2, gpus=(2, 6))], tenants=(TenantSettings("alice", gpus=3),))) == {2: 3}


WINDOW = Window("course", NOW + HOUR, NOW + 5 * HOUR, count=6, tenant="bob")


def test_windows() -> None:
    # a window is backfilled up to its start and kept clear for its tenant
    jobs = [job(1, gpus=4, age=9, time_limit=2 * HOUR), job(2, gpus=4, age=8, time_limit=HOUR)]
    found = planned([*jobs, job(3, gpus=2, age=99, time_limit=9 * HOUR)], reservations=(WINDOW,))
    assert starts(found) == {2: 4, 3: 2}
    assert found.reasons[1].code is PendingReason.RESERVATION
    assert found.forecast[1] == NOW + 5 * HOUR
    assert starts(planned([job(1, gpus=8, tenant="bob")], reservations=(WINDOW,))) == {1: 8}
    # the reason names the window
    jobs = [job(1, gpus=9, age=9), job(2, gpus=4, age=3, time_limit=2 * HOUR)]
    reason = planned(jobs, reservations=(WINDOW,)).reasons[2]
    window = "6 GPUs reserved by course from 13:00 UTC to 17:00 UTC"
    assert reason.code is PendingReason.RESERVATION
    assert reason.text == f"needs 4 GPUs: 8 free; {window}, and it may run until 14:00 UTC; expected 17:00 UTC"
    # a window that begins when the job would have ended is not named
    jobs = [job(1, gpus=9, age=9), job(2, gpus=4, age=3, time_limit=2 * HOUR)]
    follows = replace(WINDOW, name="later", start=NOW + 2 * HOUR, end=NOW + 3 * HOUR, count=1)
    assert "later" not in planned(jobs, reservations=(WINDOW, follows)).reasons[2].text
    overlaps = replace(follows, start=NOW + 2 * HOUR - timedelta(seconds=1))
    assert "1 GPU reserved by later" in planned(jobs, reservations=(WINDOW, overlaps)).reasons[2].text


def test_a_job_that_waits_because_it_has_no_limit_is_advised_to_set_one() -> None:
    """The head is promised the GPUs at the end of the window, and so its own job has to end by then."""
    begun = replace(WINDOW, start=NOW - timedelta(minutes=1), count=8)
    because = "planned to run 3d, the longest time allowed, without one"
    jobs = [job(1, gpus=8, age=99), job(2, gpus=4, tenant="bob"), job(3, gpus=4, tenant="bob", time_limit=HOUR)]
    found = planned(jobs, reservations=(begun,))
    assert starts(found) == {3: 4}
    text = found.reasons[2].text
    assert text.startswith("needs a --time-limit to backfill; needs 4 GPUs: 4 free")
    past = "would run past 17:00 UTC, when 8 GPUs are reserved for job 1"
    assert text.endswith(f"; {past}; 1 job ahead of it; {because}")
    assert because not in found.reasons[1].text
    text = planned([job(1, gpus=4)], reservations=(WINDOW,)).reasons[1].text
    assert text.startswith("needs a --time-limit to end before the reservation; needs 4 GPUs: ")
    assert text.endswith(because)


def test_windows_that_lapse_and_the_standing_rule() -> None:
    # an unclaimed window is released after its grace
    begun = replace(WINDOW, start=NOW - timedelta(minutes=20))
    wide = job(1, gpus=8)
    assert starts(planned([wide], reservations=(begun,))) == {1: 8}
    assert starts(planned([wide], reservations=(replace(begun, start=NOW - timedelta(minutes=5)),))) == {}
    assert starts(planned([job(1, gpus=1), running(2, on=[uuid(7)], tenant="bob")], reservations=(begun,))) == {1: 1}
    assert starts(planned([job(1, gpus=3), running(2, on=[uuid(7)], tenant="bob")], reservations=(begun,))) == {}
    # a window over named GPUs leaves the others
    named = replace(WINDOW, count=0, gpus=("0", uuid(1)))
    found = planned([job(1, gpus=6, time_limit=9 * HOUR)], reservations=(named,))
    assert found.starts[0].gpus == tuple(uuid(i) for i in range(2, 8))
    # the standing rule gives the next GPUs to important jobs
    jobs = [holder(1, 0, 4, hours=1), job(2, gpus=8, priority=90), job(3, gpus=1, time_limit=HOUR / 2)]
    assert starts(planned(jobs)) == {3: 1}
    found = planned(jobs, standing_priority=80)
    assert starts(found) == {}
    assert found.reasons[3].code is PendingReason.RESERVATION
    assert "priority 80 and above" in found.reasons[3].text


def test_choice_of_gpus() -> None:
    # preferred GPUs go first and spared ones only when named
    assert planned([job(1, gpus=1)], prefer=("5",)).starts[0].gpus == (uuid(5),)
    assert starts(planned([job(1, gpus=8)], left_free=("7",))) == {}
    assert planned([job(1, gpus=7)], left_free=("0",)).starts[0].gpus == tuple(uuid(i) for i in range(1, 8))
    # free memory is taken from the reading
    rows = [view(0, sample=sample(0, memory_used=GIB // 2)), view(1)]
    picky = job(1, gpus=1)
    wants = replace(picky.spec, gpus=replace(picky.spec.gpus, free_memory=80 * GIB))
    found = plan(of_rows([replace(picky, spec=wants)], rows), Settings(), NOW)
    assert found.starts[0].gpus == (uuid(1),)
    # fragmentation counts free GPUs that no waiting job can use
    assert planned([job(1, gpus=8, age=9), holder(2, 0, 5, hours=1)]).fragmentation == 3
    assert (
        planned([job(1, gpus=8, age=9), job(3, gpus=1, time_limit=9 * HOUR), holder(2, 0, 5, hours=1)]).fragmentation
        == 0
    )
    assert planned([]).fragmentation == 0


def test_impossible_jobs_and_released_gpus() -> None:
    # an impossible job reserves no GPUs
    rows = [view(0), view(1, GpuState.FOREIGN)]
    found = plan(of_rows([job(1, gpus=2, age=9), job(2, gpus=1)], rows), Settings(), NOW)
    assert starts(found) == {2: 1}
    # released GPUs are reserved before a reading shows them free
    rows = [view(0), view(1, GpuState.UNKNOWN, why=AWAITED)]
    wide, narrow = job(1, gpus=2, age=9, time_limit=HOUR), job(2, gpus=1, time_limit=HOUR)
    found = plan(of_rows([wide, narrow], rows), Settings(), NOW)
    assert starts(found) == {}
    assert found.reservations[0].gpus == (uuid(0), uuid(1))
    assert found.reasons[1].text == "needs 2 GPUs: 1 free, 1 unknown; expected 12:00 UTC"
    assert found.forecast[1] == NOW


def test_the_reason_tells_the_forecast_where_others_go_first() -> None:
    first = job(3, gpus=8, priority=90, begin_at=NOW + HOUR / 2, time_limit=2 * HOUR)
    found = planned([holder(1, 0, 8, hours=1), job(2, gpus=8, time_limit=HOUR), first])
    assert found.forecast == {3: NOW + HOUR, 2: NOW + 3 * HOUR}
    words = "needs 8 GPUs: 0 free, 8 held by jobs; expected 15:00 UTC, after jobs that will go before it"
    assert (found.reasons[2].text, found.reasons[2].times) == (words, (found.forecast[2],))


def test_what_if_lists_the_jobs_whose_start_shifts() -> None:
    jobs = [
        holder(1, 0, 8, hours=1),
        job(2, gpus=8, age=50, time_limit=HOUR),
        job(3, gpus=8, age=40, time_limit=2 * HOUR),
    ]
    now, later = NOW + HOUR, NOW + 2 * HOUR
    raised = compared(seen(jobs), change_of(SetPriority((3,), 90), NOW), Settings(), NOW).shifts
    assert raised == (Shift(3, later, now), Shift(2, now, NOW + 3 * HOUR))
    assert compared(seen(jobs), change_of(Cancel((2,)), NOW), Settings(), NOW).shifts == (
        Shift(3, later, now),
        Shift(2, now, None),
    )
    assert compared(seen(jobs), change_of(Cancel((1,)), NOW), Settings(), NOW).shifts[0] == Shift(2, now, NOW)
    assert compared(seen(jobs), change_of(DrainGpus((uuid(7),)), NOW), Settings(), NOW).shifts == (
        Shift(2, now, None),
        Shift(3, later, None),
    )
    added = compared(seen(jobs), submitted(job(9, gpus=8)), Settings(), NOW).shifts
    assert added == (Shift(9, None, NOW + 4 * HOUR),)
    assert compared(seen(jobs), lambda snapshot: snapshot, Settings(), NOW).shifts == ()


def test_a_dependent_job_and_one_that_begins_later_are_forecast() -> None:
    jobs = [
        holder(1, 0, 8, hours=1),
        job(2, gpus=1, after=(1,), time_limit=HOUR),
        job(3, gpus=1, after_any=(2,)),
        job(4, gpus=1, begin_at=NOW + 3 * HOUR),
        job(5, gpus=1, held=True),
    ]
    found = planned(jobs)
    assert found.forecast == {2: NOW + HOUR, 3: NOW + 2 * HOUR, 4: NOW + 3 * HOUR}


@cases(
    "changes, words",
    [
        ({"health": Health(HealthCode.LOST, "lost: it is gone")}, "1 unknown, 1 lost"),
        ({"health": Health(HealthCode.UNKNOWN, "no readings"), "stale": True}, "1 held by jobs, 1 unknown"),
    ],
)
def test_no_start_is_promised_on_gpus_that_may_not_be_there(changes: dict[str, Any], words: str) -> None:
    jobs = [holder(1, 0, 1, hours=1), job(2, gpus=1, age=60), job(3, gpus=1, after=(1,))]
    rows = [view(0, GpuState.ALLOCATED, job_id=1, job_ids=(1,)), view(1, GpuState.UNKNOWN)]
    assert plan(of_rows(jobs, rows), Settings(), NOW).forecast.keys() == {2, 3}
    found = plan(of_rows(jobs, [replace(rows[0], **changes), rows[1]]), Settings(), NOW)
    assert found.forecast == {}
    assert found.reasons[2].text == f"needs 1 GPU: 0 free, {words}"
    rows = [replace(rows[0], **changes), view(1, GpuState.ALLOCATED, job_id=4, job_ids=(4,))]
    jobs = [jobs[0], holder(4, 1, 1, hours=2), jobs[1], job(5, gpus=1)]
    assert plan(of_rows(jobs, rows), Settings(), NOW).forecast == {2: NOW + 2 * HOUR, 5: NOW + 74 * HOUR}


def test_nothing_waits_for_the_end_of_a_job_on_a_lost_gpu() -> None:
    jobs = [holder(1, 0, 1, hours=1), job(2, gpus=2, age=60), job(3, gpus=1)]
    rows = [view(0, GpuState.ALLOCATED, job_id=1, job_ids=(1,)), view(1)]
    assert [start.job_id for start in plan(of_rows(jobs, rows), Settings(), NOW).starts] == []  # kept for job 2
    lost = replace(rows[0], health=Health(HealthCode.LOST, "lost: it is gone"))
    assert [start.job_id for start in plan(of_rows(jobs, [lost, rows[1]]), Settings(), NOW).starts] == [3]


def test_no_start_is_promised_while_the_engine_does_not_answer() -> None:
    jobs = [holder(1, 0, 8, hours=1), job(2, gpus=1, after=(1,)), job(3, gpus=1, begin_at=NOW + 3 * HOUR)]
    there = seen(jobs).nodes[0]
    down = replace(there, runtimes=(RuntimeStatus("docker", False, "Docker does not answer"),))
    assert plan(replace(seen(jobs), nodes=(down,)), Settings(), NOW).forecast == {}


def test_limits_of_the_standing_rule() -> None:
    # the standing rule stops no job for an impossible one
    jobs = [job(1, gpus=9, priority=90), job(2, gpus=1)]
    assert starts(planned(jobs, standing_priority=80)) == {2: 1}
    # the standing rule holds for a job behind equal ones
    jobs = [holder(1, 0, 7, hours=1), job(2, gpus=2, age=900_000), job(3, gpus=2, priority=90), job(4, gpus=1)]
    assert starts(planned(jobs, standing_priority=80)) == {}


def test_each_job_of_a_lane_has_its_own_reason() -> None:
    jobs = [
        holder(1, 0, 7, hours=2),
        job(2, gpus=8, age=90),
        job(3, gpus=1, age=80, time_limit=9 * HOUR),
        job(4, gpus=1, age=70, time_limit=HOUR),
        job(5, gpus=1, age=60, time_limit=HOUR),
    ]
    found = planned(jobs)
    assert starts(found) == {4: 1}
    assert "would run past 14:00 UTC" in found.reasons[3].text
    assert found.reasons[5].text == "needs 1 GPU: 0 free, 8 held by jobs; 2 jobs ahead of it"


def test_a_cap_counts_gpus_that_were_drained_under_a_running_job() -> None:
    rows = [view(0, GpuState.ALLOCATED, drain=Drain("", "root", NOW)), view(1), view(2)]
    held = running(1, on=[uuid(0)])
    capped = Settings(policy=PolicySettings(tenants=(TenantSettings("alice", gpus=2),)))
    found = plan(of_rows([held, job(2, gpus=2)], rows), capped, NOW)
    assert starts(found) == {}
    assert found.reasons[2].text == "needs 2 GPUs: alice holds 1 GPU; at most 2 allowed"
