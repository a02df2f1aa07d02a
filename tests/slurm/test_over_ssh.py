"""Slurm's commands on a login node, over one ssh connection."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from gputui.cluster.slurm.cluster import SlurmCluster
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.ssh import SshConnection, runtime_directory
from gputui.domain.action import Cancel
from gputui.domain.container import ExecRequest
from gputui.domain.errors import CauseCode, ClusterRefusedError, ClusterUnavailableError, NotFoundError
from gputui.domain.job_spec import JobSpec, Submission
from gputui.domain.settings import ClusterSettings, Settings
from gputui.domain.state import JobState
from tests.cluster.talk import Talk
from tests.runtime.sshd import Sshd
from tests.slurm.bed import PATIENCE, Bed
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.ssh, pytest.mark.xdist_group("slurm")]


@pytest.fixture
def login(bed: Bed) -> Iterator[Sshd]:
    """Yield a login node whose users have formats of their own in their environment."""
    own = {"SLURM_CONF": str(bed.configuration), "SQUEUE_FORMAT": "%i", "SBATCH_HOLD": "1"}
    sshd = Sshd({"PATH": f"{bed.directory}/bin:/usr/bin:/bin", **own})
    yield sshd
    sshd.close()


def commands_over(login: Sshd, host: str = "lab") -> SlurmCommands:
    return SlurmCommands(SshConnection(host), PATIENCE, os.environ | {"PATH": login.path})


@pytest.fixture
def commands(login: Sshd) -> Iterator[SlurmCommands]:
    commands = commands_over(login)
    yield commands
    commands.close()


@pytest.fixture
def cluster(commands: SlurmCommands, bed: Bed, tmp_path: Path) -> SlurmCluster:
    logs = str(bed.home("alice") / "logs of 'all'")
    settings = ClusterSettings(poll_interval=timedelta(milliseconds=200), log_directory=logs)
    return SlurmCluster(commands, Settings(cluster=settings), tmp_path)


def test_a_job_is_submitted_followed_and_ended(bed: Bed, login: Sshd, cluster: SlurmCluster) -> None:
    end = bed.home("alice") / "end"
    script = f"echo it\\'s ready; until [ -s {end} ]; do sleep 0.1; done; cat {end}; exit 3"
    (job_id,) = cluster.submit([Submission(JobSpec(command=("sh", "-c", script), name="o'hara's $HOME"))], str(uuid4()))
    job = cluster.job(job_id)
    assert (job.name, job.held) == ("o'hara's $HOME", False)
    followed = iter(cluster.log(job, tail=None, follow=True))
    assert next(followed) == b"it's ready"
    end.write_text("over\n")
    assert list(followed) == [b"over"]
    ended = cluster.job(job_id)
    assert (ended.state, ended.exit_code) == (JobState.FAILED, 3)
    assert list(cluster.log(ended, tail=1, follow=False)) == [b"over"]
    assert len(login.sessions()) == 1
    assert cluster.act(Cancel((job_id,))) == ()
    end.unlink()


def test_what_the_batch_script_knew_of_a_failure_is_read_there(cluster: SlurmCluster) -> None:
    (job_id,) = cluster.submit([Submission(JobSpec(command=("no-such-program",)))], str(uuid4()))
    job = until(lambda: job if (job := cluster.job(job_id)).state.is_terminal else None, pause=0.1)
    assert job.cause is not None
    assert job.cause.code is CauseCode.COMMAND_NOT_FOUND
    assert job.cause.text.endswith(" has no program no-such-program")


def test_a_shell_in_a_job(login: Sshd, cluster: SlurmCluster) -> None:
    (job_id,) = cluster.submit([Submission(JobSpec(command=("sleep", "600")))], str(uuid4()))
    until(lambda: cluster.job(job_id).state is JobState.RUNNING, pause=0.1)
    script = 'until [ "$(stty size)" = "44 155" ]; do sleep 0.05; done; echo "$TERM it\'s"; read word; exit 3'
    request = ExecRequest(("sh", "-c", script), stdin=True, tty=True, term="vt220")
    talk = Talk(cluster.enter(cluster.job(job_id), request))
    talk.channel.resize(44, 155)
    talk.until(b"vt220 it's\r\n")
    talk.channel.send(b"~.\n")  # ssh would end here
    assert talk.end() == 3
    assert talk.out.replace(b"~.\r\n", b"") == b"vt220 it's\r\n"
    talk = Talk(cluster.enter(cluster.job(job_id), ExecRequest(("cat",), stdin=True)))
    talk.channel.send(b"typed\n")
    talk.until(b"typed\n")
    assert len(login.sessions()) == 1
    login.cut()
    assert talk.end() is None


def test_slurms_refusals_have_its_words(commands: SlurmCommands) -> None:
    with pytest.raises(ClusterRefusedError, match="Invalid job id specified"):
        commands.ask("scontrol", "hold", "99999")
    with pytest.raises(ClusterUnavailableError, match="sinfoo is not installed there"):
        commands.ask("sinfoo")


def test_output_that_is_not_there(cluster: SlurmCluster) -> None:
    (job_id,) = cluster.submit([Submission(JobSpec(command=("true",)), held=True)], str(uuid4()))
    with pytest.raises(NotFoundError, match="no output there yet"):
        cluster.log(cluster.job(job_id), tail=None, follow=False)


def test_a_cut_connection_is_made_again(login: Sshd, cluster: SlurmCluster) -> None:
    assert len(cluster.snapshot().nodes) == 3
    login.cut()
    (job_id,) = cluster.submit([Submission(JobSpec(command=("true",)), held=True)], str(uuid4()))
    assert cluster.job(job_id).held
    assert len(login.sessions()) == 1


def test_a_login_node_that_does_not_answer(login: Sshd) -> None:
    with pytest.raises(ClusterUnavailableError, match="`ssh nowhere` must work without a password") as caught:
        commands_over(login, "nowhere").ask("squeue")
    assert caught.value.where == "nowhere"


def test_processes_share_a_connection(login: Sshd) -> None:
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as runtime:
        environ = os.environ | {"PATH": login.path, "XDG_RUNTIME_DIR": runtime}
        assert runtime_directory(environ) == Path(runtime)
        for _ in range(2):
            commands = SlurmCommands(SshConnection("lab", runtime=runtime_directory(environ)), PATIENCE, environ)
            assert commands.ask("squeue", "--version").startswith("slurm")
            commands.close()
        assert len(login.sessions()) == 1
        login.cut()
    assert runtime_directory({"XDG_RUNTIME_DIR": runtime}) is None
