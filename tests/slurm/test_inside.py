"""Commands, shells and process lists of running jobs, as steps of Slurm."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Thread
from uuid import uuid4

import pytest

from gputui.domain.action import Cancel
from gputui.domain.container import ExecRequest
from gputui.domain.errors import ClusterRefusedError
from gputui.domain.job_spec import Interactive, JobSpec, Submission
from gputui.ports import Channel
from gputui.ports.backend import Attach
from tests.cluster.talk import Talk
from tests.slurm.bed import IMAGE, Bed
from tests.slurm.person import Person
from tests.slurm.test_cluster import cluster_of
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

_WAITS = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"


def until_ready(person: Person, job: int) -> None:
    until(lambda: "ready" in person.run("logs", str(job), check=False).out, person.bed.told, pause=0.1)


def test_a_command_in_the_container_of_ones_own_job(bed: Bed, alice: Person, root: Person) -> None:
    job = int(alice.run("submit", "--gpus", "2", "--network", "none", "-e", "A=b c", IMAGE, "sh", "-c", _WAITS).out)
    until_ready(alice, job)
    script = "echo $A $(hostname); echo warned >&2; exit 7"
    result = alice.run("exec", str(job), "sh", "-c", script, check=False)
    hostname = bed.containers()[0]["ID"][:12]
    assert (result.code, result.out, result.err) == (7, f"b c {hostname}\n", "warned\n")
    assert alice.run("exec", str(job), "nosuch", check=False).code in {126, 127}
    elsewhere = {"GPUTUI_STATE": str(alice.home / "another machine")}
    assert alice.run("exec", str(job), "sh", "-c", "hostname", environ=elsewhere).out == f"{hostname}\n"
    refused = root.run("exec", str(job), "true", check=False)
    hint = "Slurm lets only its submitter enter it"
    assert (refused.code, refused.err) == (1, f"gputui: error: job {job} is a job of alice ({hint})\n")
    alice.run("suspend", str(job))
    assert "is suspended" in alice.run("exec", str(job), "true", check=False).err


def test_a_command_beside_a_job_whose_own_step_has_everything(bed: Bed, tmp_path: Path) -> None:
    cluster = cluster_of(bed, tmp_path)
    script = "#!/bin/sh\nexport MINE=1\ncd /var\nexec srun --exact --gres=gpu:2 sh -c 'sleep 600'\n"
    words = ("--parsable", "--gres=gpu:2", "--exclusive", "--output=/dev/null")
    number = int(bed.run("sbatch", *words, stdin=script).stdout)
    bed.wait(lambda: f"{number}.0" in bed.run("squeue", "--steps", "--noheader").stdout, "its step runs")
    job = cluster.job(number)
    shown = ExecRequest(("sh", "-c", "pwd; echo $MINE $CUDA_VISIBLE_DEVICES $SLURM_JOB_ID"))
    talk = Talk(cluster.enter(job, shown))
    assert (talk.end(), talk.out, talk.err) == (0, f"/var\n1 0,1 {number}\n".encode(), b"")
    assert "sleep 600" in [row.command for row in cluster.processes(job)]


def test_a_command_that_leaves_its_input_unread_tells_its_exit_code(bed: Bed, tmp_path: Path) -> None:
    cluster = cluster_of(bed, tmp_path)
    number = int(bed.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 600").stdout)
    bed.wait(lambda: bed.jobs()[number] == "RUNNING", "it runs")
    request = ExecRequest(("sh", "-c", "sleep 0.5; echo end; exit 4"), stdin=True)
    for _ in range(4):  # Slurm loses the end of most of these
        talk = Talk(cluster.enter(cluster.job(number), request))
        writer = Thread(target=_write, args=(talk.channel, 3_000_000))
        writer.start()
        assert (talk.end(), talk.out) == (4, b"end\n")
        writer.join()


def _write(channel: Channel, size: int) -> None:
    with suppress(OSError):
        for _ in range(0, size, 4096):
            channel.send(bytes(4096))


def test_a_job_that_ends_ends_its_shells(bed: Bed, tmp_path: Path) -> None:
    cluster = cluster_of(bed, tmp_path)
    number = int(bed.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 600").stdout)
    bed.wait(lambda: bed.jobs()[number] == "RUNNING", "it runs")
    job = cluster.job(number)
    talk = Talk(cluster.enter(job, ExecRequest(("sh", "-c", "echo begun; sleep 600"), stdin=True, tty=True)))
    talk.until(b"begun")
    assert cluster.act(Cancel((number,))) == (number,)
    assert talk.end() != 0
    with pytest.raises(ClusterRefusedError, match=f"job {number}: .*(has expired|completed)"):
        Talk(cluster.enter(job, ExecRequest(("true",)))).end()


def test_one_attaches_from_another_machine_than_the_one_that_submitted(bed: Bed, tmp_path: Path) -> None:
    """The other machine knows the job by Slurm's comment alone; jobs without streams, and of others, are refused."""
    script = "read line; echo got $line; exit 5"
    streams = JobSpec(image=IMAGE, command=("sh", "-c", script), interactive=Interactive(stdin=True))
    plain = JobSpec(image=IMAGE, command=("sleep", "600"))
    number, other = cluster_of(bed, tmp_path / "here").submit([Submission(streams), Submission(plain)], str(uuid4()))
    there = cluster_of(bed, tmp_path / "there")
    bed.wait(lambda: {bed.jobs()[each] for each in (number, other)} == {"RUNNING"}, "they run")
    job = there.job(number)
    assert job.spec.interactive == Interactive(stdin=True)
    talk = Talk(there.enter(job, Attach()))
    talk.channel.send(b"this\n")
    talk.until(b"got this")
    assert talk.end() == 5
    with pytest.raises(ClusterRefusedError, match="neither a terminal nor input"):
        there.enter(there.job(other), Attach())
