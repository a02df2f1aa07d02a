"""Calls to the driver that never return: each costs its own value, and one lost round of readings."""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.bootstrap import SystemClock
from gputui.domain.gpu import GpuState, ProbeCode, ProbeReading
from gputui.domain.policy.availability import Evidence, gpu_views
from gputui.domain.settings import GpuSettings, SchedulerSettings
from gputui.gpus.readings import Facts, GpuFacts, Reading, Sweep
from gputui.gpus.supervisor import HungCalls, NvmlProbe, first_reading
from gputui.gpus.supervisor import is_whole as is_complete
from tests.gpus.conftest import Start
from tests.gpus.standin import StandIn, nvlinks, uuid
from tests.gpus.watching import FAST, Watcher, is_whole
from tests.lane import in_its_lane
from tests.waiting import until

HASTY = replace(FAST, hang_after=timedelta(seconds=0.7))
FREE = GpuState.FREE


def states(reading: ProbeReading) -> list[GpuState]:
    evidence, settings = Evidence(reading, "store"), SchedulerSettings(stale_after=timedelta(minutes=1))
    return [view.state for view in gpu_views(evidence, settings, SystemClock().now())]


def is_read(reading: ProbeReading) -> bool:
    return reading.status.code is ProbeCode.OK and bool(reading.samples) and is_complete(reading)


@pytest.mark.nvml
@pytest.mark.parametrize(
    ("call", "state"),
    [
        pytest.param("nvmlDeviceGetNvLinkState", FREE, marks=pytest.mark.long),
        pytest.param("nvmlDeviceGetPowerUsage", FREE, marks=pytest.mark.long),
        ("nvmlDeviceGetComputeRunningProcesses", GpuState.UNKNOWN),
        ("nvmlDeviceGetHandleByIndex", GpuState.DRAINED),
        pytest.param("nvmlDeviceGetName", FREE, marks=pytest.mark.long),
        pytest.param("nvmlDeviceGetTotalEccErrors", FREE, marks=pytest.mark.long),
        pytest.param("nvmlDeviceGetMigMode", FREE, marks=pytest.mark.long),
        pytest.param("nvmlDeviceGetGraphicsRunningProcesses", FREE, marks=pytest.mark.long),
        pytest.param("nvmlDeviceGetMemoryInfo", GpuState.UNKNOWN, marks=pytest.mark.long),
        pytest.param("nvmlDeviceGetUUID", GpuState.DRAINED, marks=pytest.mark.long),
    ],
)
def test_a_call_that_hangs_for_one_gpu_costs_its_own_value(
    standin: StandIn, watch: Start, call: str, state: GpuState
) -> None:
    standin.write(*nvlinks(2), f"gpu 1 hang {call}", gpus=2)
    watcher = watch(HASTY)
    watcher.until(lambda reading: reading.status.code in {ProbeCode.WEDGED, ProbeCode.WEDGED_AT_START})
    reading = watcher.until(is_read)
    assert states(reading) == [FREE, state]
    assert [note for note in reading.notes if call in note and "GPU 1" in note]
    steady_until = SystemClock().now() + 4 * HASTY.hang_after
    later = watcher.until(
        lambda now: now.status.code is not ProbeCode.OK or (now.taken_at or steady_until) > steady_until
    )
    assert later.status.code is ProbeCode.OK, "it hangs no more"


@pytest.mark.nvml
def test_a_call_that_hangs_for_all_gpus_is_skipped_for_all(standin: StandIn, watch: Start) -> None:
    standin.write("hang nvmlDeviceGetPowerUsage", gpus=8)
    watcher = watch(HASTY)
    reading = watcher.until(is_read)
    assert states(reading) == [FREE] * 8
    assert [note for note in reading.notes if note.startswith("the driver does not answer nvmlDeviceGetPowerUsage:")]
    assert sum(now.status.code is ProbeCode.WEDGED_AT_START for now in watcher.readings) <= 3


@pytest.mark.nvml
def test_a_gpu_all_of_whose_calls_hang_leaves_the_others(standin: StandIn, watch: Start) -> None:
    watcher = watch(HASTY)
    watcher.until(is_whole)
    standin.change("gpu 3 hang *")
    reading = watcher.until(lambda now: now.status.code is ProbeCode.OK and states(now)[3] is GpuState.DRAINED)
    assert states(reading) == [FREE] * 3 + [GpuState.DRAINED] + [FREE] * 4
    assert reading.gpus[3].uuid == uuid(3), "it keeps its name"


@pytest.mark.nvml
def test_the_first_reading_does_without_a_call_that_hangs(standin: StandIn) -> None:
    standin.write("hang nvmlDeviceGetNvLinkState", "hang nvmlDeviceGetTemperature", gpus=1)
    reading = first_reading(NvmlProbe(HASTY, SystemClock()), 2.0)
    assert reading.status.code is ProbeCode.OK
    assert reading.samples[uuid(0)].utilization == 0.0


@pytest.mark.nvml
@pytest.mark.parametrize("patience", [0.9, in_its_lane(1.4, is_long=True), in_its_lane(2.0, is_long=True)])
def test_the_first_reading_does_without_a_call_that_hangs_for_all_gpus(standin: StandIn, patience: float) -> None:
    standin.write("hang nvmlDeviceGetMemoryInfo", gpus=3)
    reading = first_reading(NvmlProbe(HASTY, SystemClock()), patience)
    assert (reading.status.code, len(reading.samples)) == (ProbeCode.OK, 3)
    assert states(reading) == [GpuState.UNKNOWN] * 3


