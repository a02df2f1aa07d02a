"""Telemetry of attempts as text."""

from __future__ import annotations

from gputui.domain.telemetry import AttemptTelemetry, Spread
from gputui.domain.telemetry_series import summary_lines
from tests.cases import cases


@cases(
    ("kilowatt_hours", "words"),
    [(0, "0"), (0.00004, "<0.001"), (0.01234, "0.0123"), (12.34, "12.3"), (99.96, "100"), (4032.4, "4032")],
)
def test_energy_has_no_exponent(kilowatt_hours: float, words: str) -> None:
    lines = dict(summary_lines(AttemptTelemetry(power=Spread(400, 690, 702), energy=kilowatt_hours * 3.6e6)))
    assert lines["power"] == f"mean 400W, p95 690W, peak 702W per GPU; {words} kWh in all"


def test_processors_in_use_and_gpu_hours_have_no_exponent() -> None:
    lines = dict(summary_lines(AttemptTelemetry(cpu=1.0, cpus=Spread(4.5e-05, 0, 1234.5), allocated=0.9)))
    assert lines["CPU"] == "1s of CPU time; mean <0.001, p95 0, peak 1234 CPUs"
    assert lines["GPU time"] == "<0.001 GPU-hours allocated"
