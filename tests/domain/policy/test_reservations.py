"""Reservations: the GPUs they keep, who claims them, and when they are released."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from gputui.domain.gpu import Drain, GpuState
from gputui.domain.job import Attempt, Job
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.policy.reservations import overlap_warnings, with_claims, with_reservation
from gputui.domain.settings import PolicySettings, Settings, TenantSettings, Window
from gputui.domain.snapshot import Controls, StandingRule, WindowState, WindowView, effective_settings
from gputui.domain.state import JobState, PendingReason
from tests.cases import cases
from tests.domain.policy.test_decide import holder, of_rows, seen, starts
from tests.factories import NOW, job, running, uuid, view

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
IN_TURN = Settings(policy=PolicySettings(promote_after=timedelta(microseconds=1)))
"""Only age orders equal jobs, so that a case need not state limits to keep its order."""
BEGUN = Window("course", NOW - 5 * MINUTE, NOW + HOUR, count=4, tenant="bob")
LATE = replace(BEGUN, start=NOW - 20 * MINUTE)
"""Window whose grace of 15 minutes is over."""


def planned(jobs: list[Job], *windows: Window, **controls: Any) -> Plan:
    return plan(seen(jobs, controls=Controls(reservations=windows, **controls)), IN_TURN, NOW)


def the_view(found: Plan) -> WindowView:
    [one] = found.windows
    return one


def bobs(job_id: int, first: int, count: int, minutes: float) -> Job:
    """Return a job of bob's that started `minutes` ago and runs for hours."""
    held = running(job_id, on=[uuid(first + n) for n in range(count)], tenant="bob", time_limit=9 * HOUR)
    at = NOW - minutes * MINUTE
    return held.evolve(started_at=at).with_attempt(started_at=at, claimed_at=at)


def test_gpus_of_a_window() -> None:
    # a window of a command is kept like one of the file
    wide = job(1, gpus=8, time_limit=HOUR)
    assert starts(planned([wide])) == {1: 8}
    assert starts(planned([wide], BEGUN)) == {}
    both = effective_settings(Settings(policy=PolicySettings(reservations=(LATE,))), Controls(reservations=(BEGUN,)))
    assert both.policy.reservations == (LATE, BEGUN)
    # GPUs of its own jobs count for a reservation: otherwise a tenant that uses its four GPUs would have four more kept
    # idle for it.
    others = job(1, gpus=4, time_limit=9 * HOUR)
    assert starts(planned([bobs(2, 0, 4, minutes=3), others], BEGUN)) == {1: 4}
    assert the_view(planned([bobs(2, 0, 4, minutes=3), others], BEGUN)).gpus == tuple(map(uuid, range(4)))
    assert starts(planned([bobs(2, 0, 4, minutes=99), others], BEGUN)) == {}
    # a reservation prefers GPUs that are free at its start
    tomorrow = replace(BEGUN, start=NOW + HOUR, end=NOW + 9 * HOUR)
    crossing = holder(2, 4, 3, hours=3)
    assert the_view(planned([crossing], tomorrow)).gpus == tuple(uuid(i) for i in (1, 2, 3, 7))
    assert starts(planned([crossing, job(1, gpus=2, time_limit=2 * HOUR)], tomorrow)) == {}
    assert starts(planned([crossing, job(1, gpus=2, time_limit=HOUR)], tomorrow)) == {1: 2}
    full = [bobs(2, 0, 4, minutes=99), holder(3, 4, 4, hours=3)]
    assert the_view(planned(full, BEGUN)).gpus == tuple(map(uuid, range(4)))
    # jobs of a reservation run on its GPUs
    named = replace(BEGUN, count=0, gpus=("5", "6"))
    assert planned([job(1, gpus=1, tenant="bob")], named).starts[0].gpus == (uuid(5),)
    assert starts(planned([job(1, gpus=3, tenant="bob")], named)) == {1: 3}
    assert starts(planned([job(1, gpus=(2, 3), tenant="bob")], named)) == {1: 3}
    assert planned([job(1, gpus=1)], named).starts[0].gpus == (uuid(4),)


