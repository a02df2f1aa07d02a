"""How a simulated GPU behaves under a job: pure functions of a seed and of time."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

from gputui.gpus.models import Model

_RAMP = 8.0
"""Seconds in which a job loads its data and gets up to speed."""
_DIP = 4.0
"""Seconds at the end of an epoch in which it validates and saves."""


@dataclass(frozen=True)
class Load:
    """What a job makes of one GPU, `elapsed` seconds after it started."""

    key: str
    """Of the seed, the GPU and the attempt."""
    elapsed: float

    @property
    def utilization(self) -> float:
        """0 to 1: up within seconds, then high with a wobble and a dip at the end of each epoch."""
        return self._at(self.elapsed)

    @property
    def warmth(self) -> float:
        """0 to 1: the utilisation of the last half minute, which is what temperature follows."""
        return sum(self._at(self.elapsed - back) for back in (0, 6, 12, 18, 24, 30)) / 6

    @property
    def memory(self) -> float:
        """0 to 1 of what the GPU has: up to a plateau, where it stays."""
        plateau = 0.42 + 0.5 * chance(self.key, "memory")
        return plateau * min(1.0, 0.08 + max(0.0, self.elapsed) / (1.5 * _RAMP))

    def _at(self, elapsed: float) -> float:
        if elapsed <= 0:
            return 0.0
        busy = 0.84 + 0.13 * chance(self.key, "busy")
        epoch = 45 + 60 * chance(self.key, "epoch")
        if elapsed > epoch and elapsed % epoch > epoch - _DIP:
            busy *= 0.15 + 0.2 * chance(self.key, f"dip {int(elapsed / epoch)}")
        wobble = 0.05 * (wave(self.key, elapsed, 7) + 0.5 * wave(self.key, elapsed, 2))
        return min(1.0, max(0.0, min(1.0, elapsed / _RAMP) * (busy + wobble)))


def power(model: Model, utilization: float, jitter: float) -> float:
    """Watts at that utilisation: steep at first, close to the limit at the end."""
    span = model.power_limit - model.idle_power
    return min(model.power_limit, model.idle_power + span * 0.93 * math.pow(utilization, 0.75) + 4 * jitter)


def temperature(warmth: float, jitter: float) -> float:
    """Degrees Celsius."""
    return float(round(31 + 41 * warmth + 1.5 * jitter))


def chance(*key: object) -> float:
    """A number from 0 to 1 that the key alone decides."""
    return zlib.crc32(repr(key).encode()) / 0xFFFFFFFF


def wave(key: str, at: float, period: float) -> float:
    """A smooth wander between -1 and 1."""
    step, rest = divmod(at / period, 1)
    smooth = rest * rest * (3 - 2 * rest)
    before, after = chance(key, period, int(step)), chance(key, period, int(step) + 1)
    return 2 * (before + (after - before) * smooth) - 1
