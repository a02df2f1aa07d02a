"""A scheduler beside a job that it cannot read: the others run, its GPUs stay taken, and jobs after it wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputui.domain.gpu import GpuState
from gputui.domain.job_spec import Submission
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.store import TinyJobStore
from gputui.store.codec import encode_job
from tests.engine.world import World
from tests.factories import running, spec, uuid
from tests.store.test_unreadable import written


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world whose queue is in files."""
    made = World(tmp_path / "state")
    made.use(TinyJobStore(made.directory))
    return made


def test_an_unreadable_job_keeps_its_gpus_and_the_others_run(world: World) -> None:
    world.actions.act(SubmitJobs((Submission(spec(1)),)))
    world.actions.act(SubmitJobs((Submission(spec(1, after=(1,))), Submission(spec(3)))))
    newer = encode_job(running(1, on=[uuid(0)])) | {"state": "SLEEPING"}
    written(world.directory, "1", json.dumps(newer).encode())
    seen = world.tick(3)
    states = {job.id: job.state for job in seen.jobs}
    assert states == {2: JobState.PENDING, 3: JobState.RUNNING}
    assert seen.reasons[2].text == "starts after job 1 has completed: it cannot be read"
    assert (seen.gpus[0].state, seen.gpus[0].why) == (GpuState.UNKNOWN, "job 1, which cannot be read, may hold it")
    assert [notice.text for notice in seen.notices if "job 1 cannot be read and is left out" in notice.text]
    world.store.close()
