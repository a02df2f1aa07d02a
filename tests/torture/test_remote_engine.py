"""Forty jobs on an engine behind a real sshd: few processes and descriptors, and a cut connection loses nothing."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.domain.job_spec import GpuRequest, JobSpec
from gputui.domain.settings import StoreSettings
from gputui.domain.state import JobState
from gputui.store import TinyJobStore
from tests.e2e.site import all_over, submit_directly
from tests.process_list import children
from tests.runtime.dockerd import IMAGE, Dockerd
from tests.runtime.sshd import Sshd

pytestmark = [pytest.mark.docker, pytest.mark.ssh, pytest.mark.long]

JOBS = 40
DESCRIPTORS_ALLOWED = 128
PATIENCE = 240


class Watch:
    """Counter of processes and descriptors of a process and its children, five times a second, until closed."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._closed = threading.Event()
        self.descriptors = self.ssh = self.zombies = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(0.2):
            stats = [_read(f"/proc/{pid}/stat") for pid in children(self._pid)]
            names = [stat.partition("(")[2].rpartition(")")[0] for stat in stats]
            states = [stat.rpartition(")")[2].split()[:1] for stat in stats]
            self.ssh = max(self.ssh, names.count("ssh"))
            # one that has just ended is a zombie until it is waited for
            self.zombies = max(self.zombies, states.count(["Z"]))
            self.descriptors = max(self.descriptors, _descriptors(self._pid))

    def close(self) -> None:
        self._closed.set()
        self._thread.join()


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - only their number counts
    except OSError:
        return 0


@pytest.fixture
def sshd() -> Iterator[Sshd]:
    made = Sshd()
    yield made
    made.close()


@pytest.fixture
def environ(engine: Dockerd, sshd: Sshd, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config.toml").write_text("[scheduler]\ncpu_jobs = 8\n")
    return {
        **os.environ,
        "PATH": sshd.path,
        "DOCKER_HOST": engine.host.replace("unix://", "ssh://lab"),
        "GPUTUI_STATE": str(tmp_path / "state"),
        "GPUTUI_CONFIG": str(tmp_path / "config.toml"),
        "GPUTUI_PROBE": "sim:8",
    }


@pytest.fixture
def serving(environ: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a scheduler that may open 128 files."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS_ALLOWED, DESCRIPTORS_ALLOWED))

    with (tmp_path / "serve.err").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "gputui", "serve"], env=environ, stdin=subprocess.DEVNULL,
            stdout=errors, stderr=errors, start_new_session=True, preexec_fn=limit,
        )  # fmt: skip
    yield process
    process.kill()
    process.wait()


def test_forty_jobs_over_ssh_complete(serving: subprocess.Popen[bytes], sshd: Sshd, tmp_path: Path) -> None:
    store = TinyJobStore(tmp_path / "state", StoreSettings())
    script = ("sh", "-c", "echo begun; sleep 2; echo done")
    ids = submit_directly(
        tmp_path / "state",
        [JobSpec(image=IMAGE, command=script, gpus=GpuRequest(number % 2, number % 2)) for number in range(JOBS)],
    )
    watch, begun, is_cut = Watch(serving.pid), time.monotonic(), False
    while not all_over(jobs := [store.get(job_id) for job_id in ids]):
        assert time.monotonic() - begun < PATIENCE, (tmp_path / "state" / "gputui.log").read_text()[-3000:]
        if not is_cut and sum(job.state is JobState.COMPLETED for job in jobs) > JOBS // 4:
            sshd.cut()
            is_cut = True
        time.sleep(0.2)
    watch.close()
    assert [(job.id, job.state, len(job.attempts)) for job in jobs] == [(id_, JobState.COMPLETED, 1) for id_ in ids]
    logs = [(tmp_path / "state/logs" / str(job_id) / "1.log") for job_id in ids]
    deadline = time.monotonic() + 60
    while not all(log.exists() for log in logs):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert {log.read_text() for log in logs} == {"begun\ndone\n"}
    print(f"{JOBS} jobs in {time.monotonic() - begun:.0f} s: at most {watch.descriptors} descriptors, {watch.ssh} ssh")
    assert is_cut
    assert watch.ssh <= 3
    assert watch.zombies <= 1
    assert watch.descriptors <= 60
    store.close()


def test_ssh_ends_with_a_killed_scheduler(serving: subprocess.Popen[bytes], sshd: Sshd) -> None:
    deadline = time.monotonic() + 60
    while not sshd.sessions():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    serving.kill()
    while sshd.sessions():
        assert time.monotonic() < deadline
        time.sleep(0.05)
