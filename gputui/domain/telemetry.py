"""Measurements of an attempt: use of its GPUs, and of CPU, memory and disks by its container or host processes.

None: it could not be read, or the hardware does not have it. Times without readings count in no mean and no share.
"""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from gputui.domain.text import format_duration, format_size

MAX_GAP = 30.0
"""Maximum seconds for which one reading counts; after that the value is unknown."""


class Spread(Struct, frozen=True):
    """Distribution of a reading over the time for which it is known."""

    mean: float
    p95: float
    """Value not exceeded in 95 % of that time; within 1 % of the exact one, shares within a hundredth."""
    peak: float


class AttemptTelemetry(Struct, frozen=True):
    """Summary of an ended attempt, or of a running one so far.

    Readings of a shared GPU are those of the attempt's own processes, and None where these cannot be told apart.
    """

    seconds: float | None = None
    """Seconds for which its GPUs were read, as the mean over them; less than its runtime if readings were missing."""
    allocated: float | None = None
    """GPU-seconds from its start to its end: number of GPUs, times the share that its tenant is charged for."""
    known: float | None = None
    """GPU-seconds of `allocated` for which the utilization is known; the rest was not measured."""
    busy: float | None = None
    """GPU-seconds of `known` weighted with the utilization, 0 to 1."""
    idle: float | None = None
    """0 to 1: share of `known` in which a GPU was idle (utilization up to 1 %)."""
    utilization: Spread | None = None
    """0 to 1, over time and GPUs: share of time in which a kernel ran."""
    sm_activity: Spread | None = None
    """0 to 1: share of time in which the multiprocessors were busy. From Hopper on."""
    memory_activity: Spread | None = None
    """0 to 1: share of the GPU memory bandwidth in use. From Hopper on."""
    gpu_memory: Spread | None = None
    """Bytes in use on each of its GPUs; on a shared GPU, by its own processes."""
    gpu_memory_total: int | None = None
    """Bytes of each GPU that it could use: its request on a shared GPU, else the whole GPU."""
    power: Spread | None = None
    """Watts of each of its GPUs; of a shared GPU, the part that its tenant is charged for."""
    energy: float | None = None
    """Joules of all its GPUs, over the time for which power is known."""
    temperature: Spread | None = None
    """Degrees Celsius of each of its GPUs."""
    throttled: float | None = None
    """0 to 1: share of time in which a GPU was slowed down because of heat, power or a fault."""
    throttle: tuple[str, ...] = ()
    """Reasons for that, the most frequent first."""
    cpu: float | None = None
    """CPU-seconds of all its processes, user and system."""
    cpus: Spread | None = None
    """CPUs in use at a time: CPU-seconds per second."""
    memory: Spread | None = None
    """Bytes of memory of its container or host processes, including page cache as counted by the kernel."""
    io_read: int | None = None
    io_written: int | None = None
    """Bytes read from and written to disks, as counted by the kernel for its control group."""

    @property
    def kilowatt_hours(self) -> float | None:
        return None if self.energy is None else self.energy / 3_600_000


class Efficiency(Struct, frozen=True):
    """An ended attempt's use of its GPUs. None: it could not be read."""

    seconds: float = 0.0
    """Seconds measured, as the mean over its GPUs; less than its runtime if readings or a scheduler were missing."""
    utilization: float | None = None
    """0 to 1: mean over time and GPUs."""
    idle: float | None = None
    """0 to 1: share of that time in which its GPUs were idle."""
    memory_peak: int | None = None
    """Peak memory in bytes on any one of its GPUs; on a shared GPU, that of its own processes."""
    memory_total: int | None = None
    """Bytes of each GPU that it could use: its request on a shared GPU, else the whole GPU."""

    @property
    def short(self) -> str:
        """Return `util 83%  mem 71G/80G`; empty where nothing could be read."""
        words = [f"util {percent(self.utilization)}"] if self.utilization is not None else []
        return "  ".join(words + ([f"mem {self._memory}"] if self.memory_peak is not None else []))

    @property
    def long(self) -> str:
        parts = []
        if self.utilization is not None and self.idle is not None:
            parts.append(f"mean utilization {percent(self.utilization)}, idle {percent(self.idle)} of the time")
        if self.memory_peak is not None:
            parts.append(f"peak memory {self._memory} per GPU")
        return "; ".join([*parts, f"measured for {format_duration(timedelta(seconds=self.seconds))}"])

    @property
    def _memory(self) -> str:
        total = f"/{format_size(self.memory_total)}" if self.memory_total else ""
        return f"{format_size(self.memory_peak or 0)}{total}"


def efficiency_of(found: AttemptTelemetry | None) -> Efficiency | None:
    if found is None or found.seconds is None:
        return None
    used, memory = found.utilization, found.gpu_memory
    peak = None if memory is None else int(memory.peak)
    mean = None if used is None else round(used.mean, 4)
    return Efficiency(found.seconds, mean, found.idle, peak, found.gpu_memory_total)


def percent(share: float | None) -> str:
    """Return a share as `42%`; an unknown one as `0%`."""
    return f"{(share or 0.0) * 100:.0f}%"


class Consumption(Struct, frozen=True):
    """Resources used by an attempt since its start, from its control group. None: not counted there."""

    cpu: float | None = None
    """CPU-seconds, user and system."""
    memory: int | None = None
    memory_peak: int | None = None
    """Current and peak memory in bytes, page cache included."""
    io_read: int | None = None
    io_written: int | None = None
    """Bytes read from and written to disks."""