@pytest.mark.nvml
def test_a_driver_that_does_not_count_its_gpus_is_not_tried_twice(standin: StandIn) -> None:
    standin.write("hang nvmlDeviceGetCount", gpus=3)
    probe = NvmlProbe(HASTY, SystemClock())
    tries: list[str] = []
    probe.subscribe(lambda reading: tries.append(reading.status.text))
    assert first_reading(probe, 2.0).status.code is ProbeCode.WEDGED_AT_START
    assert len(set(filter(None, tries))) == 1


@pytest.mark.nvml
def test_a_slow_driver_is_waited_for(standin: StandIn) -> None:
    standin.write("latency * 60000", gpus=1)
    reading = first_reading(NvmlProbe(HASTY, SystemClock()), 1.0)
    assert reading.status.code is ProbeCode.OK
    assert is_read(reading)


@pytest.mark.nvml
def test_links_delay_no_sweep(standin: StandIn, watch: Start) -> None:
    standin.write("latency nvmlDeviceGetNvLinkState 60000", *nvlinks(2), gpus=2)
    watcher = watch(FAST)
    reading = watcher.until(lambda now: any(gpu.links for gpu in now.gpus))
    assert all(len(gpu.links) == 1 for gpu in reading.gpus)
    before = [now for now in watcher.readings if is_read(now) and not any(gpu.links for gpu in now.gpus)]
    assert len({now.taken_at for now in before}) > 5


class Scripted:
    """Probe process of another machine that writes these lines, and then hangs in a call to the driver."""

    notes, pid, is_stuck, calls = (), 0, False, (0, "nvmlDeviceGetFanSpeed 0")

    def __init__(self, *written: Facts | Sweep) -> None:
        self._written = [*written]

    def lines(self, wake: int, seconds: float) -> Iterator[Facts | Sweep]:
        if not self._written:
            select.select([wake], [], [], max(0.0, seconds))
        yield from self._written
        self._written.clear()

    def send(self, command: str) -> None: ...

    def kill(self) -> None: ...

    def abandon(self) -> None: ...


def test_what_is_not_read_is_told_too_after_gpus_that_were_invented() -> None:
    def listed(first: int, count: int) -> Facts:
        return Facts(tuple(GpuFacts(uuid(first + index), index) for index in range(count)))

    processes = [
        Scripted(listed(0, 1), Sweep((Reading(uuid=uuid(0)),))),
        Scripted(*(listed(100 * part, 100) for part in range(3))),
        Scripted(listed(0, 1), Sweep((Reading(uuid=uuid(0)),))),
    ]
    skipped: list[Sequence[str]] = []

    def spawn(_: GpuSettings, without: Sequence[str]) -> Scripted:
        skipped.append(without)
        return processes.pop(0) if processes else Scripted()

    settings = replace(FAST, hang_after=timedelta(seconds=0.2))
    watcher = Watcher(NvmlProbe(settings, SystemClock(), pauses=(0.01,), spawn=spawn, machine=lambda: "gpu1"))
    watcher.probe.start()
    until(lambda: len(skipped) > 3, "all were read")
    watcher.probe.close()
    assert skipped[2] == ["nvmlDeviceGetFanSpeed 0"]
    (read,) = [each for each in watcher.readings if each.status.code is ProbeCode.OK and each.notes]
    assert read.notes == ("the driver does not answer nvmlDeviceGetFanSpeed for GPU 0: what that reads is unknown",)


class TestHungCalls:
    def test_calls_that_hang(self) -> None:
        # a call is tried again ever more seldom
        hung, now = HungCalls(), 1000.0
        pauses = []
        for _ in range(9):
            assert hung.add("nvmlDeviceGetFanSpeed 1", now)
            assert hung.skipped(now) == ["nvmlDeviceGetFanSpeed 1"]
            pauses.append(hung.retry_at(now) - now)
            now = hung.retry_at(now)
            assert hung.skipped(now) == []
        assert pauses == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0, 3600.0]
        assert hung.skipped(now + 3601) == []
        hung.add("nvmlDeviceGetFanSpeed 1", now + 3601)
        assert hung.retry_at(now + 3601) == now + 3661, "it worked for an hour"
        # a call that hangs for two GPUs is skipped for all
        hung = HungCalls()
        hung.add("nvmlDeviceGetFanSpeed 1", 0.0)
        hung.add("nvmlDeviceGetFanSpeed 4", 0.0)
        assert hung.skipped(0.0) == ["nvmlDeviceGetFanSpeed"]
        # a GPU with many hung calls is skipped
        hung = HungCalls()
        for name in ("FanSpeed", "PowerUsage", "Temperature"):
            hung.add(f"nvmlDeviceGet{name} 1", 0.0)
        assert hung.skipped(0.0) == ["* 1"]
        assert list(hung.notes(0.0)) == ["the driver does not answer any call for GPU 1: what that reads is unknown"]
        # a driver that hangs at its start has no single hung call
        hung = HungCalls()
        hung.add("nvmlDeviceGetFanSpeed 1", 0.0)
        assert not hung.add("nvmlInit ", 0.0)
        assert hung.skipped(0.0) == []
