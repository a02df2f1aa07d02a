"""Use of the machine, as control groups count it."""

from __future__ import annotations

from msgspec import Struct


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
