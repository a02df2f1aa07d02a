"""Eight busy GPUs for benchmarks: the tests' stand-in NVML, whose readings change every second."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.gpus.standin import LIKE_HARDWARE, StandIn

GPUS = 8
GIB = 1024**3

LATENCIES: Mapping[str, Sequence[str]] = {
    "none": (),
    "usual": LIKE_HARDWARE,
    "slow": (
        "latency nvmlDeviceGetUtilizationRates 5000",
        "latency nvmlDeviceGetPowerUsage 10000",
        "latency nvmlDeviceGetComputeRunningProcesses 30000",
        "latency nvmlDeviceGetGraphicsRunningProcesses 30000",
        "latency nvmlDeviceGetMPSComputeRunningProcesses 30000",
        "latency nvmlDeviceGetPcieThroughput 20000",
        "latency * 1000",
    ),
}
"""Latencies of the calls: none, those measured on hardware, and those of a driver that is ten times as busy."""


@contextmanager
def busy_gpus(latency: str = "usual", processes: Sequence[int] = ()) -> Iterator[Mapping[str, str]]:
    """Yield the environment in which a program finds them; their readings change until the block ends."""
    fixed = [*LATENCIES[latency], *(f"gpu {n % GPUS} process {pid} {GIB} C" for n, pid in enumerate(processes))]
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as place:
        standin = StandIn(Path(place) / "nvml")
        standin.write(*fixed, *_readings(0), gpus=GPUS)
        over = threading.Event()
        mover = threading.Thread(target=_move, args=(standin, fixed, over), daemon=True)
        mover.start()
        try:
            yield {**os.environ, **standin.environment}
        finally:
            over.set()
            mover.join()


@contextmanager
def sleepers(count: int) -> Iterator[list[int]]:
    """Start processes that hold the GPUs."""
    running = [subprocess.Popen(["sleep", "infinity"]) for _ in range(count)]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def _move(standin: StandIn, fixed: Sequence[str], over: threading.Event) -> None:
    second = 0
    while not over.wait(1):
        second += 1
        standin.write(*fixed, *_readings(second), gpus=GPUS)


def _readings(second: int) -> list[str]:
    """Return loads that rise and fall, with a period of its own for each GPU."""
    lines = []
    for gpu in range(GPUS):
        load = 0.5 + 0.5 * math.sin(second / 7 + gpu)
        lines += [
            f"gpu {gpu} util {round(100 * load)}",
            f"gpu {gpu} used {round((4 + 60 * load) * GIB)}",
            f"gpu {gpu} temperature {round(35 + 40 * load)}",
            f"gpu {gpu} power {round(90_000 + 500_000 * load)}",
        ]
    return lines