@cases(("gpus", "held"), [((2,), "GPU 2 is held by job 7"), ((2, 3), "GPUs 2, 3 are held by job 7"), ((4,), "")])
def test_a_job_that_may_stay_is_warned_of_with_the_named_gpus_that_it_holds(gpus: tuple[int, ...], held: str) -> None:
    window = Window("w", NOW + 2 * HOUR, NOW + 4 * HOUR, gpus=tuple(map(uuid, gpus)))
    told = overlap_warnings(window, seen([running(7, on=[uuid(2), uuid(3)])]), {uuid(n): str(n) for n in range(8)})
    wanted = f"{held}, which has no time limit: the reservation waits for its end"
    assert list(told) == ([wanted] if held else [])


def test_which_gpus_a_window_keeps() -> None:
    # unusable GPUs are not kept
    rows = [view(i) for i in range(8)]
    rows[6] = view(6, GpuState.FOREIGN)
    rows[7] = view(7, GpuState.DRAINED, drain=Drain("hot", "root", NOW))
    controls = Controls(reservations=(BEGUN,))
    found = plan(of_rows([job(1, gpus=2)], rows, controls=controls), Settings(), NOW)
    assert the_view(found).gpus == tuple(map(uuid, range(2, 6)))
    assert starts(found) == {1: 2}
    left_free = Settings(policy=PolicySettings(left_free=("4",)))
    kept = the_view(plan(of_rows([], rows, controls=controls), left_free, NOW)).gpus
    assert kept == tuple(uuid(i) for i in (1, 2, 3, 5))
    # windows of the same time keep different GPUs
    named = Window("exam", NOW - MINUTE, NOW + HOUR, gpus=("7", "6", "5", "4"), tenant="eve")
    found = planned([], BEGUN, named)
    assert [sorted(each.gpus) for each in found.windows] == [
        [uuid(i) for i in range(4)],
        [uuid(i) for i in range(4, 8)],
    ]


def ended(**changes: Any) -> Job:
    """A job of bob's that ran for a second four minutes ago."""
    began = NOW - 4 * MINUTE
    attempt = Attempt(1, (uuid(7),), started_at=began, ended_at=began + timedelta(seconds=1))
    done = job(2, gpus=1, tenant="bob").evolve(state=JobState.COMPLETED, attempts=(attempt,))
    return done.evolve(**changes)


@cases(
    ("jobs", "state", "is_claimed"),
    [
        ([], WindowState.RELEASED, False),
        ([bobs(2, 0, 1, minutes=3)], WindowState.ACTIVE, True),
        ([bobs(2, 0, 1, minutes=99)], WindowState.RELEASED, False),
        ([ended()], WindowState.ACTIVE, True),
        ([holder(2, 0, 8, hours=9), job(3, gpus=1, tenant="bob")], WindowState.ACTIVE, False),
        ([job(3, gpus=1, tenant="bob", held=True)], WindowState.RELEASED, False),
        ([job(3, gpus=1, tenant="bob", begin_at=NOW + HOUR / 2)], WindowState.ACTIVE, False),
        ([job(3, gpus=1, tenant="bob", begin_at=NOW + 2 * HOUR)], WindowState.RELEASED, False),
        ([job(3, tenant="bob")], WindowState.RELEASED, False),
        ([job(3, gpus=1, tenant="eve", priority=99)], WindowState.RELEASED, False),
    ],
)
def test_jobs_claim_a_window(jobs: list[Job], state: WindowState, is_claimed: bool) -> None:
    found = the_view(planned(jobs, LATE))
    assert (found.state, found.claimed_at is not None) == (state, is_claimed)


