"""Telemetry as text, one line for each kind of reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

from gputui.domain.attempt import Attempt
from gputui.domain.job import Job
from gputui.domain.telemetry import AttemptTelemetry, Spread
from gputui.domain.units import format_duration, format_size

_HOUR = 3600


def summary_lines(found: AttemptTelemetry) -> Iterator[tuple[str, str]]:
    """Yield a label and a sentence for each known kind of reading."""
    lines = (
        ("GPU time", _gpu_time(found)),
        ("GPU use", _spread(found.utilization, _percent) + _idle(found)),
        ("SMs", _spread(found.sm_activity, _percent)),
        ("bandwidth", _spread(found.memory_activity, _percent)),
        ("GPU mem", _spread(found.gpu_memory, _size) + _of(found)),
        ("power", _spread(found.power, _watts) + _energy(found)),
        ("heat", _spread(found.temperature, _degrees)),
        ("slowed", _slowed(found)),
        ("CPU", _cpu(found)),
        ("memory", _spread(found.memory, _size)),
        ("disks", _disks(found)),
    )
    return ((label, words) for label, words in lines if words)


def unread_words(job: Job, attempt: Attempt, engine: str, *, is_read: bool) -> str:
    """Return why nothing is known of what an attempt in a cluster did with its GPUs; empty if it has none.

    `is_read` tells whether the settings want the nodes to be read.
    """
    if not attempt.started_at or not (attempt.gpus or job.spec.gpus.minimum or job.spec.gpus.everything):
        return ""
    if not attempt.gpus:
        seen = ", and no process of it was seen on one" if is_read else ""
        return f"nothing: {engine} does not tell which GPUs it has{seen}"
    if not is_read:
        return "nothing: the nodes are not read (cluster.probe)"
    return "nothing: no process of gputui read its nodes meanwhile" if attempt.is_over else "no readings yet"


def _gpu_time(found: AttemptTelemetry) -> str:
    if found.allocated is None:
        return ""
    busy = f", busy {_hours(found.busy)} of {_hours(found.known)} measured" if found.busy is not None else ""
    return f"{_hours(found.allocated)} GPU-hours allocated{busy}"


def _idle(found: AttemptTelemetry) -> str:
    return f"; idle {_percent(found.idle)} of the time" if found.idle is not None else ""


def _of(found: AttemptTelemetry) -> str:
    total = f" of {format_size(found.gpu_memory_total)}" if found.gpu_memory_total else ""
    return f"{total} per GPU" if found.gpu_memory else ""


def _energy(found: AttemptTelemetry) -> str:
    hours = found.kilowatt_hours
    return f" per GPU; {_figures(hours)} kWh in all" if hours is not None else ""


def _slowed(found: AttemptTelemetry) -> str:
    if not found.throttled:
        return ""
    return f"{_percent(found.throttled)} of the time: {', '.join(found.throttle)}"


def _cpu(found: AttemptTelemetry) -> str:
    if found.cpu is None:
        return ""
    used = f"; in use {spread}" if (spread := _spread(found.cpus, _count)) else ""
    return f"{format_duration(timedelta(seconds=found.cpu))} of CPU time{used}"


def _disks(found: AttemptTelemetry) -> str:
    parts = [f"read {format_size(found.io_read)}"] if found.io_read is not None else []
    parts += [f"wrote {format_size(found.io_written)}"] if found.io_written is not None else []
    return ", ".join(parts)


def _spread(spread: Spread | None, written: Callable[[float], str]) -> str:
    if spread is None:
        return ""
    return f"mean {written(spread.mean)}, p95 {written(spread.p95)}, peak {written(spread.peak)}"


def _percent(share: float | None) -> str:
    return f"{(share or 0.0) * 100:.0f}%"


def _size(size: float) -> str:
    return format_size(int(size))


def _watts(power: float) -> str:
    return f"{power:.0f}W"


def _degrees(celsius: float) -> str:
    return f"{celsius:.0f}°C"


def _count(cpus: float) -> str:
    return _figures(cpus)


def _hours(seconds: float | None) -> str:
    """Return GPU-hours with three significant figures, since a job may last for a minute or for a month."""
    hours = (seconds or 0.0) / _HOUR
    return f"{hours:.1f}" if hours >= 100 else _figures(hours)


def _figures(value: float) -> str:
    """Return a value with three significant figures, or up to the unit or thousandth, never with an exponent."""
    if 0 < value < 0.001:
        return "<0.001"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
