"""Rights of each role: each action, asked for by each role about his own things and about those of others."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from gputui.domain.access import Caller, Role
from gputui.domain.action import (
    Action,
    AddRecurring,
    Cancel,
    DrainGpus,
    Edit,
    EditJobs,
    Hold,
    Pause,
    PauseRecurring,
    PlaceJobs,
    Release,
    RemoveRecurring,
    RemoveTenant,
    Requeue,
    ReserveGpus,
    ResumeGpus,
    ResumeRecurring,
    SetPriority,
    SetStanding,
    SetTenant,
    Signal,
    Suspend,
    Top,
    Unpause,
    Unreserve,
    Unsuspend,
)
from gputui.domain.errors import AccessError
from gputui.domain.job import Placed, Placing
from gputui.domain.job_spec import JobSpec, Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import AccessSettings, AdmissionSettings, PolicySettings, Settings, TenantSettings, Window
from gputui.domain.snapshot import StandingRule
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.permissions import UserPermissions
from tests.cases import cases
from tests.engine.callers import actions_of
from tests.factories import NOW, FakeClock, gpu, job, recurring, running, spec, uuid
from tests.memory_store import MemoryJobStore

ROOT = Caller(0, 0, (), "root", Role.OPERATOR)
BOB = Caller(61_001, 61_001, (61_500,), "bob", Role.USER, via="notebook", key="k.1")
ALICE = Caller(61_002, 61_002, (), "alice", Role.USER)
VIEWER = Caller(61_003, 61_003, (), "eve", Role.VIEWER)
ACCOUNTS = {"root": 0, "bob": BOB.uid, "alice": ALICE.uid, "eve": VIEWER.uid}
GROUPS = {"@lab": 61_500}
WAITING, RUNNING, SUSPENDED, HELD, RECURRING = 1, 2, 3, 4, 5
PLACED = Placed(2, 2, 0.5, NOW.timestamp(), "bob", None, 50, 0, None)
WINDOW = Window("course", NOW + timedelta(days=1), NOW + timedelta(days=2), count=1)


def account(name: str) -> tuple[int | None, bool]:
    return int(name) if name.isdigit() else {**ACCOUNTS, **GROUPS}.get(name), name.startswith("@")


class Desk:
    """A queue in which bob has jobs in several states and a recurring one, with the actions of several callers."""

    def __init__(self, directory: Path, *tenants: TenantSettings, max_time: timedelta | None = None) -> None:
        directory.chmod(0o700)
        policy = PolicySettings(tenants=tenants)
        settings = Settings(policy=policy, access=AccessSettings(users=("*",)))
        settings = replace(settings, scheduler=replace(settings.scheduler, max_time=max_time))
        self.permissions = UserPermissions(directory, settings)
        self.store, self.clock = MemoryJobStore(), FakeClock()
        mine: dict[str, Any] = {"tenant": "bob", "submitted_by": "bob", "submitted_uid": BOB.uid}
        jobs = [
            job(**mine),
            running(**mine),
            running(suspended=True, suspended_by="bob", **mine),
            job(held=True, held_by="bob", **mine),
        ]
        self.store.submit(jobs, actor=BOB.actor)
        with self.store.transaction() as transaction:
            transaction.add_recurring(recurring(uid=BOB.uid, added_by="bob"))

    def of(self, caller: Caller) -> Actions:
        return actions_of(caller, self.store, self.permissions, clock=self.clock, resolve=account)


ON_BOBS: Mapping[type[Action], Action] = {
    Hold: Hold((WAITING,)),
    Release: Release((HELD,)),
    Cancel: Cancel((WAITING, RUNNING)),
    Requeue: Requeue((RUNNING,)),
    Signal: Signal((RUNNING,), signal.SIGUSR1),
    Suspend: Suspend((RUNNING,)),
    Unsuspend: Unsuspend((SUSPENDED,)),
    SetPriority: SetPriority((WAITING,), 20),
    Top: Top((WAITING,)),
    EditJobs: EditJobs((WAITING,), Edit(spec={"name": "other"})),
    PauseRecurring: PauseRecurring((RECURRING,)),
    ResumeRecurring: ResumeRecurring((RECURRING,)),
    RemoveRecurring: RemoveRecurring((RECURRING,)),
}
"""Actions on what is bob's."""
OF_USERS: Mapping[type[Action], Action] = {
    SubmitJobs: SubmitJobs((Submission(spec(tenant="")),)),
    AddRecurring: AddRecurring(Recurrence("0 * * * *", "UTC"), Submission(spec(tenant=""))),
}
"""Actions that each user may ask for."""
OF_OPERATORS: Mapping[type[Action], Action] = {
    PlaceJobs: PlaceJobs((Placing((WAITING,), PLACED),)),
    DrainGpus: DrainGpus((uuid(0),)),
    ResumeGpus: ResumeGpus((uuid(0),)),
    Pause: Pause("work"),
    Unpause: Unpause(),
    ReserveGpus: ReserveGpus(WINDOW, (gpu(0),)),
    Unreserve: Unreserve("course"),
    SetStanding: SetStanding(StandingRule(80)),
    SetTenant: SetTenant("bob", {"weight": 9.0}),
    RemoveTenant: RemoveTenant("bob"),
}
EVERY = {**ON_BOBS, **OF_USERS, **OF_OPERATORS}


