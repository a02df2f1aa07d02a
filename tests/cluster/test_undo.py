"""Undo of what was changed in a cluster, as the console does it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.domain.action import Action, DrainGpus, Edit, EditJobs, Hold, Release, ResumeGpus, SetPriority
from gputui.domain.cluster import Capability
from gputui.domain.errors import GputuiError
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import Settings
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.cluster.backend import EngineBackend
from gputui.engine.cluster.queue import EngineQueue
from gputui.tui.actions import Undo
from tests.cases import cases
from tests.cluster.fake import FakeCluster
from tests.factories import FakeClock, spec

Change = Callable[[list[JobId]], Action]
HOUR = timedelta(hours=1)


class Operator:
    """An operator with six jobs, of which the first fills the cluster."""

    def __init__(self, **options: object) -> None:
        self.cluster = FakeCluster(FakeClock(), {"gpu1": 2}, **options)  # type: ignore[arg-type]
        self.store = EngineQueue(self.cluster, lambda: 0.0)
        self.actions = EngineBackend(self.store, Settings())
        self.undo = Undo(self.actions, dict)
        asked = replace(spec(gpus=2), time_limit=HOUR)
        self.ids = list(self.actions.act(SubmitJobs((Submission(asked),) * 6)).ids)

    def values(self) -> list[tuple[bool, int, object]]:
        jobs = map(self.cluster.job, self.ids)
        return [(job.held, job.priority, job.spec.time_limit) for job in jobs]

    def change(self, call: Change, ids: list[JobId]) -> None:
        self.undo.carry_out(call(ids))

    def undone(self) -> str:
        return self.undo.last()


def limit(ids: list[JobId]) -> Action:
    return EditJobs(tuple(ids), Edit({"time_limit": 2 * HOUR}))


@cases(
    ("call", "words"),
    [
        (lambda ids: Hold(tuple(ids)), "may start again"),
        (lambda ids: SetPriority(tuple(ids), 40), "has priority 50 again"),
        (lambda ids: SetPriority(tuple(ids), 10, relative=True), "has priority 50 again"),
        (limit, "has the time limit 1h again"),
    ],
)
def test_a_change_is_undone(call: Change, words: str) -> None:
    operator = Operator()
    before = operator.values()
    operator.change(call, operator.ids[1:2])
    assert operator.values() != before
    assert operator.undone() == f"undone: job {operator.ids[1]} {words}"
    assert operator.values() == before


def test_many_jobs_are_set_back_together() -> None:
    operator = Operator()
    operator.actions.act(Hold(tuple(operator.ids[1:3])))
    before = operator.values()
    operator.change(lambda ids: Release(tuple(ids)), operator.ids[1:3])
    assert operator.undone() == "undone: 2 jobs are held again"
    assert operator.values() == before


def test_which_changes_are_not_undone() -> None:
    # jobs that were as wanted before stay so
    operator = Operator()
    operator.actions.act(Hold(tuple(operator.ids[1:2])))
    operator.change(lambda ids: Hold(tuple(ids)), operator.ids[1:3])
    operator.undone()
    assert [held for held, *_ in operator.values()] == [False, True, False, False, False, False]
    # a change that was changed since stays
    operator = Operator()
    operator.change(lambda ids: SetPriority(tuple(ids), 40), operator.ids[1:2])
    operator.cluster.act(SetPriority((operator.ids[1],), 30))
    with pytest.raises(GputuiError, match=f"job {operator.ids[1]} has been changed since: not undone"):
        operator.undone()
    assert operator.values()[1][1] == 30
    # a job that runs meanwhile is not held
    operator = Operator()
    operator.actions.act(Hold(tuple(operator.ids[1:])))
    operator.change(lambda ids: Release(tuple(ids)), operator.ids[1:2])
    operator.cluster.end(operator.ids[0])
    with pytest.raises(GputuiError, match="is RUNNING now: not undone"):
        operator.undone()
    # what the engine refuses stays and says why
    operator = Operator(lacking={Capability.RAISE_PRIORITY: "only operators may raise a priority"})
    operator.change(lambda ids: SetPriority(tuple(ids), 40), operator.ids[1:2])
    with pytest.raises(GputuiError, match="only operators may raise a priority"):
        operator.undone()


def test_a_node_is_drained_and_resumed_again() -> None:
    operator = Operator()

    def reasons() -> set[str]:
        return {view.drain.reason for view in operator.cluster.snapshot().gpus if view.drain}

    operator.change(lambda _: DrainGpus(("gpu1",), "fans"), [])
    assert reasons() == {"fans"}
    assert operator.undone() == "undone: node gpu1 takes jobs again"
    assert reasons() == set()
    operator.cluster.act(DrainGpus(("gpu1",), "disk"))
    operator.store.refresh()
    operator.change(lambda _: ResumeGpus(("gpu1",)), [])
    assert operator.undone() == "undone: node gpu1 is drained again: disk"
    assert reasons() == {"disk"}
