"""A fatal Xid keeps jobs off its GPU until a reset or a resume, whichever scheduler saw it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.action import Cancel, ResumeGpus
from gputui.domain.gpu import GpuState, Health, HealthCode, ProbeCode, ProbeStatus
from gputui.domain.job import BootTime
from gputui.domain.state import JobState
from gputui.engine.tick.scheduler import FaultRecorder
from tests.cases import cases
from tests.engine.world import World
from tests.factories import uuid

XID = Health(HealthCode.XID, "Xid 79: the GPU has fallen off the bus")
RESET = Health(HealthCode.NEEDS_RESET, "the driver asks for a GPU reset")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A GPU that threw an Xid, and the next scheduler, whose probe the driver does not tell about it."""
    world = World(tmp_path / "state", gpus=1)
    world.probe.sick(0, health=XID)
    world.tick()
    return world


def next_scheduler(world: World, **sample: Any) -> None:
    world.probe.sick(0, **sample)
    world.reborn()


def is_used(world: World) -> bool:
    job = world.submit(1)
    world.tick(3)
    is_running = world.job(job).state is JobState.RUNNING
    if is_running:
        world.exit(job)
    else:
        world.actions.act(Cancel((job,)))
    world.tick(3)
    return is_running


def test_the_next_scheduler_keeps_jobs_off_a_faulty_gpu_and_says_why(world: World) -> None:
    next_scheduler(world)
    job = world.submit(1)
    snapshot = world.tick(3)
    assert world.job(job).state is JobState.PENDING
    (view,) = snapshot.gpus
    assert (view.state, view.health, view.is_stopped_by_xid) == (GpuState.DRAINED, XID, True)


def test_a_resume_removes_a_fault_for_all_later_schedulers(world: World) -> None:
    next_scheduler(world)
    world.tick()
    world.clock.advance(1)
    world.actions.act(ResumeGpus((uuid(0),)))
    assert is_used(world)
    assert not world.store.controls().faults
    next_scheduler(world)
    assert is_used(world)


def test_an_older_reading_does_not_undo_a_resume(world: World) -> None:
    world.clock.advance(1)
    before = world.probe.clock.now()
    world.actions.act(ResumeGpus((uuid(0),)))
    world.probe.sick(0, health=XID, sampled_at=before - timedelta(seconds=1))
    world.tick()
    assert not world.store.controls().faults


def test_an_observed_reset_removes_a_fault(world: World) -> None:
    world.probe.sick(0)
    assert is_used(world)
    next_scheduler(world)
    assert is_used(world)


@cases("sign", [{"health": RESET}, {"health": XID, "ecc_uncorrected": 3}])
def test_a_reset_without_a_scheduler_is_recognised_afterwards(world: World, sign: dict[str, Any]) -> None:
    world.probe.sick(0, **sign)
    world.tick()
    before = {"ecc_uncorrected": sign["ecc_uncorrected"]} if "ecc_uncorrected" in sign else sign
    next_scheduler(world, **before)
    assert not is_used(world)
    world.probe.sick(0, ecc_uncorrected=0)
    assert is_used(world)
    assert not world.store.controls().faults


def test_a_fault_stays_without_evidence_of_a_reset(world: World) -> None:
    next_scheduler(world, ecc_uncorrected=0)
    assert not is_used(world)
    world.probe.sick(0, health=Health(HealthCode.LOST, "lost"))
    world.tick()
    world.probe.sick(0)
    assert not is_used(world)


def test_a_reboot_removes_a_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    next_scheduler(world)
    monkeypatch.setattr(world.clock, "boot_time", lambda: BootTime("the next", 1.0))
    assert is_used(world)


def test_no_fault_is_removed_before_the_driver_has_answered(world: World) -> None:
    next_scheduler(world)
    world.probe.status = ProbeStatus(ProbeCode.STARTING)
    world.tick(3)
    assert set(world.store.controls().faults) == {uuid(0)}


def test_a_fault_is_written_once(world: World) -> None:
    version = world.store.version()
    world.tick(5)
    assert world.store.version() == version


def test_the_next_scheduler_also_stops_a_job_on_a_faulty_gpu(tmp_path: Path) -> None:
    world = World(tmp_path / "state", gpus=2)
    job = world.submit(2)
    world.tick(3)
    assert world.job(job).state is JobState.RUNNING
    world.probe.sick(1, health=XID)
    FaultRecorder(world.scheduler.context).record(world.clock.now(), world.clock.boot_time())
    world.probe.sick(1)
    world.reborn()
    world.tick()
    assert world.job(job).state is JobState.COMPLETING
