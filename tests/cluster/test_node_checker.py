"""Check of the nodes of a Slurm cluster: which are probed, what is told of the others, and what is cleaned up."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.cluster.slurm import node_checker
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.slurm.listings import JobRow, NodeRow
from gputui.cluster.slurm.node_checker import NodeChecker
from gputui.cluster.slurm.poll import Polled
from gputui.cluster.slurm.site import SlurmSite
from gputui.domain.errors import ClusterRefusedError, NotFoundError
from gputui.domain.node_readings import NodeCheck, Verdict
from gputui.domain.settings import ClusterSettings, Settings
from tests.cases import cases

HOST = "GPU 0: H200 (UUID: GPU-a)\nGPU 1: H200 (UUID: GPU-b)\n"
PROBE = f"""RUN user 1000 alice
RUN gpu 0 GPU-a
RUN gpu 1 GPU-b
RUN host
{HOST}RUN engine 28.5.2
RUN container 0,1
{HOST}RUN code 0
RUN left
RUN end
"""
LOOK = "RUN stayed\nRUN end\n"
SBATCH = """#!/bin/bash
number=1; while [[ -e {here}/sent/$number ]]; do (( number++ )); done
if [[ -e {here}/refusal ]]; then cat {here}/refusal >&2; exit 1; fi
script=$(</dev/stdin)
printf %s "$script" >{here}/sent/$number
[[ $script =~ --job-name=([a-z0-9-]+) ]]
if [[ -e {here}/answers/$number ]]; then
  sed "s/RUN/${{BASH_REMATCH[1]}}/" {here}/answers/$number >{here}/logs/check-$number.out
