"""A full disk at every phase, with a console and with `serve`: nothing is lost, and work resumes with space."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputui.engine.leadership import current_leader
from tests import leftovers
from tests.api.serving import connect, rest_of, tell
from tests.e2e.terminal import Terminal
from tests.torture.owners import Owners
from tests.torture.test_bad_days import fill

pytestmark = [pytest.mark.torture, pytest.mark.timeout(1800)]

PATIENCE = 90.0
GPUTUI = [sys.executable, "-m", "gputui"]


class Disk:
    """State directory on a file system of 2 MiB, jobs that record their runs elsewhere, and one scheduler."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind, self.state = path, kind, path / "state"
        self.environ = {
            "GPUTUI_STATE": str(self.state),
            "GPUTUI_PROBE": "sim:2",
            "GPUTUI_RUNTIME": "process",
            "GPUTUI_CONFIG": "/dev/null",
            "XDG_STATE_HOME": str(path / "home"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        self.acknowledged: set[int] = set()
        self._terminal: Terminal | None = None
        self._serve: subprocess.Popen[bytes] | None = None

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, **self.environ}
        return subprocess.run([*GPUTUI, *words], env=environ, capture_output=True, text=True, timeout=60, check=False)

    def submit(self, gate: str = "", gpus: int = 1) -> bool:
        """Submit a job that records its run and ends once its gate is open; return whether it was acknowledged."""
        wait = f"; until [ -e {self.path}/{gate} ]; do sleep 0.05; done" if gate else ""
        script = f"echo $GPUTUI_JOB_ID >> {self.path}/runs{wait}"
        done = self.run("submit", "--host", "--gpus", str(gpus), "--", "sh", "-c", script)
        if done.returncode == 0:
            self.acknowledged.add(int(done.stdout))
        else:
            assert (done.returncode, done.stdout) == (1, ""), done.stderr
        return done.returncode == 0

    def begin(self) -> int:
        """Start a scheduler; return its pid."""
        if self.kind == "console":
            self._terminal = Terminal(GPUTUI, self.environ, 120, 36)
        else:
            environ = {**os.environ, **self.environ}
            command = [*GPUTUI, "serve", "--wait", "60s"]
            self._serve = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL, start_new_session=True)
        self.until(lambda: self.leader is not None, "nobody schedules")
        if self._serve is not None:
            assert self.leader in {0, self._serve.pid}
        return self.pid

    @property
    def pid(self) -> int:
        """Pid of the started scheduler."""
        if self._serve is not None:
            return self._serve.pid
        words = ["pgrep", "-f", "-x", "--", f"{sys.executable} -m gputui"]
        pids = [int(line) for line in subprocess.run(words, capture_output=True, check=False).stdout.split()]
        mine = f"GPUTUI_STATE={self.state}\0".encode()
        [pid] = [pid for pid in pids if mine in Path(f"/proc/{pid}/environ").read_bytes()]
        return pid

    @property
    def leader(self) -> int | None:
        """Return the pid of the leader; 0 for one that could not write its name."""
        found = current_leader(self.state)
        return None if found is None else found.pid

    def has_run(self, count: int) -> bool:
        return len(self.runs().splitlines()) >= count

    def runs(self) -> str:
        path = self.path / "runs"
        return path.read_text() if path.exists() else ""

    def open(self, gate: str) -> None:
        (self.path / gate).touch()

    def free(self) -> None:
        (self.state / "ballast").unlink(missing_ok=True)

    def until(self, is_so: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < deadline, f"{what}\n{self.run('queue', '--all').stdout}"
            time.sleep(0.05)

    def all_have_ended(self) -> bool:
        jobs = json.loads(self.run("queue", "--all", "--json").stdout)
        return {job["id"] for job in jobs if job["state"] == "COMPLETED"} == self.acknowledged

    def check(self, leader: int | None) -> None:
        """Check that nothing was lost or done twice, and that this process schedules; None: any."""
        self.until(self.all_have_ended, "not all have ended well")
        assert Counter(map(int, self.runs().split())) == Counter(self.acknowledged)
        assert self.submit()
        self.until(self.all_have_ended, "the next job does not run")
        assert leader is None or self.leader == leader

    def end(self, number: signal.Signals) -> None:
        """End the scheduler."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        if self._serve is not None:
            self._serve.wait(60)
            self._serve = None
        if self._terminal is not None:
            self._terminal.until("EXIT" if number is signal.SIGTERM else "", seconds=60)
            self._terminal.close()
            self._terminal = None

    def close(self) -> None:
        self.free()
        for gate in ("gate", "first", "second"):
            self.open(gate)
        if self._terminal is not None:
            self._terminal.close()
        for pid in (self._serve.pid if self._serve else 0, self.leader or 0):
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGTERM)
        if self._serve is not None:
            self._serve.wait(60)
        self.until(lambda: self.leader is None, "a scheduler does not end")


@pytest.fixture(params=["serve", "console"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, torture: float) -> Iterator[Disk]:
    size = f"size={round(2048 + 512 * torture)}k"  # longer runs leave more jobs, logs and audit entries
    disk = Disk(tmp_path, request.param)
    disk.state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{size},mode=700", "tmpfs", str(disk.state)], check=True)
    try:
        yield disk
        disk.close()
    finally:
        leftovers.end(disk.state)  # a closed console hands over to a scheduler that may begin only now
        subprocess.run(["umount", "-l", str(disk.state)], check=True)


def before_the_scheduler(disk: Disk) -> int:
    assert disk.submit()
    (disk.state / "scheduler.lock").touch()  # empty, as 0.1 left it
    fill(disk.state)
    pid = disk.begin()
    assert disk.leader == 0
    time.sleep(1.5)
    assert disk.leader == 0
    disk.free()
    return pid


def while_jobs_run_and_wait(disk: Disk) -> int:
    pid = disk.begin()
    assert disk.submit("gate", 2)
    disk.until(lambda: disk.has_run(1), "the first does not run")
    assert disk.submit(gpus=2)
    fill(disk.state)
    time.sleep(1.5)
    disk.free()
    disk.open("gate")
    return pid


def as_a_job_ends(disk: Disk) -> int:
    pid = disk.begin()
    assert disk.submit("gate", 2)
    disk.until(lambda: disk.has_run(1), "the first does not run")
    assert disk.submit(gpus=2)
    fill(disk.state)
    disk.open("gate")
    time.sleep(2.5)
    disk.free()
    return pid


def while_jobs_are_submitted(disk: Disk) -> int:
    pid = disk.begin()
    fill(disk.state)
    for _ in range(40):  # the last page of the journal may have room for a few
        if not disk.submit():
            break
    else:
        pytest.fail("the disk does not fill")
    disk.free()
    return pid


def as_it_leaves(disk: Disk) -> None:
    disk.begin()
    assert disk.submit("gate", 2)
    disk.until(lambda: disk.has_run(1), "the first does not run")
    assert disk.submit(gpus=2)
    fill(disk.state)
    is_handed_over = disk.kind == "console"
    disk.end(signal.SIGTERM)
    if is_handed_over:
        disk.until(lambda: disk.leader is not None, "nobody took over")
    disk.open("gate")
    time.sleep(1)
    if not is_handed_over:
        disk.begin()
    disk.free()


def as_it_is_killed(disk: Disk) -> int:
    disk.begin()
    assert disk.submit("gate", 2)
    disk.until(lambda: disk.has_run(1), "the first does not run")
    assert disk.submit(gpus=2)
    fill(disk.state)
    disk.end(signal.SIGKILL)
    disk.open("gate")
    pid = disk.begin()
    time.sleep(1)
    disk.free()
    return pid


PHASES = [
    before_the_scheduler,
    while_jobs_run_and_wait,
    as_a_job_ends,
    while_jobs_are_submitted,
    as_it_leaves,
    as_it_is_killed,
]


@pytest.mark.long
@pytest.mark.tmux
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_a_full_disk_loses_no_acknowledged_change(disk: Disk, phase: Callable[[Disk], int | None]) -> None:
    disk.check(phase(disk))


@pytest.mark.long
@pytest.mark.tmux
def test_a_disk_that_fills_and_empties_at_random_loses_no_change(disk: Disk, torture: float) -> None:
    seed = random.randrange(10**6)
    chosen, times = random.Random(seed), max(5, round(10 * torture))
    pid, refused = disk.begin(), 0
    for _ in range(times):
        refused += not disk.submit()
        time.sleep(chosen.uniform(0, 0.5))
        fill(disk.state)
        refused += not disk.submit()
        time.sleep(chosen.uniform(0, 1.5))
        disk.free()
        refused += not disk.submit(gpus=2)
    jobs = len(disk.acknowledged)
    disk.check(pid)
    print(f"\n{disk.kind}: full {times} times, {jobs} jobs acknowledged and run once, {refused} refused, seed {seed}")


@pytest.mark.needs("mount")
def test_an_owner_on_a_full_disk_answers_507_and_keeps_what_it_has_acknowledged(tmp_path: Path) -> None:
    """A request that was refused may come again with its key, once there is space."""
    owners = Owners(tmp_path / "state")
    owners.state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(owners.state)], check=True)
    try:
        owners.begin()
        owners.until_it_answers()
        fill(owners.state)
        acknowledged: list[int] = []
        while (status := ask_for_a_job(owners, key := f"key-{len(acknowledged)}", acknowledged)) == 201:
            assert len(acknowledged) < 40  # the last page of the journal may have room for a few
        assert status == 507
        assert len(json.loads(owners.told("queue", "--json"))) == len(acknowledged)
        assert ask_for_a_job(owners, key, acknowledged) == 507
        (owners.state / "ballast").unlink()
        assert ask_for_a_job(owners, key, acknowledged) == 201
        assert ask_for_a_job(owners, key, []) == 200
        owners.kill()
        owners.begin()
        owners.until_it_answers()
        assert [job["id"] for job in json.loads(owners.told("queue", "--json"))] == acknowledged
    finally:
        owners.close()
        subprocess.run(["umount", "-l", str(owners.state)], check=True)


def ask_for_a_job(owners: Owners, key: str, acknowledged: list[int]) -> int:
    """Submit a job as curl does; return the status of the answer."""
    body = json.dumps({"jobs": [{"spec": {"command": ["true"]}, "held": True}]}).encode()
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: {key}\r\n"
    link = connect(owners.socket)
    tell(link, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = rest_of(link)
    link.close()
    status = int(answer[9:12])
    if status == 201:
        acknowledged += json.loads(answer.partition(b"\r\n\r\n")[2])["ids"]
    elif status == 507:
        assert b"space" in answer
    return status
