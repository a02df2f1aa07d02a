"""Idle GPUs that jobs hold: marked, reported once, and ended only if the site wants it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from gputui.domain.action import Suspend
from gputui.domain.conditions import idle_conditions
from gputui.domain.errors import CauseCode
from gputui.domain.gpu import GpuProcess, GpuState
from gputui.domain.job_spec import JobId
from gputui.domain.settings import ConsoleSettings, PolicySettings, SchedulerSettings, Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from tests.cases import cases
from tests.engine.test_announcer import Telling
from tests.engine.test_shared_gpus import sharer
from tests.factories import GIB, NOW


class Site(Telling):
    """A world with a hook for GPUs that are idle for half an hour."""

    def __init__(self, directory: Path, ends_after: timedelta | None = None) -> None:
        super().__init__(directory, wants=lambda event: event.name == "gpus_idle")
        scheduler = SchedulerSettings(idle_gpus_end=ends_after)
        self.settings = replace(self.settings, scheduler=scheduler, policy=PolicySettings(share=("all",)))
        self.reborn()

    def pass_minutes(self, minutes: float) -> Snapshot:
        return self.tick(round(3 * minutes), seconds=20)

    def begin(self, gpus: int = 2, **changes: object) -> JobId:
        job_id = self.submit(gpus, **changes)
        self.tick(2)
        return job_id

    def load(self, job_id: JobId, *utilizations: float | None) -> None:
        """Set the load of the job's GPUs from now on."""
        for gpu, utilization in zip(self.job(job_id).gpus, utilizations, strict=True):
            self.probe.changed[gpu] = {"utilization": utilization, "memory_used": 5 * GIB}


def notices(snapshot: Snapshot) -> list[str]:
    return [notice.text for notice in snapshot.notices]


def idle(snapshot: Snapshot) -> list[int]:
    return [view.gpu.index for view in snapshot.gpus if view.idle_since is not None]


def test_half_an_hour_without_use_is_marked_and_announced_once(tmp_path: Path) -> None:
    world = Site(tmp_path)
    job_id = world.begin()
    world.load(job_id, 0.5, 0.5)
    world.pass_minutes(5)
    world.load(job_id, 0.0, 0.0)
    assert idle(world.pass_minutes(4)) == []
    held = sorted(int(gpu[4:12], 16) for gpu in world.job(job_id).gpus)
    seen = world.pass_minutes(25)
    assert (idle(seen), notices(seen), world.ear.heard) == (held, [], [])
    seen = world.pass_minutes(3)
    assert idle(seen) == held
    assert notices(seen) == [f"job {job_id} train (alice) leaves its 2 GPUs idle"]
    assert seen.notices[0].since == next(view.idle_since for view in seen.gpus if view.idle_since)
    seen = world.pass_minutes(60)
    [event] = world.ear.heard
    told = event.document("here")
    assert (told["event"], told["job"]["id"], len(told["job"]["idle_gpus"])) == ("gpus_idle", job_id, 2)
    assert world.job(job_id).state is JobState.RUNNING
    world.load(job_id, 0.0, 0.1)
    seen = world.pass_minutes(1)
    assert len(idle(seen)) == 1
    assert notices(seen) == [f"job {job_id} train (alice) leaves 1 of its 2 GPUs idle"]
    world.load(job_id, 0.1, 0.1)
    assert idle(world.pass_minutes(1)) == []
    assert len(world.ear.heard) == 1


@cases("utilization", [0.01, None])
def test_some_use_and_unknown_use_are_not_announced(tmp_path: Path, utilization: float | None) -> None:
    world = Site(tmp_path)
    world.load(world.begin(1), utilization)
    assert bool(idle(world.pass_minutes(60))) == (utilization is not None)
    assert world.ear.heard == []


def test_memory_that_changes_is_use(tmp_path: Path) -> None:
    world = Site(tmp_path)
    [gpu] = world.job(world.begin(1)).gpus
    for minute in range(60):
        world.probe.changed[gpu] = {"utilization": 0.0, "memory_used": minute * GIB}
        world.pass_minutes(1)
    assert world.ear.heard == []


