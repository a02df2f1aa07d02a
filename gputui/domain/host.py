"""Readings of the host: processors, memory, network and disks. Unknown is None, never 0."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

STATE, DOCKER = "state", "docker"
"""Roles of a disk: it holds the state directory, or images and containers of the engine."""


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
    """Time until it is full if it goes on like this; None: it does not fill up, or only in days."""

    @property
    def used(self) -> float:
        """Used share, 0 to 1."""
        return 1 - self.free / self.total if self.total else 1.0


class HostFigures(Struct, frozen=True):
    """Figures of the host itself: the limits of a container or control group that gputui runs in do not count."""

    cpu: float | None = None
    """Busy share of all processors since the reading before, 0 to 1."""
    cores: int | None = None
    """Number of processors that are online."""
    load: float | None = None
    """Load average of one minute."""
    memory_total: int | None = None
    memory_used: int | None = None
    """Bytes; used is what new programs could not have without swapping: total less available."""
    swap_total: int | None = None
    swap_used: int | None = None
    received: float | None = None
    sent: float | None = None
    """Bytes a second over all physical interfaces; None where there is none, as in a container."""


class HostSample(HostFigures, frozen=True, kw_only=True):
    """Reading of the host at one moment."""

    sampled_at: datetime
    disks: tuple[DiskUse, ...] = ()
