"""Use of CPU, memory and disks from control groups: trees of both versions, a container and a host job."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.settings import RuntimeSettings
from gputui.domain.telemetry import Consumption
from gputui.ports import Runtime
from gputui.runtime import cgroups
from gputui.runtime.cgroups import MOUNT, ConsumptionReader, Trees, files_in
from gputui.runtime.docker.records import consumption_of
from gputui.runtime.docker.runtime import DockerRuntime
from tests.cases import cases
from tests.factories import FakeClock
from tests.runtime.contract import Harness, seen, shell
from tests.runtime.dockerd import IMAGE, Dockerd
from tests.runtime.test_process import process_harness
from tests.waiting import until

ID = "4f" * 32
MIB = 1024**2
BURN = shell("head -c 3000000 /dev/zero > /tmp/burnt; while :; do :; done")
V1 = {
    "cpuacct": {"cpuacct.usage": "2500000000\n"},
    "memory": {"memory.usage_in_bytes": "4096\n", "memory.max_usage_in_bytes": "8192\n"},
    "blkio": {
        "blkio.throttle.io_service_bytes_recursive": "8:0 Read 100\n8:0 Write 7\n8:16 Read 11\n8:16 Total 11\nTotal 9\n"
    },
}
V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
    "memory.current": "4096\n",
    "memory.peak": "8192\n",
    "io.stat": "8:0 rbytes=100 wbytes=7 rios=1 wios=2\n8:16 rbytes=11 wbytes=0 rios=1 wios=0\n7:0 \n",
}
USED = Consumption(2.5, 4096, 8192, 111, 7)


class Tree:
    """Fake control groups and /proc of a host."""

    def __init__(self, path: Path) -> None:
        self.mount, self.proc = path / "cgroup", path / "proc"
        (self.proc / "17").mkdir(parents=True)
        self.reader = ConsumptionReader(self.mount, self.proc)

    def belongs(self, *lines: str) -> None:
        (self.proc / "17" / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def version_2(self, group: str) -> Path:
        return self._group(self.mount / group, V2)

    def version_1(self, group: str) -> None:
        for controller, files in V1.items():
            self._group(self.mount / controller / group, files)

    def _group(self, folder: Path, files: dict[str, str]) -> Path:
        folder.mkdir(parents=True)
        (self.mount / "cgroup.controllers").touch() if files is V2 else None
        for name, text in files.items():
            (folder / name).write_text(text)
        return folder

    @property
    def used(self) -> Consumption | None:
        return self.reader.of_process(ID, 17)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@cases(
    ("group", "own"),
    [
        (f"docker/{ID}", f"docker/{ID}"),
        (f"system.slice/docker-{ID}.scope", f"system.slice/docker-{ID}.scope"),
        (f"team.slice/team-a.slice/docker-{ID}.scope", f"team.slice/team-a.slice/docker-{ID}.scope"),
        (f"machine.slice/libpod-{ID}.scope", f"machine.slice/libpod-{ID}.scope/container/init"),
    ],
)
def test_a_container_of_either_driver_in_version_2(tmp_path: Path, group: str, own: str) -> None:
    tree = Tree(tmp_path)
    tree.version_2(group)
    tree.belongs(f"0::/{own}")
    assert tree.used == USED


def test_a_container_in_version_1(tree: Tree) -> None:
    tree.version_1(f"parent/{ID}")
    tree.belongs(
        f"4:memory:/parent/{ID}", f"3:cpu,cpuacct:/parent/{ID}", f"2:blkio:/parent/{ID}", "1:name=systemd:/", "0::/"
    )
    assert tree.used == USED


def test_statistics_of_throttling_are_no_consumption(tmp_path: Path) -> None:
    for name in ("cpu.stat", "cpu.shares", "cpuacct.usage", "tasks"):
        (tmp_path / name).write_text("1\n")
    assert files_in([tmp_path, tmp_path / "missing"]) == (f"{tmp_path}/cpuacct.usage",)


def test_a_process_of_another_namespace_is_found_by_its_group(tree: Tree) -> None:
    tree.version_1(f"docker/{ID}")
    tree.belongs("0::/")
    assert tree.used == USED


def test_a_group_of_another_user_does_not_count(tree: Tree) -> None:
    tree.version_2("user.slice/session-1.scope")
    tree.belongs("0::/user.slice/session-1.scope")
    assert tree.used is None
    tree.belongs(f"0::/../{ID}")
    assert tree.used is None


def test_values_that_the_kernel_does_not_count_are_unknown(tree: Tree) -> None:
    folder = tree.version_2(f"docker/{ID}")
    for name in ("memory.peak", "io.stat"):
        (folder / name).unlink()
    (folder / "memory.current").write_text("what\n")
    tree.belongs(f"0::/docker/{ID}")
    assert tree.used == Consumption(cpu=2.5)
    for name in ("cpu.stat", "memory.current"):
        (folder / name).unlink()
    assert tree.used is None


def test_a_kernel_that_counts_no_disk_leaves_bytes_unknown(tree: Tree) -> None:
    tree.version_1(f"docker/{ID}")
    (tree.mount / "blkio" / "docker" / ID / "blkio.throttle.io_service_bytes_recursive").write_text("Total 0\n")
    tree.belongs(f"4:memory:/docker/{ID}", f"3:cpuacct:/docker/{ID}", f"2:blkio:/docker/{ID}")
    assert tree.used == Consumption(2.5, 4096, 8192)


def test_a_group_created_late_is_found(tree: Tree) -> None:
    tree.belongs("0::/")
    assert tree.used is None
    tree.belongs(f"0::/docker/{ID}")
    tree.version_2(f"docker/{ID}")
    assert tree.used == USED


def test_host_jobs_are_counted_where_the_kernel_counts_above_them(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    (mount / "gputui").mkdir(parents=True)
    (mount / "cgroup.controllers").write_text("cpu io memory")
    (mount / "cgroup.subtree_control").write_text("memory")
    (mount / "gputui" / "cgroup.subtree_control").write_text("")
    (tmp_path / "own").write_text("0::/\n")
    cgroups.make("one", process_harness(tmp_path).launch(("true",)).spec.options, Trees(mount, tmp_path / "own"))
    assert (mount / "gputui" / "cgroup.subtree_control").read_text() == "+memory"


# real ones


def used(runtime: Runtime, container_id: str) -> Consumption:
    runtime.containers()
    return runtime.consumption(container_id) or Consumption()


STATS_V2 = {
    "cpu_stats": {"cpu_usage": {"total_usage": 2_500_000_000}},
    "memory_stats": {"usage": 4096, "stats": {}},
    "blkio_stats": {
        "io_service_bytes_recursive": [
            {"major": 8, "minor": 0, "op": "read", "value": 100},
            {"major": 8, "minor": 16, "op": "read", "value": 11},
            {"major": 8, "minor": 0, "op": "write", "value": 7},
        ]
    },
}
STATS_V1 = {
    "cpu_stats": {"cpu_usage": {"total_usage": 2_500_000_000}},
    "memory_stats": {"usage": 4096, "max_usage": 8192},
    "blkio_stats": {"io_service_bytes_recursive": [{"op": "Read", "value": 111}, {"op": "Write", "value": 7}]},
}
ENDED = {"cpu_stats": {"cpu_usage": {"total_usage": 0}}, "memory_stats": {}, "blkio_stats": {}}


@cases(
    ("stats", "used"),
    [(STATS_V2, replace(USED, memory_peak=None)), (STATS_V1, USED), (ENDED, Consumption()), ({}, Consumption())],
)
def test_an_engine_elsewhere_tells_the_consumption(stats: dict[str, object], used: Consumption) -> None:
    assert consumption_of(stats) == used


def burnt(runtime: Runtime, container_id: str) -> Consumption:
    """Return the container's consumption once it has used a second of CPU."""
    until(lambda: (used(runtime, container_id).cpu or 0) >= 1, "a second of CPU is used")
    return used(runtime, container_id)