def test_claims_of_a_window() -> None:
    # a job of sufficient priority claims a window
    urgent = replace(LATE, tenant=None, priority=80)
    assert the_view(planned([bobs(2, 7, 1, minutes=3)], urgent)).state is WindowState.RELEASED
    assert the_view(planned([bobs(2, 7, 1, minutes=3).evolve(priority=80)], urgent)).claimed_at == NOW
    # a window claimed or released stays so
    claimed = planned([job(1, gpus=8)], LATE, claimed={LATE.key: NOW - MINUTE})
    assert starts(claimed) == {}
    assert the_view(claimed).claimed_at == NOW - MINUTE
    released = planned([job(1, gpus=8), job(2, tenant="bob", gpus=1)], LATE, released={LATE.key: NOW - MINUTE})
    assert starts(released) == {1: 8}
    assert the_view(released).gpus == ()
    # a window without jobs is kept to its end
    closed = replace(LATE, tenant=None)
    found = planned([job(1, gpus=8, tenant="bob", priority=100)], closed)
    assert starts(found) == {}
    assert the_view(found).state is WindowState.ACTIVE
    # past windows are forgotten with their claims
    over = replace(LATE, end=NOW)
    assert planned([], over).windows == ()
    before = Controls(claimed={over.key: NOW}, released={LATE.key: NOW})
    after = with_claims(before, planned([], LATE, released={LATE.key: NOW}).windows)
    assert (after.claimed, after.released) == ({}, {LATE.key: NOW})
    assert with_claims(after, planned([], LATE, released={LATE.key: NOW}).windows) is after


def test_tenants_and_the_standing_rule_of_a_command_go_over_the_file() -> None:
    file = Settings(policy=PolicySettings(standing_priority=80, tenants=(TenantSettings("bob"), TenantSettings("eve"))))
    controls = Controls(tenants=(TenantSettings("bob", 3.0),), standing=StandingRule(None))
    policy = effective_settings(file, controls).policy
    assert policy.tenants == (TenantSettings("bob", 3.0), TenantSettings("eve"))
    assert policy.standing_priority is None
    assert effective_settings(file, Controls()) is file
    capped = planned([job(1, gpus=4), job(2, gpus=1)], tenants=(TenantSettings("alice", gpus=2),))
    assert starts(capped) == {2: 1}


def test_what_if_adds_a_reservation() -> None:
    before = seen([job(1, gpus=8)], controls=Controls(reservations=(LATE,)))
    assert with_reservation(BEGUN)(before).controls.reservations == (LATE, BEGUN)


def test_a_window_is_the_reason_only_if_it_delays_the_job() -> None:
    """A job behind the head may be kept back by either."""
    soon = Window("exam", NOW + HOUR, NOW + 9 * HOUR, gpus=("6", "7"), tenant="bob")
    jobs = [
        holder(1, 0, 4, hours=5),
        job(2, gpus=8, age=9),
        job(3, gpus=4, age=8, time_limit=2 * HOUR),
        job(4, gpus=3, age=7, time_limit=30 * HOUR),
    ]
    reasons = planned(jobs, soon).reasons
    assert reasons[3].code is PendingReason.RESERVATION
    assert "2 GPUs reserved by exam" in reasons[3].text
    assert reasons[4].code is PendingReason.PRIORITY
    assert "reserved for job 2" in reasons[4].text


def test_a_job_with_access_to_a_window_is_not_skipped_with_the_jobs_before_it() -> None:
    open_to_80 = Window("w", NOW - MINUTE, NOW + HOUR, 8, priority=80)
    first, second = job(1, gpus=1, topped_at=NOW, time_limit=9 * HOUR), job(2, gpus=1, age=9, time_limit=9 * HOUR)
    jobs = [first, second, job(3, gpus=1, priority=80, time_limit=9 * HOUR)]
    assert starts(planned(jobs, open_to_80)) == {3: 1}
    short = job(4, gpus=1, time_limit=HOUR / 2)
    later = Window("w", NOW + HOUR, NOW + 2 * HOUR, 8, tenant="zoe")
    assert starts(planned([*jobs[:2], short], later)) == {4: 1}
