"""GPUs that answer unlike a board in a server: unified memory, no process lists, garbage, and calls that fail."""

from __future__ import annotations

import os

import pytest

from gputui.bootstrap import SystemClock
from gputui.domain.gpu import GpuSample, GpuState, GpuView, HealthCode, ProbeCode, ProbeReading
from gputui.domain.policy.availability import Evidence, gpu_views
from gputui.domain.settings import SchedulerSettings
from gputui.gpus.probe.host import memory_total
from tests.cases import cases
from tests.factories import GIB
from tests.gpus.conftest import Start
from tests.gpus.standin import StandIn, uuid
from tests.gpus.watching import sample_of

pytestmark = pytest.mark.nvml
MACHINE = memory_total() or 0
USUAL = SchedulerSettings()
NO_MEMORY = "gpu 0 fail nvmlDeviceGetMemoryInfo 3"
NO_LISTS = (
    "gpu 0 fail nvmlDeviceGetComputeRunningProcesses 3",
    "gpu 0 fail nvmlDeviceGetGraphicsRunningProcesses 3",
    "gpu 0 fail nvmlDeviceGetMPSComputeRunningProcesses 3",
)
CALLS = (
    *("Name", "UUID", "MemoryInfo", "UtilizationRates", "Temperature", "TemperatureV", "PowerUsage", "ClockInfo"),
    *("EnforcedPowerLimit", "PowerManagementLimit", "PowerManagementDefaultLimit", "FanSpeed", "PersistenceMode"),
    *("CurrentClocksEventReasons", "TotalEccErrors", "RemappedRows", "FieldValues", "PciInfo", "NumaNodeId"),
    *("MinorNumber", "MigMode", "MaxMigDeviceCount", "NvLinkState", "NvLinkRemotePciInfo", "TopologyCommonAncestor"),
    *("ComputeRunningProcesses", "GraphicsRunningProcesses", "MPSComputeRunningProcesses"),
)
NEEDED = {"UUID", "MemoryInfo", "ComputeRunningProcesses"}
"""Calls without whose answer a GPU is given to no job."""


def read(watch: Start) -> ProbeReading:
    return watch().until(lambda reading: reading.samples and all(s.processes_at for s in reading.samples.values()))


def judged(reading: ProbeReading, settings: SchedulerSettings = USUAL) -> GpuView:
    return gpu_views(Evidence(reading, "store"), settings, SystemClock().now())[0]


@cases(
    "lines",
    [
        (NO_MEMORY, "gpu 0 name NVIDIA GB10"),
        (NO_MEMORY,),
        ("gpu 0 total 0", "gpu 0 reserved 0"),
        (f"gpu 0 total {120 * GIB}", f"gpu 0 used {30 * GIB}", "gpu 0 name NVIDIA GB10"),
        (f"gpu 0 total {MACHINE}", f"gpu 0 used {MACHINE // 4}"),
        (f"gpu 0 total {MACHINE * 97 // 100}", f"gpu 0 used {MACHINE // 4}", "gpu 0 addressing 2"),
    ],
)
def test_a_gpu_that_shares_the_machines_memory_is_judged_by_its_processes(
    standin: StandIn, watch: Start, lines: tuple[str, ...]
) -> None:
    standin.write(*lines, gpus=1)
    reading = read(watch)
    assert (reading.gpus[0].unified, reading.gpus[0].memory_total) == (True, MACHINE)
    sample = sample_of(reading, 0)
    assert (sample.memory_used, sample.memory_total) == (0, MACHINE)
    assert sample.memory_free is not None
    assert 0 < sample.memory_free < MACHINE
    assert judged(reading).state is GpuState.FREE
    standin.write(*lines, f"gpu 0 process {os.getpid()} {3 * GIB}", gpus=1)
    reading = read(watch)
    assert sample_of(reading, 0).memory_used == 3 * GIB
    assert judged(reading).state is GpuState.FOREIGN


@cases("lines", [(f"gpu 0 total {MACHINE * 97 // 100}", f"gpu 0 used {MACHINE // 4}"), ()])
def test_a_board_with_about_the_machines_memory_keeps_its_own(
    standin: StandIn, watch: Start, lines: tuple[str, ...]
) -> None:
    standin.write(*lines, gpus=1)
    reading = read(watch)
    assert not reading.gpus[0].unified
    assert judged(reading).state is (GpuState.FOREIGN if lines else GpuState.FREE)


