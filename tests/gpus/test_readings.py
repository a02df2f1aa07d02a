"""Readings of healthy and faulty GPUs, end to end."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.gpu import HealthCode, Link
from tests.cases import cases
from tests.gpus.conftest import Start
from tests.gpus.standin import StandIn, nvlinks, uuid
from tests.gpus.watching import FAST, is_whole, sample_of

pytestmark = pytest.mark.nvml

BUSY = (
    "gpu 0 util 73",
    "gpu 0 memory_util 41",
    "gpu 0 used 1000000",
    "gpu 0 temperature 66",
    "gpu 0 power 512300",
    "gpu 0 limit 650000",
    "gpu 0 sm_clock 1755",
    "gpu 0 memory_clock 2619",
    "gpu 0 fan 30",
    "gpu 0 throttle 0x45",
    "gpu 0 ecc_corrected 7",
    "gpu 0 tx 2000",
    "gpu 0 rx 3000",
)


def test_units_and_static_facts(standin: StandIn, watch: Start) -> None:
    standin.write(*BUSY, gpus=2)
    watcher = watch()
    watcher.probe.want_pcie(uuid(0))
    reading = watcher.until(lambda reading: is_whole(reading) and sample_of(reading, 0).pcie_tx)
    gpu, sample = reading.gpus[0], reading.samples[uuid(0)]
    assert (gpu.model, gpu.pci_bus_id, gpu.numa_node, gpu.minor) == ("NVIDIA H100 80GB HBM3", "00000000:10:00.0", 0, 0)
    assert (gpu.memory_total, gpu.power_limit, gpu.persistence) == (85520809984, 650.0, True)
    assert (sample.utilization, sample.memory_utilization, sample.temperature) == (0.73, 0.41, 66)
    assert sample.memory_used == 1000000  # without the 600 MiB that the driver keeps
    assert (sample.power, sample.power_limit, sample.sm_clock, sample.memory_clock) == (512.3, 650.0, 1755, 2619)
    assert (sample.fan, sample.ecc_corrected, sample.ecc_uncorrected) == (0.3, 7, 0)
    assert sample.throttle == ("power cap", "too hot (hardware)")
    assert (sample.pcie_tx, sample.pcie_rx) == (2000 * 1024, 3000 * 1024)
    assert reading.samples[uuid(1)].pcie_tx is None
    assert reading.driver_version == "570.86.15"
    watcher.probe.want_pcie(None)
    watcher.until(lambda reading: sample_of(reading, 0).pcie_tx is None)


@cases("code", [3, 999])
@cases(
    ("functions", "fields"),
    [
        (["nvmlDeviceGetUtilizationRates"], ["utilization", "memory_utilization"]),
        (["nvmlDeviceGetMemoryInfo"], ["memory_used", "memory_total"]),
        (["nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"], ["temperature"]),
        (["nvmlDeviceGetPowerUsage"], ["power"]),
        (["nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"], ["power_limit"]),
        (["nvmlDeviceGetClockInfo"], ["sm_clock", "memory_clock"]),
        (["nvmlDeviceGetFanSpeed"], ["fan"]),
        (["nvmlDeviceGetTotalEccErrors"], ["ecc_corrected", "ecc_uncorrected"]),
        (["nvmlDeviceGetPcieThroughput"], ["pcie_tx", "pcie_rx"]),
        (["nvmlDeviceGetComputeRunningProcesses"], ["processes"]),
    ],
)
def test_unreadable_values_are_none_and_never_zero(
    standin: StandIn, watch: Start, functions: list[str], fields: list[str], code: int
) -> None:
    if "memory_used" in fields and code == 3:
        code = 4  # without any memory information it uses the machine's, see test_unusual_gpus
    standin.write(*BUSY, *(f"gpu 0 fail {function} {code}" for function in functions), gpus=2)
    watcher = watch()
    watcher.probe.want_pcie(uuid(0))
    watcher.until(lambda reading: len(reading.samples) == 2 and sample_of(reading, 1).ecc_corrected is not None)
    sample = watcher.next().samples[uuid(0)]
    assert {field: getattr(sample, field) for field in fields} == dict.fromkeys(fields)
    assert sample.processes_at is not None
    assert sample.health.code is HealthCode.OK


@cases(
    "function",
    [
        "nvmlDeviceGetName",
        "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetNumaNodeId",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses",
        "nvmlDeviceRegisterEvents",
        "nvmlEventSetCreate",
        "nvmlEventSetWait",
        "nvmlSystemGetDriverVersion",
    ],
)
def test_a_failing_call_loses_only_its_own_value(standin: StandIn, watch: Start, function: str) -> None:
    standin.write(*BUSY, f"fail {function} 3", gpus=2)
    reading = watch().until(is_whole)
    assert reading.samples[uuid(0)].utilization == 0.73
    assert reading.samples[uuid(0)].processes == ()


def test_a_gpu_without_a_readable_uuid_is_shown_as_unidentified(standin: StandIn, watch: Start) -> None:
    standin.write("gpu 1 fail nvmlDeviceGetUUID 4", gpus=2)
    reading = watch().until(lambda reading: len(reading.samples) == 2)
    sample = reading.samples["GPU-unknown-1"]
    assert sample.health.code is HealthCode.UNKNOWN
    assert not sample.health.is_schedulable
    assert "Permission" in sample.health.text


@cases(
    ("lines", "code", "word"),
    [
        (("gpu 0 recovery 1",), HealthCode.NEEDS_RESET, "reset"),
        (("gpu 0 recovery 2",), HealthCode.NEEDS_RESET, "reboot"),
        (("gpu 0 ecc_uncorrected 3",), HealthCode.ECC, "3 uncorrected memory errors"),
        (("gpu 0 remap_failed 1",), HealthCode.REMAP_FAILED, "remapped"),
        (("gpu 0 remap_pending 1",), HealthCode.REMAP_PENDING, "remapped"),
        (("gpu 0 recovery 1", "gpu 0 ecc_uncorrected 3"), HealthCode.NEEDS_RESET, "reset"),
        (("gpu 0 ecc_corrected 99",), HealthCode.OK, ""),
    ],
)
def test_health_in_words(standin: StandIn, watch: Start, lines: tuple[str, ...], code: HealthCode, word: str) -> None:
    standin.write(*lines, gpus=2)
    reading = watch().until(is_whole)
    assert reading.samples[uuid(0)].health.code is code
    assert word in reading.samples[uuid(0)].health.text
    assert reading.samples[uuid(1)].health.code is HealthCode.OK


def test_a_fatal_xid_stays_and_an_application_xid_is_ignored(standin: StandIn, watch: Start) -> None:
    standin.write("xid 0 1 79", gpus=3)  # before the probe began: not its affair
    watcher = watch()
    watcher.until(is_whole)
    standin.xid(0, 48)
    standin.xid(1, 31)
    standin.xid(0, 45)
    reading = watcher.until(lambda reading: sample_of(reading, 0).xid == 45 and sample_of(reading, 1).xid)
    assert reading.samples[uuid(0)].health.code is HealthCode.XID
    assert "Xid 48" in reading.samples[uuid(0)].health.text
    assert (reading.samples[uuid(1)].xid, reading.samples[uuid(1)].health.code) == (31, HealthCode.OK)
    assert reading.samples[uuid(2)].xid is None


def test_an_operators_resume_forgives_the_xids_reported_before_it(standin: StandIn, watch: Start) -> None:
    standin.write(gpus=2)
    watcher = watch()
    watcher.until(is_whole)
    for index in (0, 1):
        standin.xid(index, 48)
    watcher.until(lambda reading: sample_of(reading, 0).xid and sample_of(reading, 1).xid)
    watcher.probe.forgive({uuid(0): datetime.now(UTC)})
    reading = watcher.until(lambda reading: sample_of(reading, 0).health.code is HealthCode.OK)
    assert sample_of(reading, 1).health.code is HealthCode.XID
    standin.xid(0, 79)
    watcher.until(lambda reading: "Xid 79" in sample_of(reading, 0).health.text)


@cases("sign", ["gpu 0 recovery", "gpu 0 ecc_uncorrected"])
def test_a_reset_between_two_listings_ends_a_fatal_xid(standin: StandIn, watch: Start, sign: str) -> None:
    standin.write(f"{sign} 3", gpus=2)
    watcher = watch()
    watcher.until(is_whole)
    standin.xid(0, 95)
    watcher.until(lambda reading: sample_of(reading, 0).xid == 95)
    standin.change(f"{sign} 0", without=(sign,))
    reading = watcher.until(lambda reading: sample_of(reading, 0).health.code is HealthCode.OK)
    assert sample_of(reading, 0).xid == 95


def test_an_xid_outlives_the_probe_process(standin: StandIn, watch: Start) -> None:
    standin.write(gpus=2)
    watcher = watch()
    watcher.until(is_whole)
    standin.xid(1, 79)
    watcher.until(lambda reading: sample_of(reading, 1).xid)
    standin.change("init 9")
    standin.change("count_error 999")
    watcher.until(lambda reading: reading.status.code != "Ok")
    standin.change(without=("init", "count_error"))
    reading = watcher.until(lambda reading: reading.status.code == "Ok")
    assert reading.samples[uuid(1)].health.code is HealthCode.XID


def test_links_via_switch_bridge_and_pcie_are_read(standin: StandIn, watch: Start) -> None:
    def links(*lines: str) -> dict[str, Link]:
        standin.write(*lines, gpus=4)
        watcher = watch()
        reading = watcher.until(lambda reading: reading.gpus and reading.gpus[0].links)
        watcher.probe.close()
        return {link.peer: link for link in reading.gpus[0].links}

    assert links(*nvlinks(4)) == {uuid(i): Link(uuid(i), "NVLINK", 18) for i in (1, 2, 3)}
    bridged = links(*nvlinks(4, 4, by_switch=False), "topology 0 2 20", "topology 0 3 50")
    assert bridged == {
        uuid(1): Link(uuid(1), "NVLINK", 4),
        uuid(2): Link(uuid(2), "PXB"),
        uuid(3): Link(uuid(3), "SYS"),
    }
    assert links("topology 0 1 10", "topology 0 2 30", "topology 0 3 40")[uuid(1)].kind == "PIX"


def test_processes_are_attributed(standin: StandIn, watch: Start) -> None:
    environment = {**os.environ, "GPUTUI_ATTEMPT": "abc:7:1"}
    with subprocess.Popen(["/bin/sleep", "60"], env=environment, start_new_session=True) as sleeper:
        standin.write(f"gpu 0 process {sleeper.pid} 5000", f"gpu 0 process {os.getpid()} - G", gpus=1)
        watcher = watch()
        reading = watcher.until(lambda reading: is_whole(reading) and len(sample_of(reading, 0).processes or ()) == 2)
        found = {process.pid: process for process in sample_of(reading, 0).processes or ()}
        held, drawing = found[sleeper.pid], found[os.getpid()]
        sleeper.kill()
    assert (held.memory, held.command, held.session, held.attempt) == (5000, "sleep 60", sleeper.pid, "abc:7:1")
    assert (held.compute, held.visible, held.container_id) == (True, True, None)
    assert held.user is not None
    assert (drawing.compute, drawing.memory) == (False, None)


def test_more_processes_than_expected_are_all_listed(standin: StandIn, watch: Start) -> None:
    standin.write(*(f"gpu 0 process {4000000 + number} 1" for number in range(150)), gpus=1)
    assert len(sample_of(watch().until(is_whole), 0).processes or ()) == 150


def test_a_pid_of_another_namespace_is_kept_as_invisible(standin: StandIn, watch: Start) -> None:
    standin.write("gpu 0 process 4194303 7000", gpus=1)
    (process,) = sample_of(watch().until(is_whole), 0).processes or ()
    assert (process.pid, process.memory, process.visible, process.user) == (4194303, 7000, False, None)


@pytest.mark.needs("root", "unshare")
def test_another_pid_namespace_is_reported(standin: StandIn, tmp_path: Path) -> None:
    standin.write("gpu 0 process 4194303 7000", gpus=1)
    script = tmp_path / "inside.py"
    script.write_text(
        "from gputui.bootstrap import SystemClock\n"
        "from tests.gpus.watching import FAST\n"
        "from gputui.gpus.supervisor import first_reading\n"
        "from gputui.gpus.supervisor import NvmlProbe\n"
        "print(*first_reading(NvmlProbe(FAST, SystemClock()), 20).notes)\n"
    )
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, str(script)]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(inside, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, timeout=60)
    assert "another PID namespace" in done.stdout, done.stderr


def test_persistence_off_is_noted(standin: StandIn, watch: Start) -> None:
    standin.write("gpu 1 persistence 0", gpus=2)
    (note,) = watch().until(is_whole).notes
    assert "persistence mode is off on GPU 1" in note


def test_rarely_read_values_are_kept_between_their_readings(standin: StandIn, watch: Start) -> None:
    standin.write("gpu 0 ecc_corrected 5", gpus=1)
    watcher = watch(replace(FAST, slow_interval=timedelta(hours=1), process_interval=timedelta(hours=1)))
    whole = watcher.until(is_whole)
    standin.write("gpu 0 ecc_corrected 9", "gpu 0 util 50", gpus=1)
    later = watcher.until(lambda reading: sample_of(reading, 0).utilization == 0.5)
    assert sample_of(later, 0).ecc_corrected == 5
    assert sample_of(later, 0).processes == ()
    assert sample_of(later, 0).processes_at == sample_of(whole, 0).processes_at


LIST_WITHOUT_PYNVML = """
import pynvml
from gputui.gpus.probe.nvml import list_processes
pynvml.nvmlInit()
pynvml.nvmlDeviceGetComputeRunningProcesses = None
print(list_processes(pynvml.nvmlDeviceGetHandleByIndex(0), {}))
"""


def test_a_list_of_processes_is_one_call_to_the_driver(standin: StandIn) -> None:
    """Fails when pynvml loads the library by another name or drops the struct of the list: then it asks twice."""
    standin.write("gpu 0 process 4711 5000")
    command = [sys.executable, "-c", LIST_WITHOUT_PYNVML]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[(4711, 5000, True)]\n"
