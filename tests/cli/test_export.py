"""`gputui export`."""

from __future__ import annotations

from pathlib import Path

import yaml  # type: ignore[import-untyped]

from gputui.domain.job_spec import ContainerOptions
from tests.cli.conftest import KeptStore, Run, put
from tests.factories import job


def test_a_batch_script_is_printed(run: Run, store: KeptStore) -> None:
    put(store, job(gpus=2, priority=20, options=ContainerOptions(env=(("TOKEN", "hunter2"),))))
    result = run("export", "--to", "slurm", "1")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("#!/bin/bash\n#SBATCH --job-name=train\n")
    assert "#SBATCH --comment=gputui:memory000000-1\n" in result.out
    assert "#SBATCH --gres=gpu:2\n" in result.out
    assert "#SBATCH --nice=30000\n" in result.out
    assert "hunter2" in result.out


def test_a_job_that_waits_for_others_is_held(run: Run, store: KeptStore) -> None:
    put(store, job())
    put(store, job(after=(1,)))
    result = run("export", "--to", "slurm", "2")
    assert "#SBATCH --hold\n" in result.out
    assert "--dependency" not in result.out
    assert result.err == (
        "gputui: job 2: left out --after: the job is held; release it, or submit it with "
        "sbatch --dependency=afterok:ID\n"
    )


def test_manifests_are_printed_as_documents(run: Run, store: KeptStore) -> None:
    put(store, job(gpus=1))
    assert run("submit", "--name", "train", "--array", "0-2%2", "busybox", "true").code == 0
    result = run("export", "--to", "k8s", "1,2")
    assert result.code == 0
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(result.out)]
    key = "memory000000"
    assert names == [f"train-{key}-1", f"train-{key}-2-0", f"train-{key}-2-1", f"train-{key}-2-2"]
    assert result.err == (
        "gputui: job 2_[0-2%2]: left out --array: a limit of elements at a time is for indices from 0 on, without a "
        "sweep or a hostname, on releases from 1.29 on\n"
    )


def test_an_array_is_one_script(run: Run, store: KeptStore) -> None:
    assert run("submit", "--array", "0-3%2", "busybox", "true").code == 0
    assert "#SBATCH --array=0-3%2\n" in run("export", "--to", "slurm", "1").out
    assert "#SBATCH --array=1,3%2\n" in run("export", "--to", "slurm", "1_[1,3]").out


def test_several_scripts_go_into_files(run: Run, store: KeptStore, tmp_path: Path) -> None:
    put(store, job())
    put(store, job())
    refused = run("export", "--to", "slurm", "1-2")
    assert (refused.code, refused.out) == (2, "")
    assert "--directory" in refused.err
    folder = tmp_path / "scripts"
    result = run("export", "--to", "slurm", "--directory", str(folder), "1-2")
    assert result.code == 0
    assert result.out.split() == [str(folder / f"gputui-{number}.sbatch") for number in (1, 2)]
    assert (folder / "gputui-1.sbatch").stat().st_mode & 0o777 == 0o600
    again = run("export", "--to", "slurm", "--directory", str(folder), "1-2")
    assert again.code == 1
    assert "exists" in again.err


def test_a_job_that_slurm_cannot_run_is_refused(run: Run, store: KeptStore) -> None:
    put(store, job(retries=2))
    result = run("export", "--to", "slurm", "1")
    assert (result.code, result.out) == (2, "")
    assert result.err == "gputui: error: job 1 cannot be exported: --retries: Slurm does not repeat a failed job\n"
