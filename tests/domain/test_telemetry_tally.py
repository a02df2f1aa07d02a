"""Sums over readings, each recounted by hand."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import timedelta
from itertools import accumulate
from typing import Any

import pytest

from gputui.domain.gpu import GpuProcess, GpuSample
from gputui.domain.telemetry import MAX_GAP, AttemptTelemetry, Consumption, Spread
from gputui.domain.telemetry_series import Tally, TallyRecord
from tests.factories import GIB, NOW, sample, uuid

BEGAN = NOW.timestamp()
MINE = GpuProcess(1, 3 * GIB, container_id="mine")
OURS = GpuProcess(2, 2 * GIB, attempt="s:1:1")
OTHER = GpuProcess(3, 9 * GIB, container_id="other")


def at(seconds: float, index: int = 0, **changes: Any) -> GpuSample:
    return sample(index, at=NOW + timedelta(seconds=seconds), **changes)


def tally(gpus: int = 1, share: float = 1.0) -> Tally:
    return Tally(TallyRecord(gpus, BEGAN, share))


def summary(counted: Tally, ended: float, asked: int = 0) -> AttemptTelemetry:
    found = counted.summary(BEGAN + ended, asked)
    assert found is not None
    return found


def weighted(pairs: Iterable[tuple[float, float]]) -> Spread:
    """Return the slow recount of values with the seconds for which they were known."""
    known = sorted(pairs)
    total = sum(seconds for _, seconds in known)
    passed = accumulate(seconds for _, seconds in known)
    p95 = next(value for (value, _), so_far in zip(known, passed, strict=True) if so_far >= 0.95 * total - 1e-6)
    return Spread(sum(value * seconds for value, seconds in known) / total, p95, known[-1][0])


def test_means_and_gaps() -> None:
    # means are over time and GPUs and each reading counts once
    counted = tally(2)
    for _ in range(3):
        counted.add(at(10, utilization=1.0, memory_used=70 * GIB, power=700.0))
    counted.add(at(20, utilization=0.0, memory_used=71 * GIB, power=100.0))
    counted.add(at(20, 1, utilization=0.8, memory_used=5 * GIB, power=400.0, throttle=("power cap", "sync boost")))
    found = summary(counted, 20)
    assert (found.seconds, found.allocated, found.known, found.busy, found.idle) == (20.0, 40.0, 40.0, 26.0, 0.25)
    assert found.utilization == Spread(0.65, 1.0, 1.0)
    assert found.energy == 700 * 10 + 100 * 10 + 400 * 20
    assert found.kilowatt_hours == pytest.approx(16000 / 3.6e6)
    assert (found.throttled, found.throttle) == (0.5, ("power cap", "sync boost"))
    assert (found.gpu_memory and found.gpu_memory.peak, found.gpu_memory_total) == (71 * GIB, 80 * GIB)
    assert (found.sm_activity, found.cpu, found.memory) == (None, None, None)
    # a gap counts for half a minute and a clock set back for nothing
    counted = tally()
    counted.add(at(5 * 3600, utilization=0.5, power=100.0))
    counted.add(at(3600, utilization=1.0, power=100.0))
    counted.add(at(3610, utilization=1.0, power=100.0))
    found = summary(counted, 5 * 3600)
    assert (found.seconds, found.energy) == (40.0, 4000.0)
    assert found.utilization is not None
    assert found.utilization.mean == 0.625
    # unreadable values are unknown
    blind = tally()
    blind.add(at(9, utilization=None, memory_used=None, power=None))
    found = summary(blind, 9)
    assert (found.seconds, found.allocated, found.gpu_memory_total) == (9.0, 9.0, 80 * GIB)
    assert (found.known, found.busy, found.idle, found.energy, found.power, found.gpu_memory) == (None,) * 6
    assert tally().summary(BEGAN) is None


def test_a_recount_of_many_readings_agrees() -> None:
    chosen, counted = random.Random(16), tally()
    used, watts, moment = [], [], 0.0
    for _ in range(5000):
        pause = chosen.choice([1.0, 1.0, 1.0, 2.5, 30.0, 400.0])
        moment += pause
        utilization = chosen.choice([None, *(n / 100 for n in range(0, 101, 5))])
        power = chosen.choice([None, chosen.uniform(60, 700)])
        counted.add(at(moment, utilization=utilization, power=power))
        used += [] if utilization is None else [(utilization, min(MAX_GAP, pause))]
        watts += [] if power is None else [(power, min(MAX_GAP, pause))]
    found, told, drawn = summary(counted, moment), weighted(used), weighted(watts)
    assert found.utilization is not None
    assert found.power is not None
    assert found.utilization.mean == pytest.approx(told.mean, rel=1e-5)
    assert (found.utilization.p95, found.utilization.peak) == (told.p95, told.peak)
    assert found.power.mean == pytest.approx(drawn.mean, rel=1e-5)
    assert found.power.p95 == pytest.approx(drawn.p95, rel=0.0101)
    assert found.power.peak == drawn.peak
    assert found.energy == pytest.approx(sum(power * seconds for power, seconds in watts), abs=0.1)
    assert found.known == pytest.approx(sum(seconds for _, seconds in used), abs=0.001)
    assert found.busy == pytest.approx(sum(share * seconds for share, seconds in used), abs=0.001)


def test_a_shared_gpu_is_attributed_once() -> None:
    """Two jobs share a GPU: their memory, use, time and energy add up to exactly those of the GPU."""
    one, two = tally(share=0.5), tally(share=0.5)
    processes = (
        GpuProcess(1, 3 * GIB, container_id="mine", sm=0.25),
        GpuProcess(2, 2 * GIB, attempt="s:1:1"),
        GpuProcess(3, 9 * GIB, container_id="other", sm=0.5),
    )
    read = at(10, utilization=0.9, memory_used=14 * GIB, power=400.0, processes=processes, sm_activity=0.5)
    one.add(read, ("mine", "s:1:1"))
    two.add(read, ("other",))
    found, other = summary(one, 10, 10 * GIB), summary(two, 10)
    assert (found.busy, other.busy) == (1.25, 2.5)
    assert (found.allocated, other.allocated) == (5.0, 5.0)
    assert (found.energy, other.energy) == (2000.0, 2000.0)
    assert (found.gpu_memory and found.gpu_memory.peak, found.gpu_memory_total) == (5 * GIB, 10 * GIB)
    assert other.gpu_memory is not None
    assert other.gpu_memory.peak == 9 * GIB
    assert (found.sm_activity, other.sm_activity) == (None, None)


def test_use_that_belongs_to_no_job_alone() -> None:
    # unattributable use of a shared GPU is charged to no job
    counted = tally(share=0.5)
    counted.add(at(10, utilization=0.9, processes=(MINE, OTHER)), ("mine",))
    counted.add(at(20, utilization=0.6, processes=None), ("mine",))
    assert summary(counted, 20).known is None
    counted.add(at(30, utilization=0.8, processes=(MINE, OURS)), ("mine", "s:1:1"))
    counted.add(at(40, utilization=0.0, processes=(MINE, OTHER)), ("mine",))
    found = summary(counted, 40)
    assert (found.known, found.busy) == (10.0, 4.0)
    # the power of a whole GPU is not that of its instances
    counted = tally()
    counted.add(GpuSample("MIG-1", NOW + timedelta(seconds=10), power=400.0, memory_used=GIB, sm_activity=0.4))
    found = summary(counted, 10)
    assert (found.energy, found.power, found.utilization) == (None, None, None)
    assert found.sm_activity == Spread(0.4, 0.4, 0.4)


def test_the_control_group_counts_from_the_start_and_over_gaps() -> None:
    counted = tally(0)
    counted.add_host(Consumption(2.0, 100, 150, 4096, 0), BEGAN + 1)
    counted.add_host(Consumption(3.0, 300, 350, 8192, None), BEGAN + 3)
    counted.add_host(Consumption(9.0, 200, 350, 9000, 512), BEGAN + 603)
    counted.add_host(Consumption(9.0, 200, 350, 9000, 512), BEGAN + 603)
    found = summary(counted, 603)
    assert (found.cpu, found.io_read, found.io_written) == (9.0, 9000, 512)
    assert found.cpus is not None
    assert (found.cpus.mean, found.cpus.peak) == (1.0, 2.0)
    assert found.memory is not None
    assert found.memory.mean == pytest.approx(233.333)
    assert found.memory.peak == 350
    assert (found.seconds, found.allocated) == (None, None)


def test_the_next_scheduler_continues_where_the_last_one_stopped() -> None:
    whole, first = tally(2), tally(2)
    readings = [at(second, second % 2, utilization=0.5, power=second) for second in range(1, 600)]
    for each in readings:
        whole.add(each)
    for each in readings[:300]:
        first.add(each)
    second = Tally(first.save())
    for each in readings[300:]:
        second.add(each)
    assert second.summary(BEGAN + 600) == whole.summary(BEGAN + 600)
    assert second.series() == whole.series()


def test_a_gpu_is_idle_at_zero_utilization_and_constant_memory() -> None:
    def idle_for(counted: Tally) -> float:
        used_at, read_at = counted.idle_since()[uuid(0)]
        return read_at - used_at

    counted = tally()
    for second in range(10, 110, 10):
        counted.add(at(second, utilization=0.0, memory_used=5 * GIB + second))
    assert idle_for(counted) == 90
    counted.add(at(110, utilization=0.01, memory_used=5 * GIB))
    assert idle_for(counted) == 0
    counted.add(at(130, utilization=0.0, memory_used=5 * GIB))
    assert idle_for(counted) == 20
    counted.add(at(140, utilization=0.0, memory_used=6 * GIB))
    assert idle_for(counted) == 0
    counted.add(at(150, utilization=None, memory_used=6 * GIB))
    counted.add(at(160, utilization=0.0, memory_used=6 * GIB))
    counted.add(at(200, utilization=0.0, memory_used=6 * GIB))
    assert idle_for(counted) == 0  # nobody knows what it did meanwhile


def test_times_move_with_the_clock() -> None:
    counted = tally()
    counted.add(at(10, utilization=0.5))
    counted.shift(3600)
    counted.add(at(3620, utilization=0.5))
    found = counted.summary(BEGAN + 3620)
    assert found is not None
    assert (found.seconds, found.allocated) == (20.0, 20.0)
    assert counted.series().begin == BEGAN + 3600
