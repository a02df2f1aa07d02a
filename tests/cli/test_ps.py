"""`gputui ps`: rows, filters, and signals to real processes that are asked about first."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli import terminal
from gputui.config import Options
from gputui.domain.gpu import GpuProcess, GpuState, Holder
from gputui.domain.text import user_name
from gputui.runtime.host_processes import read_stat
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, picture, put
from tests.factories import GIB, running, sample, snapshot, uuid, view
from tests.foreign import idle_process


@pytest.fixture
def idle() -> Iterator[subprocess.Popen[bytes]]:
    with idle_process() as process:
        yield process


@pytest.fixture
def run_on(run: Run, store: KeptStore, idle: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on two GPUs: job 1 on one, a foreign process and an idle container on the other."""
    put(store, running(1, on=(uuid(0),), name="sft"))
    found = read_stat(idle.pid)
    assert found is not None
    foreign = GpuProcess(idle.pid, 3 * GIB, "someone", "cat", ticks=found.ticks)
    ours = GpuProcess(4_100_000, GIB, "alice", "train.py", "c1", ticks=5)
    unused = Holder("container", "jupyter", "carol", container_id="f00d" * 16, image="lab:2")
    views = (
        view(0, GpuState.ALLOCATED, job_id=1, sample=sample(0, processes=(ours,)), process_jobs={4_100_000: 1}),
        view(1, GpuState.FOREIGN, sample=sample(1, processes=(foreign,)), holders=(unused,)),
    )
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=views)))
    return run


def test_processes_are_listed_with_job_container_and_values_of_the_host(
    run_on: Run, idle: subprocess.Popen[bytes]
) -> None:
    header, ours, foreign, unused = run_on("ps").out.splitlines()
    assert "SM" not in header  # nothing is known of it
    assert ours.split()[:4] == ["4100000", "alice", "0", "#1"]
    assert foreign.split()[:4] == [str(idle.pid), user_name(os.getuid()), "1", "foreign"]
    assert foreign.endswith("cat")
    assert "jupyter (lab:2)" in unused
    told = json.loads(run_on("ps", "--json", "--filter", "kind:foreign", "--gpu", "1").out)
    assert [(each["pid"], each["kind"], each["gpus"]) for each in told] == [
        (idle.pid, "foreign", ["1"]),
        (None, "container", ["1"]),
    ]
    assert told[0]["memory"] > 0
    assert told[1]["container"] == "jupyter"


def test_a_foreign_process_is_ended_and_audited(run_on: Run, store: KeptStore, idle: subprocess.Popen[bytes]) -> None:
    asked = run_on("ps", "-s", "TERM", str(idle.pid))
    assert (asked.code, idle.poll()) == (2, None)
    assert "there is no terminal" in asked.err
    ended = run_on("ps", "-s", "TERM", "--yes", str(idle.pid))
    assert (ended.code, idle.wait(60)) == (0, -15)
    assert ended.out.startswith(f"TERM to pid {idle.pid} of {user_name(os.getuid())} on GPU 1: cat: ended after")
    assert [entry.after.partition(" after")[0] for entry in store.audit_log(f"pid {idle.pid}")] == [
        "TERM: requested",
        "TERM: ended",
    ]


@cases(
    ("arguments", "code", "said"),
    [
        (("-s", "KILL", "4100000"), 1, "belongs to job 1 (cancel the job: gputui cancel 1)"),
        (("-s", "KILL", "1"), 3, "pid 1 is on no GPU (gputui ps lists those that are)"),
        (("-s", "STOP", "1"), 2, "not one of INT, TERM, KILL"),
        (("-s", "TERM"), 2, "--signal wants the pids"),
        (("-s", "TERM", "all"), 2, "'all' is not a process id"),
        (("--filter", "colour:red"), 2, "there is no field 'colour'"),
        (("--gpu", "9"), 3, "no GPU '9'"),
    ],
)
def test_invalid_signals_and_targets_are_refused(run_on: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    result = run_on("ps", "--yes", *arguments)
    assert (result.code, result.out) == (code, "")
    assert said in result.err


def test_a_process_of_the_engines_machine_gets_no_signal(
    run_on: Run, idle: subprocess.Popen[bytes], store: KeptStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = bootstrap.current_snapshot(Options(tmp_path), store)
    nodes = tuple(replace(node, name="gpu1", is_elsewhere=True) for node in away.nodes)
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(replace(away, nodes=nodes)))
    assert f"{idle.pid}  someone" in run_on("ps").out  # its user there, not that of the same pid here
    refused = run_on("ps", "-s", "TERM", "--yes", str(idle.pid))
    assert (refused.code, idle.poll()) == (1, None)
    assert refused.err.endswith(f"(there: kill -TERM {idle.pid}, or stop its container)\n")


def test_a_container_without_an_engine(run_on: Run) -> None:
    result = run_on("--runtime", "process", "ps", "--stop", "jupyter")
    assert (result.code, "without a container engine" in result.err) == (1, True)


def test_a_narrow_terminal_keeps_every_line_within_it(run_on: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "width", lambda: 70)
    assert all(len(line) <= 70 for line in run_on("ps").out.splitlines())
