"""Undo of actions, which is possible only while their jobs and GPUs are unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputui.domain.action import (
    Cancel,
    DrainGpus,
    Hold,
    Pause,
    PlaceJobs,
    Release,
    ResumeGpus,
    SetPriority,
    Top,
    Unpause,
)
from gputui.domain.errors import StoreFullError
from gputui.domain.job import Job, Placed, Placing
from gputui.domain.state import JobState
from gputui.engine.actions.actions import Actions
from tests.cases import cases
from tests.engine.heard import HeardActions
from tests.factories import ACTOR, FakeClock, job
from tests.memory_store import MemoryJobStore


class Desk:
    """A store with three waiting jobs, the third held and the second at the head, and the recorded changes."""

    def __init__(self) -> None:
        self.store = MemoryJobStore()
        self.clock = FakeClock()
        self.actions = HeardActions(self.store, self.clock, ACTOR)
        self.store.submit([job(), job(priority=60), job(held=True)], actor=ACTOR)
        self.actions.act(Top((2,)))
        self.actions.heard.clear()
        self.heard = self.actions.heard

    def undo(self) -> list[str]:
        """Undo the last action, and return the refusal of each job."""
        return [refusal for _, refusal in self.actions.undo(self.heard)]

    def change(self, job_id: int, change: Callable[[Job], Job]) -> None:
        """Change the job as another user."""
        with self.store.transaction() as transaction:
            transaction.put(change(transaction.get(job_id)))


JOB_ACTIONS: dict[str, Callable[[Actions], object]] = {
    "release": lambda actions: actions.act(Release((3,))),
    "top": lambda actions: actions.act(Top((1, 2, 3))),
    "move": lambda actions: actions.act(
        PlaceJobs((Placing((1, 2), Placed(3, 3, -1.0, 0.0, "alice", None, 70, 0, None)),))
    ),
    "raise": lambda actions: actions.act(SetPriority((1, 2, 3), 10, relative=True)),
    "set": lambda actions: actions.act(SetPriority((2,), 5)),
}


@cases("call", JOB_ACTIONS.values())
def test_undo_restores_jobs(call: Callable[[Actions], object]) -> None:
    desk = Desk()
    before = dict(desk.store.jobs())
    desk.clock.advance(60)
    call(desk.actions)
    assert dict(desk.store.jobs()) != before
    assert set(desk.undo()) == {""}
    assert dict(desk.store.jobs()) == before
    assert list(desk.store.audit_log())[-1].verb.startswith("undo ")


def test_holds_drains_and_ends() -> None:
    # undo releases a hold
    desk = Desk()
    desk.clock.advance(60)
    desk.actions.act(Hold((1, 2)))
    assert desk.undo() == ["", ""]
    assert not any(desk.store.get(job_id).held for job_id in (1, 2))
    assert desk.store.get(2).topped_at is not None
    # actions that end jobs cannot be undone
    desk = Desk()
    desk.actions.act(Cancel((1,)))
    assert desk.heard == []
    # undo restores drains and the pause with their reasons
    desk = Desk()
    desk.actions.act(DrainGpus(("GPU-a",), "fan noise"))
    desk.actions.act(Pause("upgrade"))
    before = desk.store.controls()
    desk.heard.clear()
    desk.actions.act(ResumeGpus(("GPU-a",)))
    desk.actions.act(DrainGpus(("GPU-b",), ""))
    desk.actions.act(Unpause())
    assert desk.undo() == ["", "", ""]
    assert desk.store.controls() == before


def test_what_was_changed_since_is_not_undone() -> None:
    # undo leaves a job that was changed since
    desk = Desk()
    desk.actions.act(SetPriority((1, 2), 10, relative=True))
    desk.change(1, lambda found: found.prioritised(99))
    assert desk.undo() == ["", "has been changed since"]
    assert desk.store.get(1).priority == 99
    assert desk.store.get(2).priority == 60
    # unrelated actions do not prevent an undo
    desk = Desk()
    desk.actions.act(SetPriority((1,), 10, relative=True))
    desk.change(1, lambda found: found.evolve(held=True))
    assert desk.undo() == [""]
    assert desk.store.get(1).held
    assert desk.store.get(1).priority == 50
    # undo leaves a job that has started since
    desk = Desk()
    desk.actions.act(Release((3,)))
    desk.change(3, lambda found: found.to(JobState.CONFIGURING))
    assert desk.undo() == ["is CONFIGURING now"]
    assert not desk.store.get(3).held
    # a drain renewed by another user stays
    desk = Desk()
    desk.actions.act(DrainGpus(("GPU-a",), "fan noise"))
    kept = list(desk.heard)
    desk.clock.advance(5)
    desk.actions.act(DrainGpus(("GPU-a",), "fan replaced, burn-in"))
    desk.heard[:] = kept
    assert desk.undo() == ["has been changed since"]
    assert desk.store.controls().drains["GPU-a"].reason == "fan replaced, burn-in"


def test_the_message_names_the_restored_state() -> None:
    desk = Desk()
    desk.actions.act(SetPriority((2,), 10, relative=True))
    desk.actions.act(SetPriority((1,), 10, relative=True))
    desk.actions.act(Hold((2,)))
    desk.actions.act(Release((3,)))
    desk.actions.act(Pause("upgrade"))
    desk.actions.act(DrainGpus(("GPU-a",), "x"))
    said = [change.done for change in desk.heard]
    assert said == [
        "has priority 60 again, at the head of the queue",
        "has priority 50 again",
        "may start again",
        "is held again",
        "starts jobs again",
        "takes jobs again",
    ]


def test_a_failed_write_undoes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.actions.act(Hold((1,)))

    def full(*_: object) -> None:
        raise StoreFullError("full")

    monkeypatch.setattr(MemoryJobStore, "transaction", full)
    with pytest.raises(StoreFullError):
        desk.undo()
    monkeypatch.undo()
    assert desk.store.get(1).held
