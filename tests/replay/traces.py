"""Traces for the gates: real ones if available, and generated ones."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from bench.cuts import FIRST_DAYS, cut
from gputui.replay.trace import TraceJob, generate, read

FOLDER = Path(os.environ.get("GPUTUI_TRACES") or Path(__file__).parents[3] / "shared" / "traces")
"""Has philly_8gpu_a.csv and philly_82k.csv, which are never copied into this repository."""
GIVEN, MASTER = FOLDER / "philly_8gpu_a.csv", FOLDER / "philly_82k.csv"
HAS_REAL = GIVEN.is_file() and MASTER.is_file()


@lru_cache
def synthetic() -> tuple[tuple[TraceJob, ...], ...]:
    """Return ten generated traces for 8 GPUs."""
    return tuple(tuple(generate(2500, seed, widest=8)) for seed in range(10))


@lru_cache
def real() -> tuple[tuple[TraceJob, ...], ...]:
    """Return traces for 8 GPUs: the given cut, and eight by the rule of `bench.cuts`."""
    trace = read(MASTER)[0]
    again = [cut(trace, 8, first_day, half) for first_day in FIRST_DAYS for half in (0, 1)]
    return (tuple(read(GIVEN)[0]), *map(tuple, again))
