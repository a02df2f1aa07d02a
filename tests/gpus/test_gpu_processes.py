"""Facts about processes, read from a fake /proc."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gputui.gpus.probe.nvml import ProcessFacts, attempt_of, container_ids, short_command, stat_fields
from tests.cases import cases
from tests.foreign import idle_process

ONE, TWO = "1a" * 32, "2b" * 32


@cases(
    ("cgroup", "found"),
    [
        (f"0::/system.slice/docker-{ONE}.scope\n", [ONE]),
        (f"12:memory:/docker/{ONE}\n3:cpu:/docker/{ONE}\n", [ONE]),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7.slice/cri-containerd-{ONE}.scope",
            [ONE],
        ),
        (f"5:pids:/kubepods/besteffort/pod8f0c/{ONE}", [ONE]),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ONE}.scope/container", [ONE]),
        (f"0::/machine.slice/crio-{ONE}.scope", [ONE]),
        (f"1:name=systemd:/docker/{ONE}/kubepods/pod1/{TWO}\n0::/\n", [ONE, TWO]),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", []),
        (f"0::/strange/{ONE}f", []),
        ("", []),
    ],
)
def test_container_ids_are_found_in_control_groups(cgroup: str, found: list[str]) -> None:
    assert container_ids(cgroup) == found


def test_stat_and_attempt_of_a_process() -> None:
    # stat of a command with brackets and spaces
    fields = " ".join(str(number) for number in range(3, 53))
    assert stat_fields(f"7 (a) b) (c) {fields}") == (6, "22")
    assert stat_fields("") is None
    # the attempt of a process is found
    assert attempt_of("PATH=/bin\0GPUTUI_ATTEMPT=abc:7:1\0HOME=/\0") == "abc:7:1"
    assert attempt_of("XGPUTUI_ATTEMPT=no\0") is None


@cases(
    ("cmdline", "shown"),
    [
        ("/usr/bin/python3\0train.py\0--lr\x001e-3\0", "python3 train.py --lr 1e-3"),
        ("", ""),
        ("/\0", "/"),
        ("x" * 500, "x" * 200),
    ],
)
def test_commands_are_shortened(cmdline: str, shown: str) -> None:
    assert short_command(cmdline) == shown


def make_process(root: Path, pid: int, *, started: int = 100, cgroup: str = "", command: str = "train") -> None:
    place = root / str(pid)
    place.mkdir(exist_ok=True)
    stat = [str(pid), f"({command})", "S", "1", str(pid), str(pid), *["0"] * 15, str(started), "0"]
    (place / "stat").write_text(" ".join(stat))
    (place / "cgroup").write_text(cgroup)
    (place / "cmdline").write_text(f"/bin/{command}\0")
    (place / "environ").write_text("GPUTUI_ATTEMPT=s:1:1\0")


def test_the_container_gputui_itself_is_in_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(f"0::/docker/{ONE}")
    make_process(tmp_path, 5, cgroup=f"0::/docker/{ONE}/docker/{TWO}")
    make_process(tmp_path, 6, cgroup=f"0::/docker/{ONE}")
    processes = ProcessFacts(str(tmp_path))
    assert processes.facts(5)["container_id"] == TWO
    assert processes.facts(6)["container_id"] is None


def test_a_reused_pid_is_read_again(tmp_path: Path) -> None:
    make_process(tmp_path, 5, command="first")
    processes = ProcessFacts(str(tmp_path))
    assert processes.facts(5)["command"] == "first"
    make_process(tmp_path, 5, command="second")
    assert processes.facts(5)["command"] == "first"  # the same start time: not read again
    make_process(tmp_path, 5, command="second", started=200)
    assert (processes.facts(5)["command"], processes.facts(5)["ticks"]) == ("second", 200)


def test_ended_processes_are_forgotten(tmp_path: Path) -> None:
    make_process(tmp_path, 5, command="first")
    processes = ProcessFacts(str(tmp_path))
    processes.facts(5)
    processes.forget_unseen()
    processes.forget_unseen()
    make_process(tmp_path, 5, command="second")
    assert processes.facts(5)["command"] == "second"


def test_a_process_that_ended_is_invisible(tmp_path: Path) -> None:
    assert ProcessFacts(str(tmp_path)).facts(5) == {"visible": False}


def test_this_process() -> None:
    # this process is described
    facts = ProcessFacts().facts(os.getpid())
    assert facts["session"] == os.getsid(0)
    assert facts["user"]
    # the start of a process is told by the clock
    before = datetime.now(UTC)
    with idle_process() as process:
        started_at = datetime.fromisoformat(str(ProcessFacts().facts(process.pid)["started_at"]))
    assert before - timedelta(seconds=2) <= started_at <= datetime.now(UTC) + timedelta(seconds=1)
