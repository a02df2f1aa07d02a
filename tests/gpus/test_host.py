"""Readings of the host: /proc, the wire format, and the time until disks are full."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gputui.domain.gpu import DOCKER, STATE, DiskUse, ProbeStatus
from gputui.gpus.probe.host import DiskReader, HostReader
from gputui.gpus.readings import DECODER, HostAssembler, HostReading, ReadingAssembler, Sweep
from gputui.gpus.simulated import simulated_host

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
GIB = 1024**3


class Machine:
    """Fake /proc and /sys/class/net."""

    def __init__(self, root: Path) -> None:
        self.proc, self.net = root / "proc", root / "net"
        self.proc.mkdir()
        self.net.mkdir()

    def stat(self, *ticks: int) -> None:
        (self.proc / "stat").write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2 3 4 5 6 7 8 9 0\nintr 5\n")

    def interface(self, name: str, received: int, sent: int, *, physical: bool = True) -> None:
        counters = self.net / name / "statistics"
        counters.mkdir(parents=True, exist_ok=True)
        if physical:
            (self.net / name / "device").mkdir(exist_ok=True)
        (counters / "rx_bytes").write_text(f"{received}\n")
        (counters / "tx_bytes").write_text(f"{sent}\n")

    def reader(self) -> HostReader:
        return HostReader(str(self.proc), str(self.net))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_rates_are_differences_between_two_readings(machine: Machine) -> None:
    machine.stat(1000, 0, 500, 8000, 500, 0, 0, 0, 100, 0)
    machine.interface("eth0", 1_000_000, 50_000)
    machine.interface("bond0", 1_000_000, 50_000, physical=False)  # the same bytes again
    machine.interface("ib0", 500, 0)
    reader = machine.reader()
    first = reader.read(10.0, seldom=True)
    assert not {"cpu", "received", "sent"} & first.keys()
    machine.stat(1150, 0, 600, 8700, 550, 0, 0, 0, 200, 0)  # 250 busy of 1000; a guest's ticks are its user's
    machine.interface("eth0", 5_000_000, 90_000)
    second = reader.read(12.0, seldom=False)
    assert (second["cpu"], second["received"], second["sent"]) == (0.25, 2_000_000, 20_000)


def test_memory_and_load(machine: Machine) -> None:
    (machine.proc / "loadavg").write_text("12.34 10.00 8.00 3/900 4711\n")
    (machine.proc / "meminfo").write_text(
        "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\nHugePages_Total: 0\n"
    )
    reading = machine.reader().read(1.0, seldom=True)
    assert (reading["load"], reading["memory_total"], reading["memory_used"]) == (12.34, 1000 * 1024, 600 * 1024)
    assert (reading["swap_total"], reading["swap_used"]) == (0, 0)


def test_unreadable_figures_are_left_out(machine: Machine) -> None:
    machine.interface("eth0", 5, 5, physical=False)  # as in a container, whose namespace is not the host's
    (machine.proc / "meminfo").write_text("MemTotal: 1000 kB\n")  # a kernel without MemAvailable
    reader = machine.reader()
    reader.read(1.0, seldom=True)
    assert reader.read(2.0, seldom=True).keys() == {"cores"}


def test_counters_that_go_back_or_come_and_go_give_no_rate(machine: Machine) -> None:
    machine.interface("eth0", 1000, 1000)
    reader = machine.reader()
    reader.read(1.0, seldom=True)
    machine.interface("eth0", 10, 10)
    assert "received" not in reader.read(2.0, seldom=False)
    machine.interface("eth1", 10**12, 10**12)
    assert "received" not in reader.read(3.0, seldom=True)
    machine.interface("eth1", 10**12 + 50, 10**12)
    assert reader.read(4.0, seldom=False)["received"] == 50


def disks(reader: DiskReader) -> list[dict[str, object]]:
    reader.request()
    deadline = time.monotonic() + 60
    while (found := reader.take()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found


def test_disks_by_mount_point(tmp_path: Path) -> None:
    reader = DiskReader()
    reader.paths = {STATE: str(tmp_path), DOCKER: str(tmp_path / "gone")}
    (found,) = disks(reader)
    stats = os.statvfs(tmp_path)
    assert found["roles"] == [STATE]
    assert os.path.ismount(str(found["mount"]))
    assert 0 <= int(str(found["free"])) <= int(str(found["total"])) <= stats.f_blocks * stats.f_frsize
    reader.paths = {STATE: str(tmp_path), DOCKER: str(tmp_path)}
    assert disks(reader)[0]["roles"] == [STATE, DOCKER]
    assert reader.take() is None


def test_peers_of_earlier_and_later_versions_are_understood() -> None:
    assembler = ReadingAssembler()
    old = DECODER.decode(b'{"kind":"sweep","samples":[],"xids":[],"lists":true}')
    assert isinstance(old, Sweep)
    assembler.ingest(old, NOW)
    assert assembler.reading(ProbeStatus()).host is None
    new = DECODER.decode(b'{"kind":"sweep","host":{"load":3.5,"fans":[1,2]},"more":1}')
    assert isinstance(new, Sweep)
    assembler.ingest(new, NOW)
    host = assembler.reading(ProbeStatus()).host
    assert host is not None
    assert (host.load, host.cpu, host.memory_total, host.disks) == (3.5, None, None, ())


def _at(free: float) -> DiskUse:
    """Return a disk with so many GiB free."""
    return DiskUse("/data", (STATE,), 100 * GIB, round(free * GIB))


def full_in(*readings: tuple[float, float]) -> timedelta | None:
    """Return the time until the disk is full, after readings of (minutes, free GiB)."""
    assembler = HostAssembler()
    for minutes, free in readings:
        assembler.ingest(HostReading(disks=(_at(free),)), NOW + timedelta(minutes=minutes))
    assert assembler.sample is not None
    return assembler.sample.disks[0].full_in


def test_disks() -> None:
    # time until a disk is full
    assert full_in((0, 50), (5, 40)) == timedelta(minutes=20)
    assert full_in((0, 50), (0.5, 40)) is None, "half a minute is too short to tell"
    assert full_in((0, 50), (5, 50)) is None
    assert full_in((0, 50), (5, 60)) is None
    assert full_in((0, 50), (5, 49.99)) is None, "in two weeks"
    assert full_in((0, 90), (15, 40), (20, 40)) is None, "it has stopped"
    assert full_in((5, 50), (0, 40)) is None, "the clock was set back"
    # a disk that was away begins anew: another machine may name ever new ones
    gone = HostAssembler()
    for minutes, disks in ((0, (_at(50),)), (2, ()), (5, (_at(40),))):
        gone.ingest(HostReading(disks=disks), NOW + timedelta(minutes=minutes))
    assert gone.sample is not None
    assert gone.sample.disks[0].full_in is None
    # disks stay known between their readings
    assembler = HostAssembler()
    assembler.ingest(HostReading(disks=(DiskUse("/", (STATE,), 100, 25),)), NOW)
    assembler.ingest(HostReading(load=2.0), NOW + timedelta(seconds=2))
    assert assembler.sample is not None
    assert [disk.used for disk in assembler.sample.disks] == [0.75]


def test_a_simulated_host_follows_its_gpus() -> None:
    idle, busy = (simulated_host(0, NOW, load, (STATE, DOCKER)) for load in (0.0, 8.0))
    assert idle.cpu is not None
    assert busy.cpu is not None
    assert 0 < idle.cpu < 0.1 < 0.25 < busy.cpu < 0.97
    assert (idle.memory_used or 0) < (busy.memory_used or 0) < (busy.memory_total or 0)
    assert (idle.received or 0) < (busy.received or 0)
    assert [disk.roles for disk in busy.disks] == [(STATE,), (DOCKER,)]
    assert busy == simulated_host(0, NOW + timedelta(seconds=1), 8.0, (STATE, DOCKER))
