"""Moving a waiting job past its neighbour."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputui.domain.job import Job
from gputui.domain.policy import whatif
from gputui.domain.policy.explain import explain
from gputui.domain.policy.plan import plan
from gputui.domain.policy.reorder import Move, drag, move, standings
from gputui.domain.settings import PolicySettings, Settings
from tests.factories import NOW, job, snapshot

SETTINGS = Settings()
JOBS = (
    job(1, age=9000, priority=60, tenant="a"),
    job(2, age=5000, tenant="b"),
    job(3, age=4900, tenant="c"),
    job(4, age=100, tenant="d", nice=30),
)


def moved(job_id: int, step: int, jobs: tuple[Job, ...] = JOBS, settings: Settings = SETTINGS) -> Move:
    return move(standings(snapshot(jobs), settings, NOW), {job_id}, step, settings)


def order_after(found: Move, job_id: int) -> list[int]:
    change = whatif.prioritised([job_id], found.delta, relative=True)
    return list(plan(change(snapshot(JOBS)), SETTINGS, NOW).order)


def test_they_stand_as_the_plan_has_them_with_the_scores_that_explain_shows() -> None:
    picture = snapshot(JOBS)
    found = standings(picture, SETTINGS, NOW)
    assert [each.job.id for each in found] == list(plan(picture, SETTINGS, NOW).order)
    for each in found:
        assert each.score == pytest.approx(explain(picture, each.job, SETTINGS, NOW).terms.total)


@pytest.mark.parametrize(("job_id", "step"), [(2, -1), (3, -1), (4, -1), (1, 1), (2, 1), (3, 1)])
def test_the_priority_found_takes_it_past_and_one_less_does_not(job_id: int, step: int) -> None:
    before = list(plan(snapshot(JOBS), SETTINGS, NOW).order)
    found = moved(job_id, step)
    after = order_after(found, job_id)
    assert found.past == before[before.index(job_id) + step]
    assert abs(after.index(job_id) - before.index(job_id)) == found.passes >= 1
    less = replace(found, delta=found.delta + step)
    assert not less.delta or (order_after(less, job_id).index(job_id) - before.index(job_id)) * step < 1


def test_ends_of_the_queue_are_told() -> None:
    assert moved(1, -1).refusal == "it is first already"
    assert moved(4, 1).refusal == "it is last already"
    assert "only a waiting job" in moved(99, 1).refusal


def test_it_is_told_where_no_priority_does_it() -> None:
    jobs = (job(1, age=40 * 86400), job(2, age=0))
    found = moved(2, -1, jobs)
    assert not found.delta
    assert "not even priority 100 puts it before job 1" in found.refusal
    found = moved(1, 1, jobs)
    assert "not even priority 0 puts it behind job 2" in found.refusal


def test_what_was_put_first_by_hand_is_not_passed_by_a_priority() -> None:
    jobs = (job(1, topped_at=NOW), job(2, priority=90), job(3))
    assert "put at the head of the queue" in moved(2, -1, jobs).refusal
    assert moved(1, 1, jobs).delta < 0


def test_where_priorities_weigh_nothing_they_move_nothing() -> None:
    settings = Settings(policy=PolicySettings(class_weight=0))
    assert "weigh nothing" in moved(3, -1, settings=settings).refusal


APART = tuple(job(i, age=100, tenant="a", nice=50 * i) for i in range(1, 6))
"""Jobs far enough from each other that one point of priority takes none past two."""


def dragged(job_id: int, *steps: int, delta: int = 0) -> Move:
    return drag(standings(snapshot(APART), SETTINGS, NOW), {job_id}, steps, SETTINGS, delta)


def apart_after(found: Move, *job_ids: int) -> list[int]:
    change = whatif.prioritised(job_ids, found.delta, relative=True)
    return list(plan(change(snapshot(APART)), SETTINGS, NOW).order)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_steps_add_up(count: int) -> None:
    up, down = dragged(4, *[-1] * count), dragged(2, *[1] * count)
    assert apart_after(up, 4).index(4) == 3 - count
    assert (up.past, up.passes, up.refusal) == (4 - count, count, "")
    assert apart_after(down, 2).index(2) == 1 + count
    assert (down.past, down.passes, down.refusal) == (2 + count, count, "")


def test_steps_go_on_from_a_priority_thought_of_already() -> None:
    first = dragged(4, -1)
    assert dragged(4, -1, delta=first.delta) == dragged(4, -1, -1)


def test_there_and_back_is_not_far() -> None:
    found = dragged(3, -1, 1)
    assert apart_after(found, 3) == [1, 2, 3, 4, 5]
    assert (found.passes, found.past) == (0, None)


def test_a_step_too_many_leaves_it_where_the_others_took_it() -> None:
    found = dragged(2, -1, -1, -1)
    assert found == replace(dragged(2, -1), refusal="it is first already")
    assert apart_after(found, 2)[0] == 2


def test_several_jobs_are_dragged_together() -> None:
    found = drag(standings(snapshot(APART), SETTINGS, NOW), {3, 4}, (-1, -1), SETTINGS)
    assert apart_after(found, 3, 4)[0] == 3
    assert (found.past, found.passes) == (1, 2)
