"""The poll of Slurm that all processes share, and the records of what Slurm forgets."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from gputui.cluster.slurm.cluster import SlurmCluster
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.domain.cluster import array_of
from gputui.domain.errors import ClusterUnavailableError
from gputui.domain.job_spec import GpuRequest, JobSpec, Submission
from gputui.domain.settings import ClusterSettings, Settings
from gputui.domain.state import JobState
from tests.slurm.bed import PATIENCE, Bed
from tests.slurm.test_cluster import cluster_of
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

ROOT = Path(__file__).parents[2]
_LOOKS = """
import sys
from datetime import timedelta
from pathlib import Path
from gputui.cluster.slurm.cluster import SlurmCluster
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.domain.settings import ClusterSettings, Settings
settings = Settings(cluster=ClusterSettings(poll_interval=timedelta(hours=1)))
print(len(SlurmCluster(SlurmCommands(None, 60.0), settings, Path(sys.argv[1])).snapshot().nodes))
"""


def counted(bed: Bed, folder: Path) -> dict[str, str]:
    """Return an environment whose squeue and scontrol note each of their calls in a file."""
    folder.mkdir()
    for name in ("squeue", "scontrol"):
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $1" >> {folder}/calls\nexec {bed.directory}/bin/{name} "$@"\n')
        program.chmod(0o755)
    environ = bed.environ
    return environ | {"PATH": f"{folder}:{environ['PATH']}"}


def cluster_at(folder: Path, environ: Mapping[str, str], interval: timedelta) -> SlurmCluster:
    settings = Settings(cluster=ClusterSettings(poll_interval=interval))
    return SlurmCluster(SlurmCommands(None, PATIENCE, environ), settings, folder)


def test_all_processes_together_ask_once(bed: Bed, tmp_path: Path) -> None:
    environ, folder = counted(bed, tmp_path / "bin"), tmp_path / "state"
    words = [sys.executable, "-c", _LOOKS, str(folder)]
    others = [subprocess.Popen(words, env=environ, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [other.communicate(timeout=PATIENCE)[0] for other in others] == ["3\n"] * 3
    cluster = cluster_at(folder, environ, timedelta(hours=1))
    assert cluster.snapshot() is cluster.snapshot()
    calls = (tmp_path / "bin" / "calls").read_text().splitlines()
    assert sorted(calls) == ["scontrol -d", "scontrol show", "scontrol show", "squeue --noheader"]
    files = [path for path in folder.iterdir() if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_change_is_seen_at_once(bed: Bed, tmp_path: Path) -> None:
    cluster = cluster_at(tmp_path, bed.environ, timedelta(hours=1))
    other = cluster_at(tmp_path, bed.environ, timedelta(hours=1))
    assert len(other.snapshot().jobs) == len(cluster.snapshot().jobs)
    (job_id,) = cluster.submit([Submission(JobSpec(command=("true",)), held=True)], str(uuid4()))
    assert cluster.snapshot().job(job_id) is not None
    assert cluster.job(job_id).held


def test_a_failure_is_shared_too(bed: Bed, tmp_path: Path) -> None:
    environ = counted(bed, tmp_path / "bin")
    words = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    (tmp_path / "bin" / "squeue").write_text(
        f"#!/bin/sh\necho {words!r} >&2\necho squeue >> {tmp_path}/calls\nexit 1\n"
    )
    for _ in range(3):
        with pytest.raises(ClusterUnavailableError, match="Unable to contact slurm controller"):
            cluster_at(tmp_path / "state", environ, timedelta(hours=1)).snapshot()
    assert (tmp_path / "calls").read_text() == "squeue\n"


def test_a_damaged_file_is_replaced(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "poll.json").write_text('{"at": 1e300, "rows": 3')
    (tmp_path / "ended.jsonl").write_text('{"row": \n\x00\x00')
    cluster = cluster_at(tmp_path, bed.environ, timedelta(hours=1))
    assert len(cluster.snapshot().nodes) == 3
    assert list(cluster.history()) == [] or all(job.state.is_terminal for job in cluster.history())


def test_gpus_of_a_job_that_nobody_saw_running(bed: Bed, tmp_path: Path) -> None:
    cluster = cluster_of(bed, tmp_path)
    submission = Submission(JobSpec(command=("true",), gpus=GpuRequest(2, 2)), array=(3, 4))
    ids = cluster.submit([submission], str(uuid4()))
    words = ("squeue", "--noheader", "--states=all", f"--jobs={array_of(ids[0])}", "--format=%T")
    bed.wait(lambda: bed.run(*words).stdout.split() == ["COMPLETED"] * 2, "both elements have ended")
    for job_id in ids:
        job = cluster.job(job_id)
        assert job.attempt is not None
        assert job.attempt.gpus == (f"{job.attempt.node}:0", f"{job.attempt.node}:1")


@pytest.mark.long
def test_a_job_that_slurm_forgot_has_its_record(tmp_path: Path) -> None:
    bed = Bed(nodes=1, min_job_age=2)
    try:
        bed.start()
        cluster = cluster_of(bed, tmp_path)
        spec = JobSpec(command=("sh", "-c", "sleep 2; exit 3"), name="forgotten", gpus=GpuRequest(2, 2))
        (job_id,) = cluster.submit([Submission(spec)], str(uuid4()))
        until(lambda: cluster.snapshot().job(job_id) is None, seconds=4 * PATIENCE, pause=0.5)
        job = cluster_of(bed, tmp_path).job(job_id)
        assert (job.state, job.exit_code, job.spec.command) == (JobState.FAILED, 3, spec.command)
        assert job.attempt is not None
        assert (job.attempt.node, job.attempt.gpus) == ("gpu1", ("gpu1:0", "gpu1:1"))
        assert [each.id for each in cluster.history()] == [job_id]
    finally:
        bed.destroy()
