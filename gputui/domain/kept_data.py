"""Sizes and ages of the data kept about ended jobs, with the site's limits."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct


class KeepLimits(Struct, frozen=True):
    """Largest age and total size of one kind of data; None: no limit."""

    max_age: timedelta | None = None
    max_size: int | None = None

    @property
    def are_set(self) -> bool:
        """Return whether there is any limit."""
        return self.max_age is not None or self.max_size is not None


class KeptData(Struct, frozen=True):
    """Data of one kind in the state directory."""

    kind: str
    """`logs`, `telemetry`, `history` or `audit`."""
    size: int
    """Bytes of all its files."""
    files: int
    oldest_at: datetime | None
    """Time of the oldest record; None where there is none."""
    limits: KeepLimits
    counted: tuple[int, int] | None = None
    """Jobs whose files were counted, of all jobs with files, where the time did not suffice for all."""

    def is_over(self, now: datetime, tolerance: timedelta) -> bool:
        """Return whether it exceeds a limit by more than what the scheduler leaves between two clean-ups."""
        is_large = self.limits.max_size is not None and self.size > self.limits.max_size
        if self.limits.max_age is None or self.oldest_at is None:
            return is_large
        return is_large or now - self.oldest_at > self.limits.max_age + tolerance
