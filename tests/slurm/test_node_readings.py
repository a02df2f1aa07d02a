"""Readings of the nodes of a real Slurm cluster, in commands and in the console."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.terminal import Terminal
from tests.slurm.bed import IMAGE, PATIENCE, Bed
from tests.slurm.probes import BedProbes

pytestmark = [pytest.mark.slurm, pytest.mark.nvml, pytest.mark.tmux, pytest.mark.xdist_group("slurm")]

GPUTUI = [sys.executable, "-P", "-m", "gputui"]


@pytest.fixture
def probes(bed: Bed, tmp_path: Path) -> BedProbes:
    return BedProbes(bed, tmp_path / "probes")


@pytest.fixture
def environ(bed: Bed, probes: BedProbes, tmp_path: Path) -> Mapping[str, str]:
    """Return the environment of an operator of the cluster whose settings want nodes to be read."""
    own = {name: str(tmp_path / name) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "GPUTUI_STATE")}
    logs = str(bed.home("alice") / "logs")
    settings = {"GPUTUI_CLUSTER": "slurm", "GPUTUI_CLUSTER_LOG_DIRECTORY": logs, "TZ": "UTC"}
    return bed.environ | own | settings | probes.environ


def gputui(environ: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    return subprocess.run(
        [*GPUTUI, *words], env=dict(environ), capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def gpus(environ: Mapping[str, str]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the GPUs of all nodes by node and Slurm's index."""
    found = json.loads(gputui(environ, "gpus", "--json").stdout)
    return {(gpu["node"], gpu["index"]): gpu for gpu in found}


def test_gpus_of_all_nodes_have_readings_with_job_and_user(
    bed: Bed, probes: BedProbes, environ: Mapping[str, str]
) -> None:
    probes.drivers["gpu2"].change("gpu 0 minor 1", "gpu 0 temperature 71", "gpu 1 minor 0", "gpu 1 temperature 42")
    for number, driver in enumerate(probes.drivers.values(), 1):
        driver.change(*(f"gpu {index} util {10 * number + index}" for index in range(2)))
    done = gputui(environ, "submit", "--host", "--gpus", "6", "--name", "all", "--", "sleep", "600")
    assert done.returncode, "a job of ours is on one node"
    jobs = [
        int(gputui(environ, "submit", "--host", "--gpus", "2", "--name", f"n{n}", "--", "sleep", "600").stdout)
        for n in range(3)
    ]
    bed.wait(lambda: {bed.jobs().get(job) for job in jobs} == {"RUNNING"}, "all jobs run")
    found = gpus(environ)
    assert len(found) == 6
    assert {gpu["job_id"] for gpu in found.values()} == set(jobs)
    assert {holder["user"] for gpu in found.values() for holder in gpu["holders"]} == {"root"}
    assert {place: gpu["uuid"] for place, gpu in found.items()} == {
        (name, index): bed.uuids(name, [index if name != "gpu2" else 1 - index])[0]
        for name in bed.nodes
        for index in range(2)
    }
    assert [gpu["utilization"] for gpu in found.values()] == [0.10, 0.11, 0.21, 0.20, 0.30, 0.31]
    assert [found["gpu2", index]["temperature"] for index in (0, 1)] == [42, 71]
    frame = gputui(environ, "top").stdout
    assert all(load in frame for load in (" 11% ", " 20% ", " 30% "))


def test_commands_say_of_which_node_there_are_no_readings(probes: BedProbes, environ: Mapping[str, str]) -> None:
    probes.refuse("gpu2")
    probes.drivers["gpu3"].write("init 9", gpus=2)
    done = gputui(environ, "gpus")
    assert "gpu2: no readings: alice@gpu2: Permission denied (publickey)." in done.stderr
    assert "gpu3: no readings: the NVIDIA kernel module is not loaded" in done.stderr
    assert "gpu1" not in done.stderr
    told = gputui(environ, "doctor")
    assert "no readings of gpu2: alice@gpu2: Permission denied (publickey)." in told.stdout
    assert "no readings of gpu3: the NVIDIA kernel module is not loaded" in told.stdout


@pytest.mark.long
def test_the_console_shows_every_gpu_and_a_node_that_is_not_read_comes_back(
    probes: BedProbes, environ: Mapping[str, str]
) -> None:
    for name, driver in probes.drivers.items():
        driver.change(f"gpu 0 temperature 6{name[-1]}", f"gpu 1 temperature 5{name[-1]}")
    with Terminal(GPUTUI, environ, 140, 40) as console:
        console.until("● Slurm", " 61", " 51", " 62", " 52", " 63", " 53")
        probes.drivers["gpu1"].change("gpu 0 temperature 99")
        console.until(" 99")
        probes.refuse("gpu2")
        console.until("node gpu2 not read")
        probes.drivers["gpu2"].change("gpu 0 temperature 88")
        probes.accept("gpu2")
        console.until(" 88")
        console.until_gone("node gpu2 not read")


@pytest.mark.long
def test_a_job_has_the_cpu_and_memory_of_its_container(
    bed: Bed, probes: BedProbes, environ: Mapping[str, str], tmp_path: Path
) -> None:
    script = "x=$(head -c 30000000 /dev/zero | tr '\\0' x); while :; do :; done"
    words = ("submit", "--gpus", "1", "--network", "none", IMAGE, "sh", "-c", script)
    job = gputui(environ, *words).stdout.strip()
    bed.wait(bed.containers, "its container exists")
    [container] = bed.containers()
    inside = ("docker", "inspect", "--format", "{{.State.Pid}}", container["ID"])
    bed.wait(lambda: bed.run(*inside, on=container["Node"]).stdout.strip() != "0", "it runs")
    pid = bed.run(*inside, on=container["Node"]).stdout.strip()
    probes.drivers[container["Node"]].change(f"gpu 0 process {pid} {2**30} C", f"gpu 1 process {pid} {2**30} C")
    server = subprocess.Popen([*GPUTUI, "serve"], env=dict(environ) | {"GPUTUI_CLUSTER_PROBE_INTERVAL": "0.5s"})

    def told() -> dict[str, Any]:
        shown = json.loads(gputui(environ, "show", job, "--json").stdout)
        return dict(shown["attempts"][-1].get("telemetry") or {})

    try:
        bed.wait(lambda: (told().get("memory") or {}).get("peak", 0) > 30_000_000, "its memory is known")
        assert told()["cpu"] > 0
    finally:
        server.terminate()
        server.wait(PATIENCE)
