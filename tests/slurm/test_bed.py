"""The test bed itself: what the other tests rely on, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process_list import command_lines
from tests.runtime.dockerd import has_cgroups
from tests.slurm.bed import IMAGE, PATIENCE, Bed
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

JOB = """#!/bin/sh
hostname
id -un
echo $SLURM_JOB_GPUS
gpu=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | sed -n 2p)
docker run --rm --gpus "\\"device=$gpu\\"" {image} nvidia-smi -L
exit 3
"""


def test_a_job_of_a_user_runs_a_container_with_a_gpu_of_its_node(bed: Bed) -> None:
    output = bed.home("alice") / "output"
    asked = ("--gres=gpu:2", "--nodelist=gpu2", f"--output={output}", "--parsable")
    number = int(bed.run("sbatch", *asked, stdin=JOB.format(image=IMAGE), user="alice").stdout)
    bed.wait(lambda: bed.jobs().get(number) == "FAILED", "the job has ended")
    [gpu] = bed.uuids("gpu2", [1])
    assert output.read_text().splitlines() == ["gpu2", "alice", "0,1", f"GPU 0: NVIDIA H200 (UUID: {gpu})"]
    assert "ExitCode=3:0" in bed.run("scontrol", "show", "job", str(number)).stdout
    assert bed.containers() == []


def test_programs_outside_use_its_commands(bed: Bed, tmp_path: Path) -> None:
    words = ["sbatch", "--parsable", f"--output={tmp_path}/output", "--wrap=pwd"]
    done = subprocess.run(words, env=bed.environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    bed.wait(lambda: bed.jobs().get(int(done.stdout)) == "COMPLETED", "the job has ended")
    assert (tmp_path / "output").read_text() == f"{tmp_path}\n"


def test_users_are_told_apart(bed: Bed) -> None:
    asked = ("--hold", "--parsable", "--output=/dev/null", "--wrap=true")
    number = bed.run("sbatch", *asked, user="alice").stdout.strip()
    refused = bed.run("scancel", number, user="bob", check=False)
    assert "Access/permission denied" in refused.stderr
    assert bed.run("docker", "ps", on="gpu1", user="bob", check=False).returncode != 0


@pytest.mark.parametrize("end", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL])
def test_nothing_of_it_stays(end: signal.Signals) -> None:
    words = [sys.executable, "-m", "tests.slurm.bed"]
    program = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert program.stdout is not None
    lines = [program.stdout.readline() for _ in range(2)]
    program.send_signal(end)
    program.communicate(timeout=PATIENCE)
    directory = Path(lines[1].partition("SLURM_CONF=")[2].partition("/slurm.conf")[0])
    name = os.fsencode(directory)
    until(lambda: not any(name in word for words in command_lines().values() for word in words), "its processes stay")
    if end == signal.SIGKILL:
        Bed(nodes=1).destroy()  # each sweeps what others could not
    assert directory.name.startswith("gputui-slurm-")
    assert not directory.exists()
    assert not has_cgroups(directory.name)
