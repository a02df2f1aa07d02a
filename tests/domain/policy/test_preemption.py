"""Choice of the jobs that are preempted for the head of the queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.action import Cancel, SetPriority
from gputui.domain.container import RuntimeStatus
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import Drain, GpuState, GpuView, Health, HealthCode, Holder
from gputui.domain.job import Attempt, Job, Placement, Stopping
from gputui.domain.job_spec import GpuRequest, JobId, whole_class
from gputui.domain.policy.plan import Plan, Preemption, plan
from gputui.domain.policy.preemption import Candidate, cheapest_victims, lost_work
from gputui.domain.policy.whatif import change_of, compared
from gputui.domain.settings import PolicySettings, Settings, TenantSettings, Window
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState, PendingReason
from tests.cases import cases
from tests.domain.policy.cases import any_of
from tests.factories import GIB, NOW, job, spec, uuid, view

UP = (RuntimeStatus("docker", True, "Docker"),)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
GRACE = timedelta(seconds=60)


def policy(**changes: Any) -> PolicySettings:
    return PolicySettings(**{"preemption": True, "predict": False, **changes})


def low(job_id: JobId, first: int, count: int = 1, *, ran: timedelta = HOUR, **changes: Any) -> Job:
    """Return a running job on `count` GPUs, by default of low class and preemptible."""
    on = tuple(uuid(first + n) for n in range(count))
    attempts = (*changes.pop("before", ()), Attempt(9, on, claimed_at=NOW - ran, started_at=NOW - ran))
    fields: dict[str, Any] = {"priority": 0, "preemptible": True, "age": 86_400, **changes}
    return job(job_id, gpus=count, **fields).evolve(state=JobState.RUNNING, started_at=NOW - ran, attempts=attempts)


def seen(jobs: Iterable[Job], gpus: int = 4, rows: dict[int, GpuView] | None = None) -> Snapshot:
    jobs = tuple(jobs)
    held = {name: one.id for one in jobs for name in one.gpus}
    found = [
        view(i, GpuState.ALLOCATED, job_id=held[uuid(i)], holders=(Holder("job", "x"),)) if uuid(i) in held else view(i)
        for i in range(gpus)
    ]
    for index, row in (rows or {}).items():
        found[index] = row
    return Snapshot(taken_at=NOW, nodes=(Node("here", tuple(found), runtimes=UP),), jobs=jobs)


def planned(jobs: Iterable[Job], gpus: int = 4, rows: dict[int, GpuView] | None = None, **changes: Any) -> Plan:
    return plan(seen(jobs, gpus, rows), Settings(policy=policy(**changes)), NOW)


def victims(found: Plan) -> tuple[JobId, ...]:
    return tuple(each.victim for each in found.preemptions)


def preempted_before(minutes: float) -> Attempt:
    at = NOW - timedelta(minutes=minutes)
    cause = Cause(CauseCode.PREEMPTED, "preempted")
    return Attempt(1, (), at, None, at, at, 143, cause, preempted_by=99, preempted_at=at)


def test_the_head_of_a_higher_class_preempts() -> None:
    found = planned([low(1, 0, 4), job(2, gpus=2, priority=75, tenant="bob")])
    assert found.preemptions == (Preemption(1, 2),)
    assert found.starts == ()
    assert found.reservations[0].job_id == 2
    words = "needs 2 GPUs: 0 free, 4 held by jobs; job 1 is being preempted for it, up to 60 s grace"
    assert (found.reasons[2].code, found.reasons[2].text) == (
        PendingReason.RESOURCES,
        f"{words}; expected 12:01 UTC",
    )
    assert found.forecast[2] == NOW + GRACE


def test_classes_are_whole() -> None:
    assert [whole_class(priority) for priority in (0, 25, 26, 50, 74, 75, 100)] == [0, 0, 1, 1, 1, 2, 2]


@cases(("priority", "other", "expected"), [(25, 74, (1,)), (26, 74, ()), (74, 75, (1,)), (0, 25, ())])
def test_only_a_higher_class_preempts_and_not_just_a_higher_priority(
    priority: int, other: int, expected: tuple[JobId, ...]
) -> None:
    assert victims(planned([low(1, 0, 4, priority=priority), job(2, gpus=1, priority=other)])) == expected


REFUSED: dict[str, tuple[Job, dict[str, Any]]] = {
    "not preemptible": (low(1, 0, 4, preemptible=False), {}),
    "off": (low(1, 0, 4), {"preemption": False}),
    "too young": (low(1, 0, 4, ran=timedelta(minutes=9)), {}),
    "too often": (low(1, 0, 4, before=(preempted_before(900),) * 3), {}),
    "too many this hour": (low(1, 0, 4, before=(preempted_before(59),)), {"preemptions_per_hour": 1}),
    "about to be cancelled": (low(1, 0, 4, cancel_requested=True), {}),
    "still starting": (low(1, 0, 4).evolve(state=JobState.CONFIGURING), {}),
}


@cases("case", REFUSED)
def test_protected_jobs_are_not_preempted(case: str) -> None:
    victim, changes = REFUSED[case]
    assert victims(planned([victim, job(2, gpus=1, priority=100)], **changes)) == ()


def test_protections_of_jobs() -> None:
    # jobs of a missing runtime are not preempted
    urgent = job(2, gpus=1, priority=100, spec=spec(1, image=None, priority=100))
    down = (RuntimeStatus("docker", False, "Docker does not answer"), RuntimeStatus("process", True, "host"))
    [node] = seen([low(1, 0, 4), urgent]).nodes
    for runtimes, expected in (((UP[0], down[1]), (1,)), (down, ())):
        picture = replace(seen([low(1, 0, 4), urgent]), nodes=(replace(node, runtimes=runtimes),))
        assert victims(plan(picture, Settings(policy=policy()), NOW)) == expected
    # protections from preemption expire
    head = job(2, gpus=1, priority=100)
    assert victims(planned([low(1, 0, 4, ran=timedelta(minutes=10)), head])) == (1,)
    assert victims(planned([low(1, 0, 4, before=(preempted_before(900),) * 2), head])) == (1,)
    assert victims(planned([low(1, 0, 4, before=(preempted_before(61),)), head], preemptions_per_hour=1)) == (1,)


def test_the_cheapest_victims() -> None:
    # least work is lost not fewest jobs
    big = low(1, 0, 4, ran=72 * HOUR)
    small = [low(2, 4, ran=HOUR), low(3, 5, ran=HOUR)]
    head = job(4, gpus=2, priority=100)
    assert victims(planned([big, *small, head], gpus=6)) == (2, 3)
    few = [low(2, 4, 2, ran=HOUR), low(3, 6, ran=HOUR), low(5, 7, ran=HOUR)]
    assert victims(planned([big, *few, head], gpus=8)) == (2,)
    # the youngest of equal jobs is preempted
    jobs = [low(1, 0), low(2, 1), low(3, 2), low(4, 3)]
    assert victims(planned([*jobs, job(5, gpus=1, priority=100)])) == (4,)
    # free and ending GPUs are counted
    ending = low(1, 0, 2).to(JobState.COMPLETING, stopping=Stopping(Cause(CauseCode.CANCELLED, "by a user"), NOW))
    others = [low(2, 2)]
    assert victims(planned([ending, *others, job(3, gpus=3, priority=100)])) == ()
    assert victims(planned([ending, *others, job(3, gpus=4, priority=100)])) == (2,)
    # a head that gains no time preempts no job
    soon = low(1, 0, 2, preemptible=False, time_limit=HOUR + timedelta(seconds=50))
    assert victims(planned([soon, low(2, 2, 2), job(3, gpus=2, priority=100)])) == ()
    later = low(1, 0, 2, preemptible=False, time_limit=HOUR + timedelta(seconds=70))
    assert victims(planned([later, low(2, 2, 2), job(3, gpus=2, priority=100)])) == (2,)


IN_VAIN: dict[str, tuple[list[Job], dict[str, Any]]] = {
    "too few all the same": ([low(1, 0, 2), low(2, 2, preemptible=False), job(3, gpus=4, priority=100)], {}),
    "the wrong GPUs": (
        [
            low(1, 0, 2),
            low(2, 2, 2, preemptible=False),
            job(3, spec=replace(spec(), gpus=GpuRequest(1, 1, devices=("3",))), priority=100),
        ],
        {},
    ),
    "GPUs that failed it": (
        [low(1, 0, 2), low(2, 2, 2, preemptible=False), job(3, gpus=1, priority=100, avoid_gpus=(uuid(0), uuid(1)))],
        {},
    ),
    "a window": (
        [low(1, 0, 4), job(3, gpus=2, priority=100, time_limit=3 * HOUR)],
        {"reservations": (Window("course", NOW + HOUR, NOW + 2 * HOUR, count=4, tenant="bob"),)},
    ),
    "a cap": (
        [low(1, 0, 4), job(3, gpus=2, priority=100, tenant="bob")],
        {"tenants": (TenantSettings("bob", gpus=1),)},
    ),
    "a tenant let loose": (
        [
            low(1, 0, 4, tenant="bob"),
            job(3, gpus=2, priority=100),
            job(4, gpus=4, priority=100, age=90_000, tenant="bob"),
        ],
        {"tenants": (TenantSettings("bob", running=1),), "newcomer_credit": timedelta(0)},
    ),
    "a hold": ([low(1, 0, 4), job(3, gpus=2, priority=100, held=True)], {}),
    "a dependency": ([low(1, 0, 4), job(3, gpus=2, priority=100, after=(1,))], {}),
    "patience": ([low(1, 0, 4), job(3, gpus=(1, 2), priority=100)], {"patience": timedelta(minutes=5)}),
}


@cases("case", IN_VAIN)
def test_no_job_is_preempted_in_vain(case: str) -> None:
    jobs, changes = IN_VAIN[case]
    assert victims(planned(jobs, **changes)) == ()


def test_a_range_preempts_for_its_smallest_number_after_its_patience() -> None:
    jobs = [low(1, 0, 3), low(2, 3), job(3, gpus=(1, 4), priority=100, age=301)]
    assert victims(planned(jobs, patience=timedelta(minutes=5))) == (2,)
    assert victims(planned(jobs)) == (2,)


@cases(
    "changes",
    [
        {"drain": Drain("", "root", NOW)},
        {"health": Health(HealthCode.XID, "Xid 79")},
        {"stale": True},
        {"holders": (Holder("job", "x"), Holder("process", "python"))},
    ],
)
def test_no_job_is_preempted_on_an_unusable_gpu(changes: dict[str, Any]) -> None:
    row = replace(view(0, GpuState.ALLOCATED, job_id=1), **changes)
    assert victims(planned([low(1, 0), job(2, gpus=1, priority=100)], gpus=1, rows={0: row})) == ()


def test_which_victims_are_chosen() -> None:
    # a victim outside a window is taken though one inside would lose less
    window = Window("course", NOW, NOW + 9 * HOUR, gpus=("3",), tenant="bob")
    jobs = [low(1, 2, ran=5 * HOUR), low(2, 3, tenant="bob"), low(3, 0, 2, preemptible=False)]
    head = job(4, gpus=1, priority=100, time_limit=HOUR)
    assert victims(planned([*jobs, head])) == (2,)
    assert victims(planned([*jobs, head], reservations=(window,))) == (1,)
    # no job is preempted that shares a GPU with others
    sharing = GpuRequest(1, 1, memory=GIB, share=True)
    sharers = [replace(one, spec=replace(one.spec, gpus=sharing)) for one in (low(1, 0), low(2, 0))]
    head = job(3, gpus=1, priority=100)
    assert victims(planned([*sharers, head], gpus=1, share=("all",))) == ()
    assert victims(planned([sharers[0], head], gpus=1, share=("all",))) == (1,)


def test_what_goes_on_beside_a_preemption() -> None:
    # only the head preempts
    first = job(3, gpus=4, priority=50, topped_at=NOW)
    assert (
        victims(planned([low(1, 0, 2), low(2, 2, 2), first, job(4, gpus=1, priority=100)], preemptions_per_hour=1))
        == ()
    )
    # no job is backfilled onto the freed GPUs
    jobs = [low(1, 0, 3), job(2, gpus=4, priority=100, time_limit=HOUR), job(3, gpus=1, time_limit=2 * MINUTE)]
    assert planned(jobs).starts == ()
    short = job(3, gpus=1, time_limit=MINUTE)
    assert planned([*jobs[:2], short]).starts == ()  # the victim may be gone in a second
    assert [start.job_id for start in planned([jobs[0], job(2, gpus=3, priority=100), short]).starts] == [3]
    # a head that finds no victim keeps its planned start
    kept = low(1, 0, 3, preemptible=False, time_limit=2 * HOUR)  # it ends in an hour
    head, long = job(2, gpus=4, priority=100, time_limit=HOUR), job(3, gpus=1, time_limit=3 * HOUR)
    assert planned([kept, head, long]).starts == ()
    short = job(3, gpus=1, time_limit=HOUR / 2)
    assert [start.job_id for start in planned([kept, head, short]).starts] == [3]


def test_no_job_is_backfilled_onto_gpus_of_the_first_victim() -> None:
    stopping = Stopping(Cause(CauseCode.PREEMPTED, "preempted"), NOW)
    leaving = low(1, 0, 2).with_attempt(preempted_by=3, preempted_at=NOW)
    gone = low(2, 2, 2).with_attempt(preempted_by=3, preempted_at=NOW, ended_at=NOW, cause=stopping.cause)
    jobs = [
        leaving.to(JobState.COMPLETING, stopping=stopping),
        gone.evolve(state=JobState.PENDING),
        job(3, gpus=4, priority=100, time_limit=HOUR),
        job(4, gpus=1, time_limit=MINUTE / 2),
    ]
    found = planned(jobs)
    assert (found.starts, victims(found)) == ((), ())
    assert found.reasons[4].text.endswith("for job 3, for which others make way; 1 job ahead of it")


def test_a_head_and_its_victims() -> None:
    # the forecast includes the victim
    jobs = [
        low(1, 0, 4, time_limit=2 * HOUR),
        job(2, gpus=4, priority=100, time_limit=HOUR),
        job(3, gpus=4, priority=0),
    ]
    found = planned(jobs)
    assert found.forecast[2] == NOW + GRACE
    assert found.forecast[1] == NOW + GRACE + HOUR
    assert found.forecast[3] == NOW + GRACE + 3 * HOUR
    # a head with ending victims keeps its place and preempts no more
    stopping = Stopping(Cause(CauseCode.PREEMPTED, "preempted"), NOW - timedelta(seconds=20))
    victim = low(1, 0, 2).with_attempt(preempted_by=3, preempted_at=stopping.at)
    jobs = [victim.to(JobState.COMPLETING, stopping=stopping), low(2, 2, 2), job(3, gpus=2, priority=100)]
    found = planned(jobs)
    assert victims(found) == ()
    assert "job 1 is being preempted for it, up to 60 s grace; expected 12:00 UTC" in found.reasons[3].text
    assert found.forecast[3] == NOW + timedelta(seconds=40)
    # the head takes the GPUs of its victims though others end sooner: a plan may be wrong about those; if they do end,
    # it starts all the same.
    stopping = Stopping(Cause(CauseCode.PREEMPTED, "preempted"), NOW - timedelta(seconds=20))
    victim = low(1, 2).with_attempt(preempted_by=3, preempted_at=stopping.at)
    soon = low(2, 0, 2, preemptible=False, time_limit=HOUR + timedelta(seconds=5))
    head = job(3, gpus=2, priority=100, topped_at=stopping.at)
    other = job(4, gpus=1, time_limit=timedelta(seconds=2))
    found = planned([victim.to(JobState.COMPLETING, stopping=stopping), soon, head, other])
    assert found.reservations == (Placement(3, (uuid(2), uuid(3))),)
    assert (found.starts, found.preemptions) == ((), ())


def test_what_if_shows_the_preemption() -> None:
    before = seen([low(1, 0, 4, time_limit=2 * HOUR), job(2, gpus=4, time_limit=HOUR, priority=20)])
    shifts = {
        shift.job_id: shift
        for shift in compared(before, change_of(SetPriority((2,), 90), NOW), Settings(policy=policy()), NOW).shifts
    }
    assert (shifts[2].before, shifts[2].after) == (NOW + HOUR, NOW + GRACE)
    assert (shifts[1].before, shifts[1].after, shifts[1].is_stopped) == (None, NOW + GRACE + HOUR, True)
    assert not shifts[2].is_stopped
    after = seen([low(1, 0, 4, time_limit=2 * HOUR), job(2, gpus=4, time_limit=HOUR, priority=90)])
    assert compared(after, change_of(Cancel((2,)), NOW), Settings(policy=policy()), NOW).shifts[-1].after is None


@dataclass(frozen=True)
class Scene:
    """GPUs, some jobs on them, some waiting."""

    jobs: tuple[Job, ...]
    settings: PolicySettings


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    jobs: list[Job] = []
    first = 0
    while first < 8:
        count = draw(st.integers(1, 3))
        if first + count <= 8 and draw(st.integers(0, 7)):
            before = tuple(map(preempted_before, draw(st.lists(st.integers(1, 120), max_size=2))))
            jobs.append(
                low(
                    len(jobs) + 1,
                    first,
                    count,
                    ran=timedelta(minutes=draw(st.integers(0, 300))),
                    priority=draw(any_of(0, 0, 20, 50, 74)),
                    preemptible=draw(any_of(True, True, True, False)),
                    before=before,
                )
            )
        first += count
    for width, priority, age in draw(
        st.lists(
            st.tuples(st.integers(1, 6), st.sampled_from([100, 80, 60, 50, 10]), st.integers(0, 90_000)),
            min_size=1,
            max_size=3,
        )
    ):
        jobs.append(job(len(jobs) + 1, gpus=width, priority=priority, age=age))
    return Scene(
        tuple(jobs),
        policy(
            preemption_min_run=timedelta(minutes=draw(any_of(0, 10, 60))),
            preemptions_per_job=draw(st.integers(2, 3)),
            preemptions_per_hour=draw(any_of(9, 9, 2, 4)),
        ),
    )


def may(victim: Job, head: Job, rules: PolicySettings) -> bool:
    """Return the jobs that the rules permit to preempt, computed independently of the policy."""
    bands = [range(26), range(26, 75), range(75, 101)]
    rank = {each.id: next(n for n, band in enumerate(bands) if each.priority in band) for each in (victim, head)}
    started = victim.attempts[-1].started_at
    times = sum(attempt.preempted_at is not None for attempt in victim.attempts)
    return (
        rules.preemption
        and victim.spec.preemptible
        and rank[victim.id] < rank[head.id]
        and started is not None
        and NOW - started >= rules.preemption_min_run
        and times < rules.preemptions_per_job
    )


@given(scenes())
def test_victims_are_permitted_sufficient_and_the_cheapest(scene: Scene) -> None:
    found = plan(seen(scene.jobs, 8), Settings(policy=scene.settings), NOW)
    assert found == plan(seen(reversed(scene.jobs), 8), Settings(policy=scene.settings), NOW)
    chosen = victims(found)
    if not chosen:
        return
    jobs = {one.id: one for one in scene.jobs}
    [by] = {each.by for each in found.preemptions}
    head = jobs[by]
    running = [one for one in scene.jobs if one.state is JobState.RUNNING]
    allowed = [one for one in running if may(one, head, scene.settings)]
    assert {one.id for one in allowed} >= set(chosen)
    lately = sum(
        attempt.preempted_at is not None and attempt.preempted_at > NOW - HOUR
        for one in running
        for attempt in one.attempts
    )
    assert len(chosen) + lately <= scene.settings.preemptions_per_hour
    taken = sum(len(one.gpus) for one in running) + sum(len(start.gpus) for start in found.starts)
    free = 8 - sum(len(one.gpus) for one in running)
    started_first = [start for start in found.starts if found.order.index(start.job_id) < found.order.index(by)]
    free -= sum(len(start.gpus) for start in started_first)
    need = head.spec.gpus.minimum - free
    assert taken <= 8
    assert enough(chosen, jobs, need)
    assert not any(enough(part, jobs, need) for part in combinations(chosen, len(chosen) - 1))
    budget = scene.settings.preemptions_per_hour - lately
    least = min(
        sum(lost_work(one.attempts[-1], NOW) for one in some)
        for size in range(1, min(budget, len(allowed)) + 1)
        for some in combinations(allowed, size)
        if enough([one.id for one in some], jobs, need)
    )
    assert sum(lost_work(jobs[victim].attempts[-1], NOW) for victim in chosen) == least
    assert starts_then(scene, chosen, by)


def enough(ids: Iterable[JobId], jobs: dict[JobId, Job], need: int) -> bool:
    return sum(len(jobs[job_id].gpus) for job_id in ids) >= need


def starts_then(scene: Scene, gone: Iterable[JobId], by: JobId) -> bool:
    """Return whether the head starts once the victims wait again and it was put first."""

    def after(one: Job) -> Job:
        if one.id == by:
            return one.evolve(topped_at=NOW)
        if one.id not in set(gone):
            return one
        cause = Cause(CauseCode.PREEMPTED, "preempted")
        over = one.with_attempt(ended_at=NOW, cause=cause, preempted_by=by, preempted_at=NOW)
        return over.evolve(state=JobState.PENDING)

    later = plan(seen(map(after, scene.jobs), 8), Settings(policy=scene.settings), NOW)
    return by in {start.job_id for start in later.starts}


@given(scenes())
def test_switched_off_preemption_preempts_no_job(scene: Scene) -> None:
    off = replace(scene.settings, preemption=False)
    assert plan(seen(scene.jobs, 8), Settings(policy=off), NOW).preemptions == ()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 4)), max_size=8), st.integers(1, 12), st.integers(1, 8))
def test_the_cheapest_set_is_that_of_an_exhaustive_search(costs: list[tuple[int, int]], wanted: int, most: int) -> None:
    gains = [(Candidate(-number, 0, lost), gain) for number, (lost, gain) in enumerate(costs, 1)]
    sets = [
        (sum(one.lost for one, _ in some), len(some), tuple(sorted(one.young for one, _ in some)))
        for size in range(1, most + 1)
        for some in combinations(gains, size)
        if sum(gain for _, gain in some) >= wanted
    ]
    assert cheapest_victims(gains, wanted, most) == min(sets, default=None)
