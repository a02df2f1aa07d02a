"""Synthetic traces that resemble those of a GPU cluster: few wide and long jobs hold most of the time.

Widths, durations and bursts are drawn with the parameters measured on a public cluster trace (Philly, Jeon et al.,
ATC 2019): 93.2 % of the jobs take one GPU, ln(duration) is normal for each width, tenants submit sweeps.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence

from gputui.replay.trace import HOUR, TraceJob

WIDTHS = (1, 2, 4, 8, 16)
_OF_JOBS = (93.2, 2.2, 2.3, 2.0, 0.4)
_LOG_DURATION = {1: (6.72, 1.97), 2: (4.52, 3.27), 4: (9.11, 2.78), 8: (9.65, 2.79), 16: (8.94, 3.20)}
"""Mean and deviation of ln(seconds)."""
_DAY = 24 * HOUR
_BURST_LOG_MEAN, _BURST_LOG_DEVIATION = math.log(2.0), 1.8
"""Sizes of sweeps: median 2, one in ten above 14, the largest some hundreds."""
_LONGEST = 60 * _DAY


def generate(
    jobs: int, seed: int = 0, *, tenants: int = 10, days: float = 28.0, widest: int = 16, burst_most: int = 400
) -> list[TraceJob]:
    """Return so many jobs by submit time; the same seed gives the same jobs."""
    rng = random.Random(seed)
    widths = [width for width in WIDTHS if width <= widest]
    weights = [1 / (rank + 1) for rank in range(tenants)]
    rows: list[tuple[float, int, float, int, str]] = []
    while len(rows) < jobs:
        tenant = f"tenant{rng.choices(range(tenants), weights)[0]:02}"
        size = round(rng.lognormvariate(_BURST_LOG_MEAN, _BURST_LOG_DEVIATION))
        width = _one(rng, widths)
        at = _moment(rng, days)
        for _ in range(min(max(1, size), burst_most, jobs - len(rows))):
            rows.append((at, len(rows), _duration(rng, width), width, tenant))
            at += rng.expovariate(1 / 60)
            width = width if rng.random() < 0.8 else _one(rng, widths)
    rows.sort()
    first = rows[0][0]
    return [
        TraceJob(number, round(at - first, 3), duration, width, tenant)
        for number, (at, _, duration, width, tenant) in enumerate(rows)
    ]


def _one(rng: random.Random, widths: Sequence[int]) -> int:
    return rng.choices(widths, _OF_JOBS[: len(widths)])[0]


def _duration(rng: random.Random, width: int) -> float:
    mean, deviation = _LOG_DURATION[width]
    return float(round(min(_LONGEST, max(1.0, rng.lognormvariate(mean, deviation)))))


def _moment(rng: random.Random, days: float) -> float:
    """A second of the span; the busiest hour of the day sees about three times what the quietest does."""
    while True:
        at = rng.uniform(0, days * _DAY)
        if rng.uniform(0, 2) < 1.3 + 0.7 * math.sin(2 * math.pi * (at % _DAY) / _DAY - 2.4):
            return at


def digest(trace: Sequence[TraceJob]) -> str:
    """The SHA-256 of the trace as CSV, so that figures name what they were made from."""
    lines = (f"{job.submit:.3f},{job.duration:.0f},{job.gpus},{job.tenant}\n" for job in trace)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