def state(store: MemoryJobStore) -> object:
    return dict(store.jobs()), dict(store.recurring()), store.controls(), [*store.audit_log()]


def named(action: Action) -> str:
    return type(action).__name__


def both(actions: Actions) -> tuple[Callable[[Action], object], ...]:
    return actions.act, actions.foresee


def test_each_action_has_its_row() -> None:
    def kinds(union: Any) -> set[type]:
        return {kind for each in get_args(union) for kind in (kinds(each) or {each})}

    assert EVERY.keys() == kinds(Action)


@cases("action", EVERY.values())
def test_a_viewer_changes_nothing(tmp_path: Path, action: Action) -> None:
    desk = Desk(tmp_path)
    before = state(desk.store)
    for ask in both(desk.of(VIEWER)):
        with pytest.raises(AccessError, match="eve may look at this queue, not use it") as caught:
            ask(action)
        assert caught.value.rule == "role"
        assert "access.users" in (caught.value.hint or "")
    assert state(desk.store) == before


@cases("action", [*ON_BOBS.values(), *OF_OPERATORS.values()])
def test_a_user_changes_nothing_of_others_and_of_the_machine(tmp_path: Path, action: Action) -> None:
    desk = Desk(tmp_path)
    before = state(desk.store)
    with pytest.raises(AccessError, match=r"only .*operators may") as caught:
        desk.of(ALICE).act(action)
    is_job = hasattr(action, "ids") and type(action) in ON_BOBS
    is_recurring = type(action) in {PauseRecurring, ResumeRecurring, RemoveRecurring}
    kind = "own-recurring" if is_recurring else "own-jobs"
    assert caught.value.rule == kind if is_job else caught.value.rule.startswith("operators-")
    assert state(desk.store) == before


@cases("action", [each for each in ON_BOBS.values() if "Recurring" not in named(each)])
def test_a_user_is_shown_nothing_of_what_an_action_would_make_of_others_jobs(tmp_path: Path, action: Action) -> None:
    with pytest.raises(AccessError):
        Desk(tmp_path).of(ALICE).foresee(action)


@cases("action", [each for kind, each in {**ON_BOBS, **OF_USERS}.items() if kind is not Top])
@cases("caller", [BOB, ROOT])
def test_submitters_and_operators_act_on_a_job(tmp_path: Path, action: Action, caller: Caller) -> None:
    desk = Desk(tmp_path)
    before = state(desk.store)
    desk.of(caller).act(action)
    assert state(desk.store) != before or isinstance(action, ResumeRecurring)


@cases("action", [Top((WAITING,)), *OF_OPERATORS.values()])
def test_operators_may_do_the_rest(tmp_path: Path, action: Action) -> None:
    desk = Desk(tmp_path)
    for prepared in (DrainGpus((uuid(0),)), ReserveGpus(WINDOW, (gpu(0),)), SetTenant("bob", {"weight": 2.0})):
        if type(action) is not type(prepared):
            desk.of(ROOT).act(prepared)
    desk.of(ROOT).act(action)