@pytest.mark.docker
class TestContainer:
    @pytest.fixture
    def harness(self, engine: Dockerd) -> Iterator[Harness]:
        settings = RuntimeSettings(docker_host=engine.host)
        harness = Harness(lambda store: DockerRuntime(store, settings, FakeClock()), image=IMAGE, name="docker")
        yield harness
        harness.clean()

    def test_the_cpu_time_of_a_container_is_counted(self, harness: Harness) -> None:
        runtime = harness.open()
        runtime.check()
        created = runtime.create(harness.launch(BURN))
        runtime.start(created.id)
        found = burnt(runtime, created.id)
        assert found.cpu is not None
        assert 1 <= found.cpu < 30
        assert found.memory is not None
        assert found.memory_peak is not None
        assert found.memory_peak >= 3_000_000
        runtime.kill(created.id)
        harness.ended(runtime, created.id)
        assert runtime.consumption(created.id) is None


@pytest.mark.needs("root")
def test_a_host_job_reports_the_cpu_time_that_it_used(tmp_path: Path) -> None:
    harness = process_harness(tmp_path / "state")
    runtime = harness.open()
    created = runtime.create(harness.launch(shell("while :; do :; done")))
    runtime.start(created.id)
    before = burnt(runtime, created.id).cpu
    runtime.kill(created.id)
    ended = harness.ended(runtime, created.id)
    assert before is not None
    assert ended.consumption is not None
    assert ended.consumption.cpu is not None
    assert before <= ended.consumption.cpu < 60
    harness.clean()


