"""Jobs with GPUs wait for an engine that cannot give it any, with the cause and the fix as the reason."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.domain.container import EngineGpus
from gputui.domain.gpu import GpuState, ProbeCode, ProbeStatus
from gputui.domain.state import JobState, PendingReason
from tests.engine.world import World
from tests.factories import uuid


def test_a_job_waits_while_the_engine_cannot_give_it_gpus(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the cause and the fix; other jobs start, and this one does when that is done."""
    engine = EngineGpus("cdi", cdi_devices=("nvidia.com/gpu=7",), is_local=True)
    plain = world.docker.status
    monkeypatch.setattr(world.docker, "status", lambda: replace(plain(), gpus=engine))
    wants_gpus, wants_none, on_host = world.submit(1), world.submit(), world.submit(1, image=None, command=("true",))
    reason = world.tick(2).reasons[wants_gpus]
    assert reason.code is PendingReason.NODE_UNKNOWN
    assert "no CDI device that fits" in reason.text
    assert "nvidia-ctk cdi generate" in reason.text
    assert world.job(wants_none).state is world.job(on_host).state is JobState.RUNNING
    assert world.job(wants_gpus).attempts == ()
    engine = replace(engine, cdi_devices=tuple(f"nvidia.com/gpu={number}" for number in range(4)))
    world.tick(2)
    assert world.job(wants_gpus).state is JobState.RUNNING
    [launch] = [each for each in world.docker.launches.values() if each.job_id == wants_gpus]
    assert launch.gpu_names == ("1",)
    assert launch.gpus == (uuid(1),)


def test_a_guest_waits_for_the_queue_of_the_engines_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, far = world.docker.status, EngineGpus(machine="gpu1", address="ssh://gpu1", owner="its queue ab runs jobs")
    monkeypatch.setattr(world.docker, "status", lambda: replace(plain(), gpus=far))
    world.probe.machine = "gpu1"
    wants_gpus, wants_none = world.submit(1), world.submit()
    reason = world.tick(3).reasons[wants_gpus]
    assert reason.code is PendingReason.NODE_UNKNOWN
    assert reason.text.startswith("gpu1 has a gputui queue of its own, which gives out its GPUs: its queue ab runs")
    assert world.job(wants_none).state is JobState.RUNNING
    far = replace(far, owner="")
    world.tick(2)
    assert world.job(wants_gpus).state is JobState.RUNNING


def test_gpus_of_one_machine_are_not_asked_of_the_engine_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, far = world.docker.status, EngineGpus(machine="gpu1")
    monkeypatch.setattr(world.docker, "status", lambda: replace(plain(), gpus=far))
    job_id = world.submit(1)
    words = "the GPUs that are read are those of this machine, and the engine has those of gpu1"
    assert words in world.tick(3).reasons[job_id].text
    far, world.probe.machine = replace(far, is_local=True), "gpu1"
    assert "are those of gpu1, and the engine has those of this machine" in world.tick(3).reasons[job_id].text
    world.probe.machine = ""
    world.tick(2)
    assert world.job(job_id).state is JobState.RUNNING


def test_host_jobs_do_not_run_beside_an_engine_elsewhere(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host jobs would run here, and hold GPUs there; while the engine is away too."""
    plain, gpus = world.docker.status, EngineGpus(machine="gpu1")
    monkeypatch.setattr(world.docker, "status", lambda: replace(plain(), gpus=gpus))
    world.probe.machine = "gpu1"
    ids = [world.submit(number, image=None, command=("true",)) for number in (0, 1)]
    words = "host jobs are processes of this machine, and this queue's jobs run on gpu1: name an image"
    assert {world.tick(2).reasons[job_id].text for job_id in ids} == {words}
    monkeypatch.setattr(world.docker, "status", lambda: replace(plain(), up=False, text="it is away"))
    assert {world.tick(2).reasons[job_id].text for job_id in ids} == {words}
    assert world.host.running() == []


def test_disks_are_read_where_the_readings_come_from(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, far = world.docker.status, EngineGpus(machine="gpu1")
    monkeypatch.setattr(world.docker, "status", lambda: replace(plain(), gpus=far, data_root="/srv/docker"))
    world.tick(2)
    assert world.probe.disks == {"state": str(world.directory)}, "the engine's path means nothing here"
    world.probe.machine = "gpu1"
    world.tick(2)
    assert world.probe.disks == {"docker": "/srv/docker"}


def test_a_lost_connection_makes_gpus_unknown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, gpus = world.docker.status, EngineGpus(machine="gpu1")
    monkeypatch.setattr(world.docker, "status", lambda: replace(plain(), gpus=gpus))
    world.probe.machine = "gpu1"
    world.probe.status = ProbeStatus(ProbeCode.UNREACHABLE, "gpu1 does not answer")
    job_id = world.submit(1)
    snapshot = world.tick(3)
    assert {(view.state, view.why) for view in snapshot.gpus} == {(GpuState.UNKNOWN, "gpu1 does not answer")}
    assert world.job(job_id).state is JobState.PENDING
    world.probe.status = ProbeStatus(ProbeCode.OK, "")
    world.tick(2)
    assert world.job(job_id).state is JobState.RUNNING
