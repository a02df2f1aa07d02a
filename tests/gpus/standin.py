"""Stand-in NVML: compiled once, and configured by a file that may change while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.compiled import compiled

SOURCE = Path(__file__).parent / "nvml" / "nvml.c"
UUID = "GPU-{:08x}-0000-4000-8000-000000000000"
"""Default UUID of the stand-in's GPUs."""

LIKE_HARDWARE = (
    "latency nvmlDeviceGetComputeRunningProcesses 4500",
    "latency nvmlDeviceGetGraphicsRunningProcesses 4500",
    "latency nvmlDeviceGetMPSComputeRunningProcesses 4500",
    "latency nvmlDeviceGetPcieThroughput 20000",
    "latency * 100",
)
"""Durations of calls on hardware in microseconds, from published measurements."""


def uuid(index: int) -> str:
    return UUID.format(index)


def build(*options: str) -> Path:
    """Return the directory of libnvidia-ml.so.1 for LD_LIBRARY_PATH; compiled when its source has changed.

    With `-DOLD_DRIVER` it lacks functions that drivers did not always have.
    """
    return compiled(SOURCE, "libnvidia-ml.so.1", "-pthread", *options, needs="nvml").parent


class StandIn:
    """The behaviour file. Lines are as nvml.c describes them: `gpu 3 lost 1`, `hang *`, `fail nvmlDeviceGetName 4`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: tuple[str, ...] = ()
        self._events = 0

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which a process loads this NVML."""
        return {"LD_LIBRARY_PATH": str(build()), "NVML_STANDIN": str(self.path), "NVML_STANDIN_STRICT": "1"}

    def write(self, *lines: str, gpus: int = 8) -> None:
        """Replace the behaviour file."""
        self.lines = (f"count {gpus}", *lines)
        made = self.path.with_suffix(".new")
        made.write_bytes("".join(f"{line}\n" for line in self.lines).encode(errors="surrogateescape"))
        made.replace(self.path)

    def change(self, *lines: str, without: Iterable[str] = ()) -> None:
        """Remove the lines that begin with any of `without`, then add these."""
        gone = tuple(without)
        kept = [line for line in self.lines if not (gone and line.startswith(gone))]
        count, *rest = kept
        self.write(*rest, *lines, gpus=int(count.split()[1]))

    def count(self, gpus: int) -> None:
        """Set the number of GPUs."""
        self.write(*self.lines[1:], gpus=gpus)

    def xid(self, gpu: int, code: int) -> None:
        """Send an Xid event to all listeners."""
        self._events += 1
        self.change(f"xid {self._events} {gpu} {code}")


def nvlinks(gpus: int, lanes: int = 18, *, by_switch: bool = True) -> tuple[str, ...]:
    """Link every GPU to an NVSwitch, or only to its neighbour (0-1, 2-3, ...)."""
    return tuple(
        f"gpu {gpu} nvlink {lane} {-2 if by_switch else gpu ^ 1}" for gpu in range(gpus) for lane in range(lanes)
    )
