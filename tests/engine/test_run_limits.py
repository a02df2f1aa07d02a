"""Time limits: exactly one warning before them, and the site's rules."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.action import Requeue
from gputui.domain.errors import CauseCode, InputError
from gputui.domain.job_spec import JobId, LimitWarning, Submission
from gputui.domain.settings import SchedulerSettings, Settings
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from tests.cases import cases
from tests.engine.fakes import LaterExecutor
from tests.engine.world import World
from tests.factories import ACTOR, spec

ON_REAL_POOLS = True

LIMIT: dict[str, Any] = {
    "time_limit": timedelta(seconds=100),
    "warning": LimitWarning(10, timedelta(seconds=40)),
}


def told(world: World) -> list[str]:
    return [how for _, how in world.docker.told]


def test_a_job_is_warned_once_then_stopped_then_killed(world: World) -> None:
    world.docker.obeys = False
    job_id = world.submit(1, **LIMIT)
    world.tick(2)
    world.tick(1, seconds=57)
    assert told(world) == []
    world.tick(3, seconds=2)
    assert told(world) == ["signal 10"]
    assert world.job(job_id).state is JobState.RUNNING
    world.tick(1, seconds=37)
    assert told(world) == ["signal 10", "terminate"]
    world.tick(2, seconds=11)
    assert told(world) == ["signal 10", "terminate", "kill"]
    world.tick(2)
    job = world.job(job_id)
    assert job.state is JobState.TIMEOUT
    assert job.cause is not None
    assert job.cause.code is CauseCode.TIME_LIMIT


def test_the_next_scheduler_does_not_warn_again(world: World) -> None:
    job_id = world.submit(1, **LIMIT)
    world.tick(2)
    world.tick(1, seconds=61)
    warned_at = world.job(job_id).attempts[0].warned_at
    assert warned_at == world.clock.now()
    world.reborn()
    world.tick(3)
    assert told(world) == ["signal 10"]
    assert world.job(job_id).attempts[0].warned_at == warned_at


def test_the_next_scheduler_sends_an_outstanding_warning(world: World) -> None:
    world.submit(1, **LIMIT)
    world.tick(2)
    world.reborn()
    world.tick(1, seconds=61)
    assert told(world) == ["signal 10"]


def test_a_failed_warning_is_sent_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    later = LaterExecutor()
    job_id = world.submit(1, **LIMIT)
    world.tick(2)
    world.workers = later
    world.reborn()
    world.tick(1, seconds=61)
    world.docker.up = False
    later.work()
    assert "could not warn" in caplog.text
    assert world.job(job_id).attempts[0].warned_at is None
    world.docker.up = True
    world.tick()
    later.work()
    assert told(world) == ["signal 10"]


def test_each_attempt_is_warned_separately(world: World) -> None:
    job_id = world.submit(1, **LIMIT)
    world.tick(2)
    world.tick(1, seconds=61)
    world.actions.act(Requeue((job_id,)))
    world.tick(4)
    world.tick(1, seconds=61)
    assert told(world) == ["signal 10", "terminate", "signal 10"]
    assert len(world.job(job_id).attempts) == 2


def test_a_job_says_when_it_ends(world: World) -> None:
    job_id = world.submit(1, **LIMIT)
    assert world.job(job_id).limit_at is None
    world.tick(2)
    job = world.job(job_id)
    assert job.started_at is not None
    assert job.limit_at == job.started_at + timedelta(seconds=100)
    assert job.warning_at == job.started_at + timedelta(seconds=60)
    world.exit(job_id)
    world.tick(2)
    assert world.job(job_id).limit_at is None


def submitted(world: World, settings: SchedulerSettings, **changes: Any) -> JobId:
    actions = Actions(world.store, world.clock, ACTOR, settings)
    [job_id] = actions.act(SubmitJobs((Submission(spec(**changes)),))).ids
    return job_id


def test_more_than_the_site_allows_is_refused(world: World) -> None:
    site = SchedulerSettings(max_time=timedelta(hours=24))
    with pytest.raises(InputError, match="is longer than a job may run here") as refusal:
        submitted(world, site, time_limit=timedelta(hours=25))
    assert "at most 1d:" in str(refusal.value.hint)
    assert not world.store.jobs()
    assert submitted(world, site, time_limit=timedelta(hours=24)) == 1


def test_the_site_limit_is_given_to_unlimited_jobs_only_if_set(world: World) -> None:
    day = timedelta(hours=24)
    assert world.job(submitted(world, SchedulerSettings(max_time=day))).spec.time_limit is None
    assert world.job(submitted(world, SchedulerSettings(max_time=day, limit_all=True))).spec.time_limit == day
    assert world.job(submitted(world, SchedulerSettings(limit_all=True))).spec.time_limit is None


@cases("limit", [None, 30, 40])
def test_a_warning_needs_a_limit_after_it(tmp_path: Path, limit: int | None) -> None:
    world = World(tmp_path, settings=Settings())
    with pytest.raises(InputError) as refusal:
        world.submit(warning=LIMIT["warning"], time_limit=timedelta(seconds=limit) if limit else None)
    assert refusal.value.where == "--signal"
    assert not world.store.jobs()
