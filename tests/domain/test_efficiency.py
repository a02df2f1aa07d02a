"""Use of an attempt's GPUs, from readings."""

from __future__ import annotations

from datetime import timedelta

from gputui.domain.efficiency import Efficiency, GpuUseTally
from gputui.domain.gpu import GpuProcess
from tests.factories import GIB, NOW, sample, uuid


def test_means_are_over_time_and_gpus_and_each_reading_counts_once() -> None:
    tally = GpuUseTally(2)
    for _ in range(3):
        tally.add(sample(0, at=NOW + timedelta(seconds=10), utilization=1.0, memory_used=70 * GIB), NOW)
    tally.add(sample(0, at=NOW + timedelta(seconds=20), utilization=0.0, memory_used=71 * GIB), NOW)
    tally.add(sample(1, at=NOW + timedelta(seconds=20), utilization=0.8, memory_used=5 * GIB), NOW)
    found = tally.result()
    assert found == Efficiency(20.0, 0.65, 0.25, 71 * GIB, 80 * GIB)
    assert found.short == "util 65%  mem 71G/80G"
    assert found.long == "mean utilization 65%, idle 25% of the time; peak memory 71G/80G per GPU; measured for 20s"


def test_a_gap_counts_for_half_a_minute_and_a_clock_set_back_for_nothing() -> None:
    tally = GpuUseTally(1)
    tally.add(sample(0, at=NOW + timedelta(hours=5), utilization=0.5), NOW)
    tally.add(sample(0, at=NOW + timedelta(hours=1), utilization=1.0), NOW)
    tally.add(sample(0, at=NOW + timedelta(hours=1, seconds=10), utilization=1.0), NOW)
    found = tally.result()
    assert found is not None
    assert (found.seconds, found.utilization) == (40.0, 0.625)


def test_what_cannot_be_read_is_unknown_and_a_shared_gpu_counts_its_own_memory() -> None:
    blind = GpuUseTally(1)
    blind.add(sample(0, at=NOW + timedelta(seconds=9), utilization=None, memory_used=None), NOW)
    assert blind.result() == Efficiency(9.0, None, None, None, 80 * GIB)
    assert GpuUseTally(1).result() is None
    shared = GpuUseTally(1)
    both = (
        GpuProcess(1, 3 * GIB, container_id="mine"),
        GpuProcess(2, 2 * GIB, attempt="s:1:1"),
        GpuProcess(3, 9 * GIB, container_id="other"),
    )
    shared.add(sample(0, at=NOW + timedelta(seconds=9), memory_used=14 * GIB, processes=both), NOW, ("mine", "s:1:1"))
    found = shared.result(asked=10 * GIB)
    assert found is not None
    assert found.short == "util 0%  mem 5G/10G"
    shared.add(sample(0, at=NOW + timedelta(seconds=11), processes=None), NOW, ("mine",))
    assert uuid(0) in shared.last
