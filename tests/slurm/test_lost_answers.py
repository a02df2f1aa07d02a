"""Submissions whose answer nobody got: killed or cut off between sbatch and the note of it, here and over ssh."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest

from gputui.cluster.slurm.cluster import SlurmCluster
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.ssh import SshConnection
from gputui.domain.errors import ClusterUnavailableError, LostAnswerError
from gputui.domain.job_spec import JobSpec, Submission
from gputui.domain.settings import ClusterSettings, Settings
from tests.login_shells import SHELLS, talkative
from tests.needs import need
from tests.runtime.sshd import Sshd
from tests.slurm.bed import PATIENCE, Bed

pytestmark = [pytest.mark.slurm, pytest.mark.ssh, pytest.mark.xdist_group("slurm")]
HELD = Submission(JobSpec(command=("true",), name="once"), held=True)


@pytest.fixture
def login(bed: Bed) -> Iterator[Sshd]:
    """Yield a login node whose shell prints lines around each command."""
    own = {"SLURM_CONF": str(bed.configuration), "PATH": f"{bed.directory}/bin:/usr/bin:/bin"}
    with talkative("bash", own) as sshd:
        yield sshd


class Shell:
    """A user's shell, in which she submits; `cut` ends her connections, if she has some."""

    def __init__(self, environ: dict[str, str], folder: Path, cut: Callable[[], None]) -> None:
        self.environ = environ | {"GPUTUI_STATE": str(folder / "state"), "GPUTUI_CONFIG": "/dev/null"}
        self.environ |= {"GPUTUI_CLUSTER_LOG_DIRECTORY": str(folder / "logs")}
        self.cut = cut

    def start(self, *words: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-P", "-m", "gputui", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(program, env=self.environ, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=2 * PATIENCE)
        return process.returncode, out, err

    def submit_and_disturb(self, number: int, after: float) -> tuple[int, str]:
        """Submit a job, disturb that some seconds after its begin, and return exit code and output."""
        process = self.start("submit", "--hold", "--name", f"kept{number}", "--host", "--", "echo", "word " * 2000)
        time.sleep(after)  # the moment is what is varied
        if number % 3 == 0:
            os.killpg(process.pid, signal.SIGKILL)
        elif number % 3 == 1:
            process.kill()
        else:
            self.cut()
        out, _ = process.communicate(timeout=2 * PATIENCE)
        return process.returncode, out


def check_disturbed(bed: Bed, shell: Shell, count: int) -> None:
    """Submit so many jobs, each disturbed, and once more those without an answer; each job has to be there once."""
    moments, told = random.Random(count), dict[str, str]()
    began = time.monotonic()
    shell.run("submit", "--hold", "--name", "first", "--host", "--", "true")
    lasts = time.monotonic() - began
    for number in range(count):
        code, out = shell.submit_and_disturb(number, moments.uniform(0.2, 1.1) * lasts)
        while not out.strip():  # killed after it has printed the id: that is an answer
            code, out, err = shell.run(
                "submit", "--hold", "--name", f"kept{number}", "--host", "--", "echo", "word " * 2000
            )
            assert not code or "submit" in err, err
        told[f"kept{number}"] = out.strip()
    lines = bed.run("squeue", "--noheader", "--format=%j %A").stdout.splitlines()
    assert sorted(line.split() for line in lines if not line.startswith("first ")) == sorted(map(list, told.items()))
    code, out, err = shell.run("queue", "--json")
    assert not code, err
    known = {job["name"]: str(job["id"]) for job in json.loads(out) if job["command"][:1] == ["echo"]}
    assert known == told
    for job in told.values():
        script = bed.run("scontrol", "write", "batch_script", job, "-").stdout
        assert "\n# all of " in script


@pytest.fixture
def here(bed: Bed, tmp_path: Path) -> Shell:
    return Shell(bed.environ | {"GPUTUI_CLUSTER": "slurm"}, tmp_path, lambda: None)


@pytest.fixture
def there(login: Sshd, tmp_path: Path) -> Iterator[Shell]:
    with TemporaryDirectory(prefix="rt-", dir="/tmp") as runtime:
        own = {"PATH": login.path, "GPUTUI_CLUSTER": "slurm+ssh://lab", "XDG_RUNTIME_DIR": runtime}
        yield Shell(os.environ | own, tmp_path, login.cut)
        login.cut()


def test_what_was_killed_is_submitted_once(bed: Bed, here: Shell) -> None:
    check_disturbed(bed, here, 2)


def test_what_was_killed_or_cut_off_is_submitted_once_over_ssh(bed: Bed, there: Shell) -> None:
    check_disturbed(bed, there, 3)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_that_were_killed(bed: Bed, here: Shell) -> None:
    check_disturbed(bed, here, 100)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_that_were_killed_or_cut_off_over_ssh(bed: Bed, there: Shell) -> None:
    check_disturbed(bed, there, 100)


def waiting(bed: Bed) -> list[int]:
    return [job_id for job_id, state in bed.jobs().items() if state == "PENDING"]


def remote(login: Sshd, bed: Bed, folder: Path, patience: float = PATIENCE) -> tuple[SlurmCommands, SlurmCluster]:
    commands = SlurmCommands(SshConnection("lab"), patience, os.environ | {"PATH": login.path})
    settings = ClusterSettings(poll_interval=timedelta(0), log_directory=str(bed.home("root") / "logs"))
    return commands, SlurmCluster(commands, Settings(cluster=settings), folder)


def slow_sbatch(bed: Bed, folder: Path, before: str, after: str) -> None:
    """Put a sbatch before Slurm's own that waits before or after it, by lines of sh."""
    real = bed.directory / "bin" / "sbatch"
    (folder / "sbatch").write_text(f'#!/bin/sh\n{before}\n{real} "$@"\ncode=$?\n{after}\nexit $code\n')
    (folder / "sbatch").chmod(0o755)


@pytest.fixture
def slow_login(bed: Bed, tmp_path: Path) -> Iterator[Sshd]:
    path = f"{tmp_path}:{bed.directory}/bin:/usr/bin:/bin"
    with talkative("bash", {"SLURM_CONF": str(bed.configuration), "PATH": path}) as sshd:
        yield sshd


def test_a_cut_connection_is_followed_by_a_look_for_the_job(bed: Bed, slow_login: Sshd, tmp_path: Path) -> None:
    killed = f"[ -e {tmp_path}/cut ] || {{ : >{tmp_path}/cut; kill -9 $(cat {tmp_path}/sshd); }}"
    slow_sbatch(bed, tmp_path, "", killed)
    commands, cluster = remote(slow_login, bed, tmp_path / "state")
    with closing(commands):
        assert cluster.snapshot().nodes
        (tmp_path / "sshd").write_text(" ".join(map(str, slow_login.sessions())))
        (job_id,) = cluster.submit([HELD], str(uuid4()), is_new=True)
        assert waiting(bed) == [job_id]
        assert cluster.job(job_id).name == "once"


@pytest.mark.long
def test_a_submission_that_comes_too_late_is_none(bed: Bed, slow_login: Sshd, tmp_path: Path) -> None:
    """Somebody holds the lock: neither the submission nor the look for it gets an answer in time."""
    commands, cluster = remote(slow_login, bed, tmp_path / "state")
    hasty, impatient = remote(slow_login, bed, tmp_path / "state", 1.0)
    lock = slow_login.directory / "home/.cache/gputui/submit.lock"
    key = str(uuid4())
    with closing(commands), closing(hasty):
        assert cluster.snapshot().nodes
        lock.parent.mkdir(parents=True)
        holder = subprocess.Popen(["flock", str(lock), "sleep", "600"], start_new_session=True)
        try:
            with pytest.raises(LostAnswerError, match="whether the job was submitted is not known"):
                impatient.submit([HELD], key, is_new=True)
        finally:
            os.killpg(holder.pid, signal.SIGTERM)
            holder.wait()
        (job_id,) = cluster.submit([HELD], key)
        assert cluster.submit([HELD], key) == (job_id,)
    subprocess.run(["flock", str(lock), "true"], check=True, timeout=PATIENCE)
    assert waiting(bed) == [job_id]


def test_nothing_that_was_not_all_there_is_submitted(bed: Bed, login: Sshd, tmp_path: Path) -> None:
    commands, cluster = remote(login, bed, tmp_path / "state")

    class Cut(SlurmCommands):
        def script(self, text: str, name: str, *, stdin: str = "") -> None:  # type: ignore[override]
            super().script(text, name, stdin=stdin[: len(stdin) // 2])
            raise LostAnswerError("the connection was cut")

    with closing(commands):
        assert cluster.snapshot().nodes
        cutting = Cut(SshConnection("lab"), PATIENCE, os.environ | {"PATH": login.path})
        settings = Settings(cluster=ClusterSettings(log_directory=str(tmp_path / "logs")))
        other = SlurmCluster(cutting, settings, tmp_path / "state")
        with closing(cutting), pytest.raises(ClusterUnavailableError):
            other.submit([HELD], str(uuid4()), is_new=True)
        assert waiting(bed) == []


def test_a_migration_that_was_killed_is_repeated_over_ssh(bed: Bed, there: Shell) -> None:
    here = there.environ | {"GPUTUI_CLUSTER": ""}
    for number in range(3):
        words = [sys.executable, "-P", "-m", "gputui", "submit", "--hold", "--name", f"moved{number}", "--host", "true"]
        subprocess.run(words, env=here, check=True, capture_output=True)
    moments = random.Random(3)
    for _ in range(3):
        process = there.start("migrate")
        time.sleep(moments.uniform(0.4, 1.5))  # the moment of the kill is what is varied
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=2 * PATIENCE)
    code, _, err = there.run("migrate")
    assert code == 0, err
    names = bed.run("squeue", "--noheader", "--format=%j").stdout.split()
    assert sorted(names) == ["moved0", "moved1", "moved2"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_job_through_a_login_shell_that_prints_lines(bed: Bed, tmp_path: Path, shell: str) -> None:
    need(shell)
    own = {"SLURM_CONF": str(bed.configuration), "PATH": f"{bed.directory}/bin:/usr/bin:/bin"}
    with talkative(shell, own) as login:
        commands, cluster = remote(login, bed, tmp_path / "state")
        with closing(commands):
            command = ("sh", "-c", "echo it\\'s '!' \"$0\"; exit 3", "4711\nand more")
            (job_id,) = cluster.submit([Submission(JobSpec(command=command))], str(uuid4()), is_new=True)
            assert list(cluster.log(cluster.job(job_id), tail=None, follow=True)) == [b"it's ! 4711", b"and more"]
            ended = cluster.job(job_id)
            assert (ended.exit_code, ended.submitted_by, cluster.user) == (3, "root", "root")


def test_ctrl_c_tells_that_nothing_is_known_and_the_same_again_is_the_same_job(
    bed: Bed, here: Shell, tmp_path: Path
) -> None:
    slow_sbatch(bed, tmp_path, "", f"[ -e {tmp_path}/fast ] || sleep 600")
    here.environ["PATH"] = f"{tmp_path}:{here.environ['PATH']}"
    words = ("submit", "--hold", "--name", "stopped", "--host", "--", "true")
    process = here.start(*words)
    bed.wait(lambda: waiting(bed), "the job is there")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (130, "")
    assert err.startswith("gputui: interrupted: whether a job was submitted is not known (submit the same again within")
    (tmp_path / "fast").touch()
    code, out, err = here.run(*words)
    assert (code, waiting(bed)) == (0, [int(out)])
    assert "there is no second job" in err