def test_a_site_may_end_idle_jobs_after_a_warning(tmp_path: Path) -> None:
    world = Site(tmp_path, ends_after=timedelta(minutes=10))
    job_id, other = world.begin(), world.begin()
    world.load(job_id, 0.0, 0.0)
    world.load(other, 0.0, 0.5)
    seen = world.pass_minutes(32)
    words = f"job {job_id} train (alice) leaves its 2 GPUs idle: it is ended if that lasts for another 10m"
    assert words in notices(seen)
    assert f"job {other} train (alice) leaves 1 of its 2 GPUs idle" in notices(seen)
    assert [event.data["id"] for event in world.ear.heard] == [job_id, other]
    world.pass_minutes(7)
    assert world.job(job_id).state is JobState.RUNNING
    world.pass_minutes(5)
    job = world.job(job_id)
    assert job.state is JobState.TIMEOUT
    assert job.cause is not None
    assert job.cause.code is CauseCode.TIME_LIMIT
    assert job.cause.text.endswith("no use, and no change of memory (scheduler.idle_gpus_end)")
    assert world.job(other).state is JobState.RUNNING


def test_the_next_scheduler_knows_the_idle_time_and_warns_again(tmp_path: Path) -> None:
    world = Site(tmp_path, ends_after=timedelta(minutes=10))
    job_id = world.begin()
    world.load(job_id, 0.0, 0.0)
    world.pass_minutes(39)
    world.scheduler.stop()
    world.reborn()
    seen = world.pass_minutes(2)
    assert len(idle(seen)) == 2
    assert len({event.id for event in world.ear.heard}) == 1  # a receiver knows the second one
    world.pass_minutes(7)
    assert world.job(job_id).state is JobState.RUNNING
    world.pass_minutes(3)
    assert world.job(job_id).state is JobState.TIMEOUT


def test_a_suspended_job_is_not_ended(tmp_path: Path) -> None:
    world = Site(tmp_path, ends_after=timedelta(minutes=10))
    job_id = world.begin()
    world.actions.act(Suspend((job_id,)))
    world.load(job_id, 0.0, 0.0)
    assert len(idle(world.pass_minutes(60))) == 2
    assert world.job(job_id).state is JobState.RUNNING


def test_a_shared_gpu_is_idle_when_both_jobs_leave_it_so(tmp_path: Path) -> None:
    world = Site(tmp_path)
    ids = [sharer(world), sharer(world)]
    world.tick(3)
    [gpu] = {held for job_id in ids for held in world.job(job_id).gpus}
    names = [world.job(job_id).attempts[0].container_id for job_id in ids]

    def use(*shares: float) -> None:
        processes = tuple(
            GpuProcess(n, GIB, container_id=name, sm=share)
            for n, (name, share) in enumerate(zip(names, shares, strict=True))
        )
        world.probe.changed[gpu] = {"utilization": max(shares), "memory_used": 2 * GIB, "processes": processes}

    use(0.0, 0.5)
    seen = world.pass_minutes(40)
    assert idle(seen) == []
    assert notices(seen) == [f"job {ids[0]} train (alice) leaves its 1 GPU idle"]
    use(0.0, 0.0)
    assert idle(world.pass_minutes(40)) == [int(gpu[4:12], 16)]


def test_a_site_may_switch_off_the_detection_of_idle_gpus(tmp_path: Path) -> None:
    world = Site(tmp_path)
    world.settings = replace(
        Settings(), scheduler=SchedulerSettings(idle_gpus_after=timedelta(0)), console=ConsoleSettings(idle_below=0)
    )
    world.reborn()
    world.load(world.begin(), 0.0, 0.0)
    assert idle(world.pass_minutes(60)) == []


def test_foreign_use_is_judged_by_the_same_rule_and_known_to_all(tmp_path: Path) -> None:
    world = Site(tmp_path)
    eve = GpuProcess(4711, 8 * GIB, "eve", "python", ticks=7, started_at=NOW - timedelta(hours=3))
    [first, *_] = world.tick().gpus
    world.probe.changed[first.gpu.uuid] = {"utilization": 0.04, "memory_used": 8 * GIB, "processes": (eve,)}
    assert idle(world.pass_minutes(4)) == []
    seen = world.pass_minutes(3)
    [shown] = [view for view in seen.gpus if view.idle_since is not None]
    assert (shown.gpu.uuid, shown.state, shown.foreign_since) == (first.gpu.uuid, GpuState.FOREIGN, eve.started_at)
    [condition] = idle_conditions(seen, seen.taken_at)
    assert condition.short.endswith(": pid 4711 eve")
    assert world.ear.heard == []
