"""An owner that hangs: commands say so after two seconds, with its pid and the cure; operators still read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.lane import IS_LONG
from tests.machine_load import stretched
from tests.torture.owners import PATIENCE, Owners

pytestmark = [pytest.mark.torture]

LONGER = 3.0
"""Seconds for which an owner hangs here, at least: longer than those after which commands say so."""
AT_ONCE = 4
SETTINGS = '[store]\nlock_timeout = "4s"\n'
SUBMIT = ("submit", "--hold", "--host", "--name", "new", "--", "true")


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    found = Owners(tmp_path / "state", settings=SETTINGS)
    yield found
    found.close()


def names(owners: Owners) -> list[str]:
    return sorted(job["name"] for job in json.loads(owners.told("queue", "--all", "--json")))


def timed(owners: Owners, words: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    begun = time.monotonic()
    done = owners.run(*words.split())
    return time.monotonic() - begun, done


def first_words(owners: Owners, *words: str) -> tuple[str, subprocess.Popen[str]]:
    """Return the first that a command says on stderr."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "gputui", *words],
        env=owners.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    return process.stderr.readline(), process


CHANGES = (" ".join(SUBMIT), "release 2", "priority 2 +1", "cancel 2", "edit 2 --name x")
READING = (
    "queue",
    "show 1",
    "explain 2",
    "gpus",
    "history",
    "logs 1",
    "report",
    "queue --json",
    "wait 1 --timeout 1s",
)[: None if IS_LONG else 3]


def test_beside_a_stopped_owner_changes_are_refused_and_reading_goes_on(owners: Owners) -> None:
    owners.begin()
    owners.until_it_answers()
    owners.told("submit", "--host", "--name", "first", "--", "echo", "words")
    owners.told("wait", "1")
    owners.told(*SUBMIT)
    owners.stop()
    who = rf"serve of \w+ \(pid {owners.pid}\) has not answered for"
    cure = f"kill -CONT {owners.pid} if it was stopped, else kill -9 {owners.pid}"
    with ThreadPoolExecutor(AT_ONCE) as threads:
        changed = list(threads.map(partial(timed, owners), CHANGES))
        read = list(threads.map(partial(timed, owners), READING))
    for line, (seconds, done) in zip(CHANGES, changed, strict=True):
        assert (done.returncode, done.stdout) == (1, ""), line
        assert re.search(rf"gputui: {who} \d s\n", done.stderr), done.stderr
        assert re.search(rf"gputui: error: {who} \d+ s", done.stderr), done.stderr
        assert cure in done.stderr
        assert seconds < stretched(8)  # `edit` looks at the job before
    for line, (seconds, done) in zip(READING, read, strict=True):
        assert done.returncode == 0, (line, done.stderr)
        assert seconds < stretched(4), line
    assert owners.run("logs", "1").stdout == "words\n"
    assert "kill -CONT" in owners.run("queue").stderr + owners.run("queue").stdout
    owners.go_on()
    assert names(owners) == ["first", "new"]
    assert owners.told(*SUBMIT) == "3\n"


def test_an_owner_ended_meanwhile_leaves_the_work_to_the_command(owners: Owners) -> None:
    owners.begin()
    owners.until_it_answers()
    owners.stop()
    words, submitting = first_words(owners, *SUBMIT)
    assert "has not answered for" in words
    owners.kill()
    out, _ = submitting.communicate(timeout=PATIENCE)
    assert (submitting.returncode, out) == (0, "1\n")
    owners.begin()
    owners.until_it_answers()
    assert names(owners) == ["new"]


@pytest.mark.parametrize("fault", ["gil", "sync"])
def test_who_waits_is_told_and_answered_once_the_owner_goes_on(owners: Owners, fault: str) -> None:
    """A C library keeps the interpreter, or the disk takes its time."""
    owners.begin(fault, LONGER)
    owners.until_it_answers()
    words, submitting = first_words(owners, *SUBMIT)
    assert "has not answered for" in words
    out, err = submitting.communicate(timeout=PATIENCE)
    assert (submitting.returncode, out) == (0, "1\n"), err
    assert names(owners) == ["new"]


def test_operators_read_while_the_disk_hangs(owners: Owners) -> None:
    owners.begin("sync", 2 * LONGER)
    owners.until_it_answers()
    words, submitting = first_words(owners, *SUBMIT)
    assert "has not answered for" in words
    seconds, done = timed(owners, "queue --json")
    assert done.returncode == 0, done.stderr
    assert seconds < stretched(3.5)  # requests that wait for the disk may be all that one user has at a time
    submitting.communicate(timeout=PATIENCE)
