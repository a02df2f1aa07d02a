"""Performance counters of Hopper and newer GPUs, end to end."""

from __future__ import annotations

import pytest

from gputui.domain.gpu import GpuSample, ProbeReading
from tests.gpus.conftest import Start
from tests.gpus.standin import StandIn, uuid
from tests.gpus.watching import is_whole

pytestmark = pytest.mark.nvml

INSTANCE = "MIG-aaaa"


def activity(sample: GpuSample | None) -> tuple[float | None, float | None]:
    return (sample.sm_activity, sample.memory_activity) if sample else (None, None)


def test_gpus_and_instances_with_counters_report_their_activity(standin: StandIn, watch: Start) -> None:
    instance = ("gpu 2 mig 1", f"gpu 2 instance 0 3 0 {INSTANCE} 1g.10gb 10737418240", "gpu 2 gpm 12 6")
    standin.write("gpu 0 gpm 83.5 41", "gpu 0 util 99", "gpu 1 util 99", *instance, gpus=3)
    watcher = watch()

    def is_told(reading: ProbeReading) -> bool:
        return activity(reading.samples.get(INSTANCE)) == (0.12, 0.06)

    samples = watcher.until(is_told).samples
    assert activity(samples[uuid(0)]) == (0.835, 0.41)
    assert activity(samples[uuid(1)]) == (None, None)
    standin.change("gpu 0 gpm nan 250", without=("gpu 0 gpm",))
    watcher.until(lambda reading: activity(reading.samples[uuid(0)]) == (None, 1.0))


def test_counters_that_fail_are_unknown_until_there_are_two_samples_again(standin: StandIn, watch: Start) -> None:
    standin.write("gpu 0 gpm 50 25", gpus=1)
    watcher = watch()
    watcher.until(is_whole)
    watcher.until(lambda reading: activity(reading.samples[uuid(0)]) == (0.5, 0.25))
    standin.change("fail nvmlGpmSampleGet 3")
    watcher.until(lambda reading: activity(reading.samples[uuid(0)]) == (None, None))
    standin.change(without=("fail",))
    watcher.until(lambda reading: activity(reading.samples[uuid(0)]) == (0.5, 0.25))
