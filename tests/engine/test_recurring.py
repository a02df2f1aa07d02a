"""Recurring jobs: each run is made once, despite crashes and changes of the clock."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.action import AddRecurring, PauseRecurring, RemoveRecurring, ResumeRecurring
from gputui.domain.errors import InputError, NotFoundError
from gputui.domain.job import BootTime, Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.recurring import Missed, Overlap, Recurrence, RecurringJob
from gputui.domain.settings import PolicySettings, SchedulerSettings, Settings, TenantSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.admission import local_zone_name
from gputui.engine.tick.planner import next_run_at
from tests.cases import cases
from tests.engine.fakes import Crash
from tests.engine.test_host import Seat, real
from tests.engine.world import World
from tests.factories import ACTOR, NOW, recurring, spec
from tests.lane import examples

MINUTE = 60.0
HOUR = 60 * MINUTE


def add(world: World, expression: str = "* * * * *", zone: str = "UTC", **changes: Any) -> JobId:
    how_often = {key: changes.pop(key) for key in tuple(changes) if key in Recurrence.__struct_fields__}
    submission = Submission(spec(**changes.pop("spec", {})), **changes)
    return world.actions.act(AddRecurring(Recurrence(expression, zone, **how_often), submission)).ids[0]


def entry(world: World, recurring: JobId) -> RecurringJob:
    return world.store.recurring()[recurring]


def made(world: World, recurring: JobId) -> list[Job]:
    return [job for job in world.store.jobs().values() if job.recurring == recurring]


def at(minutes: float = 0) -> datetime:
    return NOW + timedelta(minutes=minutes)


def test_a_run_is_made_when_its_time_has_come_and_not_before(world: World) -> None:
    one = add(world, "*/15 * * * *", name="often")
    assert entry(world, one).next_at == at(15)
    world.tick(seconds=15 * MINUTE - 1)
    assert made(world, one) == []
    snapshot = world.tick()
    [job] = made(world, one)
    assert job.spec == spec()
    assert (job.id, job.submitted_at, job.submitted_by) == (2, at(15), ACTOR.user)
    after = entry(world, one)
    assert (after.next_at, after.last_at, after.last_job_id) == (at(30), at(15), job.id)
    assert snapshot.recurring == (after,)
    world.tick(3, seconds=20)
    assert len(made(world, one)) == 1


def test_the_audit_log_has_actions_and_their_users(world: World) -> None:
    one = add(world)
    world.tick(seconds=MINUTE)
    world.actions.act(PauseRecurring((one,)))
    world.actions.act(ResumeRecurring((one,)))
    world.actions.act(RemoveRecurring((one,)))
    log = [(entry.verb, entry.user, entry.after) for entry in world.store.audit_log(f"recurring {one}")]
    waiting, paused = "waiting: * * * * * in UTC", "paused: * * * * * in UTC"
    told = [("add", waiting), ("fire", "job 2"), ("pause", paused), ("resume", waiting), ("remove", "")]
    assert log == [(verb, ACTOR.user, after) for verb, after in told]
    assert [entry.verb for entry in world.store.audit_log("job 2")] == ["submit"]


def test_an_array_is_submitted_whole(world: World) -> None:
    one = add(world, array=(3, 5), array_limit=1, held=True)
    world.tick(seconds=MINUTE)
    [entry_of_both] = made(world, one)
    first, second = map(entry_of_both.element, entry_of_both.ids)
    assert first.held
    assert [job.array and (job.array.id, job.array.index, job.array.limit) for job in (first, second)] == [
        (first.id, 3, 1),
        (first.id, 5, 1),
    ]
    assert entry(world, one).last_job_id == first.id


@cases(("missed", "runs"), [(Missed.ONCE, 1), (Missed.SKIP, 0)])
def test_missed_runs_are_made_up_for_once_or_skipped(tmp_path: Path, missed: Missed, runs: int) -> None:
    world = World(tmp_path)
    one = add(world, "0 * * * *", missed=missed, overlap=Overlap.ALLOW)
    world.clock.advance(5.5 * HOUR)
    world.reborn()
    world.tick()
    assert len(made(world, one)) == runs
    after = entry(world, one)
    assert after.next_at == at(6 * 60)
    if runs:
        assert after.last_at == at(5 * 60)
    else:
        assert after.skipped is not None
        assert (after.skipped.at, after.skipped.why) == (
            at(5 * 60),
            "it was missed: no scheduler could make it at its time",
        )
    world.tick(seconds=HOUR / 2)
    assert len(made(world, one)) == runs + 1


def test_a_tick_that_is_late_by_less_than_a_minute_misses_nothing(world: World) -> None:
    one = add(world, "0 * * * *", missed=Missed.SKIP)
    world.tick(seconds=HOUR + 59)
    assert len(made(world, one)) == 1


@cases(("overlap", "runs"), [(Overlap.SKIP, 1), (Overlap.ALLOW, 3)])
def test_overlapping_runs_follow_the_overlap_option(tmp_path: Path, overlap: Overlap, runs: int) -> None:
    world = World(tmp_path)
    one = add(world, overlap=overlap)
    world.tick(3, seconds=MINUTE)
    assert len(made(world, one)) == runs
    skipped = entry(world, one).skipped
    assert (skipped and skipped.why) == ("job 2 of an earlier run was RUNNING" if runs == 1 else None)
    world.exit(made(world, one)[0].id)
    world.tick()
    assert made(world, one)[0].state is JobState.COMPLETED
    world.tick(seconds=MINUTE)
    assert len(made(world, one)) == runs + 1


def test_runs_that_only_wait_do_not_fill_the_queue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputui.domain.recurring.MOST_WAITING", 3)
    one = add(world, overlap=Overlap.ALLOW, held=True)
    world.tick(6, seconds=MINUTE)
    assert len(made(world, one)) == 3
    skipped = entry(world, one).skipped
    assert skipped
    assert skipped.why == "3 jobs of earlier runs were waiting"


def test_a_job_that_ended_without_a_scheduler_prevents_no_run(world: World) -> None:
    """The job still runs by the store when the next scheduler comes, until the runtime has been asked."""
    one = add(world, "0 * * * *")
    world.tick(seconds=HOUR)
    world.tick()
    [first] = made(world, one)
    world.exit(first.id)
    world.reborn()
    world.clock.advance(3 * HOUR)
    world.scheduler.tick(world.clock.now())
    assert world.job(first.id).state is JobState.RUNNING
    assert (entry(world, one).skipped, entry(world, one).next_at) == (None, at(120))
    world.tick()
    assert len(made(world, one)) == 2
    assert entry(world, one).skipped is None


def test_the_next_wake_up_is_for_a_future_change() -> None:
    """The loop sleeps through a due run that has to wait, and through runs of a paused recurring job."""
    waiting, paused = recurring(next_at=at(-1)), recurring(next_at=at(1), paused=True)
    assert next_run_at([waiting, paused, recurring(next_at=at(3)), recurring(next_at=at(2))], NOW) == at(2)
    assert next_run_at([waiting, paused], NOW) is None


def test_a_paused_recurring_job_makes_no_runs_and_catches_up_none(world: World) -> None:
    one = add(world)
    world.actions.act(PauseRecurring((one,)))
    world.tick(3, seconds=MINUTE)
    assert made(world, one) == []
    world.actions.act(ResumeRecurring((one,)))
    world.tick()
    assert made(world, one) == []
    world.tick(seconds=MINUTE)
    assert len(made(world, one)) == 1


def test_a_removed_recurring_job_makes_no_runs_and_its_jobs_stay(world: World) -> None:
    one = add(world)
    world.tick(seconds=MINUTE)
    world.actions.act(RemoveRecurring((one,)))
    world.tick(3, seconds=MINUTE)
    assert [job.recurring for job in world.store.jobs().values()] == [one]
    with pytest.raises(NotFoundError, match="no recurring job 1"):
        world.actions.act(RemoveRecurring((one,)))
    assert add(world) == 3


def test_actions_are_all_or_nothing(world: World) -> None:
    one = add(world)
    for action in (RemoveRecurring((one, 9)), PauseRecurring((one, 9)), ResumeRecurring((one, 9))):
        with pytest.raises(NotFoundError):
            world.actions.act(action)
    assert not entry(world, one).paused


@cases(
    ("expression", "zone", "changes", "where"),
    [
        ("* * * *", "UTC", {}, "cron"),
        ("0 0 31 2 *", "UTC", {}, "cron"),
        ("* * * * *", "Europe/Atlantis", {}, "--time-zone"),
        ("* * * * *", "../UTC", {}, "--time-zone"),
        ("* * * * *", "Europe", {}, "--time-zone"),
        ("* * * * *", "", {}, "--time-zone"),
        ("* * * * *", "UTC", {"begin_at": NOW}, "--begin"),
        ("* * * * *", "UTC", {"time_limit": timedelta(days=9)}, "--time-limit"),
    ],
)
def test_an_impossible_job_is_refused_immediately(
    world: World, expression: str, zone: str, changes: dict[str, Any], where: str
) -> None:
    world.actions = Actions(world.store, world.clock, ACTOR, SchedulerSettings(max_time=timedelta(days=1)))
    with pytest.raises(InputError) as refusal:
        add(world, expression, zone, spec=changes)
    assert refusal.value.where == where
    assert world.store.recurring() == {}


def test_a_run_no_longer_allowed_is_skipped_with_the_reason(tmp_path: Path) -> None:
    world = World(tmp_path, settings=Settings(scheduler=SchedulerSettings(max_time=timedelta(hours=1))))
    one = add(world, spec={"time_limit": timedelta(hours=2)})
    world.tick(2, seconds=MINUTE)
    assert made(world, one) == []
    after = entry(world, one)
    assert after.skipped is not None
    assert "is longer than a job may run here" in after.skipped.why
    assert after.next_at == at(3)


def test_a_run_beyond_its_tenants_cap_on_waiting_jobs_is_left_out_with_the_reason(tmp_path: Path) -> None:
    caps = PolicySettings(tenants=(TenantSettings("alice", pending=1),))
    world = World(tmp_path, settings=Settings(policy=caps))
    one = add(world)
    world.submit(gpus=99)
    world.tick(seconds=MINUTE)
    skipped = entry(world, one).skipped
    assert made(world, one) == []
    assert skipped is not None
    assert skipped.why.startswith("tenant alice has 1 job waiting and may have 1: 1 more is too many")


def test_a_missing_time_zone_pauses_its_recurring_jobs(world: World) -> None:
    one, other = add(world), add(world)
    with world.store.transaction() as transaction:
        transaction.put_recurring(replace(entry(world, one), zone="Europe/Atlantis"))
    world.tick(2, seconds=MINUTE)
    after = entry(world, one)
    assert after.paused
    assert after.skipped is not None
    assert "Europe/Atlantis" in after.skipped.why
    assert len(made(world, other)) == 1


# the clock


def test_a_clock_set_back_repeats_no_run(world: World) -> None:
    one = add(world, "0 * * * *", overlap=Overlap.ALLOW)
    world.tick(seconds=HOUR)
    world.tick(seconds=-HOUR / 2)
    world.tick(30, seconds=MINUTE)
    assert [job.submitted_at for job in made(world, one)] == [at(60)]
    world.tick(60, seconds=MINUTE)
    assert len(made(world, one)) == 2


def test_runs_resume_after_a_clock_was_years_ahead(world: World) -> None:
    one = add(world, "0 * * * *", overlap=Overlap.ALLOW)
    world.tick(seconds=1000 * 24 * HOUR)
    assert entry(world, one).next_at > at(1000 * 24 * 60)
    world.tick(seconds=-1000 * 24 * HOUR)
    assert entry(world, one).next_at == at(60)
    assert len(made(world, one)) == 1


STEPS = st.lists(st.integers(-100, 150), min_size=1, max_size=30)


@how(max_examples=examples(40), deadline=None)
@given(STEPS)
def test_no_run_is_made_twice_however_the_clock_goes(steps: list[int]) -> None:
    """Unless it is corrected by three hours and more."""
    now, seen = NOW, []
    one = Recurrence("7,30 * * * *", "Europe/Berlin").begun(Submission(spec()), UTC, ACTOR, now)
    for step in steps:
        now += timedelta(minutes=step)
        if one.is_due(now) and now >= one.counted_at - timedelta(hours=3):
            run = one.run_at(UTC, now)
            assert run is not None
            seen.append(run)
            one = one.awaiting(UTC, now)
    assert seen == sorted(set(seen))


# kill -9


def lived(world: World, minutes: int) -> None:
    """Advance in steps of half a minute, replacing every scheduler that crashes."""
    for _ in range(2 * minutes):
        world.clock.advance(MINUTE / 2)
        for _ in range(3):
            try:
                world.observe()
                world.scheduler.tick(world.clock.now())
            except Crash:
                world.reborn()
        for record in world.docker.running():
            world.docker.exit(record.id, 0)


def test_a_crash_at_each_single_step_loses_no_run_and_makes_none_twice(tmp_path: Path) -> None:
    clean = World(tmp_path / "clean")
    add(clean, overlap=Overlap.ALLOW)
    lived(clean, 4)
    assert clean.tripwire.steps > 20
    for step in range(1, clean.tripwire.steps + 1):
        world = World(tmp_path / str(step))
        one = add(world, overlap=Overlap.ALLOW, array=(0, 1) if step % 2 else ())
        world.tripwire.left = step
        lived(world, 4)
        check(world, one, 4, elements=2 if step % 2 else 1)


def check(world: World, one: JobId, minutes: int, elements: int) -> None:
    runs = [entry for entry in world.store.audit_log(f"recurring {one}") if entry.verb == "fire"]
    assert [entry.before for entry in runs] == [f"due {at(n).isoformat()}" for n in range(1, minutes + 1)]
    assert len(made(world, one)) == minutes * elements
    assert entry(world, one).next_at == at(minutes + 1)


# exactly when


async def test_the_loop_wakes_up_at_the_time_of_the_run(tmp_path: Path) -> None:
    """The interval is a minute: only an alarm of its own makes the run half a second from now."""

    class Shifted:
        shift = timedelta(seconds=59.5) - (datetime.now(UTC) - datetime.now(UTC).replace(second=0, microsecond=0))

        def boot_time(self) -> BootTime:
            return BootTime("boot", time.monotonic())

        def now(self) -> datetime:
            return datetime.now(UTC) + self.shift

    settings = Settings(scheduler=SchedulerSettings(tick_interval=timedelta(minutes=1)))
    world = real(World(tmp_path, settings=settings))
    world.actions = Actions(world.store, Shifted(), ACTOR)
    one = add(world)
    seat = Seat(world, Shifted(), "serve")
    task = asyncio.create_task(seat.host.run())
    await seat.until(lambda: bool(made(world, one)))
    [job] = made(world, one)
    assert timedelta(0) <= job.submitted_at - (entry(world, one).last_at or NOW) < timedelta(seconds=5)
    seat.host.stop()
    await task


# the host's time zone


def test_the_default_time_zone_is_that_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "timezone", -3600)
    link, text = tmp_path / "localtime", tmp_path / "timezone"
    text.write_text("America/New_York\n")
    assert local_zone_name({}, link, text) == "America/New_York"
    link.symlink_to("../usr/share/zoneinfo/Europe/Berlin")
    assert local_zone_name({}, link, text) == "Europe/Berlin"
    assert local_zone_name({"TZ": ":Asia/Tokyo"}, link, text) == "Asia/Tokyo"
    assert local_zone_name({"TZ": "/usr/share/zoneinfo/Asia/Tokyo"}, link, text) == "Asia/Tokyo"
    for environ, where in (({}, tmp_path / "nowhere"), ({"TZ": "CET-1CEST,M3.5.0,M10.5.0/3"}, link)):
        with pytest.raises(InputError, match="time zone is unknown"):
            local_zone_name(environ, where, tmp_path / "nowhere")


@cases("name", ["Foo/Bar", ":Foo/Bar", "Europe/Bärlin", "/usr/share/zoneinfo/Foo", "../Foo"])
def test_a_zone_that_the_host_does_not_know_is_not_utc(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "timezone", 0)
    monkeypatch.setattr(time, "daylight", 0)
    with pytest.raises(InputError, match="which is not a time zone on this host"):
        local_zone_name({"TZ": name}, tmp_path / "localtime", tmp_path / "timezone")


def test_a_host_at_utc_needs_no_time_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "timezone", 0)
    monkeypatch.setattr(time, "daylight", 0)
    assert local_zone_name({}, tmp_path / "localtime", tmp_path / "timezone") == "UTC"


def test_the_snapshot_of_a_follower_has_recurring_jobs(world: World) -> None:
    from gputui.engine.tick.snapshot_builder import files_snapshot

    add(world)
    snapshot: Snapshot = files_snapshot(world.store, world.directory, world.settings, NOW)
    assert snapshot.recurring == tuple(world.store.recurring().values())
