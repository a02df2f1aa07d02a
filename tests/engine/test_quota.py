"""A tenant's cap on waiting jobs: judged at submit, in the transaction of the submit, and never again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.action import Release
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.job import ArrayRef
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import PolicySettings, SchedulerSettings, TenantSettings
from gputui.domain.snapshot import Controls
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from gputui.ports import JobStore
from gputui.store import TinyJobStore
from tests.factories import ACTOR, FakeClock, spec
from tests.memory_store import MemoryJobStore


@pytest.fixture(params=["tinydb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobStore]:
    made: JobStore = TinyJobStore(tmp_path / "state") if request.param == "tinydb" else MemoryJobStore()
    yield made
    made.close()


def cap(store: JobStore, **pending: int | None) -> None:
    """Set a cap as `gputui tenant set` does."""
    with store.transaction() as transaction:
        tenants = tuple(TenantSettings(name, pending=most) for name, most in pending.items())
        transaction.set_controls(Controls(tenants=tenants))


def submit(store: JobStore, *submissions: Submission, file: Sequence[TenantSettings] = ()) -> tuple[JobId, ...]:
    policy = PolicySettings(tenants=tuple(file))
    return Actions(store, FakeClock(), ACTOR, SchedulerSettings(), policy).act(SubmitJobs(tuple(submissions))).ids


ONE = Submission(spec())
BOBS = Submission(spec(tenant="bob"))


def test_a_submission_beyond_the_cap_is_refused_with_numbers(store: JobStore) -> None:
    cap(store, alice=3)
    assert submit(store, ONE, ONE) == (1, 2)
    with pytest.raises(GputuiError, match="tenant alice has 2 jobs waiting and may have 3: 2 more are too many") as it:
        submit(store, ONE, ONE)
    assert it.value.exit_code == 1
    assert list(store.jobs()) == [1, 2]
    assert submit(store, ONE) == (3,)
    with pytest.raises(GputuiError, match="3 jobs waiting and may have 3: 1 more is too many"):
        submit(store, ONE)


def test_elements_of_an_array_count_all_or_none(store: JobStore) -> None:
    cap(store, alice=3)
    with pytest.raises(GputuiError, match="has 0 jobs waiting and may have 3: 4 more are too many"):
        submit(store, replace(ONE, array=(0, 1, 2, 3)))
    with pytest.raises(GputuiError):
        submit(store, BOBS, replace(ONE, array=(0, 1)), replace(ONE, array=(0, 1)))
    assert not store.jobs()
    assert not list(store.audit_log())
    assert submit(store, BOBS, replace(ONE, array=(0, 1, 2))) == (1, 2, 3, 4)


def test_a_cap_does_not_affect_other_tenants(store: JobStore) -> None:
    cap(store, alice=0)
    assert submit(store, BOBS, BOBS) == (1, 2)
    with pytest.raises(GputuiError, match="tenant alice has 0 jobs waiting and may have 0"):
        submit(store, BOBS, ONE)


def test_only_waiting_jobs_count(store: JobStore) -> None:
    cap(store, alice=1)
    [first] = submit(store, ONE)
    for state in (JobState.RUNNING, JobState.COMPLETED):
        with store.transaction() as transaction:
            transaction.put(transaction.get(first).evolve(state=state))
        [first] = submit(store, ONE)
    with store.transaction() as transaction:
        transaction.put(transaction.get(first).evolve(held=True))
    with pytest.raises(GputuiError):
        submit(store, ONE)


def test_a_job_once_admitted_returns_without_a_check(store: JobStore) -> None:
    cap(store, alice=1)
    [first] = submit(store, ONE)
    with store.transaction() as transaction:
        transaction.put(transaction.get(first).evolve(state=JobState.RUNNING))
    submit(store, ONE)
    with store.transaction() as transaction:
        transaction.put(transaction.get(first).evolve(state=JobState.PENDING))
    assert Actions(store, FakeClock(), ACTOR).act(Release((1, 2))).ids == (1, 2)
    with pytest.raises(GputuiError, match="has 2 jobs waiting and may have 1"):
        submit(store, ONE)


def test_a_cap_of_the_file_holds_unless_a_command_set_the_tenant(store: JobStore) -> None:
    file = [TenantSettings("alice", pending=1)]
    submit(store, ONE, file=file)
    with pytest.raises(GputuiError, match="may have 1"):
        submit(store, ONE, file=file)
    cap(store, alice=2)
    submit(store, ONE, file=file)
    cap(store, alice=None)
    assert submit(store, ONE, ONE, file=file) == (3, 4)


def test_two_concurrent_submissions_do_not_both_get_the_last_place(store: JobStore) -> None:
    cap(store, alice=1)
    barrier, refused = threading.Barrier(8), []

    def race() -> None:
        barrier.wait(60)
        try:
            submit(store, ONE)
        except GputuiError as error:
            refused.append(error)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(refused), len(store.jobs())) == (7, 1)


def test_a_rehearsal_is_refused_like_the_submit_and_writes_nothing(store: JobStore) -> None:
    cap(store, alice=3)
    actions = Actions(store, FakeClock(), ACTOR)
    assert actions.act(SubmitJobs((ONE,))).ids == (1,)
    [both] = actions.foresee(SubmitJobs((Submission(spec(), array=(4, 5), array_limit=1, held=True),))).jobs
    found = [both.element(job_id) for job_id in both.ids]
    assert [(job.id, job.held, job.array) for job in found] == [
        (2, True, ArrayRef(2, 4, 1)),
        (3, True, ArrayRef(2, 5, 1)),
    ]
    with pytest.raises(GputuiError, match="tenant alice has 1 job waiting and may have 3: 3 more are too many"):
        actions.foresee(SubmitJobs((ONE,) * 3))
    with pytest.raises(NotFoundError):
        actions.foresee(SubmitJobs((Submission(spec(after=(99,))),)))
    assert list(store.jobs()) == [1]
