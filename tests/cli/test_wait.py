"""`gputui wait`: returns when jobs have ended, with their exit code."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import cast

import pytest

from gputui import bootstrap
from gputui.cli import wait
from gputui.domain.errors import cause_of_exit
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from gputui.ports.backend import DirectBackend
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, local, put
from tests.factories import NOW, job, running


@pytest.fixture(autouse=True)
def is_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "is_scheduled", lambda options: True)


def ended(job_id: int, code: int | None = 0, state: JobState | None = None) -> Job:
    state = state or (JobState.FAILED if code else JobState.COMPLETED)
    return job(job_id).evolve(
        state=state, exit_code=code, ended_at=NOW, started_at=NOW, cause=cause_of_exit(code) if code else None
    )


def end(store: KeptStore, job_id: JobId, code: int) -> None:
    with store.transaction() as transaction:
        transaction.put(ended(job_id, code))


class Ends:
    """Ends jobs one after the other, each as soon as the command waits again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], None]) -> None:
        self.steps = list(steps)
        monkeypatch.setattr(wait.Changes, "wait", self.wait)

    def wait(self, deadline: float | None = None, *others: int) -> bool:
        assert self.steps, "it waits though nothing is to come"
        self.steps.pop(0)()
        return True


@cases(
    ("which", "code"),
    [
        (ended(1), 0),
        (ended(1, 3), 3),
        (ended(1, 137), 137),
        (ended(1, None, JobState.CANCELLED), 1),
        (ended(1, 0, JobState.TIMEOUT), 1),
        (ended(1, 143, JobState.TIMEOUT), 143),
    ],
)
def test_the_exit_code_is_that_of_the_job(run: Run, store: KeptStore, which: Job, code: int) -> None:
    store.clear()
    put(store, which)
    result = run("wait", "1")
    assert result.code == code
    assert result.out.startswith("Job 1 train (alice) ")
    assert result.out.count("exit code") == (which.exit_code in {3, 137, 143})


def test_wait_returns_the_highest_code_of_all_jobs(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, running(1), running(2), job(3))
    waits = Ends(monkeypatch, lambda: end(store, 2, 7), lambda: end(store, 1, 0), lambda: end(store, 3, 2))
    result = run("wait", "1-3")
    assert (result.code, [line.split()[1] for line in result.out.splitlines()]) == (7, ["2", "1", "3"])
    assert not waits.steps


def test_any_returns_when_the_first_job_ends(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, running(1), running(2))
    Ends(monkeypatch, lambda: end(store, 2, 5))
    assert run("wait", "--any", "-q", "1", "2").code == 5


def test_a_job_that_runs_again_has_not_ended(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, ended(1, 1).evolve(requeue_requested=True))
    Ends(monkeypatch, lambda: end(store, 1, 0))
    assert run("wait", "1").code == 0


def test_wait_for_an_array_waits_for_all_elements(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run("submit", "--array", "0-3", "--name", "train", "busybox")

    def cancel(first: int, count: int) -> None:
        with store.transaction() as transaction:
            for each in list(transaction.chosen(range(first, first + count))):
                transaction.put(each.evolve(state=JobState.CANCELLED, ended_at=NOW))

    Ends(monkeypatch, lambda: cancel(2, 2), lambda: cancel(1, 1), lambda: cancel(4, 1))
    result = run("wait", "1")
    assert result.code == 1
    assert "2 elements of array 1 train (alice) were cancelled" in result.out
    assert "Job 1_0 train (alice) was cancelled" in result.out


def test_a_timeout_ends_the_wait(run: Run, store: KeptStore) -> None:
    put(store, running(1), ended(2))
    result = run("wait", "1,2", "--timeout", "0.05s")
    assert (result.code, result.out.count("\n")) == (124, 1)
    assert result.err == "gputui: 1 job of 2 has not ended yet\n"


def test_a_write_ends_the_wait_at_once(store: KeptStore) -> None:
    put(store, running(1))
    with closing(wait.Changes(local(store))) as changes:
        threading.Timer(0.05, end, (store, 1, 0)).start()
        assert changes.wait()


def test_unknown_jobs_and_a_missing_scheduler_are_reported(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("wait", "7").code == 3
    monkeypatch.setattr(bootstrap, "is_scheduled", lambda options: False)
    put(store, running(1))
    result = run("wait", "1", "--timeout", "0.01s")
    assert (result.code, "no scheduler is running" in result.err) == (124, True)


def test_a_wait_moves_to_an_owner_that_appears_and_back(store: KeptStore) -> None:
    put(store, running(1), running(2))
    of_owner = KeptStore()
    put(of_owner, running(1), ended(2, 3))
    moving = Moving(store, of_owner)
    with closing(wait.Changes(cast("DirectBackend", moving))) as changes:
        assert not changes.wait(time.monotonic())
        moving.is_owned = True
        assert changes.wait(time.monotonic())
        assert not changes.wait(time.monotonic())
    [job_2] = wait.wait_for(cast("DirectBackend", moving), (2,))
    assert job_2.exit_code == 3
    moving.is_owned = False
    end(store, 1, 0)
    assert [job_1.id for job_1 in wait.wait_for(cast("DirectBackend", moving), (1,))] == [1]


class Moving:
    """Backend whose queue is the owner's while there is one."""

    def __init__(self, local: KeptStore, of_owner: KeptStore) -> None:
        self.stores = (local, of_owner)
        self.is_owned = False

    @property
    def queue(self) -> KeptStore:
        return self.stores[self.is_owned]