fi
echo "$number;lab"
"""
CAT = """#!/bin/sh
if [ -e {here}/late ]; then rm {here}/late; exit 1; fi
exec /bin/cat "$@"
"""
SCANCEL = '#!/bin/sh\necho "$@" >>{here}/cancelled\n'
EMPTY = JobRow(**dict.fromkeys(JobRow.__struct_fields__, ""))


class Lab:
    """A cluster whose sbatch writes the output of probe jobs at once."""

    def __init__(self, here: Path, nodes: tuple[NodeRow, ...] = (), container: str = "docker") -> None:
        self.here = here
        self.nodes = nodes or (NodeRow("gpu1", ("IDLE",), ("h200", "h200")),)
        self.jobs: tuple[JobRow, ...] = ()
        self.told: list[str] = []
        self.forgotten = 0
        for folder in ("bin", "sent", "answers"):
            (here / folder).mkdir()
        for name, text in (("sbatch", SBATCH), ("cat", CAT), ("scancel", SCANCEL)):
            (here / "bin" / name).write_text(text.format(here=here))
            (here / "bin" / name).chmod(0o755)
        environ = {"PATH": f"{here / 'bin'}:{os.environ['PATH']}"}
        site = ClusterSettings(container=container, log_directory=str(here / "logs"))
        self._checker = NodeChecker(
            SlurmCommands(None, 30.0, environ), Settings(cluster=site), self._latest, self._forget
        )

    def _latest(self) -> Polled:
        return Polled(0.0, SlurmSite(user="alice", uid=1000), rows=self.jobs, nodes=self.nodes)

    def _forget(self) -> None:
        self.forgotten += 1

    def answer(self, *texts: str) -> None:
        """Let the first jobs write these outputs."""
        for number, text in enumerate(texts, 1):
            (self.here / "answers" / str(number)).write_text(text)

    def row(self, number: int, state: str, reason: str = "None") -> None:
        """List a job, as squeue does."""
        self.jobs += (replace(EMPTY, number=str(number), state=state, reason=reason, index="N/A"),)

    def check(self, *nodes: str, waits: bool = False) -> list[NodeCheck]:
        return list(self._checker.check(nodes, "busybox", timedelta(), waits=waits, tell=self.told.append))

    def sent(self) -> list[str]:
        return [path.read_text() for path in sorted((self.here / "sent").iterdir())]


@pytest.fixture(autouse=True)
def shared_files_are_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_checker, "_FILE_LATE", 0.0)


def test_a_right_node_is_told_with_what_its_containers_saw(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.answer(PROBE, LOOK)
    [check] = lab.check()
    assert (check.node, check.gpus, check.job, check.verdict) == ("gpu1", 2, 1, Verdict.OK)
    assert (check.allocated, check.expected) == (("0", "1"), ("GPU-a", "GPU-b"))
    assert (check.host, check.seen) == (("GPU-a", "GPU-b"), ("GPU-a", "GPU-b"))
    assert (check.user, check.container_engine, check.is_cleaned) == ("1000 alice", "28.5.2", True)
    assert lab.told == ["probe jobs on 1 node, for up to 0s"]


def test_the_probe_asks_for_the_gpus_of_its_node_and_the_look_waits_for_it(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.answer(PROBE, LOOK)
    lab.check()
    probe, look = (script.splitlines() for script in lab.sent())
    assert {"#SBATCH --gres=gpu:2", "#SBATCH --nodelist=gpu1"} <= set(probe)
    assert {"#SBATCH --dependency=afterany:1", "#SBATCH --nodelist=gpu1"} <= set(look)


def test_nothing_of_a_check_stays(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.answer(PROBE, LOOK)
    lab.check()
    [cancelled] = (tmp_path / "cancelled").read_text().splitlines()
    name, user = cancelled.split()
    assert name.startswith("--name=gputui-check-")
    assert user == "--user=alice"
    assert list((tmp_path / "logs").iterdir()) == []
    assert lab.forgotten > 0


def test_a_site_without_docker_has_no_container_to_look_for(tmp_path: Path) -> None:
    lab = Lab(tmp_path, container="apptainer")
    lab.answer(PROBE.replace("RUN engine 28.5.2\n", "").replace("RUN left\n", ""))
    [check] = lab.check()
    assert (check.verdict, check.container_engine, check.is_cleaned) == (Verdict.OK, "", None)
    assert len(lab.sent()) == 1


@cases(
    ("node", "waits", "why"),
    [
        (NodeRow("gpu1", ("IDLE",)), False, "Slurm knows no GPU of it"),
        (NodeRow("gpu1", ("DOWN",), ("h200",), reason="no power"), False, "node gpu1 is down: no power"),
        (NodeRow("gpu1", ("IDLE", "DRAIN"), ("h200",), reason="fans"), True, "node gpu1 is drained: fans"),
        (
            NodeRow("gpu1", ("ALLOCATED",), ("h200", "h200"), used=(0, 1), used_count=2),
            False,
            "all of its 2 GPUs are busy: --wait waits for them",
        ),
        (
            NodeRow("gpu1", ("ALLOCATED",), ("h200",), used_count=1),
            False,
            "its GPU is busy: --wait waits for it",
        ),
    ],
)
def test_a_node_that_takes_no_probe_is_told_why(tmp_path: Path, node: NodeRow, *, waits: bool, why: str) -> None:
    lab = Lab(tmp_path, (node,))
    [check] = lab.check(waits=waits)
    assert (check.verdict, check.why_not, check.job) == (Verdict.UNCHECKED, why, None)
    assert (lab.sent(), lab.told) == ([], [])


@cases(("waits", "asked"), [(False, 1), (True, 3)])
def test_busy_gpus_are_asked_for_only_by_wait(tmp_path: Path, *, waits: bool, asked: int) -> None:
    lab = Lab(tmp_path, (NodeRow("gpu1", ("MIXED",), ("h200",) * 3, used=(0,), used_count=2),))
    lab.answer(PROBE, LOOK)
    lab.check(waits=waits)
    assert f"#SBATCH --gres=gpu:{asked}" in lab.sent()[0].splitlines()


def test_nodes_are_checked_in_the_order_in_which_they_are_named_and_once(tmp_path: Path) -> None:
    lab = Lab(tmp_path, tuple(NodeRow(f"gpu{number}", ("IDLE",)) for number in (1, 2, 3)))
    assert [check.node for check in lab.check("gpu3", "gpu1", "gpu3")] == ["gpu3", "gpu1"]
    assert [check.node for check in lab.check()] == ["gpu1", "gpu2", "gpu3"]


def test_a_node_that_is_not_there_is_named_before_a_job_is_submitted(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with pytest.raises(NotFoundError, match="there is no node gpu9") as refusal:
        lab.check("gpu1", "gpu9")
    assert refusal.value.hint == "gputui gpus lists them"
    assert lab.sent() == []


def test_a_directory_that_cannot_be_made_is_named_by_its_setting(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(ClusterRefusedError) as refusal:
        lab.check()
    assert refusal.value.where == "cluster.log_directory"
    assert "logs" in refusal.value.what


def test_slurms_words_are_told_for_a_probe_that_it_refuses(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    (tmp_path / "refusal").write_text("sbatch: error: Invalid qos specification\n")
    [check] = lab.check()
    assert check.why_not == "Slurm refused its probe job: Invalid qos specification"
    assert (check.verdict, check.job, lab.told) == (Verdict.UNCHECKED, None, [])


def test_a_probe_that_still_waits_is_no_fault_of_its_node(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.row(1, "PENDING", "Priority")
    [check] = lab.check()
    assert check.why_not == "its probe job still waited: jobs before it wait too (Priority)"
    assert (check.verdict, check.job, check.faults) == (Verdict.UNCHECKED, 1, ())


def test_a_probe_that_runs_too_long_is_a_fault(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.row(1, "RUNNING")
    [check] = lab.check()
    assert (check.verdict, check.faults) == (Verdict.FAULTY, ("its probe job had not ended after 0s",))


def test_output_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    [check] = lab.check()
    path = tmp_path / "logs" / "check-1.out"
    fault = f"its output cannot be read here: is {path} on a file system that it shares with this machine?"
    assert (check.verdict, check.faults) == (Verdict.FAULTY, (fault,))


def test_output_that_comes_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_checker, "_FILE_LATE", 60.0)
    monkeypatch.setattr(node_checker, "_LOOK_EVERY", 0.0)
    lab = Lab(tmp_path)
    lab.answer(PROBE, LOOK)
    (tmp_path / "late").touch()
    assert [check.verdict for check in lab.check()] == [Verdict.OK]
    assert not (tmp_path / "late").exists()


@cases(("listed", "word"), [(True, "NODE_FAIL"), (False, "unknown")])
def test_a_probe_that_ends_early_is_a_fault(tmp_path: Path, *, listed: bool, word: str) -> None:
    lab = Lab(tmp_path, container="apptainer")
    lab.answer(f"RUN user 1000 alice\nRUN gpu 0 GPU-a\nRUN host\n{HOST}")
    if listed:
        lab.row(1, "NODE_FAIL")
    [check] = lab.check()
    assert (check.verdict, check.faults) == (Verdict.FAULTY, (f"its probe job ended early: {word}",))


def test_what_a_probe_shows_is_a_fault_of_its_node(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.answer(PROBE, LOOK.replace("stayed", "stayed 4f1d"))
    [check] = lab.check()
    assert (check.verdict, check.is_cleaned) == (Verdict.FAULTY, False)
    assert check.faults == ("1 container stayed after the job: no epilog removes them (gputui cluster install)",)
