"""Timeline of running, forecast and reserved GPUs; what-if compares two of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.action import Hold, Release, Requeue, ResumeGpus, SetPriority
from gputui.domain.gpu import Drain, GpuState, Holder
from gputui.domain.job import ArrayRef
from gputui.domain.policy.plan import plan
from gputui.domain.policy.planning_context import DurationSource
from gputui.domain.policy.whatif import (
    Bar,
    BarKind,
    Shift,
    SnapshotChange,
    Timeline,
    change_of,
    compared,
    timeline,
)
from gputui.domain.settings import PolicySettings, Settings, Window
from gputui.domain.snapshot import Snapshot
from tests.cases import cases
from tests.domain.policy.test_decide import HOUR, holder, of_rows, seen
from tests.factories import NOW, job, running, uuid, view

SETTINGS = Settings(policy=PolicySettings(predict=False, max_time=24 * HOUR))


def foreseen(snapshot: Snapshot, settings: Settings = SETTINGS) -> Timeline:
    return timeline(snapshot, settings, NOW)


def of_job(found: Timeline, job_id: int) -> Bar:
    [bar] = [bar for bar in found.bars if bar.job_id == job_id]
    return bar


def on(*indices: int) -> tuple[str, ...]:
    return tuple(uuid(index) for index in indices)


def queue() -> Snapshot:
    """Four of eight GPUs held for two hours; a wide head; two behind it, of which one fits before."""
    return seen(
        [
            holder(1, 0, 4, hours=2),
            job(2, gpus=8, age=100, time_limit=3 * HOUR),
            job(3, gpus=2, age=50, time_limit=HOUR),
            job(4, gpus=2, age=40),
            job(5, gpus=0, age=30, time_limit=HOUR),
        ]
    )


def test_bars() -> None:
    # bars show running planned and promised jobs
    found = foreseen(queue())
    assert of_job(found, 1) == Bar(
        1, BarKind.RUNNING, on(0, 1, 2, 3), NOW - timedelta(seconds=60), NOW + 2 * HOUR, DurationSource.LIMIT
    )
    assert of_job(found, 2) == Bar(2, BarKind.HEAD, on(*range(8)), NOW + 2 * HOUR, NOW + 5 * HOUR, DurationSource.LIMIT)
    assert of_job(found, 3) == Bar(3, BarKind.PLANNED, on(4, 5), NOW, NOW + HOUR, DurationSource.LIMIT)
    assert of_job(found, 4).start == NOW + 5 * HOUR
    assert of_job(found, 4).source is DurationSource.DEFAULT
    assert of_job(found, 5).gpus == ()
    assert found.promise == of_job(found, 2)
    # the timeline has the starts of the plan
    decided = plan(queue(), SETTINGS, NOW)
    starts = {**{start.job_id: NOW for start in decided.starts}, **decided.forecast}
    assert foreseen(queue()).starts == starts
    # no GPU is in two bars at once
    for bars in foreseen(queue()).by_gpu.values():
        for earlier, later in itertools.pairwise(bars):
            assert earlier.end <= later.start
    # a job beyond its plan is marked
    late = running(1, on=on(0)).evolve(started_at=NOW - 30 * HOUR)
    late = late.with_attempt(started_at=NOW - 30 * HOUR)
    bar = of_job(foreseen(seen([late, job(2, gpus=8)])), 1)
    assert bar.is_overrun
    assert (bar.source, bar.end) == (DurationSource.DEFAULT, NOW + 18 * HOUR)
    # the head keeps its GPUs beyond the end of the forecast
    found = timeline(queue(), SETTINGS, NOW, most=0)
    assert [bar.job_id for bar in found.bars if bar.kind is BarKind.HEAD] == [2]
    assert found.promise == of_job(found, 2)


def test_an_unwanted_forecast_is_aborted() -> None:
    answers = iter([True, False, False, False])
    found = timeline(queue(), SETTINGS, NOW, is_wanted=lambda: next(answers))
    assert len(found.starts) < len(foreseen(queue()).starts)


def test_bars_of_windows_and_drained_gpus() -> None:
    # windows name their GPUs
    window = Window("exam", NOW + HOUR, NOW + 3 * HOUR, count=2, tenant="bob")
    kept = Settings(policy=PolicySettings(predict=False, reservations=(window,)))
    found = foreseen(seen([holder(1, 0, 4, hours=2)]), kept)
    assert found.windows == (replace(window, gpus=on(6, 7)),)
    # a job on a drained GPU is seen there
    job_1 = holder(1, 0, 1, hours=2)
    row = view(0, GpuState.ALLOCATED, job_id=1, drain=Drain("fan", "alice", NOW))
    assert of_job(foreseen(of_rows([job_1], [row])), 1).gpus == on(0)


def starts_after(snapshot: Snapshot, change: SnapshotChange) -> dict[int, float | None]:
    """Return the hours until each job starts whose start shifts."""
    shifts = compared(snapshot, change, SETTINGS, NOW).shifts
    return {shift.job_id: (shift.after - NOW) / HOUR if shift.after else None for shift in shifts}


def test_starts_after_a_change() -> None:
    # a held job never starts and others start sooner
    assert starts_after(queue(), change_of(Hold((2,)), NOW)) == {4: 0.0, 2: None}
    assert starts_after(queue(), change_of(Hold((1,)), NOW)) == {}, "one that runs cannot be held"
    # a released job starts
    waiting = job(2, gpus=8, age=100, time_limit=HOUR, held=True)
    assert starts_after(seen([waiting, job(3, gpus=1)]), change_of(Release((2,)), NOW)) == {2: 0.0, 3: 1.0}
    # a requeued job waits again with its age
    first = holder(1, 0, 8, hours=2).evolve(submitted_at=NOW - HOUR)
    jobs = [first, job(2, gpus=8, age=100, priority=60, time_limit=HOUR)]
    assert starts_after(seen(jobs), change_of(Requeue((1,)), NOW)) == {2: 0.0, 1: 1.0}


def test_a_resumed_gpu_takes_jobs_unless_another_obstacle_remains() -> None:
    jobs = [job(2, gpus=1, time_limit=HOUR)]
    drained = view(0, GpuState.DRAINED, drain=Drain("fan", "alice", NOW))
    other = replace(drained, holders=(Holder("process", "python", "bob", 7),))
    unread = replace(drained, stale=True)
    assert starts_after(of_rows(jobs, [drained]), change_of(ResumeGpus(tuple(on(0))), NOW)) == {2: 0.0}
    for row in (other, unread, replace(drained, sample=None)):
        assert starts_after(of_rows(jobs, [row]), change_of(ResumeGpus(tuple(on(0))), NOW)) == {}
    assert starts_after(of_rows(jobs, [drained]), change_of(ResumeGpus(tuple(on(1))), NOW)) == {}


@cases("change", [change_of(SetPriority((2,), 0), NOW), change_of(Hold((3,)), NOW)])
def test_a_comparison_takes_a_known_timeline(change: Callable[[Snapshot], Snapshot]) -> None:
    found = compared(queue(), change, SETTINGS, NOW)
    assert found.shifts != ()
    assert found.before == foreseen(queue())
    again = compared(queue(), change, SETTINGS, NOW, found.before)
    assert again == found
    assert again.before is found.before


def test_gpus_kept_for_others_are_not_counted_as_spare_beside_the_head() -> None:
    """Otherwise a job behind the head takes one of its GPUs, because one of the window's is free."""
    window = Window("exam", NOW + 4 * HOUR, NOW + 8 * HOUR, gpus=("4",), tenant="ci")
    jobs = [
        holder(1, 0, 2, hours=3),
        job(2, gpus=4, age=100, time_limit=2 * HOUR),
        job(3, gpus=1, age=50, time_limit=24 * HOUR),
    ]
    kept = Settings(policy=PolicySettings(predict=False, reservations=(window,)))
    found = foreseen(seen(jobs, 5), kept)
    assert found.promise == of_job(found, 2)
    assert of_job(found, 2).start == NOW + 3 * HOUR


