"""Throttling: which reasons are told, and when."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gputui.domain.conditions import conditions
from gputui.domain.gpu_history import HOLD
from gputui.gpus.readings import SteadyReasons, throttle_reasons
from tests.cases import cases
from tests.factories import NOW, gpu, sample, snapshot, uuid, view
from tests.gpus.conftest import Start
from tests.gpus.standin import StandIn
from tests.gpus.watching import is_whole, sample_of

SECOND = timedelta(seconds=1)
SW_POWER_CAP = 0x04


@cases(
    ("bits", "limit", "told"),
    [
        (SW_POWER_CAP, 700.0, ()),
        (SW_POWER_CAP, 350.0, ("power cap",)),
        (SW_POWER_CAP, None, ()),
        (SW_POWER_CAP | 0x80, 700.0, ("power brake",)),
        (0x08 | 0x40, 700.0, ("hardware slowdown", "too hot (hardware)")),
        (0x01, 350.0, ()),
        (None, None, ()),
    ],
)
def test_a_board_at_its_own_power_limit_is_not_slowed(
    bits: int | None, limit: float | None, told: tuple[str, ...]
) -> None:
    assert throttle_reasons(bits, limit, 700.0) == told


def test_reasons_of_slow_gpus() -> None:
    # a reason that comes and goes is not told
    steady = SteadyReasons()
    assert steady.update(uuid(0), (), NOW) == ()
    assert not any(steady.update(uuid(0), ("too hot",) if n % 2 else (), NOW + n * SECOND) for n in range(60))
    # a reason is told while it holds
    steady = SteadyReasons()
    steady.update(uuid(0), (), NOW)
    on = [bool(steady.update(uuid(0), ("too hot",), NOW + n * SECOND)) for n in range(20)]
    assert on == [n >= HOLD / SECOND for n in range(20)]
    off = [bool(steady.update(uuid(0), (), NOW + n * SECOND)) for n in range(20, 40)]
    assert off == [n < 20 + HOLD / SECOND for n in range(20, 40)]
    # what a single reading shows is told
    assert SteadyReasons().update(uuid(0), ("too hot",), NOW) == ("too hot",)
    # cards and conditions name the same GPUs
    reasons = [(), ("power cap",), ("sync boost",), ("too hot", "power cap"), ("display clock",)]
    views = [
        view(index, gpu=gpu(index, default_power_limit=700.0), sample=sample(index, throttle=each, power_limit=350.0))
        for index, each in enumerate(reasons)
    ]
    found = {each.subject: each for each in conditions(snapshot((), views), NOW) if each.gpu}
    slowed = {each.gpu.uuid for each in views if each.current and each.current.slowed}
    assert found.keys() == slowed == {uuid(1), uuid(3)}
    assert found[uuid(1)].text.endswith("power cap at 70 of 350 W, 700 W by default")
    assert (found[uuid(1)].severity, found[uuid(3)].severity) == ("warning", "error")


@pytest.mark.nvml
def test_the_limit_is_compared_with_the_boards_default(standin: StandIn, watch: Start) -> None:
    standin.write(
        *("gpu 0 throttle 4", "gpu 0 limit 700000", "gpu 0 power 644000"),
        *("gpu 1 throttle 4", "gpu 1 limit 350000", "gpu 1 power 348000"),
        *("gpu 2 throttle 4", "gpu 2 fail nvmlDeviceGetPowerManagementDefaultLimit 3"),
        "gpu 3 throttle 0x44",
        gpus=4,
    )
    reading = watch().until(is_whole)
    told = [sample_of(reading, index).throttle for index in range(4)]
    assert told == [(), ("power cap",), (), ("too hot (hardware)",)]