def test_a_gpu_without_process_lists_is_free_only_where_the_site_accepts_that(standin: StandIn, watch: Start) -> None:
    standin.write(*NO_LISTS, gpus=1)
    reading = read(watch)
    assert judged(reading).state is GpuState.UNKNOWN
    assert "scheduler.need_process_lists" in judged(reading).why
    accepting = SchedulerSettings(need_process_lists=False)
    assert judged(reading, accepting).state is GpuState.FREE
    standin.write(*NO_LISTS, f"gpu 0 used {2 * GIB}", gpus=1)
    assert judged(read(watch), accepting).state is GpuState.FOREIGN
    standin.write("gpu 0 fail nvmlDeviceGetComputeRunningProcesses 999", gpus=1)
    assert judged(read(watch), accepting).state is GpuState.UNKNOWN, "a list that failed is another matter"


@cases(
    ("call", "code"),
    [*[(call, code) for call in CALLS for code in (3, 4, 999)][::2], ("MemoryInfo", 3), ("MemoryInfo", 4)],
)
def test_a_call_that_fails_costs_its_own_value(standin: StandIn, watch: Start, call: str, code: int) -> None:
    standin.write("gpu 0 util 40", f"gpu 0 fail nvmlDeviceGet{call} {code}", gpus=2)
    reading = read(watch)
    assert reading.status.code is ProbeCode.OK
    mine, other = reading.samples[reading.gpus[0].uuid], reading.samples[reading.gpus[1].uuid]
    differing = [
        name for name in GpuSample.__struct_fields__ if (getattr(mine, name) is None) != (getattr(other, name) is None)
    ]
    assert len(differing) <= 2, differing
    assert mine.utilization == (None if call == "UtilizationRates" else 0.4)
    is_needed = call in NEEDED and not (call == "MemoryInfo" and code == 3)
    assert (judged(reading).state is GpuState.FREE) is not is_needed
    assert gpu_views(Evidence(reading, "store"), USUAL, SystemClock().now())[1].state is GpuState.FREE


def test_texts_that_are_not_utf_8_are_shown_as_far_as_they_can_be_read(standin: StandIn, watch: Start) -> None:
    standin.write(
        "gpu 0 name NVIDIA \udcffH100", "driver 570\udcfe", "gpu 1 uuid GPU-\udcff-1", "gpu 1 util 30", gpus=3
    )
    reading = read(watch)
    assert [gpu.model for gpu in reading.gpus[:1]] == ["NVIDIA \ufffdH100"]
    assert reading.driver_version == "570\ufffd"
    states = [view.state for view in gpu_views(Evidence(reading, "store"), USUAL, SystemClock().now())]
    assert states == [GpuState.FREE, GpuState.DRAINED, GpuState.FREE]
    nameless = reading.samples["GPU-unknown-1"]
    assert nameless.utilization == 0.3
    assert "no UUID" in nameless.health.text


def test_impossible_figures_count_as_not_read(standin: StandIn, watch: Start) -> None:
    wild = ("util 686103", "memory_util 4000", "temperature -1", "power 4294967295", "limit 4294967295", "sm_clock -1")
    standin.write(*(f"gpu 0 {each}" for each in wild), "gpu 0 throttle 0xffffffff", gpus=1)
    sample = sample_of(read(watch), 0)
    figures = (sample.utilization, sample.memory_utilization, sample.temperature, sample.power, sample.sm_clock)
    assert (*figures, sample.power_limit, sample.throttle) == (None, None, None, None, None, None, ())


def test_the_second_gpu_of_a_uuid_is_shown_and_given_to_no_job(standin: StandIn, watch: Start) -> None:
    standin.write(f"gpu 1 uuid {uuid(0)}", "gpu 1 util 55", gpus=3)
    reading = read(watch)
    assert [gpu.index for gpu in reading.gpus] == [0, 1, 2]
    views = gpu_views(Evidence(reading, "store"), USUAL, SystemClock().now())
    assert [view.state for view in views] == [GpuState.FREE, GpuState.DRAINED, GpuState.FREE]
    assert views[1].health.code is HealthCode.UNKNOWN
    assert f"it has the UUID of GPU 0, {uuid(0)}" in views[1].why
    assert sample_of(reading, 1).utilization == 0.55


def test_mig_without_its_mode_is_found_by_its_instances(standin: StandIn, watch: Start) -> None:
    instance = f"gpu 0 instance 0 1 0 MIG-11111111-0000-4000-8000-000000000000 3g.40gb {40 * GIB}"
    standin.write("gpu 0 mig 1", instance, "gpu 0 fail nvmlDeviceGetMigMode 999", gpus=1)
    assert [gpu.mig_enabled for gpu in read(watch).gpus] == [True, False]