def test_a_shift_of_less_than_a_second_is_none() -> None:
    """Two GPUs that come free 300 ms apart, and two jobs that change places."""
    first, second = holder(1, 0, 1, hours=2), holder(2, 1, 1, hours=2)
    late = second.with_attempt(started_at=NOW - timedelta(seconds=59.7))
    jobs = [first, late, job(3, gpus=1, age=20), job(4, gpus=1, age=10)]
    change = change_of(SetPriority((4,), 90), NOW)
    found = compared(seen(jobs, 2), change, SETTINGS, NOW)
    assert found.before.starts != found.after.starts
    assert found.shifts == ()
    assert Shift(1, None, NOW).is_felt
    assert Shift(1, NOW, None).is_felt
    assert not Shift(1, None, None).is_felt


def test_a_preempted_job_has_a_second_bar() -> None:
    victim = running(1, on=on(0, 1), priority=0, preemptible=True, time_limit=5 * HOUR)
    wide = job(2, gpus=2, priority=90, time_limit=HOUR)
    preempting = Settings(policy=PolicySettings(predict=False, preemption=True, preemption_min_run=timedelta(0)))
    found = foreseen(seen([victim, wide], 2), preempting)
    first, second = (bar for bar in found.bars if bar.job_id == 1)
    assert (first.kind, first.makes_way_for, second.kind) == (BarKind.RUNNING, 2, BarKind.PLANNED)
    assert first.end <= of_job(found, 2).start < second.start


def test_a_job_after_an_array_is_foreseen_after_all_its_elements() -> None:
    elements = [job(n, gpus=1, age=50 - n, time_limit=HOUR, array=ArrayRef(1, n, 1)) for n in (1, 2, 3)]
    after = [job(4, gpus=1, after=(1,), time_limit=HOUR), job(5, gpus=1, after_any=(2,), time_limit=HOUR)]
    found = foreseen(seen([*elements, *after])).starts
    assert (found[4], found[5]) == (NOW + 3 * HOUR, NOW + 2 * HOUR)
