"""Use of an attempt's GPUs, in a few words."""

from __future__ import annotations

from gputui.domain.telemetry import AttemptTelemetry, Efficiency, Spread, efficiency_of
from tests.factories import GIB


def test_words_of_efficiency() -> None:
    # the words are made of the telemetry
    used, memory = Spread(0.65, 1.0, 1.0), Spread(40.0 * GIB, 71.0 * GIB, 71.0 * GIB)
    found = efficiency_of(
        AttemptTelemetry(20.0, idle=0.25, utilization=used, gpu_memory=memory, gpu_memory_total=80 * GIB)
    )
    assert found == Efficiency(20.0, 0.65, 0.25, 71 * GIB, 80 * GIB)
    assert found.short == "util 65%  mem 71G/80G"
    assert found.long == "mean utilization 65%, idle 25% of the time; peak memory 71G/80G per GPU; measured for 20s"
    # nothing is printed for a job without GPUs
    assert efficiency_of(None) is None
    assert efficiency_of(AttemptTelemetry(cpu=3.0)) is None
    blind = efficiency_of(AttemptTelemetry(9.0, gpu_memory_total=80 * GIB))
    assert blind == Efficiency(9.0, None, None, None, 80 * GIB)
