"""Jobs with unsatisfiable dependencies are cancelled with the reason, and so are their dependents."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gputui.domain.action import Cancel, Requeue
from gputui.domain.errors import CauseCode, NotFoundError
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import StoreSettings
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from tests.cases import cases
from tests.engine.world import World
from tests.factories import spec
from tests.memory_store import MemoryJobStore


def fail(world: World, job_id: JobId) -> None:
    world.exit(job_id, 3)
    world.tick(2)


def test_a_job_after_one_that_failed_is_cancelled_with_that_reason(world: World) -> None:
    first = world.submit()
    second = world.submit(after=(first,))
    world.tick(2)
    assert world.job(second).state is JobState.PENDING
    fail(world, first)
    job = world.job(second)
    assert (job.state, job.ended_at) == (JobState.CANCELLED, world.clock.now() - timedelta(seconds=1))
    assert job.cause is not None
    assert job.cause.code is CauseCode.DEPENDENCY_NEVER_MET
    assert job.cause.text == "can never start after job 1, which ended FAILED: exit code 3"


def test_dependents_of_a_cancelled_job_are_cancelled_unless_any_end_suffices(world: World) -> None:
    first = world.submit()
    chain = [world.submit(after=(first,))]
    chain += [world.submit(after=(chain[-1],))]
    chain += [world.submit(after=(chain[-1],))]
    content = world.submit(after_any=(chain[-1],))
    world.tick(2)
    world.exit(first, 3)
    world.tick()
    assert [world.job(each).state for each in chain] == [JobState.CANCELLED] * 3
    told = [cause.text for each in chain if (cause := world.job(each).cause)]
    assert told == [
        "can never start after job 1, which ended FAILED: exit code 3",
        "can never start after job 2, which waited for job 1, which ended FAILED: exit code 3",
        "can never start after job 3, which waited for job 1, which ended FAILED: exit code 3",
    ]
    world.tick()
    assert world.job(content).state is JobState.RUNNING


def test_a_retried_failure_does_not_count_as_an_end(world: World) -> None:
    first = world.submit(retries=1)
    second = world.submit(after=(first,))
    world.tick(2)
    fail(world, first)
    assert world.job(second).state is JobState.PENDING
    world.tick(2, seconds=10)
    world.exit(first, 0)
    world.tick(3)
    assert world.job(second).state is JobState.RUNNING


def test_a_requeued_dependency_keeps_its_dependents(world: World) -> None:
    first = world.submit()
    world.actions.act(Cancel((first,)))
    world.tick()
    second = world.submit(after=(first,))
    world.actions.act(Requeue((first,)))
    world.tick(2)
    assert world.job(second).state is JobState.PENDING
    world.exit(first)
    world.tick(3)
    assert world.job(second).state is JobState.RUNNING


def test_a_requeue_of_both_runs_both(world: World) -> None:
    first = world.submit()
    second = world.submit(after=(first,))
    world.tick(2)
    fail(world, first)
    world.actions.act(Requeue((first, second)))
    world.tick(2)
    assert world.job(second).state is JobState.PENDING
    world.exit(first)
    world.tick(3)
    assert world.job(second).state is JobState.RUNNING


def test_a_failed_dependency_in_history_counts(world: World) -> None:
    world.use(MemoryJobStore(StoreSettings(history_after=timedelta(0))))
    first = world.submit()
    world.tick(2)
    fail(world, first)
    world.clock.advance(1)
    world.store.maintain(world.clock.now())
    assert first not in world.store.jobs()
    second = world.submit(after=(first,))
    world.tick()
    assert world.job(second).state is JobState.CANCELLED


def test_the_id_of_an_array_stands_for_all_its_elements(tmp_path: Path) -> None:
    world = World(tmp_path)
    elements = world.actions.act(SubmitJobs((Submission(spec(), array=(0, 1, 2)),))).ids
    after, after_any = world.submit(after=(elements[0],)), world.submit(after_any=(elements[0],))
    world.tick(2)
    world.exit(elements[0])
    world.exit(elements[1])
    reasons = world.tick(2).reasons
    assert reasons[after].text == "starts after array 1 has completed: 1 element left"
    assert reasons[after_any].text == "starts after array 1 has ended: 1 element left"
    world.exit(elements[2])
    world.tick(3)
    assert world.job(after).state is JobState.RUNNING
    assert world.job(after_any).state is JobState.RUNNING


def test_one_failed_element_cancels_the_dependents_of_its_array(world: World) -> None:
    elements = world.actions.act(SubmitJobs((Submission(spec(), array=(0, 1, 2)),))).ids
    after = world.submit(after=(elements[0],))
    world.tick(2)
    fail(world, elements[1])
    job = world.job(after)
    assert job.state is JobState.CANCELLED
    assert f"job {elements[0]}_1, which ended FAILED" in str(job.cause)


def test_elements_with_dependents_stay_in_the_queue(world: World) -> None:
    store = MemoryJobStore(StoreSettings(keep_finished=0))
    world.use(store)
    elements = world.actions.act(SubmitJobs((Submission(spec(), array=(0, 1)),))).ids
    other = world.submit()
    after = world.submit(after=(elements[0],))
    world.tick(2)
    world.exit(other)
    world.exit(elements[1])
    world.tick(2)
    world.store.maintain(world.clock.now())
    assert set(store.jobs()) == {elements[0], elements[1], after}
    world.actions.act(Cancel((after,)))
    world.tick()
    world.store.maintain(world.clock.now())
    assert set(store.jobs()) == {elements[0]}  # nobody waits any more


def test_an_element_that_failed_long_ago_counts(world: World) -> None:
    store = MemoryJobStore(StoreSettings(keep_finished=0))
    world.use(store)
    elements = world.actions.act(SubmitJobs((Submission(spec(), array=(0, 1)),))).ids
    world.tick(2)
    fail(world, elements[1])
    store.maintain(world.clock.now())
    assert set(store.jobs()) == {elements[0]}
    after = world.submit(after=(elements[0],))
    world.tick()
    assert world.job(after).state is JobState.CANCELLED
    assert f"job {elements[0]}_1, which ended FAILED" in str(world.job(after).cause)


@cases("after", [True, False])
def test_a_dependency_that_does_not_exist_is_refused(world: World, after: bool) -> None:
    with pytest.raises(NotFoundError, match="there is no job 77"):
        world.submit(after=(77,)) if after else world.submit(after_any=(77,))
