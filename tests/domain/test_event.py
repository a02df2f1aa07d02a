"""Texts of events about GPUs."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.domain.event import health_changes
from gputui.domain.gpu import Health, HealthCode
from tests.factories import NOW, view


def test_an_unidentified_gpu_is_reported_by_its_number() -> None:
    lost = view(3, health=Health(HealthCode.LOST, "it is lost"))
    unknown = replace(lost, gpu=replace(lost.gpu, model=None))
    [event] = health_changes((view(3),), (unknown,), NOW)
    assert event.text == "GPU 3: it is lost"
