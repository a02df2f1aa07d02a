"""Actions are stored and audited, all or none, and change nothing else."""

from __future__ import annotations

from datetime import datetime

import pytest

from gputui.domain.action import (
    Cancel,
    DrainGpus,
    Hold,
    Pause,
    PlaceJobs,
    Requeue,
    ResumeGpus,
    SetPriority,
    Top,
    Unpause,
)
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.gpu import find_gpu
from gputui.domain.job import Placed, Placing
from gputui.domain.job_spec import Submission
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from tests.engine.world import World
from tests.factories import ACTOR, FakeClock, gpu, spec, uuid


def test_submit_gives_growing_ids_and_arrays_one_for_each_element(world: World) -> None:
    single, array = Submission(spec(), held=True), Submission(spec(), array=(0, 2, 4), array_limit=2)
    assert world.actions.act(SubmitJobs((single, array))).ids == (1, 2, 3, 4)
    assert world.job(1).held
    refs = [world.job(job_id).array for job_id in (2, 3, 4)]
    assert [(ref.id, ref.index, ref.limit) for ref in refs if ref] == [(2, 0, 2), (2, 2, 2), (2, 4, 2)]


def test_a_dependency_on_a_job_that_does_not_exist_is_refused_and_nothing_is_submitted(world: World) -> None:
    with pytest.raises(NotFoundError):
        world.actions.act(SubmitJobs((Submission(spec()), Submission(spec(after=(77,))))))
    assert world.store.jobs() == {}


def test_actions_are_all_or_none(world: World) -> None:
    job_id = world.submit()
    with pytest.raises(NotFoundError):
        world.actions.act(Hold((job_id, 99)))
    assert not world.job(job_id).held


def test_actions_without_effect_write_nothing(world: World) -> None:
    job_id = world.submit()
    assert world.actions.act(Hold((job_id,))).ids == (job_id,)
    assert world.actions.act(Hold((job_id,))).ids == ()


def test_priority_is_set_moved_and_bounded(world: World) -> None:
    job_id = world.submit()
    world.actions.act(SetPriority((job_id,), 95))
    world.actions.act(SetPriority((job_id,), 20, relative=True))
    assert world.job(job_id).priority == 100
    world.actions.act(SetPriority((job_id,), -500, relative=True))
    assert world.job(job_id).priority == 0
    with pytest.raises(InputError):
        world.actions.act(SetPriority((job_id,), 101))


def test_of_jobs_that_are_put_on_top_together_the_last_is_first(world: World) -> None:
    class GoingOn(FakeClock):
        def now(self) -> datetime:
            self.advance(1e-6)
            return super().now()

    world.submit(), world.submit()
    Actions(world.store, GoingOn(world.clock.now()), ACTOR).act(Top((1, 2)))
    first, second = world.job(1).topped_at, world.job(2).topped_at
    assert first is not None
    assert second is not None
    assert first < second


def test_a_running_job_cannot_be_held_nor_a_waiting_one_requeued(world: World) -> None:
    waiting, running = world.submit(9), world.submit()
    world.tick(2)
    assert world.job(running).state is JobState.RUNNING
    with pytest.raises(GputuiError, match="only a waiting job"):
        world.actions.act(Hold((running,)))
    with pytest.raises(GputuiError, match="waiting already"):
        world.actions.act(Requeue((waiting,)))


def test_a_job_that_is_being_cancelled_can_neither_be_held_nor_moved(world: World) -> None:
    """Nothing schedules here, so it waits until somebody does."""
    other, job_id = world.submit(), world.submit()
    world.actions.act(Cancel((job_id,)))
    place = Placing((job_id,), Placed(other, other, -1.0, 0.0, "alice", None, 50, 0, None))
    with pytest.raises(GputuiError, match=f"job {job_id} is being cancelled"):
        world.actions.act(Hold((job_id,)))
    with pytest.raises(GputuiError, match=f"job {job_id} is being cancelled"):
        world.actions.act(PlaceJobs((place,)))
    assert not world.job(job_id).held


def test_a_gpu_that_the_scheduler_does_not_list_is_not_drained_unless_it_is_already(world: World) -> None:
    world.actions.act(DrainGpus((uuid(7),), "fan"))  # no GPU is known
    actions = Actions(world.store, world.clock, ACTOR, known_gpus=lambda: (gpu(0), gpu(1)))
    with pytest.raises(NotFoundError, match=f"no GPU '{uuid(8)}'"):
        actions.act(DrainGpus((uuid(0), uuid(8)), "fan"))
    assert set(world.store.controls().drains) == {uuid(7)}
    actions.act(DrainGpus((uuid(0), uuid(7)), "fan"))
    actions.act(ResumeGpus((uuid(7), uuid(8))))  # the latter went with its drain
    assert set(world.store.controls().drains) == {uuid(0)}


def test_every_action_is_audited_with_user_time_and_values(world: World) -> None:
    job_id = world.submit()
    world.actions.act(SetPriority((job_id,), 80))
    world.actions.act(Cancel((job_id,)))
    world.actions.act(DrainGpus((uuid(1),), "fan"))
    world.actions.act(ResumeGpus((uuid(1),)))
    world.actions.act(Pause("lunch"))
    world.actions.act(Unpause())
    entries = list(world.store.audit_log())
    assert [entry.verb for entry in entries] == [
        "submit",
        "priority",
        "cancel",
        "drain",
        "resume",
        "pause",
        "unpause",
    ]
    assert {(entry.uid, entry.user) for entry in entries} == {(ACTOR.uid, ACTOR.user)}
    assert [(e.target, e.before, e.after) for e in entries[1:4]] == [
        (f"job {job_id}", "PENDING: priority 50", "PENDING: priority 80"),
        (f"job {job_id}", "PENDING: priority 80", "PENDING: priority 80, cancel requested"),
        (uuid(1), "in use", "drained: fan"),
    ]


def test_a_gpu_is_named_by_index_uuid_or_its_beginning() -> None:
    uuids = [uuid(i) for i in range(3)]
    assert find_gpu(uuids, "2") == uuid(2)
    assert find_gpu(uuids, uuid(1)) == uuid(1)
    assert find_gpu(uuids, uuid(1)[:12]) == uuid(1)
    for name in ("3", "GPU-0000", "x", "-1", ""):
        with pytest.raises(NotFoundError):
            find_gpu(uuids, name)


def test_a_resume_reaches_the_probe_and_a_drain_does_not_undo_it(world: World) -> None:
    world.actions.act(ResumeGpus((uuid(1),)))
    world.tick()
    assert set(world.probe.forgiven) == {uuid(1)}
    assert world.probe.forgiven[uuid(1)] <= world.clock.now()
    world.actions.act(DrainGpus((uuid(1),), "fan"))
    world.tick()
    assert set(world.probe.forgiven) == {uuid(1)}
