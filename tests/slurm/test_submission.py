"""Submission to a real Slurm: once for each key, whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from gputui.cluster.slurm.cluster import SlurmCluster
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError
from gputui.domain.job_spec import GpuRequest, JobSpec, Submission
from gputui.domain.settings import ClusterSettings, Settings
from gputui.domain.state import JobState
from tests.slurm.bed import PATIENCE, Bed
from tests.slurm.test_cluster import cluster_of

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

ROOT = Path(__file__).parents[2]
HELD = Submission(JobSpec(command=("true",), name="once"), held=True)
_SUBMITS = """
import sys
from pathlib import Path
from gputui.cluster.slurm.cluster import SlurmCluster
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.domain.settings import ClusterSettings, Settings
from tests.slurm.test_submission import HELD
settings = Settings(cluster=ClusterSettings(log_directory=sys.argv[2]))
cluster = SlurmCluster(SlurmCommands(None, 60.0), settings, Path(sys.argv[1]))
cluster.snapshot()
print("ready", flush=True)
cluster.submit([HELD, HELD], sys.argv[3], is_new=True)
print("done", flush=True)
"""


def submit_and_kill(bed: Bed, folder: Path, key: str, after: float, *, whole_group: bool) -> None:
    """Submit in another process, and kill it, or it and its commands, some seconds after it began."""
    words = [sys.executable, "-c", _SUBMITS, str(folder / "root"), str(bed.home("alice") / "logs"), key]
    process = subprocess.Popen(
        words, env=bed.environ, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(after)  # the moment of the kill is what is varied
    if whole_group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait(PATIENCE)
    process.stdout.close()


def check_kills(bed: Bed, folder: Path, count: int) -> None:
    moments, run = random.Random(count), str(uuid4())
    cluster = cluster_of(bed, folder)
    for number in range(count):
        key = f"{run}-{number}"
        submit_and_kill(bed, folder, key, moments.uniform(0, 0.12), whole_group=number % 2 == 0)
        ids = cluster.submit([HELD, HELD], key)
        assert len(set(ids)) == 2
    listed = bed.run("squeue", "--noheader", "--format=%k").stdout.splitlines()
    assert Counter(listed) == Counter(f"gputui:{run}-{number}{part}" for number in range(count) for part in ("", ".1"))


def test_a_killed_submission_is_repeated_without_a_second_job(bed: Bed, tmp_path: Path) -> None:
    check_kills(bed, tmp_path, 5)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_killed_submissions(bed: Bed, tmp_path: Path) -> None:
    check_kills(bed, tmp_path, 100)


def test_a_job_is_found_by_its_comment_when_nothing_was_noted(bed: Bed, tmp_path: Path) -> None:
    key = str(uuid4())
    first = cluster_of(bed, tmp_path / "one").submit([HELD], key)
    assert cluster_of(bed, tmp_path / "other").submit([HELD], key) == first


def test_a_refused_submission_may_be_repeated(bed: Bed, tmp_path: Path) -> None:
    cluster, key = cluster_of(bed, tmp_path), str(uuid4())
    with pytest.raises(ClusterRefusedError, match="not available"):
        cluster.submit([Submission(JobSpec(command=("true",), gpus=GpuRequest(9, 9)))], key)
    (job_id,) = cluster.submit([HELD], key)
    assert cluster.job(job_id).state is JobState.PENDING


def test_an_engine_that_is_away_is_said_so(bed: Bed, tmp_path: Path) -> None:
    squeue = tmp_path / "squeue"
    words = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    squeue.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    squeue.chmod(0o755)
    with pytest.raises(ClusterUnavailableError, match="Slurm does not answer: Unable to contact slurm controller"):
        SlurmCommands(None, 10.0, {"PATH": f"{tmp_path}:/usr/bin:/bin"}).ask("squeue")
    with pytest.raises(ClusterUnavailableError, match="cannot be run here"):
        SlurmCommands(None, 10.0, {"PATH": str(tmp_path)}).ask("sinfo")
    with pytest.raises(ClusterUnavailableError, match=r"did not answer within 1 s"):
        SlurmCommands(None, 1.0, bed.environ).script("sleep 60", "squeue")


def test_the_users_own_formats_and_defaults_change_nothing(bed: Bed, tmp_path: Path) -> None:
    own = {"SQUEUE_FORMAT": "%i", "SQUEUE_STATES": "RUNNING", "SQUEUE_USERS": "bob", "SLURM_TIME_FORMAT": "relative"}
    own |= {"SBATCH_PARTITION": "nowhere", "SBATCH_ARRAY_INX": "0-9", "SBATCH_HOLD": "1", "TZ": "Asia/Tokyo"}
    cluster = cluster_of(bed, tmp_path, environ=bed.environ | own)
    limit = timedelta(hours=2)
    (job_id,) = cluster.submit([Submission(JobSpec(command=("true",), time_limit=limit))], str(uuid4()))
    job = cluster.job(job_id)
    assert (job.spec.time_limit, job.held, job.count) == (limit, False, 1)
    assert abs(job.submitted_at.timestamp() - time.time()) < PATIENCE


def test_a_directory_for_output_that_cannot_be_made(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(cluster=ClusterSettings(log_directory=f"{tmp_path}/file/logs"))
    cluster = SlurmCluster(SlurmCommands(None, PATIENCE, bed.environ), settings, tmp_path / "state")
    before = bed.jobs()
    with pytest.raises(ClusterRefusedError, match=r"nothing was submitted: .*Not a directory") as caught:
        cluster.submit([HELD], str(uuid4()))
    assert caught.value.where == "cluster.log_directory"
    assert bed.jobs() == before
