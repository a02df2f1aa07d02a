"""Measurements of an attempt: use of its GPUs, and of the CPU, memory and disks of its container or host processes.

None: it could not be read, or the hardware does not have it. Times without readings are in no mean and no share.
"""

from __future__ import annotations

from msgspec import Struct


class Spread(Struct, frozen=True):
    """Distribution of a reading over the time in which it was known."""

    mean: float
    p95: float
    """Value that it did not exceed in 95 % of that time; within 1 % of the exact one, and shares to a hundredth."""
    peak: float


class AttemptTelemetry(Struct, frozen=True):
    """Summary of an attempt that has ended, or of one so far.

    Readings of a GPU that it shared are those of its own processes, and None where these cannot be told apart.
    """

    seconds: float | None = None
    """Seconds for which its GPUs were read, the mean over them: less than it ran where readings were missing."""
    allocated: float | None = None
    """GPU-seconds from its start to its end: number of GPUs, times the share that its tenant is charged for."""
    known: float | None = None
    """GPU-seconds of `allocated` for which the utilization was known: those that are left were not measured."""
    busy: float | None = None
    """GPU-seconds of `known` in which its GPUs worked: weighted with the utilization, 0 to 1."""
    idle: float | None = None
    """0 to 1: share of `known` in which a GPU did nothing at all (utilization up to 1 %)."""
    utilization: Spread | None = None
    """0 to 1, over time and GPUs: share of time in which a kernel ran."""
    sm_activity: Spread | None = None
    """0 to 1: share of the multiprocessors' time in which they had work. From Hopper on."""
    memory_activity: Spread | None = None
    """0 to 1: share of the bandwidth of GPU memory that was used. From Hopper on."""
    gpu_memory: Spread | None = None
    """Bytes in use on any one of its GPUs; on a GPU that it shared, by its own processes."""
    gpu_memory_total: int | None = None
    """Bytes of each GPU that it could use: what it asked for of a shared GPU, else all of it."""
    power: Spread | None = None
    """Watts of any one of its GPUs; of a shared GPU the part that its tenant is charged for."""
    energy: float | None = None
    """Joules of all its GPUs, over the time in which power was known."""
    temperature: Spread | None = None
    """Degrees Celsius of any one of its GPUs."""
    throttled: float | None = None
    """0 to 1: share of time in which a GPU was slowed down by heat, power or a fault."""
    throttle: tuple[str, ...] = ()
    """Reasons for that, the most frequent first."""
    cpu: float | None = None
    """CPU-seconds of all its processes, user and system."""
    cpus: Spread | None = None
    """CPUs in use at a time: CPU-seconds a second."""
    memory: Spread | None = None
    """Bytes of memory of its container or host processes, with its page cache as the kernel counts it."""
    io_read: int | None = None
    io_written: int | None = None
    """Bytes read from and written to disks, as far as the kernel counts them for its control group."""

    @property
    def unused(self) -> float | None:
        """GPU-seconds of `known` in which its GPUs did not work."""
        return None if self.known is None or self.busy is None else max(0.0, self.known - self.busy)

    @property
    def kilowatt_hours(self) -> float | None:
        """`energy` in kWh."""
        return None if self.energy is None else self.energy / 3_600_000
