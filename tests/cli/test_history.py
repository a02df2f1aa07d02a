"""`gputui history`."""

from __future__ import annotations

import json
from datetime import timedelta

from gputui.domain.errors import CauseCode
from gputui.domain.job import ArrayRef
from gputui.domain.state import JobState
from tests.cli.conftest import KeptStore, Run, put
from tests.cli.test_report import over
from tests.factories import ACTOR, NOW, array, job, running


def ids(run: Run, *arguments: str) -> list[int]:
    return [each["id"] for each in json.loads(run("history", "--json", *arguments).out)]


def past(store: KeptStore) -> None:
    """Jobs of three months, of which one is still in the queue."""
    put(store, over(2000, 1990), over(30, 20, 2, tenant="bob"), over(900, 800), over(25, 24, 4, CauseCode.CANCELLED))
    gone = array([0, 1, 2], first=0).evolve(
        array=ArrayRef(-1, 0), state=JobState.CANCELLED, submitted_at=NOW - timedelta(days=3)
    )
    store.submit([gone], actor=ACTOR)
    store.maintain(NOW)
    put(store, over(5, 1, code=CauseCode.NON_ZERO_EXIT), job(), running())


def test_ended_jobs_come_latest_first_wherever_they_are_kept(run: Run, store: KeptStore) -> None:
    past(store)
    assert ids(run) == [8, 2, 4, 5, 3, 1]
    lines = run("history").out.splitlines()
    assert lines[0].split() == ["ENDED", "ID", "ST", "NAME", "TENANT", "GPUS", "WAIT", "TIME", "INFO"]
    assert lines[1].split()[2:] == ["8", "F", "train", "alice", "1", "30m00s", "4h00m", "words"]
    assert lines[4].split()[2:4] == ["5_[0-2]", "CA"]


def test_time_filter_and_limit(run: Run, store: KeptStore) -> None:
    past(store)
    assert ids(run, "--since", "-25h") == [8, 2, 4]
    assert ids(run, "--since", "-25h", "--until", "-10h") == [2, 4]
    assert ids(run, "tenant:bob") == [2]
    assert ids(run, "is:failed", "gpus=1") == [8]
    assert ids(run, "--", "-state:ca", "tenant:alice") == [8, 3, 1]
    assert ids(run, "id:6") == [6]
    result = run("history", "-n", "2")
    assert len(result.out.splitlines()) == 3
    assert "--limit 0 lists all" in result.err
    assert run("history", "-n", "0").err == ""


def test_columns_are_chosen(run: Run, store: KeptStore) -> None:
    past(store)
    lines = run("history", "-c", "id,gpu_hours,command,image,exit", "-n", "2").out.splitlines()
    assert lines[0].split() == ["ID", "GPU-H", "COMMAND", "IMAGE", "EXIT"]
    assert lines[2].split() == ["2", "20.00", "true", "busybox", "-"]
    assert "is not a column" in run("history", "-c", "id,nothing").err


def test_a_job_that_went_back_to_the_queue_is_not_listed(run: Run, store: KeptStore) -> None:
    past(store)
    with store.transaction() as transaction:
        transaction.put(transaction.get(3).to(JobState.PENDING, ended_at=None))
    assert 3 not in ids(run)
