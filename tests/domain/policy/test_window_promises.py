"""Reservations are kept under any load; jobs here end by their limits, as planned."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import GpuState
from gputui.domain.job import Attempt, Job
from gputui.domain.policy.plan import plan
from gputui.domain.settings import PolicySettings, Settings, Window
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState
from tests.factories import NOW, job, uuid, view
from tests.lane import examples

GPUS = 8
MINUTE = timedelta(minutes=1)
POLICY = PolicySettings(predict=False, forecast_jobs=0, reservation_grace=timedelta(days=1))
UP = (RuntimeStatus("docker", True, ""),)
JOBS = st.lists(
    st.tuples(
        st.integers(0, 90),
        st.integers(1, 60),
        st.sampled_from([1, 1, 2, 3, 4, 8]),
        st.sampled_from(["alice", "alice", "eve", "bob"]),
    ),
    min_size=4,
    max_size=20,
)
WINDOWS = st.lists(
    st.tuples(st.integers(1, 90), st.integers(5, 60), st.integers(1, 4), st.sampled_from(["bob", "eve", None])),
    min_size=1,
    max_size=2,
)


EVE_STARTS_A_MINUTE_EARLY = [
    (0, 1, 1, "alice"),
    (0, 9, 8, "bob"),
    (15, 6, 1, "bob"),
    (2, 16, 8, "bob"),
    (10, 19, 8, "bob"),
    (23, 60, 8, "bob"),
    (59, 43, 3, "eve"),
    (81, 1, 2, "eve"),
]


@given(JOBS, WINDOWS, st.booleans())
@example(EVE_STARTS_A_MINUTE_EARLY, [(60, 22, 2, "eve"), (60, 26, 4, "bob")], False)
@settings(max_examples=examples(25), deadline=None)
def test_jobs_of_others_leave_enough_gpus_for_each_window(
    coming: list[tuple[int, int, int, str]], asked: list[tuple[int, int, int, str | None]], by_name: bool
) -> None:
    windows = tuple(
        Window(
            f"w{number}",
            NOW + start * MINUTE,
            NOW + (start + lasts) * MINUTE,
            0 if by_name else count,
            tuple(uuid(4 * number + gpu) for gpu in range(count)) if by_name else (),
            whom,
        )
        for number, (start, lasts, count, whom) in enumerate(asked)
    )
    policy = Settings(policy=replace(POLICY, reservations=windows))
    jobs = [
        job(number + 1, gpus=width, tenant=whom, time_limit=lasts * MINUTE).evolve(submitted_at=NOW + at * MINUTE)
        for number, (at, lasts, width, whom) in enumerate(coming)
    ]
    for minute in range(160):
        now = NOW + minute * MINUTE
        jobs = [_ended(each, now) for each in jobs]
        known = [each for each in jobs if each.submitted_at <= now]
        starts = {start.job_id: start.gpus for start in plan(_seen(known, now), policy, now).starts}
        jobs = [_started(each, starts[each.id], now) if each.id in starts else each for each in jobs]
        for window in windows:
            if window.start <= now < window.end:
                _check(window, jobs)


def _check(window: Window, jobs: Sequence[Job]) -> None:
    others = [gpu for each in jobs if not window.admits(each.spec.tenant, each.priority) for gpu in each.gpus]
    assert not set(others) & set(window.gpus)
    assert len(others) <= GPUS - window.count


def _seen(jobs: Sequence[Job], now: datetime) -> Snapshot:
    held = {gpu: each.id for each in jobs for gpu in each.gpus}
    rows = [
        view(i, GpuState.ALLOCATED, job_id=held[uuid(i)]) if uuid(i) in held else view(i, GpuState.FREE)
        for i in range(GPUS)
    ]
    return Snapshot(taken_at=now, nodes=(Node("here", tuple(rows), runtimes=UP),), jobs=tuple(jobs))


def _started(waiting: Job, gpus: tuple[str, ...], now: datetime) -> Job:
    attempt = Attempt(1, gpus, claimed_at=now, started_at=now)
    return waiting.evolve(state=JobState.RUNNING, started_at=now, attempts=(attempt,))


def _ended(each: Job, now: datetime) -> Job:
    if each.state is not JobState.RUNNING or each.limit_at is None or each.limit_at > now:
        return each
    return each.with_attempt(ended_at=now).evolve(state=JobState.COMPLETED, ended_at=now)
