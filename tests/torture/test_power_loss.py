"""Power lost while a scheduler runs jobs: each job that was submitted runs to its end, none that ended runs again."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from gputui.store import TinyJobStore
from tests import leftovers
from tests.lane import IS_LONG
from tests.store.power.disk import Disk, Moment, is_as_recorded, moments, put
from tests.store.power.recording import Recording

pytestmark = [pytest.mark.torture, pytest.mark.needs("gcc", "mount", "unshare"), pytest.mark.timeout(1800)]

GPUTUI = [sys.executable, "-m", "gputui"]
JOBS = 12 if IS_LONG else 4
RESUMED = 60 if IS_LONG else 1
"""Disks on which a scheduler goes on."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"
ANOTHER_START = "b4f6c1de-0000-4000-8000-000000000000\n"


class Server:
    """Scheduler and commands over a state directory with two GPUs; jobs leave marks in a file outside."""

    def __init__(self, state: Path, marks: Path, environ: Mapping[str, str], *, is_restarted: bool = False) -> None:
        """Scheduler and jobs see another boot id of the machine if `is_restarted`."""
        self.marks = marks
        self._serve_words = [*GPUTUI, "serve"]
        if is_restarted:
            boot_id = marks.with_name("boot_id")
            boot_id.write_text(ANOTHER_START)
            script = f'mount --bind "$0" {BOOT_ID} && exec "$@"'
            self._serve_words = ["unshare", "--mount", "sh", "-c", script, str(boot_id), *self._serve_words]
        own = {"GPUTUI_STATE": str(state), "GPUTUI_CONFIG": "/dev/null", "XDG_STATE_HOME": str(marks.parent / "home")}
        self._environ = {**environ, **own, "GPUTUI_PROBE": "sim:2", "GPUTUI_RUNTIME": "process"}

    def __enter__(self) -> Server:
        self._serve = subprocess.Popen(self._serve_words, env=self._environ, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_: object) -> None:
        self._serve.terminate()
        self._serve.wait(60)

    def run(self, *words: str) -> str:
        done = subprocess.run([*GPUTUI, *words], env=self._environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self) -> str:
        script = f"echo $GPUTUI_JOB_ID >> {self.marks}; echo output of $GPUTUI_JOB_ID"
        return self.run("submit", "--host", "--gpus", "1", "--", "sh", "-c", script).strip()


def test_no_job_is_lost_and_none_that_ended_runs_again(tmp_path: Path) -> None:
    root, place = tmp_path / "root", tmp_path / "disk"
    root.mkdir()
    disk, recording = Disk(root), Recording(root, tmp_path / "log")
    with Server(root / "state", root / "marks", recording.environ) as server:
        ids = [server.submit() for _ in range(JOBS)]
        server.run("wait", *ids)
    changes = list(recording.changes())
    found = moments(disk, changes, samples=4 if IS_LONG else 0)
    assert is_as_recorded(disk, root)
    assert leftovers.of_directory(root / "state") == []
    chosen = found if IS_LONG else random.Random(0).sample(found, 100)
    resumed = {id(moment) for moment in random.Random(1).sample(chosen, RESUMED)}
    for moment in chosen:
        put(moment.tree, place)
        marks = b"".join(each.data for each in changes[: moment.number] if (each.what, each.name) == ("write", "marks"))
        try:
            check(place / "state", moment, marks)
            if id(moment) in resumed:
                (root / "marks").write_bytes(marks)
                go_on(place / "state", moment, root / "marks")
        except Exception as error:
            error.add_note(f"after change {moment.number}: {moment.loss}, {moment.told!r}")
            raise
        shutil.rmtree(place)
    print(f"{JOBS} jobs, {len(changes)} changes, {len(found)} distinct disks; on {len(resumed)} a scheduler went on")


def told(moment: Moment) -> tuple[list[int], list[int]]:
    """Return the jobs that were submitted, and those of which `wait` told that they ended well."""
    submitted = [int(line) for line in moment.told.split(b"\n") if line.isdigit()]
    return submitted, [int(found) for found in re.findall(rb"Job (\d+) .* completed", moment.told)]


def check(state: Path, moment: Moment, marks: bytes) -> None:
    submitted, ended = told(moment)
    store = TinyJobStore(state)
    jobs = {job_id: store.get(job_id) for job_id in submitted}
    assert all(jobs[job_id].exit_code == 0 for job_id in ended)
    assert all(store.get(int(mark)).attempts for mark in marks.split())  # recorded before it began
    for job in store.jobs().values():
        log = state / "logs" / str(job.id) / "1.log"
        if job.state.is_terminal and not [*(state / "attempts").glob(f"gputui-*-{job.id}-1")]:
            assert log.exists()
        if log.exists():
            assert log.read_bytes() == b"output of %d\n" % job.id
    assert store.damage() == store.unread() == ()
    store.close()


def go_on(state: Path, moment: Moment, marks: Path) -> None:
    """Let another scheduler run what is left, and check how often each job has run."""
    submitted, ended = told(moment)
    before = Counter(marks.read_text().split())
    with Server(state, marks, os.environ, is_restarted=True) as server:
        if submitted:
            server.run("wait", *map(str, submitted))
    after = Counter(marks.read_text().split())
    store = TinyJobStore(state)
    for job_id in submitted:
        assert 1 <= after[str(job_id)] <= len(store.get(job_id).attempts)
    assert all(after[str(job_id)] == before[str(job_id)] == 1 for job_id in ended)
    store.close()
