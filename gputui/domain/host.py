"""Readings of the host: processors, memory, network and disks. Unknown is None, never 0."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

STATE, DOCKER = "state", "docker"
"""Roles of a disk: it holds the state directory, or the engine's images and containers."""
ALMOST_FULL = 0.97
"""Used share of a disk from which it is a problem."""
FULL_SOON = timedelta(hours=1)
"""A disk that will be full within this time is a problem."""


class DiskUse(Struct, frozen=True):
    """Use of a file system that jobs need."""

    mount: str
    """Mount point."""
    roles: tuple[str, ...]
    """Roles of the disk: `state`, `docker`."""
    total: int
    """Bytes for ordinary users, used and free together, as `df` counts them for its percentage."""
    free: int
    """Free bytes for ordinary users."""
    full_in: timedelta | None = None
    """Time until it is full at the current rate; None: it does not fill up, or only after days."""

    @property
    def used(self) -> float:
        """Used share, 0 to 1."""
        return 1 - self.free / self.total if self.total else 1.0


class HostFigures(Struct, frozen=True):
    """Figures of the host itself, regardless of limits of the container or control group that gputui runs in."""

    cpu: float | None = None
    """Busy share of all processors since the previous reading, 0 to 1."""
    cores: int | None = None
    """Number of processors that are online."""
    load: float | None = None
    """Load average of one minute."""
    memory_total: int | None = None
    memory_used: int | None = None
    """Bytes in use that are not available to new programs without swapping: total minus available."""
    swap_total: int | None = None
    swap_used: int | None = None
    received: float | None = None
    sent: float | None = None
    """Bytes per second over all physical interfaces; None where there is none, as in a container."""


class HostSample(HostFigures, frozen=True, kw_only=True):
    """Reading of the host at one moment."""

    sampled_at: datetime
    disks: tuple[DiskUse, ...] = ()
