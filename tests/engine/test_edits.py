"""Edits of waiting jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.domain.action import Cancel, Edit, EditJobs, Hold, SetPriority, Top
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec, Submission
from gputui.domain.settings import SchedulerSettings
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from tests.cases import cases
from tests.factories import ACTOR, NOW, FakeClock, spec
from tests.memory_store import MemoryJobStore

SPEC = spec(2, options=ContainerOptions(env=(("TOKEN", "hunter2"), ("A", "1"))))


class Desk:
    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self.store = MemoryJobStore()
        self.actions = Actions(self.store, FakeClock(), ACTOR, settings or SchedulerSettings())

    def submit(self, wanted: JobSpec = SPEC) -> int:
        return self.actions.act(SubmitJobs((Submission(wanted),))).ids[0]


def to(**changes: object) -> Edit:
    return Edit.between(SPEC, replace(SPEC, **changes))


def test_what_an_edit_changes_and_keeps() -> None:
    # only edited fields change and place and age stay
    desk = Desk()
    job_id = desk.submit()
    before = desk.store.get(job_id)
    desk.actions.act(Top((job_id,)))
    topped = desk.store.get(job_id)
    assert desk.actions.act(EditJobs((job_id,), to(time_limit=timedelta(hours=2), gpus=GpuRequest(4, 4)))).ids
    after = desk.store.get(job_id)
    assert after.spec == replace(SPEC, time_limit=timedelta(hours=2), gpus=GpuRequest(4, 4))
    assert (after.submitted_at, after.topped_at) == (before.submitted_at, topped.topped_at)
    # concurrent changes of others are kept
    desk = Desk()
    job_id = desk.submit()
    desk.actions.act(EditJobs((job_id,), to(name="renamed")))
    desk.actions.act(EditJobs((job_id,), to(gpus=GpuRequest(2, 2, memory=10))))
    assert desk.store.get(job_id).spec == replace(SPEC, name="renamed", gpus=GpuRequest(2, 2, memory=10))
    # an edited priority is that of the job
    desk = Desk()
    job_id = desk.submit()
    desk.actions.act(EditJobs((job_id,), to(priority=80)))
    assert desk.store.get(job_id).priority == 80
    # an edit never changes the tenant
    assert not to(tenant="mallory")


@cases("state", [JobState.CONFIGURING, JobState.RUNNING, JobState.COMPLETED])
def test_a_job_that_no_longer_waits_is_not_edited(state: JobState) -> None:
    desk = Desk()
    job_id = desk.submit()
    with desk.store.transaction() as transaction:
        transaction.put(transaction.get(job_id).evolve(state=state))
    with pytest.raises(GputuiError, match=f"is {state}: (only its time limit and|it can no longer be edited)"):
        desk.actions.act(EditJobs((job_id,), to(name="late")))
    assert desk.store.get(job_id).spec == SPEC


def test_which_edits_are_refused() -> None:
    # a job that is being cancelled is not edited
    desk = Desk()
    job_id = desk.submit()
    desk.actions.act(Cancel((job_id,)))
    with pytest.raises(GputuiError, match="being cancelled"):
        desk.actions.act(EditJobs((job_id,), to(name="late")))
    # a job cannot depend on itself or on a missing job
    first = desk.submit()
    second = desk.submit(replace(SPEC, after=(first,)))
    third = desk.submit(replace(SPEC, after_any=(second,)))
    for other in (first, second, third):
        with pytest.raises(InputError, match="wait for itself"):
            desk.actions.act(EditJobs((first,), to(after=(other,))))
    with pytest.raises(NotFoundError):
        desk.actions.act(EditJobs((first,), to(after=(99,))))
    assert desk.actions.act(EditJobs((third,), to(after=(first,)))).ids


def test_how_an_edit_is_recorded_and_undone() -> None:
    # an edit is audited with old and new values but without secrets
    desk = Desk()
    job_id = desk.submit()
    options = replace(SPEC.options, env=(("TOKEN", "hunter3"),))
    desk.actions.act(EditJobs((job_id,), to(retries=3, options=options)))
    entry = [entry for entry in desk.store.audit_log() if entry.verb == "edit"][-1]
    assert (entry.user, entry.target) == ("alice", f"job {job_id}")
    assert (entry.before, entry.after) == ("retries 0, env TOKEN A", "retries 3, env TOKEN")
    # an edit without effect is not written
    desk = Desk()
    job_id = desk.submit()
    assert not desk.actions.act(EditJobs((job_id,), Edit())).ids
    assert not [entry for entry in desk.store.audit_log() if entry.verb == "edit"]
    # an edit can be undone
    desk = Desk()
    job_id = desk.submit()
    desk.actions.undo(desk.actions.act(EditJobs((job_id,), to(name="oops"))).changes)
    assert desk.store.get(job_id).spec.name == SPEC.name


def test_an_edit_obeys_the_maximum_time_of_the_site() -> None:
    desk = Desk(SchedulerSettings(max_time=timedelta(hours=1)))
    job_id = desk.submit()
    with pytest.raises(InputError, match="longer than a job may run"):
        desk.actions.act(EditJobs((job_id,), to(time_limit=timedelta(hours=2))))


def test_a_job_changed_since_it_was_read_is_not_edited() -> None:
    desk = Desk()
    job_id = desk.submit()
    seen = desk.store.get(job_id)
    assert desk.actions.act(EditJobs((job_id,), to(name="renamed"), seen)).ids
    changes: list[Callable[[], object]] = [
        lambda: desk.actions.act(EditJobs((job_id,), to(retries=1))),
        lambda: desk.actions.act(SetPriority((job_id,), 90)),
        lambda: desk.actions.act(Hold((job_id,))),
        lambda: desk.actions.act(Top((job_id,))),
    ]
    for change in changes:
        seen = desk.store.get(job_id)
        change()
        now = desk.store.get(job_id)
        with pytest.raises(GputuiError, match="changed meanwhile: nothing is edited"):
            desk.actions.act(EditJobs((job_id,), to(time_limit=timedelta(hours=1)), seen))
        assert desk.store.get(job_id) == now


def test_an_edit_can_hold_and_release() -> None:
    desk = Desk()
    job_id = desk.submit()
    assert desk.actions.act(EditJobs((job_id,), Edit(held=True))).ids
    assert desk.store.get(job_id).held
    assert not desk.actions.act(EditJobs((job_id,), Edit(held=True))).ids
    assert desk.actions.act(EditJobs((job_id,), replace(to(name="go"), held=False))).ids
    after = desk.store.get(job_id)
    assert (after.held, after.spec.name, after.released_at) == (False, "go", NOW)
    entry = [entry for entry in desk.store.audit_log() if entry.verb == "edit"][-1]
    assert (entry.before, entry.after) == ("name train, held True", "name go, held False")


def test_a_rehearsed_edit_is_refused_like_a_real_one_and_writes_nothing() -> None:
    desk = Desk(SchedulerSettings(max_time=timedelta(hours=1)))
    job_id = desk.submit()
    before = desk.store.get(job_id)
    after = desk.actions.foresee(EditJobs((job_id,), to(priority=80, time_limit=timedelta(minutes=5)))).jobs[0]
    assert (after.priority, after.spec.time_limit) == (80, timedelta(minutes=5))
    for wrong in (to(time_limit=timedelta(hours=2)), to(after=(99,)), to(after=(job_id,))):
        with pytest.raises(GputuiError):
            desk.actions.foresee(EditJobs((job_id,), wrong))
    assert desk.store.get(job_id) == before
