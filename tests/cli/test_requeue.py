"""`gputui requeue` of an array runs again what failed, and nothing that completed unless it is asked to."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gputui.domain.errors import Cause, CauseCode
from gputui.domain.job import ArrayRef, Job
from gputui.domain.state import JobState
from tests.cli.conftest import KeptStore, Run, put
from tests.factories import NOW, job, running

COMPLETED, FAILED, TIMEOUT, CANCELLED = JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED


def element(index: int, state: JobState) -> Job:
    made = job() if state is JobState.PENDING else running()
    ended_at = NOW if state.is_terminal else None
    return made.evolve(array=ArrayRef(1, index), state=state, ended_at=ended_at)


def requested(store: KeptStore) -> list[int]:
    return [entry.id for entry in store.jobs().values() if entry.requeue_requested]


@pytest.fixture
def sweep(store: KeptStore) -> KeptStore:
    """Array 1 of twenty elements, of which the one with index 7 failed; job 21 failed too, and job 22 completed."""
    put(store, *(element(index, FAILED if index == 7 else COMPLETED) for index in range(20)))
    put(store, *(element(0, state).evolve(array=None) for state in (FAILED, COMPLETED)))
    return store


def test_what_is_named_is_run_again(run: Run, sweep: KeptStore) -> None:
    assert run("requeue", "1_[0-2]", "22").err == "requeued 4 jobs: 1_0 1_1 1_2 22\n"
    assert requested(sweep) == [1, 2, 3, 22]


def test_an_array_that_completed_as_a_whole_is_run_again(run: Run, store: KeptStore) -> None:
    put(store, element(0, COMPLETED), element(1, COMPLETED))
    assert run("requeue", "1").err == "requeued 2 jobs: 1_0 1_1\n"


def test_only_failed_ones(run: Run, store: KeptStore) -> None:
    states = (COMPLETED, FAILED, JobState.RUNNING, CANCELLED, TIMEOUT, JobState.OUT_OF_MEMORY, JobState.PENDING)
    put(store, *(element(index, state) for index, state in enumerate(states)))
    put(store, *(element(0, state).evolve(array=None) for state in (FAILED, COMPLETED)))
    assert run("requeue", "--failed", "1", "8-9").err == "requeued 4 jobs: 1_1 1_4 1_5 8\n"
    assert requested(store) == [2, 5, 6, 8]
    found = run("requeue", "--failed", "9", "1_0")
    assert (found.code, found.err) == (0, "nothing was changed: none of these jobs has failed\n")


def test_elements_in_the_history_belong_to_the_array(run: Run, sweep: KeptStore) -> None:
    sweep.maintain(NOW + timedelta(days=4000))
    assert not sweep.jobs()
    assert run("requeue", "--failed", "1").err == "requeued job 1_7\n"
    assert requested(sweep) == [8]


def test_completed_elements_are_left_alone_and_told_as_a_dry_run_says(run: Run, sweep: KeptStore) -> None:
    for options in ((), ("--failed",)):
        found = run("requeue", *options, "1", "--dry-run")
        assert found.code == 0
        assert found.out.splitlines()[0] == "would run again: job 1_7"
        assert requested(sweep) == []
        assert not list(sweep.audit_log("job 8"))
    found = run("requeue", "1")
    assert (found.code, found.out) == (0, "")
    done, left = found.err.splitlines()
    assert done == "requeued job 1_7"
    assert left.startswith("left alone, because they completed: 19 jobs: 1_0 1_1 1_2 1_3 1_4 1_5 1_6 1_8 ")
    assert requested(sweep) == [8]


def test_a_dry_run_names_no_job_that_waits_already(run: Run, store: KeptStore) -> None:
    put(store, job())
    assert run("requeue", "1", "--dry-run").out.splitlines()[0] == "nothing would be changed"


def cancelled(*after: int, code: CauseCode = CauseCode.DEPENDENCY_NEVER_MET) -> Job:
    return job(after=after).evolve(state=CANCELLED, ended_at=NOW, cause=Cause(code, "can never start"))


def test_jobs_that_were_cancelled_with_it_are_named(run: Run, store: KeptStore) -> None:
    put(store, element(0, FAILED).evolve(array=None), cancelled(1), cancelled(2), cancelled(9))
    put(store, cancelled(1, code=CauseCode.CANCELLED), job(after=(1,)))
    done, left = run("requeue", "1").err.splitlines()
    assert done == "requeued job 1"
    assert left == "cancelled when it failed, and still so: 2 jobs: 2 3 (gputui requeue 2 3)"
    assert run("requeue", "-q", "2", "3").err == ""
    assert requested(store) == [1, 2, 3]


def test_jobs_that_run_again_with_it_are_not_named(run: Run, store: KeptStore) -> None:
    put(store, element(0, FAILED).evolve(array=None), cancelled(1), cancelled(2))
    assert (
        run("requeue", "1", "2").err.splitlines()[1]
        == "cancelled when it failed, and still so: job 3 (gputui requeue 3)"
    )
