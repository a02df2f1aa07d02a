"""Traces the gates are measured on: real ones where they are at hand, else made-up ones."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from gputui.replay.generator import generate
from gputui.replay.trace import TraceJob, read

FOLDER = Path(os.environ.get("GPUTUI_TRACES") or Path(__file__).parents[3] / "shared" / "traces")


def cuts(pattern: str = "philly_8gpu_*.csv") -> list[Path]:
    """The traces of that name that are at hand. They are never copied into this repository."""
    return sorted(FOLDER.glob(pattern)) if FOLDER.is_dir() else []


@lru_cache
def synthetic() -> tuple[tuple[TraceJob, ...], ...]:
    """Five made-up ones for 8 GPUs."""
    return tuple(tuple(generate(2500, seed, widest=8)) for seed in range(5))


@lru_cache
def real() -> tuple[tuple[TraceJob, ...], ...]:
    """Those at hand for 8 GPUs."""
    return tuple(tuple(read(path)[0]) for path in cuts())
