"""Proof of a job's submitter, through all changes of the job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.action import AddRecurring, Edit, EditJobs
from gputui.domain.audit import Actor
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job_spec import JobSpec, Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import Settings, StoreSettings
from gputui.domain.snapshot import Leader
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.permissions import UserPermissions
from gputui.engine.files.leadership import LOCK_FILE, Leadership
from gputui.store import TinyJobStore
from tests.factories import NOW, FakeClock

SPEC = JobSpec(image="busybox", command=("true",))
ME = Actor(os.geteuid(), "me")
OTHER = Actor(os.geteuid() + 1, "other")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TinyJobStore]:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o2770)
    store = TinyJobStore(state)
    yield store
    store.close()


def actions(store: TinyJobStore, actor: Actor = ME) -> Actions:
    return Actions(store, FakeClock(NOW), actor)


def test_elements_of_an_array_share_a_proof(store: TinyJobStore) -> None:
    ids = actions(store).act(SubmitJobs((Submission(SPEC, array=(0, 1, 2)), Submission(replace(SPEC, nice=1))))).ids
    assert {store.run_as(store.get(each).spec).uid for each in ids} == {ME.uid}
    assert len({store.get(each).spec.warrant for each in ids}) == 2


def test_runs_of_a_recurring_job_have_the_proof_of_its_creator(store: TinyJobStore) -> None:
    added = actions(store).act(AddRecurring(Recurrence("* * * * *", "UTC"), Submission(SPEC))).ids[0]
    entry = store.recurring()[added]
    [one] = actions(store, Actor(entry.uid, entry.added_by)).submit_run(added, entry.submission)
    assert store.run_as(store.get(one).spec).uid == ME.uid


def test_an_edit_by_another_user_changes_times_but_not_commands(store: TinyJobStore) -> None:
    [one] = actions(store).act(SubmitJobs((Submission(SPEC, held=True),))).ids
    before = store.get(one).spec.warrant
    other = actions(store, OTHER)
    with pytest.raises(GputuiError, match="only its submitter"):
        other.act(EditJobs((one,), Edit({"command": ("false",)})))
    other.act(EditJobs((one,), Edit({"nice": 5})))
    assert store.get(one).spec.warrant == before
    actions(store).act(EditJobs((one,), Edit({"command": ("false",)})))
    assert store.get(one).spec.warrant != before
    assert store.run_as(store.get(one).spec).uid == ME.uid


@pytest.mark.parametrize(
    ("leader", "submitter", "is_refused"),
    [(54321, 54321, False), (54321, 54322, True), (0, 54322, False), (None, 54322, False)],
)
@pytest.mark.parametrize("image", [None, "busybox"])
def test_a_host_job_is_refused_while_neither_root_nor_its_submitter_schedules(
    store: TinyJobStore, tmp_path: Path, leader: int | None, submitter: int, is_refused: bool, image: str | None
) -> None:
    state = tmp_path / "state"
    permissions = UserPermissions(state, Settings(store=StoreSettings(group="any")))
    spec = replace(SPEC, image=image)
    permissions.check_leader(spec, submitter)  # nobody leads
    actions = Actions(store, FakeClock(NOW), Actor(submitter, "her"), permissions=permissions)
    leads = Leadership(state)
    assert leads.acquire(Leader(os.getpid(), "host", "alice", "console", NOW, uid=leader))
    try:
        if is_refused and image is None:
            with pytest.raises(InputError, match="alice schedules here: only a scheduler that runs as root"):
                actions.act(SubmitJobs((Submission(spec),)))
            with pytest.raises(InputError, match="alice schedules here: only a scheduler that runs as root"):
                actions.act(AddRecurring(Recurrence("0 0 * * *", "UTC"), Submission(spec)))
            assert not store.jobs()
            assert not store.recurring()
        else:
            permissions.check_leader(spec, submitter)
    finally:
        leads.release()
        (state / LOCK_FILE).unlink()
