"""Slurm keeps the contract of clusters, and what only Slurm does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from gputui.cluster.slurm.cluster import SlurmCluster
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.domain.action import Cancel, Edit, EditJobs, Requeue, SetPriority
from gputui.domain.errors import CapabilityError, ClusterRefusedError
from gputui.domain.job import Job
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobId, JobSpec, Submission
from gputui.domain.settings import ClusterSettings, Settings
from gputui.ports import Cluster
from tests.cluster.contract import PATIENCE, ClusterContract
from tests.runtime.dockerd import NETWORK
from tests.slurm.bed import IMAGE, Bed
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

_JOB = """
me={folder}/${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_}}${{SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}}
trap 'echo 10 >> $me.signals' USR1
echo ready
until [ -s $me ]; do sleep 0.1 & wait $!; done
exit $(cat $me)
"""


def cluster_of(bed: Bed, folder: Path, user: str = "root", environ: Mapping[str, str] | None = None) -> SlurmCluster:
    """Return the cluster as a user of the bed sees it; its files lie in the folder."""
    environ = environ or (bed.environ if user == "root" else bed.environ_of(user))
    logs = bed.home("alice") / "logs"
    logs.mkdir(exist_ok=True)
    logs.chmod(0o777)  # else whoever submits first decides who may
    settings = ClusterSettings(poll_interval=timedelta(milliseconds=200), log_directory=str(logs))
    return SlurmCluster(SlurmCommands(None, PATIENCE, environ), Settings(cluster=settings), folder / user)


class BedHarness:
    """The bed; its jobs end when a file with their exit code appears."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        self._bed = bed
        self._folder = folder
        self._ends = bed.home("alice") / "ends"
        self._ends.mkdir(exist_ok=True)
        self._ends.chmod(0o777)
        self.cluster: Cluster = cluster_of(bed, folder)

    def spec(self, gpus: int = 0) -> JobSpec:
        script = _JOB.format(folder=self._ends)
        return JobSpec(command=("sh", "-c", script), name="contract", gpus=GpuRequest(gpus, gpus))

    def contained(self, script: str) -> JobSpec:
        return JobSpec(image=IMAGE, command=("sh", "-c", script), options=ContainerOptions(network=NETWORK))

    def finish(self, job: Job, exit_code: int = 0) -> None:
        (self._ends / job.shown_id).write_text(f"{exit_code}\n")

    def submit_as_another(self, spec: JobSpec) -> JobId:
        words = ("--hold", "--parsable", "--output=/dev/null", "--job-name=theirs", "--wrap=true")
        return int(self._bed.run("sbatch", *words, user="bob").stdout)

    def without_rights(self) -> Cluster:
        return cluster_of(self._bed, self._folder, "alice")

    def signals(self, job: Job) -> Sequence[int]:
        file = self._ends / f"{job.shown_id}.signals"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


class TestSlurm(ClusterContract):
    """The contract over a real Slurm."""

    @pytest.fixture
    def harness(self, bed: Bed, tmp_path: Path) -> Iterator[BedHarness]:
        harness = BedHarness(bed, tmp_path)
        yield harness
        harness.cluster.close()


def test_a_users_own_job_through_the_whole_of_it(bed: Bed, tmp_path: Path) -> None:
    cluster = cluster_of(bed, tmp_path, "alice")
    (job_id,) = cluster.submit([Submission(JobSpec(command=("true",), name="hers"), held=True)], str(uuid4()))
    job = cluster.job(job_id)
    assert (job.name, job.submitted_by, job.held) == ("hers", "alice", True)
    assert cluster.act(Cancel((job_id,))) == (job_id,)


@pytest.mark.parametrize("rounds", [8, pytest.param(80, marks=pytest.mark.long)])
def test_jobs_that_are_cancelled_while_they_start_leave_at_once(bed: Bed, tmp_path: Path, rounds: int) -> None:
    """A command may end with the signal that its script gets; Slurm kills what is left after KillWait, 30 s."""
    harness = BedHarness(bed, tmp_path)
    for number in range(rounds):
        jobs = harness.cluster.submit([Submission(harness.spec())] * 3, str(uuid4()))
        time.sleep(0.1 + 0.12 * number / rounds)  # in which batch scripts get as far as their commands
        harness.cluster.act(Cancel(jobs))
        bed.wait(lambda: not bed.run("squeue", "--noheader", "--all").stdout, "none is completing", patience=10)


def test_a_requeued_job_is_not_requeued_by_slurm_itself(bed: Bed, tmp_path: Path) -> None:
    cluster = cluster_of(bed, tmp_path)
    (job_id,) = cluster.submit([Submission(JobSpec(command=("sleep", "600")))], str(uuid4()))
    until(lambda: cluster.job(job_id).attempts, seconds=PATIENCE, pause=0.1)
    assert cluster.act(Requeue((job_id,))) == (job_id,)
    assert " Requeue=0 Restarts=1 " in bed.run("scontrol", "--oneliner", "show", "job", str(job_id)).stdout


def test_a_user_may_only_lower_the_time_limit_of_her_running_job(bed: Bed, tmp_path: Path) -> None:
    cluster = cluster_of(bed, tmp_path, "alice")
    spec = JobSpec(command=("sleep", "600"), time_limit=timedelta(hours=1))
    (job_id,) = cluster.submit([Submission(spec)], str(uuid4()))
    until(lambda: cluster.job(job_id).attempts, seconds=PATIENCE, pause=0.1)
    with pytest.raises(ClusterRefusedError, match=r"access denied: .*users may only lower the time limit"):
        cluster.act(EditJobs((job_id,), Edit({"time_limit": timedelta(hours=2)})))
    assert cluster.act(EditJobs((job_id,), Edit({"time_limit": timedelta(minutes=30)}))) == (job_id,)
    with pytest.raises(CapabilityError, match="only Slurm's operators may raise"):
        cluster.act(SetPriority((job_id,), 60))
