"""Past usage of tenants counts for their fair share, and for less the longer ago it was."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from gputui.domain.action import DrainGpus
from gputui.domain.errors import StoreFormatError
from gputui.domain.job import Attempt, Job
from gputui.domain.settings import Settings, StoreSettings
from gputui.domain.snapshot import Usage
from gputui.domain.state import JobState
from gputui.engine.actions.actions import Actions
from gputui.engine.tick.planner import REFRESH, past_usage
from tests.cases import cases
from tests.engine.fakes import LaterExecutor
from tests.engine.world import World
from tests.factories import ACTOR, NOW, job, uuid
from tests.memory_store import MemoryJobStore

WEEK = timedelta(days=7)


def with_history(days_ago: float, gpu_share: float = 1.0) -> MemoryJobStore:
    """Return a store in whose history alice held two GPUs for an hour, that long ago."""
    store = MemoryJobStore(StoreSettings(history_after=timedelta(0)))
    store.submit([job()], actor=ACTOR)
    ended = NOW - timedelta(days=days_ago)
    attempt = Attempt(1, (uuid(0), uuid(1)), started_at=ended - timedelta(hours=1), ended_at=ended, gpu_share=gpu_share)
    with store.transaction() as transaction:
        done = replace(transaction.get(1), state=JobState.COMPLETED, ended_at=ended, attempts=(attempt,))
        transaction.put(done)
    store.maintain(NOW + timedelta(seconds=1))
    assert store.jobs() == {}
    return store


@cases(("days_ago", "counts"), [(0, 7200), (7, 3600), (14, 1800), (100, None)])
def test_gpu_seconds_halve_every_week(days_ago: float, counts: float | None) -> None:
    usage = past_usage(with_history(days_ago), WEEK, NOW)
    assert usage.gpu_seconds == ({} if counts is None else {"alice": pytest.approx(counts)})


def test_shared_gpus_count_by_the_part_that_was_charged() -> None:
    assert past_usage(with_history(0, 0.25), WEEK, NOW).gpu_seconds == {"alice": pytest.approx(1800)}


def test_the_scheduler_counts_past_usage(world: World) -> None:
    world.store = with_history(1)
    world.reborn()
    assert Settings().policy.half_life == WEEK
    assert world.tick().usage.gpu_seconds["alice"] > 6000


def test_reading_the_history_delays_no_tick(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to read, jobs start; what it says counts as soon as a worker is through with it."""
    world.store = with_history(1)
    read: list[datetime | None] = []
    past = world.store.past

    def told(since: datetime | None = None) -> Iterator[Job]:
        read.append(since)
        return past(since)

    monkeypatch.setattr(world.store, "past", told)
    world.workers = workers = LaterExecutor()
    world.reborn()
    assert world.tick(2).usage == Usage()
    assert read == []
    workers.work()
    assert len(read) == 1
    assert world.tick().usage.gpu_seconds["alice"] > 6000
    assert world.tick(seconds=REFRESH.total_seconds() + 1).usage.gpu_seconds["alice"] > 6000
    assert world.tick(2).usage.at < world.clock.now() - REFRESH
    workers.work()
    assert len(read) == 2
    assert world.tick().usage.at > world.clock.now() - REFRESH


def test_past_usage_counts_once_it_is_read(world: World) -> None:
    """Past usage causes a new plan: bob, who has used nothing, goes before alice."""
    world.store = with_history(1)
    world.actions = Actions(world.store, world.clock, ACTOR)
    world.workers = workers = LaterExecutor()
    world.reborn()
    world.actions.act(DrainGpus(tuple(one.uuid for one in world.probe.gpus), ""))
    first, second = (world.submit(1, tenant=tenant, time_limit=timedelta(hours=1)) for tenant in ("alice", "bob"))
    assert world.tick(seconds=0.1).order == (first, second)
    workers.work()
    assert world.tick(seconds=0.1).order == (second, first)


def test_an_unreadable_history_prevents_no_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(since: datetime | None = None) -> Iterator[Job]:
        raise StoreFormatError("history-2026-02.json is damaged")

    monkeypatch.setattr(world.store, "past", damaged)
    job_id = world.submit(1)
    snapshot = world.tick(2)
    assert world.job(job_id).state is JobState.RUNNING
    assert snapshot.notices == ()
