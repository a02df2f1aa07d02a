"""Waiting jobs placed beside others by hand: they stay there as all age, and no other job changes its place."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.action import PlaceJobs, SetPriority
from gputui.domain.job import ArrayRef, Job
from gputui.domain.policy import whatif
from gputui.domain.policy.plan import plan
from gputui.domain.policy.queue_order import Move, move_by_steps, queue_standings
from gputui.domain.policy.whatif import describe_terms, explain
from gputui.domain.runs import Run
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.snapshot import Snapshot, Usage
from gputui.domain.state import JobState
from tests.cases import cases
from tests.domain.policy.cases import any_of
from tests.factories import NOW, job, running, snapshot, uuid

SETTINGS = Settings()
HOUR = timedelta(hours=1)
JOBS = (
    job(1, age=9000, priority=60, tenant="a", time_limit=HOUR),
    job(2, age=5000, tenant="b", time_limit=HOUR),
    job(3, age=4900, tenant="c", time_limit=2 * HOUR),
    job(4, age=100, tenant="d", time_limit=50 * HOUR),
    job(5, age=100, tenant="d"),
)


def picture(jobs: Sequence[Job] = JOBS) -> Snapshot:
    return snapshot(jobs)


def order(found: Snapshot, now: datetime = NOW, settings: Settings = SETTINGS) -> list[int]:
    return [each.job.id for each in queue_standings(found, settings, now)]


def found(seen: Snapshot, ids: Sequence[int], *steps: int, now: datetime = NOW) -> Move:
    return move_by_steps(queue_standings(seen, SETTINGS, now), set(ids), steps)


def moved(seen: Snapshot, ids: Sequence[int], *steps: int, now: datetime = NOW) -> Snapshot:
    return whatif.change_of(PlaceJobs(tuple(found(seen, ids, *steps, now=now).places or ())), now)(seen)


def test_standings_have_the_order_of_the_plan_and_the_scores_of_explain() -> None:
    assert order(picture()) == list(plan(picture(), SETTINGS, NOW).order) == [1, 2, 3, 4, 5]
    for each in queue_standings(picture(), SETTINGS, NOW):
        assert each.score == pytest.approx(explain(picture(), each.job, SETTINGS, NOW).terms.total)


@cases("later", [timedelta(0), HOUR, 24 * HOUR, 300 * HOUR])
@cases(
    ("ids", "steps", "wanted"),
    [
        ([4], [-1], [1, 2, 4, 3, 5]),
        ([4], [-1, -1], [1, 4, 2, 3, 5]),
        ([4], [-1, -1, -1], [4, 1, 2, 3, 5]),
        ([1], [1], [2, 1, 3, 4, 5]),
        ([1], [1, 1, 1, 1], [2, 3, 4, 5, 1]),
        ([3, 4], [-1], [1, 3, 4, 2, 5]),
        ([2, 4], [-1], [2, 4, 1, 3, 5]),
        ([1, 3], [1], [2, 4, 1, 3, 5]),
    ],
)
def test_jobs_keep_the_place_to_which_they_were_moved(
    ids: list[int], steps: list[int], wanted: list[int], later: timedelta
) -> None:
    after = moved(picture(), ids, *steps)
    still = order(picture(), NOW + later)
    if still == [1, 2, 3, 4, 5]:
        assert order(after, NOW + later) == wanted
    others = [job_id for job_id in order(after, NOW + later) if job_id not in ids]
    assert others == [job_id for job_id in still if job_id not in ids]
    assert list(plan(after, SETTINGS, NOW + later).order) == order(after, NOW + later)


def test_moves_to_the_ends_of_the_queue() -> None:
    # a moved job takes the priority of its neighbour
    assert [moved(picture(), [2], -1).job(2).priority, moved(picture(), [1], 1).job(1).priority] == [60, 50]  # type: ignore[union-attr]
    # both ends of the queue are named
    assert found(picture(), [1], -1) == Move(refusal="already first")
    assert found(picture(), [5], 1) == Move(refusal="already last")
    assert "only a waiting job" in found(picture(), [99], 1).refusal
    too_far = found(picture(), [2], -1, -1, -1)
    assert (too_far.past, too_far.passes, too_far.refusal) == (1, 1, "already first")
    # a move and its reverse change nothing
    assert found(picture(), [3], -1, 1).places is None
    base = queue_standings(picture(), SETTINGS, NOW)
    once = moved(picture(), [3], -1)
    back = move_by_steps(queue_standings(once, SETTINGS, NOW), {3}, [1], base)
    assert (back.places, back.passes) == ((), 0)
    # a job placed beside one at the head is at the head
    seen = picture((*JOBS[:3], JOBS[3].evolve(topped_at=NOW)))
    assert order(seen) == [4, 1, 2, 3]
    assert order(moved(seen, [3], -1, -1, -1)) == [3, 4, 1, 2]
    down = moved(seen, [4], 1)
    assert (order(down), down.job(4).topped_at) == ([1, 4, 2, 3], None)  # type: ignore[union-attr]


@cases(
    ("ids", "steps", "told"),
    [([4], [-1], (3, 1, -1)), ([4], [-1, -1], (2, 2, -1)), ([1], [1, 1], (3, 2, 1)), ([3, 4], [-1], (2, 1, -1))],
)
def test_passed_jobs_are_named(ids: list[int], steps: list[int], told: tuple[int, int, int]) -> None:
    move = found(picture(), ids, *steps)
    assert ((move.past, move.passes, move.step), move.refusal) == (told, "")


def test_places_of_jobs() -> None:
    # a job beside a promoted neighbour is promoted with it
    settings = Settings(policy=PolicySettings(promote_after=timedelta(days=10)))
    old = job(1, age=864_000 - 60, time_limit=900 * HOUR)
    seen = picture((old, job(2, age=5000, time_limit=HOUR), job(3, age=50, time_limit=HOUR)))
    assert order(seen, NOW, settings)[0] == 2
    move = move_by_steps(queue_standings(seen, settings, NOW), {2}, [1] * order(seen, NOW, settings).index(1))
    assert move.past == 1
    after = whatif.change_of(PlaceJobs(tuple(move.places or ())), NOW)(seen)
    assert order(after, NOW + HOUR, settings) == [1, 2, 3]
    # a new priority ends the place
    after = moved(picture(), [4], -1, -1)
    lowered = whatif.change_of(SetPriority((4,), 50), NOW)(after)
    assert lowered.job(4).placed is None  # type: ignore[union-attr]
    assert order(lowered) == [1, 2, 3, 4, 5]
    # a place survives insertions and the end of its neighbour
    after = moved(moved(picture(), [4], -1, -1), [5], -1, -1)
    assert order(after) == [1, 4, 5, 2, 3]
    assert order(moved(after, [3], -1, -1)) == [1, 4, 3, 5, 2]
    gone = replace(after, jobs=tuple(each for each in after.jobs if each.id != 2))
    assert order(gone, NOW + HOUR) == [1, 4, 5, 3]


def test_two_hundred_moves_past_each_other_are_right_or_refused() -> None:
    seen = moved(moved(picture((job(1, age=50), job(2, age=40), job(3, age=30))), [3], -1, -1), [2], -1, -1)
    for _ in range(200):
        first, second, third = order(seen)
        move = found(seen, [second], -1)
        seen = whatif.change_of(PlaceJobs(tuple(move.places or ())), NOW)(seen)
        assert order(seen) == [second, first, third] or "too often" in move.refusal
        first, second, third = order(seen)
        move = found(seen, [first], 1)
        seen = whatif.change_of(PlaceJobs(tuple(move.places or ())), NOW)(seen)
        assert order(seen) == [second, first, third] or "too often" in move.refusal


def entry(first: int, count: int, age: float) -> Job:
    one = job(first, age=age, time_limit=HOUR, array=ArrayRef(first, 0))
    return one.evolve(runs=(Run(first, 0, count),))


def test_entries_of_arrays_are_moved() -> None:
    # entries of arrays are moved as one and passed as one
    seen = picture((entry(10, 5, age=900), job(20, age=800, time_limit=HOUR), job(30, age=700, time_limit=HOUR)))
    assert order(seen) == [10, 20, 30]
    down = moved(seen, list(range(10, 15)), 1)
    assert order(down) == [20, 10, 30]
    assert plan(down, SETTINGS, NOW).order == (20, 10, 30)
    assert order(moved(down, [30], -1)) == [20, 30, 10]
    # a job stays behind an entry while its elements start
    seen = picture((job(1, age=950, time_limit=HOUR), entry(10, 5, age=900), job(20, age=800, time_limit=HOUR)))
    behind = moved(seen, [1], 1)
    assert order(behind) == [10, 1, 20]
    started = running(10, on=[uuid(0)], array=ArrayRef(10, 0))
    left = seen.jobs[1].without([10])
    assert left is not None
    later = replace(behind, jobs=(*(each for each in behind.jobs if each.id != 10), started, left))
    assert order(later) == [11, 1, 20]
    # a part of an entry can be put elsewhere
    seen = picture((entry(10, 5, age=900), job(20, age=800, time_limit=HOUR)))
    after = moved(seen, [12, 13], 1)
    assert order(after) == [10, 20, 12]
    assert sum(each.count for each in after.jobs) == 6


def test_explained_and_running_places() -> None:
    # explain names the job beside which it was placed
    after = moved(picture(), [4], -1, -1)
    one = after.job(4)
    assert one is not None
    words = describe_terms(one, explain(after, one, SETTINGS, NOW))
    assert "placed by hand beside job 2" in words[0].of
    assert "as job 2" in words[1].of
    # a running job has no place
    seen = picture((*JOBS, running(9, on=[uuid(0)])))
    assert found(seen, [9], -1).refusal == "only a waiting job has a place in the queue"
    change = whatif.change_of(PlaceJobs(tuple(found(seen, [4], -1).places or ())), NOW)
    gone = replace(
        seen, jobs=tuple(each.evolve(state=JobState.CANCELLED) if each.id == 4 else each for each in seen.jobs)
    )
    assert change(gone) == gone


@st.composite
def queues(draw: st.DrawFn) -> Snapshot:
    jobs = [
        job(
            number,
            age=draw(any_of(0, 60, 60, 3600, 86_400, 86_400, 863_000, 2_000_000)),
            priority=draw(any_of(50, 50, 50, 60, 30)),
            tenant=draw(any_of("a", "b", "c")),
            gpus=draw(st.integers(0, 2)),
            nice=draw(any_of(0, 0, 0, 7)),
            time_limit=draw(any_of(None, HOUR, HOUR, 24 * HOUR)),
        ).evolve(topped_at=draw(st.sampled_from([None] * 7 + [NOW])))
        for number in range(1, draw(st.integers(2, 7)) + 1)
    ]
    return replace(picture(jobs), usage=Usage(NOW, {"a": 1e5, "b": 2e6}))


MOVES = st.lists(st.tuples(st.integers(1, 7), st.sampled_from([-1, 1]), st.integers(0, 7200)), min_size=1, max_size=12)


@given(queues(), MOVES)
def test_each_move_is_one_place_now_and_later(seen: Snapshot, moves: list[tuple[int, int, int]]) -> None:
    now = NOW
    for job_id, step, pause in moves:
        now += timedelta(seconds=pause)
        before, move = order(seen, now), found(seen, [job_id], step, now=now)
        if job_id not in before or move.refusal:
            continue
        after = whatif.change_of(PlaceJobs(tuple(move.places or ())), now)(seen)
        place = before.index(job_id)
        wanted = [*before[:place], *before[place + 1 :]]
        wanted.insert(place + step, job_id)
        assert order(after, now) == wanted
        for later in (HOUR, 24 * HOUR):
            foreseen, still = order(after, now + later), order(seen, now + later)
            assert [each for each in foreseen if each != job_id] == [each for each in still if each != job_id]
            assert foreseen.index(job_id) - foreseen.index(move.past or 0) == step
        seen = after
