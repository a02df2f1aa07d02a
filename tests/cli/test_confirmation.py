"""Confirmations of commands on stderr, and the expected start printed by submit."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gputui import bootstrap
from gputui.cli import start_times
from gputui.cli.session import Session
from gputui.config import resolve
from gputui.domain.container import RuntimeStatus
from gputui.domain.job_spec import ContainerOptions
from gputui.domain.snapshot import Node
from gputui.domain.state import NO_SCHEDULER
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, picture, put
from tests.factories import NOW, job, running, snapshot, uuid, view

ONCE = ", once a scheduler runs: start `gputui` or `gputui serve`"


def fill(store: KeptStore) -> None:
    store.clear()
    put(store, job(), running(on=(uuid(0),)), job(options=ContainerOptions(env=(("TOKEN", "hunter2"),))))


@pytest.fixture
def queue(store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> KeptStore:
    """Jobs 1 and 3 wait, job 2 runs on GPU 0 of two."""
    fill(store)
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=[view(0), view(1)])))
    return store


@cases(
    ("words", "sentence"),
    [
        ("hold 1", "held job 1; the time waited so far still counts"),
        ("hold 1 3", "held 2 jobs: 1 3; the time waited so far still counts"),
        ("release 1", "released job 1"),
        ("cancel 1-3", "cancelled 2 jobs: 1 3; stopping job 2" + ONCE),
        ("requeue 2", "stopping, to be run again: job 2" + ONCE),
        ("suspend 2", "suspending job 2, whose time limit continues" + ONCE),
        ("signal 2 USR1", "sending SIGUSR1 to job 2" + ONCE),
        ("priority 1,3 70", "priority is now 70: 2 jobs: 1 3"),
        ("priority 1 50", "nothing was changed: the priority was that already"),
        ("priority 1 top", "put at the head of the queue: job 1"),
        ("edit 1 --time-limit 2h", "edited job 1: time-limit 2h"),
        ("edit 3 -e TOKEN=secret", "edited job 3: env"),
        ("drain 0 1 -r broken", "drained GPUs 0 1: no new jobs start there; job 2 continues"),
        ("resume 1", "resumed GPU 1: jobs start there again"),
        ("pause maintenance", "paused: no new jobs start; 1 running job continues"),
        ("unpause", "unpaused: jobs start again" + ONCE),
        ("reserve standing 80", "the next free GPUs go to jobs of priority 80 and above"),
        ("tenant remove bob", "removed the values of tenant bob; those of the settings file, if any, apply"),
    ],
)
def test_a_command_confirms_in_one_line(run: Run, queue: KeptStore, words: str, sentence: str) -> None:
    fill(queue)
    if words.startswith("tenant"):
        run("tenant", "set", "bob", "--gpus", "2")
    result = run(*words.split())
    assert (result.code, result.out, result.err) == (0, "", f"{sentence}\n")


def test_a_quiet_command_confirms_nothing(run: Run, queue: KeptStore) -> None:
    for words in ("hold 1", "release 1", "priority 1 70", "priority 1 top", "edit 1 --time-limit 2h", "drain 0"):
        assert (words, run(*words.split(), "-q").err) == (words, "")
    for words in ("resume 0", "pause", "unpause", "reserve standing 80", "tenant set bob --gpus 2", "cancel 1"):
        assert (words, run(*words.split(), "--quiet").err) == (words, "")


def test_recurring_jobs_are_confirmed_too(run: Run, store: KeptStore) -> None:
    for _ in range(2):
        run("cron", "add", "@daily", "--", "busybox")
    assert run("cron", "pause", "1").err == "paused recurring job 1\n"
    assert run("cron", "remove", "1,2").err == "removed 2 recurring jobs: 1 2\n"


def test_a_submission_prints_its_start_only_on_a_terminal(run: Run, store: KeptStore) -> None:
    assert run("submit", "busybox").err == ""


def test_the_start_of_a_new_job_is_foreseen() -> None:
    busy = running(1, on=(uuid(0),), time_limit=timedelta(hours=1))
    jobs = [busy, job(2, gpus=1), job(3, gpus=1), job(4, gpus=1, held=True), job(5, gpus=9)]
    docker = RuntimeStatus("docker", up=True, text="")
    seen = snapshot(jobs, nodes=(Node("here", (view(0), view(1)), runtimes=(docker,)),))
    told = list(start_times.foreseen(seen, [1, 2, 3, 4, 5], resolve(), NOW))
    assert told[0] == "job 1: running on GPU 0"
    assert told[1] == "job 2: starts now on GPU 1"
    assert told[2].startswith("job 3: should start in ")
    assert "when job 1 ends by its limit" in told[2]
    assert told[3].startswith("job 4: waits: ")
    assert told[4] == "job 5: can never start: needs 9 GPUs, this server has 2"


def test_a_new_job_says_that_no_scheduler_runs(store: KeptStore) -> None:
    put(store, job(), job())
    session = Session()
    with session.backend() as backend:
        one, two = (list(start_times.expected_starts(session, backend, ids)) for ids in ([1], [1, 2]))
    assert one == [f"job 1 waits: {NO_SCHEDULER}"]
    assert two == [f"2 jobs wait: {NO_SCHEDULER}"]
