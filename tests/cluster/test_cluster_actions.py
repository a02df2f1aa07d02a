"""Actions of users on a cluster: what the engine lacks is refused in its words, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from gputui.domain.action import (
    AddRecurring,
    Cancel,
    DrainGpus,
    Edit,
    EditJobs,
    Hold,
    Pause,
    PauseRecurring,
    PlaceJobs,
    RemoveRecurring,
    Requeue,
    ReserveGpus,
    ResumeGpus,
    ResumeRecurring,
    SetPriority,
    Signal,
    Suspend,
    Top,
    Unpause,
    Unreserve,
    Unsuspend,
)
from gputui.domain.cluster import Capability
from gputui.domain.errors import CapabilityError, ClusterUnavailableError, NotFoundError
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import Settings, Window
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.cluster.backend import EngineBackend
from gputui.engine.cluster.queue import EngineQueue
from tests.cases import cases
from tests.cluster.fake import FakeCluster
from tests.factories import NOW, FakeClock, gpu, spec

HOUR = timedelta(hours=1)
WORDS = "the site does not want it"
WINDOW = Window("night", NOW, NOW + HOUR)
RECURRENCE = Recurrence("0 3 * * *", "UTC")
Call = Callable[[EngineBackend, JobId], object]


class Desk:
    """A user with one job that runs on both GPUs, and one that waits."""

    def __init__(self, *lacking: Capability) -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock, {"gpu1": 2}, lacking=dict.fromkeys(lacking, WORDS))
        self.store = EngineQueue(self.cluster, lambda: 0.0)
        self.actions = EngineBackend(self.store, Settings())
        self.running, self.waiting = self.actions.act(SubmitJobs((Submission(spec(gpus=2, time_limit=HOUR)),) * 2)).ids


CALLS: dict[Capability, Call] = {
    Capability.TEST_ONLY: lambda actions, _: actions.foresee(SubmitJobs((Submission(spec()),))),
    Capability.EDIT: lambda actions, job: actions.act(EditJobs((job,), Edit({"name": "b"}))),
    Capability.HOLD: lambda actions, job: actions.act(Hold((job,))),
    Capability.REQUEUE: lambda actions, job: actions.act(Requeue((job,))),
    Capability.SIGNAL: lambda actions, job: actions.act(Signal((job,), 10)),
    Capability.SUSPEND: lambda actions, job: actions.act(Suspend((job,))),
    Capability.RAISE_PRIORITY: lambda actions, job: actions.act(SetPriority((job,), 60)),
    Capability.LOWER_PRIORITY: lambda actions, job: actions.act(SetPriority((job,), -1, relative=True)),
    Capability.TOP: lambda actions, job: actions.act(Top((job,))),
    Capability.MOVE: lambda actions, _: actions.act(PlaceJobs(())),
    Capability.DRAIN_NODE: lambda actions, _: actions.act(DrainGpus(("gpu1",), "fans")),
    Capability.DRAIN_GPU: lambda actions, _: actions.act(DrainGpus(("gpu1:0",), "fans")),
    Capability.PAUSE: lambda actions, _: actions.act(Pause("fans")),
    Capability.RESERVE: lambda actions, _: actions.act(ReserveGpus(WINDOW, (gpu(),))),
    Capability.RECURRING: lambda actions, _: actions.act(AddRecurring(RECURRENCE, Submission(spec()))),
}


@cases("capability", CALLS)
def test_what_the_engine_lacks_is_refused_in_its_words(capability: Capability) -> None:
    desk = Desk(capability)
    before = desk.cluster.snapshot()
    with pytest.raises(CapabilityError, match=WORDS):
        CALLS[capability](desk.actions, desk.waiting)
    assert desk.cluster.snapshot() == before


@cases(
    "call",
    [
        lambda actions: actions.act(PlaceJobs(())),
        lambda actions: actions.act(DrainGpus(("gpu1:0",), "fans")),
        lambda actions: actions.act(ResumeGpus(("gpu1:0",))),
        lambda actions: actions.act(Pause()),
        lambda actions: actions.act(Unpause()),
        lambda actions: actions.act(ReserveGpus(WINDOW, ())),
        lambda actions: actions.act(Unreserve("night")),
        lambda actions: actions.act(AddRecurring(RECURRENCE, Submission(spec()))),
        lambda actions: actions.act(RemoveRecurring((1,))),
        lambda actions: actions.act(PauseRecurring((1,))),
        lambda actions: actions.act(ResumeRecurring((1,))),
    ],
)
def test_what_gputui_does_with_no_engine_is_refused(call: Callable[[EngineBackend], object]) -> None:
    with pytest.raises(CapabilityError, match="gputui cannot do that with Fake"):
        call(Desk().actions)


@cases("edit", [Edit({"name": "b"}), Edit(gpus={"minimum": 1}), Edit(options={"cpus": 1.0})])
def test_other_fields_than_limit_priority_and_hold_stay(edit: Edit) -> None:
    desk = Desk()
    with pytest.raises(CapabilityError, match="only time limit, priority and hold can be changed") as refusal:
        desk.actions.act(EditJobs((desk.waiting,), edit))
    assert refusal.value.hint == "cancel it and submit it again"


def test_time_limits() -> None:
    # a job keeps a time limit
    desk = Desk()
    with pytest.raises(CapabilityError, match="each job has one"):
        desk.actions.act(EditJobs((desk.waiting,), Edit({"time_limit": None})))
    # a rehearsed edit shows the job and leaves it
    shown = desk.actions.foresee(EditJobs((desk.waiting,), Edit({"priority": 70}))).jobs[0]
    assert shown.spec.priority == 70
    assert desk.cluster.job(desk.waiting).priority == 50


def test_no_job_is_given_another_time_limit_where_the_engine_changes_none() -> None:
    desk = Desk(Capability.EXTEND)
    for job_id in (desk.running, desk.waiting):
        edit = EditJobs((job_id,), Edit({"time_limit": 2 * HOUR}))
        for call in (desk.actions.act, desk.actions.foresee):
            with pytest.raises(CapabilityError, match=WORDS):
                call(edit)


def test_an_edit_changes_each_value_and_tells_each_job_once() -> None:
    desk = Desk()
    edit = Edit({"time_limit": 3 * HOUR, "priority": 20}, held=True)
    assert desk.actions.act(EditJobs((desk.waiting,), edit)).ids == (desk.waiting,)
    job = desk.cluster.job(desk.waiting)
    assert (job.spec.time_limit, job.priority, job.held) == (3 * HOUR, 20, True)
    assert desk.actions.act(EditJobs((desk.waiting,), Edit(held=False))).ids
    assert not desk.cluster.job(desk.waiting).held
    assert not desk.actions.act(EditJobs((desk.running,), Edit(held=True))).ids


@cases(("delta", "after"), [(10, 60), (-10, 40), (90, 100), (-90, 0), (0, 50)])
def test_a_priority_stays_within_its_bounds(delta: int, after: int) -> None:
    desk = Desk()
    desk.actions.act(SetPriority((desk.waiting,), delta, relative=True))
    assert desk.cluster.job(desk.waiting).priority == after


def test_jobs_of_different_priority_are_raised_alike() -> None:
    desk = Desk()
    desk.actions.act(SetPriority((desk.waiting,), 20))
    assert set(desk.actions.act(SetPriority((desk.running, desk.waiting), 5, relative=True)).ids) == {
        desk.running,
        desk.waiting,
    }
    assert [desk.cluster.job(each).priority for each in (desk.running, desk.waiting)] == [55, 25]


@cases(
    ("lacking", "value", "relative", "top"),
    [
        (Capability.TOP, 0, False, True),
        (Capability.RAISE_PRIORITY, 51, False, False),
        (Capability.LOWER_PRIORITY, -1, True, False),
    ],
)
def test_a_rehearsed_priority_needs_the_right_of_its_direction(
    lacking: Capability, value: int, *, relative: bool, top: bool
) -> None:
    desk = Desk(lacking)
    with pytest.raises(CapabilityError, match=WORDS):
        desk.actions.foresee(Top((desk.waiting,)) if top else SetPriority((desk.waiting,), value, relative))


@cases(
    ("lacking", "value", "relative", "top"),
    [
        (Capability.RAISE_PRIORITY, 0, False, True),
        (Capability.RAISE_PRIORITY, 50, False, False),
        (Capability.RAISE_PRIORITY, 49, False, False),
        (Capability.LOWER_PRIORITY, 1, True, False),
    ],
)
def test_a_rehearsed_priority_needs_no_other_right_and_changes_nothing(
    lacking: Capability, value: int, *, relative: bool, top: bool
) -> None:
    desk = Desk(lacking)
    desk.actions.foresee(Top((desk.waiting,)) if top else SetPriority((desk.waiting,), value, relative))
    assert desk.cluster.job(desk.waiting).priority == 50


def test_what_running_and_waiting_jobs_get() -> None:
    # running jobs are stopped continued signalled and run again
    desk = Desk()
    one = (desk.running,)
    assert desk.actions.act(Suspend(tuple(one))).ids == one
    assert desk.store.get(desk.running).suspended
    assert desk.actions.act(Unsuspend(tuple(one))).ids == one
    assert not desk.store.get(desk.running).suspended
    assert desk.actions.act(Signal(tuple(one), 10)).ids == one
    assert desk.cluster.signals(desk.running) == [10]
    desk.cluster.end(desk.running)
    assert desk.actions.act(Requeue(tuple(one))).ids == one
    assert desk.store.get(desk.running).ended_at is None
    # a waiting job goes to the head of the queue
    desk = Desk()
    [last] = desk.actions.act(SubmitJobs((Submission(spec(gpus=1)),))).ids
    assert desk.store.read().order == (desk.waiting, last)
    assert desk.actions.act(Top((last,))).ids == (last,)
    assert desk.store.read().order == (last, desk.waiting)


@cases(
    "call",
    [
        lambda actions, ids: actions.act(Cancel(tuple(ids))),
        lambda actions, ids: actions.act(Hold(tuple(ids))),
        lambda actions, ids: actions.act(Suspend(tuple(ids))),
        lambda actions, ids: actions.act(SetPriority(tuple(ids), 40)),
    ],
)
def test_no_job_is_changed_if_one_of_them_does_not_exist(
    call: Callable[[EngineBackend, tuple[JobId, ...]], object],
) -> None:
    desk = Desk()
    before = desk.cluster.snapshot()
    with pytest.raises(NotFoundError, match="there is no job 999"):
        call(desk.actions, (desk.running, desk.waiting, 999))
    assert desk.cluster.snapshot() == before


def test_what_asks_nothing() -> None:
    # nothing to do asks nothing of the engine
    desk = Desk()
    desk.cluster.answers = False
    assert desk.actions.act(SubmitJobs(())).ids == ()
    assert desk.actions.act(Cancel(())).ids == ()
    assert desk.actions.act(SetPriority((), 1, relative=True)).ids == ()
    with pytest.raises(ClusterUnavailableError):
        desk.actions.act(SubmitJobs((Submission(spec()),)))
    # there is one queue for all servers
    desk = Desk()
    assert desk.actions.act(Cancel((desk.waiting,)), server="gpu1").ids == (desk.waiting,)


@cases("name", ["gpu9", ""])
def test_a_node_that_is_not_there_is_named(name: str) -> None:
    desk = Desk()
    with pytest.raises(NotFoundError, match=f"there is no node {name}"):
        desk.actions.act(DrainGpus(("gpu1", name), "fans"))
    assert desk.cluster.snapshot().nodes[0].drain is None