def test_whose_a_job_is(tmp_path: Path) -> None:
    # a job without a known submitter is nobodys but the operators
    desk = Desk(tmp_path)
    [old] = desk.store.submit([job(submitted_by="alice")], actor=ALICE.actor)
    with pytest.raises(AccessError, match="only alice, who submitted it, and operators may cancel it"):
        desk.of(ALICE).act(Cancel((old,)))
    desk.of(ROOT).act(Cancel((old,)))
    # of several jobs none is changed if one is anothers
    desk = Desk(tmp_path)
    [own] = desk.of(ALICE).act(SubmitJobs((Submission(spec()),))).ids
    with pytest.raises(AccessError):
        desk.of(ALICE).act(Cancel((own, WAITING)))
    assert not desk.store.get(own).cancel_requested
    # new jobs have their submitter and the key of the request
    desk = Desk(tmp_path)
    ids = desk.of(BOB).act(SubmitJobs((Submission(spec(tenant="")), Submission(spec(tenant=""), array=(1, 2))))).ids
    for job_id in ids:
        found = desk.store.get(job_id)
        assert (found.submitted_uid, found.submitted_by, found.spec.tenant, found.key) == (BOB.uid, "bob", "bob", "k.1")
    # the audit log has who asked through what and with which key
    desk = Desk(tmp_path)
    [new] = desk.of(BOB).act(SubmitJobs((Submission(spec(tenant="")),))).ids
    desk.of(BOB).act(Hold((new,)))
    desk.of(ROOT).act(Pause())
    told = [(each.verb, each.uid, each.user, each.via, each.key) for each in [*desk.store.audit_log()][-3:]]
    expected = (BOB.uid, "bob", "notebook", "k.1")
    assert told == [("submit", *expected), ("hold", *expected), ("pause", 0, "root", "", "")]
    # runs of a recurring job are its users
    desk = Desk(tmp_path)
    desk.of(BOB).act(OF_USERS[AddRecurring])
    added = [*desk.store.recurring().values()][-1]
    assert (added.uid, added.added_by, added.submission.spec.tenant) == (BOB.uid, "bob", "bob")


@cases("action", [Release((WAITING,)), EditJobs((WAITING,), Edit(held=False))])
def test_what_an_operator_holds_only_operators_release(tmp_path: Path, action: Action) -> None:
    desk = Desk(tmp_path)
    desk.of(ROOT).act(Hold((WAITING,)))
    with pytest.raises(AccessError, match="root holds job 1: only operators may release it") as caught:
        desk.of(BOB).act(action)
    assert caught.value.rule == "operators-hold"
    desk.of(ROOT).act(action)
    assert not desk.store.get(WAITING).held


