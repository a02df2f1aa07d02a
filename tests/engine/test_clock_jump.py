"""Changes of the wall clock while jobs run: limits and graces count real time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.action import Cancel
from gputui.domain.errors import CauseCode, StoreFullError
from gputui.domain.job import Job
from gputui.domain.state import JobState
from tests.cases import cases
from tests.engine.world import World

HALF = timedelta(minutes=30)
DAY = 86_400.0


def goes_on(world: World, really: float, shown: float | None = None) -> None:
    """Advance the real time by `really` and the wall clock by `shown`."""
    world.clock.advance(really, shown)
    world.observe()
    world.scheduler.tick(world.clock.now())


def begun(world: World, **changes: object) -> int:
    """Return a job that has just been started."""
    job_id = world.submit(1, **changes)
    goes_on(world, 1)
    goes_on(world, 1)
    assert world.job(job_id).state is JobState.RUNNING
    return job_id


def elapsed(job: Job) -> timedelta:
    """Return the recorded run time of its last attempt."""
    attempt = job.attempts[-1]
    assert attempt.started_at is not None
    assert attempt.ended_at is not None
    return attempt.ended_at - attempt.started_at


@cases(("set_by", "moved"), [(0, 0), (4.9, 0), (-4.9, 0), (5, 5), (-5, -5), (DAY, DAY), (-DAY, -DAY)])
def test_slewing_of_the_clock_is_no_jump(tmp_path: Path, set_by: float, moved: float) -> None:
    world = World(tmp_path)
    job_id = begun(world)
    before = world.job(job_id).attempts[-1]
    goes_on(world, 60, 60 + set_by)
    after = world.job(job_id).attempts[-1]
    assert before.started_at is not None
    assert (after.started_at, after.clock_moved) == (
        before.started_at + timedelta(seconds=moved),
        timedelta(seconds=moved),
    )


@cases("set_by", [-DAY, -30.0, -7.0, 7.0, DAY])
@cases("is_restarted", [False, True])
def test_a_time_limit_counts_real_seconds(tmp_path: Path, set_by: float, is_restarted: bool) -> None:
    """This also holds if the clock was set while no scheduler ran."""
    world = World(tmp_path)
    job_id = begun(world, time_limit=timedelta(seconds=20))
    goes_on(world, 5)
    if is_restarted:
        world.reborn()
    goes_on(world, 1, 1 + set_by)
    goes_on(world, 12)
    assert world.job(job_id).state is JobState.RUNNING
    goes_on(world, 3)
    job = world.job(job_id)
    assert job.stopping is not None
    assert job.stopping.cause.code is CauseCode.TIME_LIMIT


def test_an_attempt_of_an_older_gputui_counts_from_its_first_observation(world: World) -> None:
    job_id = begun(world, time_limit=timedelta(seconds=20))
    with world.store.transaction() as transaction:
        transaction.put(transaction.get(job_id).with_attempt(began=None))
    goes_on(world, 5)
    goes_on(world, 1, 1 - DAY)
    goes_on(world, 11)
    assert world.job(job_id).state is JobState.RUNNING
    goes_on(world, 4)
    assert world.job(job_id).stopping is not None


@cases("ahead", [60.0, -60.0, -7200.0, -30 * DAY, 7200.0, 30 * DAY, 40 * 365 * DAY])
def test_no_time_limit_ends_early(tmp_path: Path, ahead: float) -> None:
    world = World(tmp_path)
    job_id = begun(world, time_limit=HALF)
    goes_on(world, 600)
    goes_on(world, 1, 1 + ahead)
    assert world.job(job_id).state is JobState.RUNNING
    goes_on(world, 1190)
    assert world.job(job_id).state is JobState.RUNNING
    goes_on(world, 15)
    job = world.job(job_id)
    assert job.stopping is not None
    assert job.stopping.cause.code is CauseCode.TIME_LIMIT


@cases("by", [DAY, -DAY])
@cases("is_apart", [False, True])
def test_the_run_time_is_measured_in_real_time(tmp_path: Path, is_apart: bool, by: float) -> None:
    """An engine on another machine keeps its own clock: a new scheduler knows only how far that is off now."""
    world = World(tmp_path)
    job_id = begun(world)
    goes_on(world, 600)
    goes_on(world, 1, 1 + by)
    [record] = world.docker.running()
    assert record.started_at is not None
    if is_apart:
        world.docker.made[record.id] = replace(record, started_at=record.started_at + timedelta(seconds=by))
    world.exit(job_id)
    goes_on(world, 1)
    goes_on(world, 1)
    job = world.job(job_id)
    assert job.state is JobState.COMPLETED
    assert abs(elapsed(job) - timedelta(minutes=10)) < timedelta(seconds=5)


def test_no_attempt_ends_before_it_began(world: World) -> None:
    job_id = begun(world)
    goes_on(world, 60)
    world.exit(job_id)
    [record] = world.docker.containers()
    world.docker.made[record.id] = replace(record, ended_at=world.clock.now() - timedelta(hours=1))
    goes_on(world, 1)
    goes_on(world, 1)
    assert elapsed(world.job(job_id)) == timedelta(0)


def test_a_clock_jump_does_not_end_a_grace(world: World) -> None:
    world.docker.obeys = False
    job_id = begun(world)
    world.actions.act(Cancel((job_id,)))
    goes_on(world, 1)
    goes_on(world, 1, 1 + DAY)
    assert [how for _, how in world.docker.told] == ["terminate"]
    goes_on(world, 30)
    assert [how for _, how in world.docker.told] == ["terminate", "kill"]


def test_a_temporary_clock_error_leaves_no_trace(world: World) -> None:
    job_id = begun(world, time_limit=HALF)
    before = world.job(job_id)
    goes_on(world, 60, 60 + DAY)
    assert world.job(job_id).started_at != before.started_at
    goes_on(world, 60, 60 - DAY)
    assert world.job(job_id) == before


def test_an_attempt_that_begins_after_the_clock_was_set_is_not_shifted(world: World) -> None:
    first = begun(world, retries=1)
    goes_on(world, 1, 1 + DAY)
    world.exit(first, 3)
    for _ in range(20):
        goes_on(world, 1)
    job = world.job(first)
    assert (job.state, len(job.attempts)) == (JobState.RUNNING, 2)
    world.exit(first)
    goes_on(world, 1)
    assert elapsed(world.job(first)) < timedelta(seconds=30)


def test_refused_changes_are_made_as_soon_as_possible(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = begun(world, time_limit=HALF)

    def refuse() -> None:
        raise StoreFullError("no space is left on the device")

    with monkeypatch.context() as full:
        full.setattr(world.store, "transaction", refuse)
        goes_on(world, 1, 1 + DAY)
        goes_on(world, 1)
    goes_on(world, 1)
    assert world.job(job_id).state is JobState.RUNNING
    goes_on(world, 1700)
    assert world.job(job_id).state is JobState.RUNNING
