"""Eight busy GPUs for programs to show: the tests' stand-in NVML, whose readings change every second."""

from __future__ import annotations

import math
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.gpus.standin import LIKE_HARDWARE, StandIn

GPUS = 8
GIB = 1024**3


@contextmanager
def busy_gpus() -> Iterator[Mapping[str, str]]:
    """The environment in which a program meets them; they move until the block is left."""
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as place:
        standin = StandIn(Path(place) / "nvml")
        standin.write(*_readings(0), gpus=GPUS)
        over = threading.Event()
        mover = threading.Thread(target=_move, args=(standin, over), daemon=True)
        mover.start()
        try:
            yield {**os.environ, **standin.environment}
        finally:
            over.set()
            mover.join()


def _move(standin: StandIn, over: threading.Event) -> None:
    second = 0
    while not over.wait(1):
        second += 1
        standin.write(*_readings(second), gpus=GPUS)


def _readings(second: int) -> list[str]:
    """Calls as slow as on hardware, and loads that rise and fall, each GPU's in its own time."""
    lines = list(LIKE_HARDWARE)
    for gpu in range(GPUS):
        load = 0.5 + 0.5 * math.sin(second / 7 + gpu)
        lines += [
            f"gpu {gpu} util {round(100 * load)}",
            f"gpu {gpu} used {round((4 + 60 * load) * GIB)}",
            f"gpu {gpu} temperature {round(35 + 40 * load)}",
            f"gpu {gpu} power {round(90_000 + 500_000 * load)}",
        ]
    return lines
