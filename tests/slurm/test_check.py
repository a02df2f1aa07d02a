"""`gputui cluster check`: probe jobs on real nodes, right ones and wrong ones."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.rootfs import archive
from tests.slurm.bed import IMAGE, PATIENCE, Bed
from tests.slurm.epilog import installed_epilog
from tests.slurm.files import NVIDIA_SMI
from tests.slurm.person import Person

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

OTHER = "gputui-check:latest"
"""Image whose containers see all GPUs of gpu2."""


@pytest.fixture
def _epilog(bed: Bed) -> Iterator[None]:
    with installed_epilog(bed):
        yield


def bring_image(bed: Bed, node: str, path: Path) -> None:
    bed.run("docker", "import", str(path), OTHER, on=node)


@pytest.mark.usefixtures("_epilog")
def test_a_right_node_one_whose_containers_see_too_much_and_a_drained_one(bed: Bed, alice: Person) -> None:
    greedy = bed.directory / "greedy.tar"
    uuids = bed.uuids("gpu2", (0, 1))
    greedy.write_bytes(archive({"bin/nvidia-smi": NVIDIA_SMI.format(uuids=" ".join(uuids))}))
    bring_image(bed, "gpu1", bed.directory / "image.tar")
    bring_image(bed, "gpu2", greedy)
    bed.run("scontrol", "update", "nodename=gpu3", "state=drain", "reason=fans")
    done = alice.run("cluster", "check", "--image", OTHER, "--json", check=False)
    right, greedy_one, drained = done.json
    assert (done.code, right["result"], right["faults"]) == (1, "ok", []), done
    assert right["seen"] == right["expected"] == right["host"] == bed.uuids("gpu1", (0, 1))
    assert (right["allocated"], right["user"], right["is_cleaned"]) == (["0", "1"], "61001 alice", True)
    assert re.match(r"\d+\.", right["container_engine"])
    assert greedy_one["result"] == "faulty"
    assert greedy_one["faults"] == [
        f"a container with GPU 0 saw {uuids[1]} too",
        f"a container with GPU 1 saw {uuids[0]} too",
    ]
    assert (drained["result"], drained["why_not"]) == ("not checked", "node gpu3 is drained: fans")
    assert bed.containers() == []
    assert list(alice.home.rglob("check-*.out")) == []


def test_a_wrong_index_and_a_missing_epilog(bed: Bed, alice: Person) -> None:
    program = bed.directory / "gpu2/bin/nvidia-smi"
    text = program.read_text()
    program.write_text(text.replace("value=$i;; uuid", "value=$((i + 1));; uuid"))
    try:
        done = alice.run("cluster", "check", "--image", IMAGE, "gpu2", check=False)
    finally:
        program.write_text(text)
    assert done.code == 1
    assert "gpu2: Slurm gave GPU 0, which nvidia-smi on the node does not list" in done.out
    assert "stayed after the job: no epilog removes them (gputui cluster install)" in done.out
    bed.wait(lambda: bed.containers() == [], "the check removes what it left itself")


def test_a_user_whom_docker_refuses_on_a_node_that_is_half_busy(bed: Bed, alice: Person, bob: Person) -> None:
    words = ("--parsable", "--output=/dev/null", "--gres=gpu:1", "--nodelist=gpu1", "--time=5", "--wrap=sleep 600")
    number = int(bed.run("sbatch", *words, user="alice").stdout)
    alice.wait_for([number], lambda states: states == ["RUNNING"])
    done = bob.run("cluster", "check", "gpu1", "--json", check=False)
    [check] = done.json
    assert (done.code, check["gpus"], check["allocated"]) == (1, 2, ["1"])
    [fault] = check["faults"]
    assert fault.startswith("Docker refuses this user there: ")
    assert "permission denied" in fault


@pytest.mark.long
def test_ctrl_c_and_a_time_out_leave_no_job(bed: Bed, alice: Person) -> None:
    before = bed.jobs()
    words = ("--parsable", "--output=/dev/null", "--gres=gpu:2", "--time=5", "--wrap=sleep 600")
    blockers = [int(bed.run("sbatch", *words, user="alice").stdout) for _ in bed.nodes]
    alice.wait_for(blockers, lambda states: states == ["RUNNING"] * 3)
    busy = alice.run("cluster", "check", check=False)
    assert busy.code == 1
    assert busy.out.count("all of its 2 GPUs are busy") == 3
    late = alice.run("cluster", "check", "--wait", "--timeout", "3s", check=False)
    assert late.out.count("its probe job still waited") == 3
    process = subprocess.Popen(
        [*bed.into_head, sys.executable, "-P", "-m", "gputui", "cluster", "check", "--wait"],
        env=alice.environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "probe jobs on 3 nodes" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    bed.wait(
        lambda: (
            [state for number, state in bed.jobs().items() if number not in {*before, *blockers}] == ["CANCELLED"] * 12
        ),
        "two jobs for each node and check, and all are cancelled",
    )
