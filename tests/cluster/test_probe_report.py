"""Faults of nodes in what probe jobs write."""

from __future__ import annotations

from gputui.cluster.slurm.listings import NodeRow
from gputui.cluster.slurm.node_checker import faults_of, listed, report_of
from gputui.cluster.slurm.picture import why_down
from gputui.cluster.slurm.site import SlurmSite

SITE = SlurmSite(user="alice", uid=1000)
HOST = "GPU 0: NVIDIA H100 (UUID: GPU-a)\nGPU 1: NVIDIA H100 (UUID: GPU-b)\n"
RIGHT = f"""m user 1000 alice
m gpu 0 GPU-a
m gpu 1 GPU-b
m host
{HOST}m engine 28.5.2
m container 0,1
{HOST}m code 0
m left
m end
m stayed
m end
"""


def faults(text: str) -> list[str]:
    return list(faults_of(report_of(text, "m"), SITE))


def test_faults_of_a_node() -> None:
    # a right node
    report = report_of(RIGHT, "m")
    assert (report.engine, report.stayed, report.is_whole) == ("28.5.2", 0, True)
    assert listed(report.looks[0].lines, ["GPU-a", "GPU-b"]) == ("GPU-a", "GPU-b")
    assert faults(RIGHT) == []
    # another user and containers that stay
    assert faults(RIGHT.replace("1000 alice", "2000 alice")) == [
        "the job runs as user 2000 alice there, which is 1000 alice here"
    ]
    [stayed] = faults(RIGHT.replace("m stayed", "m stayed 4f1d 22aa"))
    assert stayed == "2 containers stayed after the job: no epilog removes them (gputui cluster install)"
    # two numbers that lead to one GPU and one that leads elsewhere
    assert "Slurm's GPUs 0 and 1 are both GPU-a" in faults(RIGHT.replace("gpu 1 GPU-b", "gpu 1 GPU-a"))
    assert any("wrong index in gres.conf" in fault for fault in faults(RIGHT.replace("gpu 1 GPU-b", "gpu 1 GPU-c")))
    # a container that sees another GPU or fails
    swapped = RIGHT.replace("m left", "m container 1\nGPU 0: NVIDIA H100 (UUID: GPU-a)\nm code 0\nm left")
    assert faults(swapped) == ["a container with GPU 1 saw GPU-a instead of GPU-b"]
    failed = RIGHT.replace("m left", "m container 1\ndocker: no such image\nm code 125\nm left")
    assert faults(failed) == ["a container with GPU 1 failed with exit code 125: docker: no such image"]
    # instances of MIG count unless all of their GPU is wanted
    lines = [
        "GPU 0: A100 (UUID: GPU-a)",
        "  MIG 1g.5gb Device 0: (UUID: MIG-1)",
        "  MIG 1g.5gb Device 1: (UUID: MIG-2)",
    ]
    assert listed(lines) == ("MIG-1", "MIG-2")
    assert listed(lines, ["GPU-a"]) == ("GPU-a",)
    # a node that is down or without nvidia smi
    assert why_down(NodeRow("gpu1", ("DOWN",), reason="no power")) == "node gpu1 is down: no power"
    [fault] = faults("m user 1000 alice\nm host\nbash: nvidia-smi: command not found\nm end\n")
    assert fault == "nvidia-smi lists no GPU on the node: bash: nvidia-smi: command not found"
