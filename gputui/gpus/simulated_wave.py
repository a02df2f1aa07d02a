"""Chance and smooth random walks of simulated readings: pure functions of their keys."""

from __future__ import annotations

import zlib


def chance(*key: object) -> float:
    """Return a number from 0 to 1 that depends only on the key."""
    return zlib.crc32(repr(key).encode()) / 0xFFFFFFFF


def wave(key: str, at: float, period: float) -> float:
    """Return a smooth random walk between -1 and 1 at time `at`."""
    step, rest = divmod(at / period, 1)
    smooth = rest * rest * (3 - 2 * rest)
    before, after = chance(key, period, int(step)), chance(key, period, int(step) + 1)
    return 2 * (before + (after - before) * smooth) - 1
