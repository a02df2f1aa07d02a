"""Limits of host jobs: control groups if they can be created, else a notice."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gputui.domain.errors import CauseCode
from gputui.domain.job_spec import ContainerOptions
from gputui.domain.settings import RuntimeSettings
from gputui.runtime import cgroups
from gputui.runtime.cgroups import Trees
from gputui.runtime.host_processes import read_stat
from gputui.runtime.process.runtime import ProcessRuntime
from tests.cases import cases
from tests.runtime.contract import STORE, seen, shell
from tests.runtime.test_process import process_harness
from tests.waiting import until

LIMITS = ContainerOptions(memory=2**30, cpus=1.5, cpu_shares=1024)
MIB = 1024**2


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    """Create a tree of version 2, in which this process is in its own group."""
    mount = tmp_path / "cgroup"
    for folder in (mount, mount / "gputui"):
        folder.mkdir(parents=True)
        (folder / "cgroup.subtree_control").write_text("memory")
    (mount / "cgroup.controllers").write_text("cpu memory")
    (tmp_path / "own").write_text("0::/\n")
    return mount


def test_without_limits_a_group_lists_the_processes(unified: Path) -> None:
    group = cgroups.make("one", ContainerOptions(), Trees(unified, unified.parent / "own"))
    folder = unified / "gputui" / "one"
    assert group == cgroups.AttemptCgroups((str(folder),), (str(folder),))
    assert group.records() == [("tracked", f"{folder}/cgroup.procs")]
    (folder / "below").mkdir()
    (folder / "cgroup.procs").write_text("3\n4\n")
    (folder / "below" / "cgroup.procs").write_text("5\n")
    assert cgroups.members(group.folders) == {3, 4, 5}


def test_groups_are_frozen_if_possible(unified: Path) -> None:
    folders = [str(unified / "gputui"), str(unified)]
    assert not cgroups.freeze(folders, is_frozen=True)
    (unified / "cgroup.freeze").write_text("0")
    assert cgroups.freeze(folders, is_frozen=True)
    assert (unified / "cgroup.freeze").read_text() == "1"
    assert not (unified / "gputui" / "cgroup.freeze").exists()


def test_without_a_freezer_all_processes_are_stopped_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "freeze", lambda folders, *, is_frozen: False)
    harness = process_harness(tmp_path / "state")
    runtime = harness.open()
    created = runtime.create(harness.launch(shell("sleep 60 & echo $$ $!; echo ready; wait")))
    runtime.start(created.id)
    seen(runtime, created.id, b"ready")
    pids = [int(word) for word in next(iter(runtime.logs(created.id))).split()]

    def states() -> set[str]:
        return {found.state for pid in pids if (found := read_stat(pid))}

    runtime.suspend(created.id)
    until(lambda: states() == {"T"}, "they stand still")
    runtime.unsuspend(created.id)
    until(lambda: states() == {"S"}, "they continue")
    runtime.suspend(created.id)
    runtime.kill(created.id)
    assert harness.ended(runtime, created.id).exit_code == 137
    harness.clean()


def test_a_host_without_version_2_lists_no_processes(tmp_path: Path) -> None:
    assert cgroups.make("one", ContainerOptions(), Trees(tmp_path)) == cgroups.AttemptCgroups()
    assert cgroups.members(()) == frozenset()


def test_limits_are_set_in_version_2(unified: Path) -> None:
    group = cgroups.make("one", LIMITS, Trees(unified, unified.parent / "own"))
    folder = unified / "gputui" / "one"
    values = {each.name: each.read_text() for each in folder.iterdir()}
    assert values == {
        "memory.max": str(2**30),
        "memory.swap.max": "0",
        "cpu.max": "150000 100000",
        "cpu.weight": "39",
    }
    assert group.folders == (str(folder),)
    assert group.notes == ()
    assert ("cgroup", f"{folder}/cgroup.procs") in group.records()
    for each in (unified, unified / "gputui"):
        assert (each / "cgroup.subtree_control").read_text() == "+cpu"


def test_limits_are_set_in_version_1(tmp_path: Path) -> None:
    for tree in ("memory", "cpu"):
        (tmp_path / tree).mkdir()
    group = cgroups.make("one", LIMITS, Trees(tmp_path))
    memory, cpu = (tmp_path / tree / "gputui" / "one" for tree in ("memory", "cpu"))
    assert group.folders == (str(memory), str(cpu))
    assert (memory / "memory.memsw.limit_in_bytes").read_text() == str(2**30)
    assert (cpu / "cpu.cfs_quota_us").read_text() == "150000"
    assert group.oom_events == str(memory / "memory.oom_control")


@cases(
    ("mounted", "counted"),
    [
        (("memory", "blkio", "cpuacct"), ["memory", "blkio", "cpuacct"]),
        (("memory", "blkio", "cpuacct", "unified"), ["unified", "memory", "blkio"]),
        (("cpuacct",), ["cpuacct"]),
    ],
)
def test_without_limits_the_trees_of_version_1_count(
    mounted: tuple[str, ...], counted: list[str], tmp_path: Path
) -> None:
    for tree in mounted:
        (tmp_path / tree).mkdir()
    if "unified" in mounted:
        (tmp_path / "unified" / "cgroup.controllers").touch()
    group = cgroups.make("one", ContainerOptions(), Trees(tmp_path))
    folders = tuple(f"{tmp_path}/{tree}/gputui/one" for tree in counted)
    assert group == cgroups.AttemptCgroups(folders, folders)
    assert {key for key, _ in group.records()} == {"tracked"}
    assert not list(tmp_path.glob("*/gputui/one/*"))
    cgroups.remove(group.folders)
    assert not list(tmp_path.glob("*/gputui/one"))


def test_a_group_with_a_limit_counts_too(tmp_path: Path) -> None:
    shared = tmp_path / "cpu,cpuacct"
    for tree in (shared, tmp_path / "memory"):
        tree.mkdir()
    for controller in ("cpu", "cpuacct"):
        (tmp_path / controller).symlink_to(shared.name)
    group = cgroups.make("one", LIMITS, Trees(tmp_path))
    assert group.folders == (str(tmp_path / "memory" / "gputui" / "one"), str(shared / "gputui" / "one"))
    assert group.counting == ()


def test_groups_that_a_crash_left_without_an_attempt_are_removed(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    names = ("gputui-mine-1-1", "gputui-mine-2-1", "gputui-others-1-1")
    for name in names:
        cgroups.make(name, ContainerOptions(), Trees(tmp_path))

    def left(later: timedelta) -> set[str]:
        stale = {"gputui-mine-1-1"}
        cgroups.remove_stale(stale.__contains__, datetime.now(UTC) + later, Trees(tmp_path))
        return {each.name for each in (tmp_path / "memory" / "gputui").iterdir()}

    assert left(timedelta()) == set(names)
    assert left(timedelta(hours=2)) == set(names[1:])


@pytest.mark.needs("root")
def test_a_scheduler_removes_groups_that_a_crash_left_without_an_attempt(tmp_path: Path) -> None:
    class Later:
        def now(self) -> datetime:
            return datetime.now(UTC) + timedelta(hours=2)

    harness = process_harness(tmp_path / "state")
    created = harness.open().create(harness.launch(("true",)))
    left = harness.launch(("true",))
    if not cgroups.make(left.name, ContainerOptions()).folders:
        pytest.skip("this host lets root make no control groups")
    runtime = ProcessRuntime(STORE, tmp_path / "state", RuntimeSettings(), Later())
    runtime.watch(lambda: None)
    assert groups_of(left.name) == set()
    assert groups_of(created.id)
    runtime.close()
    harness.clean()


def test_a_host_without_control_groups_is_reported(tmp_path: Path) -> None:
    group = cgroups.make("one", LIMITS, Trees(tmp_path / "none", tmp_path / "missing"))
    assert group.folders == ()
    assert [each.split(" is ")[0] for each in group.notes] == ["the memory limit", "the CPU limit"]
    assert "not enforced" in group.notes[0]


def test_a_job_over_its_memory_limit_is_killed_and_reported(tmp_path: Path) -> None:
    """Killed and called so where the host can; run to its end, and said so beforehand, where it cannot."""
    harness = process_harness(tmp_path / "state")
    runtime = harness.open()
    command = (sys.executable, "-I", "-S", "-c", f"held = b'x' * {200 * MIB}")
    created = runtime.create(harness.launch(command, memory=48 * MIB))
    runtime.start(created.id)
    ended = harness.ended(runtime, created.id)
    if created.notes:
        assert "not enforced" in created.notes[0]
        assert ended.exit_code == 0
    else:
        assert ended.exit_code == 137
        assert ended.cause is not None
        assert ended.cause.code is CauseCode.OUT_OF_MEMORY
    harness.clean()
    assert groups_of(created.id) == set()


def groups_of(container_id: str) -> set[str]:
    """Return the trees of this host in which an attempt has a group."""
    places = (*cgroups.MOUNT.glob(f"gputui/{container_id}"), *cgroups.MOUNT.glob(f"*/gputui/{container_id}"))
    return {place.parent.parent.name for place in places}


@pytest.mark.skipif(
    not os.access(cgroups.MOUNT / "memory", os.W_OK), reason="needs control groups of version 1, and root"
)
def test_in_version_1_a_job_has_groups_until_any_scheduler_removes_it(tmp_path: Path) -> None:
    harness = process_harness(tmp_path / "state")
    creator = harness.open()
    created = creator.create(harness.launch(shell("sleep 600 & echo ready; wait")))
    creator.start(created.id)
    seen(creator, created.id, b"ready")
    assert {"memory", "blkio"} <= groups_of(created.id)
    for controller in ("memory", "blkio"):
        assert len(cgroups.members([f"{cgroups.MOUNT}/{controller}/gputui/{created.id}"])) == 2
    creator.close()
    successor = harness.open()
    successor.kill(created.id)
    harness.ended(successor, created.id)
    successor.remove(created.id)
    assert groups_of(created.id) == set()
    harness.clean()


def test_a_sufficient_limit_is_not_reported(tmp_path: Path) -> None:
    harness = process_harness(tmp_path / "state")
    runtime = harness.open()
    created = runtime.create(harness.launch(("true",), memory=48 * MIB, cpus=0.5, cpu_shares=512))
    runtime.start(created.id)
    assert harness.ended(runtime, created.id).exit_code == 0
    assert runtime.create(harness.launch(("true",))).notes == ()
    harness.clean()
