"""The eligible wait: it counts while a job could run, and for no priority above the one it was spent at."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.action import Edit
from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import GpuRequest, JobSpec
from gputui.domain.policy.waits import Dependencies, asks_for_more, eligible_since, eligible_wait, end_wait, keep_wait
from gputui.domain.state import JobState
from tests.cases import cases
from tests.factories import GIB, NOW, job, spec

HOUR = timedelta(hours=1)


def wait(one: Job, now: datetime = NOW, ended_at: datetime | None = None) -> float:
    """Hours; both functions have to agree."""
    seconds = eligible_wait(one, ended_at, now).total_seconds()
    assert eligible_since(one, ended_at, now) == pytest.approx(now.timestamp() - seconds)
    return seconds / 3600


def changed(one: Job, at: datetime, **changes: Any) -> Job:
    return keep_wait(one, one.evolve(**changes), None, at)


def edited(one: Job, at: datetime = NOW, **fields: Any) -> Job:
    gpus = {name: fields.pop(name) for name in tuple(fields) if name in {"minimum", "maximum", "memory", "share"}}
    return keep_wait(one, Edit(spec=fields, gpus=gpus).on(one, at), None, at)


def test_waits_and_holds() -> None:
    # a plain job waits since it was submitted
    assert wait(job(age=7200)) == 2.0
    assert wait(job(), NOW - HOUR) == 0.0, "the clock was set back: nobody has waited less than nothing"
    # time on hold does not count and the wait goes on after the release
    held = changed(job(age=3600), NOW, held=True)
    assert wait(held, NOW + 10 * HOUR) == 1.0
    released = changed(held, NOW + 10 * HOUR, held=False)
    assert wait(released, NOW + 12 * HOUR) == 3.0
    # a job submitted on hold has not waited when it is released
    released = changed(job(age=36_000, held=True), NOW, held=False)
    assert wait(released) == 0.0


@cases("gate", ["begin_at", "not_before"])
def test_time_before_the_begin_and_in_a_back_off_does_not_count(gate: str) -> None:
    gates: dict[str, Any] = {gate: NOW + HOUR}
    waiting = job(age=3600, **gates)
    assert wait(waiting) == 0.0
    assert wait(waiting, NOW + HOUR) == 0.0
    assert wait(waiting, NOW + 3 * HOUR) == 2.0


def test_waits_and_begins() -> None:
    # a removed begin does not lengthen the wait
    waiting = edited(job(age=36_000, begin_at=NOW + HOUR), begin_at=None)
    assert wait(waiting, NOW + HOUR) == 1.0
    # a begin set later keeps the previous wait
    waiting = edited(job(age=3600), begin_at=NOW + HOUR)
    assert wait(waiting, NOW + 2 * HOUR) == 2.0


def finished(number: int, hours_ago: float, state: JobState = JobState.COMPLETED, **fields: Any) -> Job:
    return job(number, age=90_000, **fields).evolve(state=state, ended_at=NOW - hours_ago * HOUR)


@cases(
    ("others", "hours"),
    [
        ([finished(1, 2.0)], 2.0),
        ([finished(1, 2.0), finished(2, 1.0)], 1.0),
        ([finished(1, 2.0), job(2)], 0.0),
        ([finished(1, 20.0)], 10.0),
        ([], 10.0),
        ([finished(1, 3.0, array=ArrayRef(1, 0)), finished(2, 1.5, array=ArrayRef(1, 1))], 1.5),
        ([finished(1, 3.0, array=ArrayRef(1, 0)), job(2, array=ArrayRef(1, 1))], 0.0),
    ],
)
def test_the_wait_begins_at_the_end_of_the_last_dependency(others: list[Job], hours: float) -> None:
    after = (1,) if any(each.array for each in others) else (1, 2)
    waiting = job(9, age=36_000, after=after)
    ended_at = Dependencies.of([*others, waiting]).ended_at(waiting, NOW)
    assert wait(waiting, ended_at=ended_at) == hours


def test_waits_and_dependencies_and_priorities() -> None:
    # a removed dependency does not lengthen the wait
    waiting = job(9, age=36_000, after=(1,))
    free = keep_wait(waiting, Edit(spec={"after": ()}).on(waiting, NOW), NOW, NOW)
    assert wait(free, NOW + HOUR) == 1.0
    # a wait counts for its own priority and lower ones
    raised = changed(job(age=3600, priority=0), NOW, priority=50)
    assert wait(raised, NOW + HOUR) == 1.0
    again_low = changed(raised, NOW + HOUR, priority=20)
    assert wait(again_low, NOW + HOUR) == 1.0, "the hour at priority 0 does not count at 20"
    at_zero = changed(again_low, NOW + HOUR, priority=0)
    assert wait(at_zero, NOW + HOUR) == 2.0


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 3600)), max_size=8), st.integers(0, 100))
def test_the_wait_is_the_time_at_this_priority_or_above(steps: list[tuple[int, int]], last: int) -> None:
    one, now, spent = job(priority=50), NOW, [(50, 0)]
    for priority, seconds in steps:
        spent.append((one.priority, seconds))
        now += timedelta(seconds=seconds)
        one = changed(one, now, priority=priority)
    one = changed(one, now, priority=last)
    assert wait(one, now) * 3600 == pytest.approx(sum(seconds for priority, seconds in spent if priority >= last))


BIG = spec((2, 4), time_limit=10 * HOUR, nice=5)


@cases(
    ("change", "is_more"),
    [
        ({"maximum": 5}, True),
        ({"minimum": 3}, True),
        ({"memory": 20 * GIB}, True),
        ({"time_limit": 11 * HOUR}, True),
        ({"time_limit": None}, True),
        ({"nice": 0}, True),
        ({"maximum": 2}, False),
        ({"minimum": 1}, False),
        ({"time_limit": HOUR}, False),
        ({"nice": 50}, False),
        ({"command": ("other",)}, False),
        ({"maximum": 2, "time_limit": 20 * HOUR}, True),
    ],
)
def test_an_edit_that_asks_for_more_restarts_the_wait(change: dict[str, Any], is_more: bool) -> None:
    waiting = edited(end_wait(job(spec=BIG, age=3600), None, NOW), NOW + HOUR, **change)
    assert wait(waiting, NOW + 2 * HOUR) == (1.0 if is_more else 3.0)


@cases(
    ("before", "after", "is_more"),
    [
        (GpuRequest(4, 4), GpuRequest(everything=True), True),
        (GpuRequest(), GpuRequest(2, 2), True),
        (GpuRequest(everything=True), GpuRequest(4, 4), False),
        (GpuRequest(1, 1, memory=GIB, share=True), GpuRequest(1, 1), True),
    ],
)
def test_all_gpus_are_more_than_any_number(before: GpuRequest, after: GpuRequest, is_more: bool) -> None:
    assert asks_for_more(JobSpec(gpus=before), JobSpec(gpus=after)) is is_more


def test_a_running_job_has_no_wait() -> None:
    running = job().evolve(state=JobState.RUNNING)
    assert keep_wait(running, running.evolve(priority=80), None, NOW).waited == ()
