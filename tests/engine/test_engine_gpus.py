"""Jobs with GPUs wait for an engine that cannot give it any, with the cause and the fix as the reason."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.domain.container import EngineGpus
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
    wants_gpus, wants_none = world.submit(1), world.submit()
    reason = world.tick(3).reasons[wants_gpus]
    assert reason.code is PendingReason.NODE_UNKNOWN
    assert reason.text.startswith("gpu1 has a gputui queue of its own, which gives out its GPUs: its queue ab runs")
    assert world.job(wants_none).state is JobState.RUNNING
    far = replace(far, owner="")
    world.tick(2)
    assert world.job(wants_gpus).state is JobState.RUNNING