def test_what_an_operator_has_suspended_only_operators_continue(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.of(ROOT).act(Suspend((RUNNING,)))
    with pytest.raises(AccessError, match="root has suspended job 2"):
        desk.of(BOB).act(Unsuspend((RUNNING,)))
    desk.of(ROOT).act(Unsuspend((RUNNING,)))


def test_ceilings_of_priorities(tmp_path: Path) -> None:
    # users lower priorities and raise them to their tenants ceiling
    desk = Desk(tmp_path, TenantSettings("bob", max_priority=60))
    for value in (10, 60, 30):
        desk.of(BOB).act(SetPriority((WAITING,), value))
        assert desk.store.get(WAITING).priority == value
    with pytest.raises(AccessError, match="at most priority 60, and 61 is more") as caught:
        desk.of(BOB).act(SetPriority((WAITING,), 61))
    assert caught.value.rule == "priority-ceiling"
    with pytest.raises(AccessError, match="before priority 100"):
        desk.of(BOB).act(Top((WAITING,)))
    desk.of(ROOT).act(SetPriority((WAITING,), 100))
    # without a ceiling users have up to 50
    desk = Desk(tmp_path)
    for action in (
        SubmitJobs((Submission(spec(tenant="", priority=51)),)),
        AddRecurring(Recurrence("0 * * * *", "UTC"), Submission(spec(tenant="", priority=51))),
        SetPriority((WAITING,), 1, relative=True),
        EditJobs((WAITING,), Edit(spec={"priority": 51})),
    ):
        with pytest.raises(AccessError, match="at most priority 50"):
            desk.of(BOB).act(action)


@cases(
    ("tenant", "tenants", "may"),
    [
        ("bob", (), True),
        ("alice", (), False),
        ("alice", (TenantSettings("alice", max_priority=90),), False),
        ("course", (), False),
        ("course", (TenantSettings("course"),), True),
        ("course", (TenantSettings("course", users=("bob",)),), True),
        ("course", (TenantSettings("course", users=(str(BOB.uid),)),), True),
        ("course", (TenantSettings("course", users=("@lab",)),), True),
        ("course", (TenantSettings("course", users=("alice", "@nobodys", "nobody")),), False),
        ("bob", (TenantSettings("bob", users=("alice",)),), False),
    ],
)
def test_users_submit_for_their_own_tenants(
    tmp_path: Path, tenant: str, tenants: tuple[TenantSettings, ...], may: bool
) -> None:
    desk = Desk(tmp_path, *tenants)
    action = SubmitJobs((Submission(spec(tenant=tenant)),))
    desk.of(ROOT).act(action)
    if may:
        desk.of(BOB).act(action)
        return
    for ask in both(desk.of(BOB)):
        with pytest.raises(AccessError, match=f"may submit for tenant {tenant}") as caught:
            ask(action)
        assert caught.value.rule == "tenant-users"


def test_what_only_operators_give(tmp_path: Path) -> None:
    # tenants that operators made by command count too
    desk = Desk(tmp_path)
    asked = SubmitJobs((Submission(spec(tenant="course")),))
    with pytest.raises(AccessError):
        desk.of(BOB).act(asked)
    desk.of(ROOT).act(SetTenant("course", {"weight": 2.0}))
    desk.of(BOB).act(asked)
    # only operators give a running job more than the longest time
    hour = timedelta(hours=1)
    desk = Desk(tmp_path, max_time=hour)
    longer = EditJobs((RUNNING,), Edit(spec={"time_limit": 2 * hour}))
    desk.of(BOB).act(EditJobs((RUNNING,), Edit(spec={"time_limit": hour / 2})))
    with pytest.raises(AccessError, match="longer than a job may run here") as caught:
        desk.of(BOB).act(longer)
    assert caught.value.rule == "longest-time"
    desk.of(ROOT).act(longer)


def test_undo_and_rights(tmp_path: Path) -> None:
    # users undo what they may do
    desk = Desk(tmp_path)
    held = desk.of(BOB).act(Hold((WAITING,))).changes
    with pytest.raises(AccessError, match="may undo a change of it"):
        desk.of(ALICE).undo(held)
    assert [why for _, why in desk.of(BOB).undo(held)] == [""]
    paused = desk.of(ROOT).act(Pause()).changes
    with pytest.raises(AccessError, match="only operators may undo this"):
        desk.of(BOB).undo(paused)
    assert desk.store.controls().paused
    # undoing raises a job no higher than its user may
    desk = Desk(tmp_path)
    desk.of(ROOT).act(SetPriority((WAITING,), 90))
    lowered = desk.of(BOB).act(SetPriority((WAITING,), 10)).changes
    with pytest.raises(AccessError, match="at most priority 50, and 90 is more"):
        desk.of(BOB).undo(lowered)
    assert desk.store.get(WAITING).priority == 10


def test_requeued_jobs_and_the_queues_own_writer(tmp_path: Path) -> None:
    # requeued jobs of users keep no waits
    desk = Desk(tmp_path)
    desk.of(BOB).act(SetPriority((WAITING,), 20))
    desk.of(BOB).act(Requeue((RUNNING,)))
    assert desk.store.get(RUNNING).requeue_requested
    assert desk.store.get(RUNNING).waited == ()
    # a process that writes the queue itself records its uid
    desk = Desk(tmp_path)
    made = Actions(desk.store, desk.clock, BOB.actor).act(SubmitJobs((Submission(JobSpec(image="busybox")),)))
    assert desk.store.get(made.ids[0]).submitted_uid == BOB.uid


def test_how_many_jobs_a_user_may_have(tmp_path: Path) -> None:
    # a user has so many jobs waiting and arrays count as one
    desk = Desk(tmp_path)
    site = replace(desk.permissions.settings, admission=AdmissionSettings(waiting=4))
    desk.permissions = UserPermissions(tmp_path, site)
    one, array = Submission(spec(tenant="")), Submission(spec(tenant=""), array=tuple(range(1000)))
    for ask in both(desk.of(ALICE)):
        with pytest.raises(AccessError, match="alice may have 4 jobs waiting: 5 more are too many") as caught:
            ask(SubmitJobs((one,) * 5))
        assert caught.value.rule == "admission-waiting"
    desk.of(BOB).act(SubmitJobs((one, array)))
    for ask in both(desk.of(BOB)):
        with pytest.raises(AccessError, match="bob may have 4 jobs waiting, and has 4: 1 more"):
            ask(SubmitJobs((one,)))
    desk.of(ALICE).act(SubmitJobs((one,) * 4))
    desk.of(ROOT).act(SubmitJobs((one,) * 5))
    # a user has so many recurring jobs
    desk = Desk(tmp_path)
    desk.permissions = UserPermissions(
        tmp_path, replace(desk.permissions.settings, admission=AdmissionSettings(recurring=1))
    )
    desk.of(ALICE).act(OF_USERS[AddRecurring])
    for caller in (ALICE, BOB):
        with pytest.raises(AccessError, match=f"{caller.user} has 1 recurring job, the most") as caught:
            desk.of(caller).act(OF_USERS[AddRecurring])
        assert caught.value.rule == "admission-recurring"
    desk.of(ROOT).act(OF_USERS[AddRecurring])
