"""Detail readings of one GPU, end to end: NVLink, and the share of each process."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from gputui.domain.gpu import ALL_SHARES, GpuSample, ProbeReading
from gputui.gpus.probe.__main__ import ALL_SHARES as ALL_OF_PROBE
from tests.cases import cases
from tests.factories import running
from tests.gpus.conftest import Start
from tests.gpus.standin import SOURCE, StandIn, build, uuid
from tests.gpus.watching import FAST, is_whole

pytestmark = pytest.mark.nvml

ME = os.getpid()
BUSY = ("gpu 0 util 73", f"gpu 0 process {ME} 5000", "gpu 1 util 50", f"gpu 1 process {ME} 5000")
TRAFFIC = ("gpu 0 nvlink_tx 1000 80000000", "gpu 0 nvlink_rx 2000 60000000", "gpu 1 nvlink_tx 0 7000")
"""KiB counted, and KiB per second."""


def sm_of(sample: GpuSample) -> list[float | None]:
    return [process.sm for process in sample.processes or ()]


def looked_at(reading: ProbeReading) -> GpuSample:
    return of(reading, 0)


def of(reading: ProbeReading, index: int) -> GpuSample:
    """Return the last sample; an empty one before there is any."""
    return reading.samples.get(uuid(index)) or GpuSample(uuid(index), datetime.now(UTC))


def test_nvlink_throughput_is_counted_between_sweeps(standin: StandIn, watch: Start) -> None:
    standin.write(*BUSY, *TRAFFIC, gpus=2)
    watcher = watch()
    watcher.probe.want_pcie(uuid(0))
    watcher.until(lambda reading: looked_at(reading).nvlink_tx is not None)
    rates = [looked_at(watcher.next()) for _ in range(9)]
    sent = sorted(rate.nvlink_tx or 0 for rate in rates)[4]
    received = sorted(rate.nvlink_rx or 0 for rate in rates)[4]
    assert sent == pytest.approx(80_000_000 * 1024, rel=0.2)
    assert received == pytest.approx(60_000_000 * 1024, rel=0.2)
    assert {sample.nvlink_tx for reading in watcher.readings for sample in other(reading)} == {None}
    watcher.probe.want_pcie(None)
    watcher.until(lambda reading: looked_at(reading).nvlink_tx is None)


def other(reading: ProbeReading) -> list[GpuSample]:
    return [sample for sample in reading.samples.values() if sample.uuid != uuid(0)]


def test_an_idle_link_has_zero_throughput_and_a_gpu_without_nvlink_none(standin: StandIn, watch: Start) -> None:
    standin.write("gpu 0 nvlink_tx 500", gpus=2)
    watcher = watch()
    watcher.probe.want_pcie(uuid(0))
    assert looked_at(watcher.until(lambda reading: looked_at(reading).nvlink_tx is not None)).nvlink_tx == 0
    watcher.probe.want_pcie(uuid(1))
    watcher.until(lambda reading: of(reading, 1).pcie_tx is not None)
    for _ in range(3):
        sample = of(watcher.next(), 1)
        assert (sample.nvlink_tx, sample.nvlink_rx) == (None, None)


def test_a_counter_reset_gives_one_unknown_rate(standin: StandIn, watch: Start) -> None:
    standin.write("gpu 0 nvlink_tx 90000", "gpu 0 nvlink_rx 5", gpus=1)
    watcher = watch()
    watcher.probe.want_pcie(uuid(0))
    watcher.until(lambda reading: looked_at(reading).nvlink_tx == 0)
    heard = len(watcher.readings)
    standin.change("gpu 0 nvlink_tx 100", without=("gpu 0 nvlink_tx",))
    watcher.until(lambda reading: looked_at(reading).nvlink_tx is None)
    watcher.until(lambda reading: looked_at(reading).nvlink_tx == 0)
    later = [looked_at(reading) for reading in watcher.readings[heard:]]
    assert [sample.nvlink_tx for sample in later].count(None) == 1
    assert {sample.nvlink_rx for sample in later} == {0}


def test_processes_have_their_share_of_the_gpu(standin: StandIn, watch: Start) -> None:
    rests, unknown, odd = (ME + number for number in (1, 2, 3))  # not the parent: it may be 1
    more = [f"gpu 0 process {pid} 10" for pid in (rests, unknown, odd)]
    shares = (f"gpu 0 sm {ME} 62", f"gpu 0 sm {rests} 0", f"gpu 0 sm {unknown} -2", f"gpu 0 sm {odd} 1437")
    standin.write(*BUSY, *more, *shares, gpus=2)
    watcher = watch()
    watcher.until(is_whole)
    assert sm_of(looked_at(watcher.next())) == [None] * 4
    watcher.probe.want_pcie(uuid(0))
    reading = watcher.until(lambda reading: 0.62 in sm_of(looked_at(reading)))
    assert sm_of(looked_at(reading)) == [0.62, 0.0, None, None]  # one rests, of one the driver tells nonsense
    assert sm_of(of(reading, 1)) == [None]
    standin.change(f"gpu 0 sm {ME} 31")
    watcher.until(lambda reading: 0.31 in sm_of(looked_at(reading)))
    watcher.probe.refresh()  # so soon the driver has no newer ones
    heard = len(watcher.readings)
    watcher.until(lambda reading: len(watcher.readings) > heard + 3)
    assert all(0.31 in sm_of(looked_at(reading)) for reading in watcher.readings[heard:])
    standin.change(*(f"gpu 0 sm {pid} -2" for pid in (ME, rests, odd)))
    watcher.until(lambda reading: set(sm_of(looked_at(reading))) == {None})


def test_shares_of_all_gpus_come_without_throughput(standin: StandIn, watch: Start) -> None:
    standin.write(*BUSY, *TRAFFIC, f"gpu 0 sm {ME} 62", f"gpu 1 sm {ME} 17", gpus=2)
    watcher = watch()
    watcher.probe.want_pcie(ALL_SHARES)
    reading = watcher.until(lambda reading: sm_of(of(reading, 0)) + sm_of(of(reading, 1)) == [0.62, 0.17])
    assert (of(reading, 0).nvlink_tx, of(reading, 0).pcie_tx) == (None, None)
    assert ALL_OF_PROBE == ALL_SHARES


@cases("code", [3, 6, 13, 999])
def test_refused_readings_are_none_and_leave_the_others(standin: StandIn, watch: Start, code: int) -> None:
    standin.write(
        *BUSY,
        *TRAFFIC,
        f"gpu 0 fail nvmlDeviceGetProcessUtilization {code}",
        f"gpu 0 fail nvmlDeviceGetFieldValues {code}",
        gpus=2,
    )
    watcher = watch()
    watcher.probe.want_pcie(uuid(0))
    watcher.until(lambda reading: is_whole(reading) and looked_at(reading).pcie_tx is not None)
    for _ in range(3):
        sample = looked_at(watcher.next())
        assert (sample.nvlink_tx, sample.nvlink_rx, sm_of(sample), sample.utilization) == (None, None, [None], 0.73)


def test_an_old_driver_without_the_function_is_handled(
    standin: StandIn, watch: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.write(*BUSY, gpus=2)
    assert "#ifndef OLD_DRIVER" in SOURCE.read_text()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build("-DOLD_DRIVER")))
    watcher = watch()
    watcher.probe.want_pcie(uuid(0))
    watcher.until(lambda reading: is_whole(reading) and looked_at(reading).pcie_tx is not None)
    sample = looked_at(watcher.next())
    assert (sample.nvlink_tx, sm_of(sample), sample.utilization) == (None, [None], 0.73)


def test_detail_readings_are_not_taken_unless_shown(standin: StandIn, watch: Start) -> None:
    standin.write(*BUSY, *TRAFFIC, gpus=2)
    watcher = watch(replace(FAST, slow_interval=timedelta(hours=1)))  # whose sweeps ask for fields too
    watcher.until(is_whole)
    standin.change("hang nvmlDeviceGetFieldValues", "hang nvmlDeviceGetProcessUtilization")
    seen = len(watcher.readings)
    watcher.probe.refresh()
    watcher.until(lambda reading: len(watcher.readings) > seen + 4)
    standin.change(without=("hang",))


def test_another_gpu_starts_without_previous_counters(standin: StandIn, watch: Start) -> None:
    standin.write(*BUSY, "gpu 0 nvlink_tx 5", "gpu 1 nvlink_tx 900000000", gpus=2)
    watcher = watch()
    watcher.probe.want_pcie(uuid(0))
    watcher.until(lambda reading: looked_at(reading).nvlink_tx == 0)
    watcher.probe.want_pcie(uuid(1))
    watcher.until(lambda reading: of(reading, 1).nvlink_tx == 0)
    assert {of(reading, 1).nvlink_tx for reading in watcher.readings if len(reading.samples) > 1} == {None, 0}


def test_the_processes_of_a_gpu_that_several_jobs_hold_are_told_apart(standin: StandIn, watch: Start) -> None:
    standin.write(*BUSY, f"gpu 0 sm {ME} 62", f"gpu 1 sm {ME} 31", gpus=2)
    watcher = watch()
    watcher.until(is_whole)
    watcher.probe.follow([running(1, on=[uuid(0), uuid(1)]), running(2, on=[uuid(1)])])
    watcher.until(lambda reading: sm_of(of(reading, 1)) == [0.31])
    assert sm_of(looked_at(watcher.probe.latest())) == [None]
    watcher.probe.follow([running(1, on=[uuid(0), uuid(1)])])
    watcher.until(lambda reading: sm_of(of(reading, 1)) == [None])
