"""Contract of every `GpuProbe`: simulated, real, and that of another machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputui.bootstrap import SystemClock
from gputui.domain.gpu import ProbeCode
from gputui.gpus.remote_probe import remote_probe
from gputui.gpus.simulated import SimulatedProbe
from gputui.gpus.supervisor import NvmlProbe
from gputui.ports import GpuProbe
from tests.factories import running
from tests.gpus.machines import ByShell
from tests.gpus.watching import FAST, PATIENCE, Watcher

Make = Callable[[], GpuProbe]


KINDS: dict[str, Callable[[], GpuProbe]] = {
    "nvml": lambda: NvmlProbe(FAST, SystemClock()),
    "remote": lambda: remote_probe(ByShell(), FAST, SystemClock()),
    "simulated": lambda: SimulatedProbe(8, clock=SystemClock(), interval=0.05),
}


@pytest.fixture(params=[*(pytest.param(kind, marks=pytest.mark.nvml) for kind in ("nvml", "remote")), "simulated"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[GpuProbe] = []
    if request.param != "simulated":
        request.getfixturevalue("standin")

    def new() -> GpuProbe:
        made.append(KINDS[request.param]())
        return made[-1]

    yield new
    for probe in made:
        probe.close()


def started(make: Make) -> Watcher:
    watcher = Watcher(make())
    watcher.probe.start()
    watcher.until(lambda reading: len(reading.samples) == 8)
    return watcher


def test_latest_exists_before_the_first_reading(make: Make) -> None:
    assert make().latest().status.code in {ProbeCode.STARTING, ProbeCode.OK}


def test_readings_are_whole_and_fresh(make: Make) -> None:
    watcher = started(make)
    reading = watcher.until(lambda reading: all(sample.processes_at for sample in reading.samples.values()))
    assert reading.status.code is ProbeCode.OK
    assert reading.status.since is not None
    assert [gpu.index for gpu in reading.gpus] == list(range(8))
    assert set(reading.samples) == {gpu.uuid for gpu in reading.gpus}
    taken_at = reading.taken_at
    assert taken_at is not None
    assert reading.driver_version
    later = watcher.until(lambda now: now.taken_at and now.taken_at > taken_at)
    assert all(later.samples[uuid].sampled_at > sample.sampled_at for uuid, sample in reading.samples.items())


def test_returned_readings_do_not_change(make: Make) -> None:
    watcher = started(make)
    reading = watcher.probe.latest()
    before = dict(reading.samples)
    watcher.next()
    watcher.next()
    assert dict(reading.samples) == before


def test_latest_is_the_last_published(make: Make) -> None:
    watcher = started(make)
    published = watcher.next()
    latest = watcher.probe.latest()
    assert latest.taken_at is not None
    assert published.taken_at is not None
    assert latest.taken_at >= published.taken_at


def test_refresh_reads_processes_again(make: Make) -> None:
    watcher = started(make)
    asked = SystemClock().now()
    watcher.probe.refresh()
    watcher.until(lambda now: all(s.processes_at and s.processes_at >= asked for s in now.samples.values()))


def test_pcie_is_read_only_for_one_gpu(make: Make) -> None:
    watcher = started(make)
    uuid = watcher.probe.latest().gpus[3].uuid
    watcher.probe.want_pcie(uuid)
    reading = watcher.until(lambda reading: reading.samples[uuid].pcie_rx is not None)
    assert {s.nvlink_rx for s in reading.samples.values() if s.uuid != uuid} == {None}
    assert [s.uuid for s in reading.samples.values() if s.pcie_rx is not None] == [uuid]
    watcher.probe.want_pcie(None)
    watcher.until(lambda reading: reading.samples[uuid].pcie_rx is None)


def test_the_host_and_its_disks_are_read(make: Make, tmp_path: Path) -> None:
    watcher = started(make)
    watcher.probe.watch_disks({"state": str(tmp_path)})
    host = watcher.until(lambda reading: reading.host and reading.host.cpu is not None and reading.host.disks).host
    assert host is not None
    assert host.memory_total
    assert host.memory_used is not None
    assert 0 < host.memory_used <= host.memory_total
    assert host.cores
    assert [disk.roles for disk in host.disks] == [("state",)]


def test_any_order_of_calls_is_harmless(make: Make) -> None:
    probe = make()
    probe.refresh()
    probe.want_pcie(None)
    probe.watch_disks({})
    probe.follow([running(1, on=["GPU-not-here"])])
    probe.start()
    probe.start()
    probe.latest()
    probe.close()
    probe.close()
    probe.refresh()
    probe.want_pcie("GPU-x")
    probe.follow([])
    probe.start()
    assert probe.latest() is not None


def test_close_ends_the_readings_and_leaves_no_thread(make: Make) -> None:
    before = set(threading.enumerate())
    watcher = started(make)
    watcher.probe.close()
    heard = len(watcher.readings)
    deadline = time.monotonic() + PATIENCE
    while extra := set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, extra
        time.sleep(0.005)
    assert len(watcher.readings) == heard


def test_a_listener_may_close_the_probe(make: Make) -> None:
    probe = make()
    closed = threading.Event()

    def close(_: object) -> None:
        probe.close()
        closed.set()

    probe.subscribe(close)
    probe.start()
    assert closed.wait(PATIENCE)
