"""Containers of jobs on the nodes: what reaches them through Slurm."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from gputui.cluster.slurm.cluster import SlurmCluster
from gputui.domain.action import Cancel, Signal, Suspend, Unsuspend
from gputui.domain.job import Job
from gputui.domain.job_spec import GpuRequest, JobId, JobSpec, Submission
from gputui.domain.state import JobState
from tests.slurm.bed import IMAGE, Bed
from tests.slurm.test_cluster import cluster_of
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

_SCRIPT = "trap 'echo usr1' USR1; echo $NVIDIA_VISIBLE_DEVICES; while :; do sleep 0.1; done"
SPEC = JobSpec(image=IMAGE, command=("sh", "-c", _SCRIPT), gpus=GpuRequest(2, 2))


def lines(cluster: SlurmCluster, job: Job) -> list[str]:
    """Return the output so far."""
    path = [each.decode() for each in cluster.log(job, tail=None, follow=False)]
    return [line for line in path if not line.startswith("gputui: ")]


def started(bed: Bed, cluster: SlurmCluster) -> JobId:
    """Return a job whose container runs and has its trap."""
    (job_id,) = cluster.submit([Submission(SPEC)], str(uuid4()))
    until(lambda: cluster.job(job_id).gpus, "it has GPUs")
    until(lambda: bed.containers(), "its container exists")
    until(lambda: lines(cluster, cluster.job(job_id)), "it has written")
    return job_id


def states(bed: Bed) -> list[str]:
    return [container["State"] for container in bed.containers()]


def test_signals_and_pauses_reach_the_container(bed: Bed, tmp_path: Path) -> None:
    cluster = cluster_of(bed, tmp_path)
    job_id = started(bed, cluster)
    job = cluster.job(job_id)
    assert job.attempt is not None
    assert lines(cluster, job) == [",".join(bed.uuids(job.attempt.node, [0, 1]))]
    assert cluster.act(Signal((job_id,), 10)) == (job_id,)
    until(lambda: "usr1" in lines(cluster, job), "the container got the signal")
    assert cluster.act(Suspend((job_id,))) == (job_id,)
    until(lambda: states(bed) == ["paused"], "the container is paused")
    assert (cluster.job(job_id).suspended, cluster_of(bed, tmp_path).job(job_id).suspended) == (True, True)
    assert cluster.job(job_id).state is JobState.RUNNING
    assert cluster.act(Unsuspend((job_id,))) == (job_id,)
    until(lambda: states(bed) == ["running"], "the container runs again")
    assert not cluster.job(job_id).suspended


def test_a_cancelled_job_leaves_no_container_while_that_is_paused(bed: Bed, tmp_path: Path) -> None:
    cluster = cluster_of(bed, tmp_path)
    job_id = started(bed, cluster)
    cluster.act(Suspend((job_id,)))
    until(lambda: states(bed) == ["paused"], "the container is paused")
    assert cluster.act(Cancel((job_id,))) == (job_id,)
    until(lambda: cluster.job(job_id).state is JobState.CANCELLED, "it is cancelled")
    until(lambda: not bed.containers(), "its container is gone")