VERSION_1 = pytest.mark.skipif(
    not os.access(MOUNT / "memory", os.W_OK), reason="needs control groups of version 1, and root"
)


@VERSION_1
def test_a_host_job_without_limits_reports_its_memory_in_version_1(tmp_path: Path) -> None:
    harness = process_harness(tmp_path / "state")
    runtime = harness.open()
    hold = "import time; held = b'x' * 50_000_000; print('ready', flush=True); time.sleep(600)"
    created = runtime.create(harness.launch((sys.executable, "-I", "-S", "-c", hold)))
    runtime.start(created.id)
    seen(runtime, created.id, b"ready")
    memory = used(runtime, created.id).memory
    assert memory is not None
    assert 50_000_000 <= memory < 500_000_000
    runtime.kill(created.id)
    found = harness.ended(runtime, created.id).consumption
    assert found is not None
    assert found.memory is None
    assert found.memory_peak is not None
    assert found.memory_peak >= memory
    harness.clean()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Provide a disk of 8 MiB whose use the kernel counts: from Linux 6.10 on, only where a group may have a limit."""
    file, group = tmp_path / "disk", MOUNT / "blkio" / f"gputui-test-{secrets.token_hex(4)}"
    file.write_bytes(bytes(8 * MIB))
    if shutil.which("losetup") is None:
        pytest.skip("no losetup")
    found = subprocess.run(["losetup", "-f", "--show", file], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"no loop device: {found.stderr.strip()}")
    place = Path(found.stdout.strip())
    group.mkdir()
    try:
        number = place.stat().st_rdev
        (group / "blkio.throttle.read_bps_device").write_text(f"{os.major(number)}:{os.minor(number)} 0")
        yield place
    finally:
        group.rmdir()
        subprocess.run(["losetup", "-d", place], check=True)


@VERSION_1
def test_a_host_job_reports_what_it_reads_and_writes_in_version_1(disk: Path, tmp_path: Path) -> None:
    harness = process_harness(tmp_path / "state")
    runtime = harness.open()
    read = f"dd if={disk} of=/dev/null bs=1M count=4 iflag=direct"
    write = f"dd if=/dev/zero of={disk} bs=1M count=2 oflag=direct"
    created = runtime.create(harness.launch(shell(f"{read} && {write} && echo ready && sleep 600")))
    runtime.start(created.id)
    seen(runtime, created.id, b"ready")
    found = used(runtime, created.id)
    assert (found.io_read, found.io_written) == (4 * MIB, 2 * MIB)
    runtime.kill(created.id)
    ended = harness.ended(runtime, created.id).consumption
    assert ended is not None
    assert (ended.io_read, ended.io_written) == (4 * MIB, 2 * MIB)
    harness.clean()
