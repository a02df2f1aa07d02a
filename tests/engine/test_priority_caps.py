"""The highest priority that a user may give to a tenant's jobs, by every way to give one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.access import Actor
from gputui.domain.action import (
    AddRecurring,
    Edit,
    EditJobs,
    Hold,
    PlaceJobs,
    RemoveTenant,
    Requeue,
    SetPriority,
    SetTenant,
    Top,
)
from gputui.domain.errors import GputuiError
from gputui.domain.job import Placed, Placing, Waited
from gputui.domain.job_spec import Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import AccessSettings, PolicySettings, Settings, TenantSettings
from gputui.domain.snapshot import effective_policy
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.permissions import UserPermissions
from tests.cases import cases
from tests.engine.callers import actions_of, caller_of
from tests.factories import ACTOR, job, spec
from tests.memory_store import MemoryJobStore

MEMBER = Actor(61_234, "alice")
ROOT = Actor(0, "root")


class Desk:
    """A queue with a waiting job of alice at 50 and one of bob at 80, and the actions of several users."""

    def __init__(
        self, directory: Path, *, users: tuple[str, ...] = ("*",), tenants: tuple[TenantSettings, ...] = ()
    ) -> None:
        self.store = MemoryJobStore()
        self.store.submit(
            [job(submitted_uid=MEMBER.uid), job(tenant="bob", priority=80, submitted_uid=MEMBER.uid)], actor=ACTOR
        )
        self.policy = PolicySettings(tenants=tenants)
        self.permissions = UserPermissions(directory, Settings(access=AccessSettings(users=users), policy=self.policy))

    def of(self, actor: Actor) -> Actions:
        return actions_of(caller_of(actor, self.permissions), self.store, self.permissions)


Call = Callable[[Actions], object]
TOO_HIGH: dict[str, Call] = {
    "submit": lambda actions: actions.act(SubmitJobs((Submission(spec()), Submission(spec(priority=60))))),
    "array": lambda actions: actions.act(SubmitJobs((Submission(spec(priority=60), array=(1, 2)),))),
    "dry run": lambda actions: actions.foresee(SubmitJobs((Submission(spec(priority=60)),))),
    "edit": lambda actions: actions.act(EditJobs((1,), Edit(spec={"priority": 60}))),
    "dry run of an edit": lambda actions: actions.foresee(EditJobs((1,), Edit(spec={"priority": 60}))),
    "priority 60": lambda actions: actions.act(SetPriority((1,), 60)),
    "priority +10": lambda actions: actions.act(SetPriority((1,), 10, relative=True)),
    "cron": lambda actions: actions.act(AddRecurring(Recurrence("0 * * * *", "UTC"), Submission(spec(priority=60)))),
}


@cases("call", TOO_HIGH.values())
def test_users_may_use_priorities_up_to_50(tmp_path: Path, call: Call) -> None:
    desk = Desk(tmp_path)
    before = dict(desk.store.jobs())
    with pytest.raises(GputuiError, match="tenant alice may have at most priority 50, and 60 is more") as caught:
        call(desk.of(MEMBER))
    assert "--max-priority 60" in (caught.value.hint or "")
    assert dict(desk.store.jobs()) == before
    assert not desk.store.recurring()


@cases("call", TOO_HIGH.values())
@cases("how", ["operator", "raised cap", "private"])
def test_operators_private_queues_and_raised_tenants_may_use_higher_priorities(
    tmp_path: Path, call: Call, how: str
) -> None:
    raised = (TenantSettings("alice", max_priority=60),) if how == "raised cap" else ()
    desk = Desk(tmp_path, users=() if how == "private" else ("*",), tenants=raised)
    call(desk.of(ROOT if how == "operator" else MEMBER))


@cases("call", TOO_HIGH.values())
def test_an_explicit_cap_holds_for_all_users_of_a_private_queue(tmp_path: Path, call: Call) -> None:
    desk = Desk(tmp_path, users=(), tenants=(TenantSettings("alice", max_priority=55),))
    with pytest.raises(GputuiError, match="at most priority 55"):
        call(desk.of(ROOT))


def test_the_head_of_the_queue_is_above_every_priority(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(GputuiError, match="the head of the queue is before priority 100, and tenant alice may have 50"):
        desk.of(MEMBER).act(Top((1,)))
    assert desk.store.get(1).topped_at is None
    desk.of(ROOT).act(Top((1,)))
    assert desk.store.get(1).topped_at is not None


@cases(
    "call",
    [
        lambda actions: actions.act(SetPriority((2,), -10, relative=True)),
        lambda actions: actions.act(SetPriority((2,), 80)),
        lambda actions: actions.act(EditJobs((2,), Edit(spec={"name": "other"}))),
        lambda actions: actions.act(Hold((2,))),
        lambda actions: actions.act(SetPriority((1,), 20)),
    ],
)
def test_a_job_above_its_cap_may_be_changed_and_lowered(tmp_path: Path, call: Call) -> None:
    call(Desk(tmp_path).of(MEMBER))


def test_caps_and_commands(tmp_path: Path) -> None:
    # only operators change the cap
    desk = Desk(tmp_path, tenants=(TenantSettings("alice", max_priority=40),))
    changes: dict[str, Any] = {"max_priority": 100}
    with pytest.raises(GputuiError, match="only operators may change tenants"):
        desk.of(MEMBER).act(SetTenant("alice", changes))
    with pytest.raises(GputuiError, match="only operators may change tenants"):
        desk.of(MEMBER).act(SetTenant("alice", {}, clear=True))
    desk.of(ROOT).act(SetTenant("alice", {"weight": 2.0}))
    desk.of(ROOT).act(SetTenant("alice", changes))
    [alice] = effective_policy(desk.policy, desk.store.controls()).tenants
    assert alice == TenantSettings("alice", 2.0, max_priority=100)
    desk.of(MEMBER).act(SetPriority((1,), 100))
    with pytest.raises(GputuiError, match="only operators may change tenants"):
        desk.of(MEMBER).act(RemoveTenant("alice"))
    # a cap that a command set is seen by a submit
    desk = Desk(tmp_path, users=())
    desk.of(ACTOR).act(SetTenant("alice", {"max_priority": 30}))
    with pytest.raises(GputuiError, match="at most priority 30, and 50 is more"):
        desk.of(ACTOR).act(SubmitJobs((Submission(spec()),)))


SUBMITS: dict[str, Call] = {
    "submit": lambda actions: actions.act(SubmitJobs((Submission(spec()),))),
    "dry run": lambda actions: actions.foresee(SubmitJobs((Submission(spec()),))),
    "cron": lambda actions: actions.act(AddRecurring(Recurrence("0 * * * *", "UTC"), Submission(spec()))),
}


@cases("call", SUBMITS.values())
def test_only_its_users_and_operators_submit_for_a_tenant_that_names_them(tmp_path: Path, call: Call) -> None:
    desk = Desk(tmp_path, tenants=(TenantSettings("alice", users=("61235", "@no-such-group")),))
    before = dict(desk.store.jobs())
    with pytest.raises(GputuiError, match="only 61235, @no-such-group and operators may submit for tenant alice"):
        call(desk.of(MEMBER))
    assert dict(desk.store.jobs()) == before
    call(desk.of(Actor(61_235, "named")))
    call(desk.of(ROOT))


def test_users_of_a_tenant(tmp_path: Path) -> None:
    # users that a command set are heeded and others may not change them
    desk = Desk(tmp_path)
    desk.of(ROOT).act(SetTenant("alice", {"users": ("root",)}))
    with pytest.raises(GputuiError, match="only root and operators"):
        desk.of(MEMBER).act(SubmitJobs((Submission(spec()),)))
    with pytest.raises(GputuiError, match="only operators may change tenants"):
        desk.of(MEMBER).act(SetTenant("alice", {"users": ()}))
    with pytest.raises(GputuiError, match="only operators may change tenants"):
        desk.of(MEMBER).act(SetTenant("mine", {"users": ("member",)}))
    # users of a tenant are ignored in a private queue
    desk = Desk(tmp_path, users=(), tenants=(TenantSettings("alice", users=("61235",)),))
    assert desk.of(MEMBER).act(SubmitJobs((Submission(spec()),))).ids


@cases(("actor", "kept"), [(MEMBER, False), (ROOT, True)])
def test_a_requeue_keeps_the_wait_where_an_operator_calls_it(tmp_path: Path, actor: Actor, kept: bool) -> None:
    desk = Desk(tmp_path)
    waits = (Waited(50, timedelta(hours=1)),)
    with desk.store.transaction() as transaction:
        transaction.put(replace(transaction.get(1), state=JobState.RUNNING, waited=waits))
    desk.of(actor).act(Requeue((1,)))
    assert desk.store.get(1).waited == (waits if kept else ())


def test_places_by_hand(tmp_path: Path) -> None:
    # moving by hand is for operators where there are others and within the cap elsewhere
    def places(priority: int) -> list[Placing]:
        return [Placing((1,), Placed(2, 2, -1.0, 0.0, "bob", None, priority, 0, None))]

    shared = Desk(tmp_path)
    for priority in (50, 80):
        with pytest.raises(GputuiError, match="only operators may move jobs in the queue"):
            shared.of(MEMBER).act(PlaceJobs(tuple(places(priority))))
    shared.of(ROOT).act(PlaceJobs(tuple(places(80))))
    moved = shared.store.get(1)
    assert (moved.priority, moved.placed) == (80, places(80)[0].placed)
    private = Desk(tmp_path, users=(), tenants=(TenantSettings("alice", max_priority=60),))
    private.of(ACTOR).act(PlaceJobs(tuple(places(60))))
    with pytest.raises(GputuiError, match="at most priority 60, and 80 is more"):
        private.of(ACTOR).act(PlaceJobs(tuple(places(80))))
    # a place is ended by other calls and by a start
    place = Placing((1,), Placed(2, 2, -1.0, 0.0, "bob", None, 50, 0, None))
    calls: list[tuple[Call, bool]] = [
        (lambda actions: actions.act(SetPriority((1,), -1, relative=True)), False),
        (lambda actions: actions.act(Top((1,))), False),
        (lambda actions: actions.act(EditJobs((1,), Edit(spec={"time_limit": timedelta(hours=1)}))), False),
        (lambda actions: actions.act(EditJobs((1,), Edit(gpus={"minimum": 2, "maximum": 2}))), False),
        (lambda actions: actions.act(EditJobs((1,), Edit(spec={"name": "other"}))), True),
        (lambda actions: actions.act(Hold((1,))), True),
    ]
    for call, is_kept in calls:
        desk = Desk(tmp_path, users=())
        actions = desk.of(ACTOR)
        actions.act(PlaceJobs((place,)))
        call(actions)
        assert (desk.store.get(1).placed is not None) is is_kept
    # running jobs are not moved
    desk = Desk(tmp_path, users=())
    with desk.store.transaction() as transaction:
        transaction.put(replace(transaction.get(1), state=JobState.RUNNING))
    with pytest.raises(GputuiError, match="only a waiting job has a place in the queue"):
        desk.of(ACTOR).act(PlaceJobs((Placing((2, 1), Placed(9, 9, -1.0, 0.0, "bob", None, 50, 0, None)),)))
    assert desk.store.get(2).placed is None
