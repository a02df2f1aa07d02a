"""What is kept in a state directory: findings of a check, the last scheduled backup, and data about ended jobs."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct


class BackupRecord(Struct, frozen=True):
    """Result of the last backup into a directory."""

    at: datetime
    """Time at which it began."""
    place: str
    """Directory of the backups."""
    problem: str = ""
    """Why it is no good backup; empty if it is one."""
    good_at: datetime | None = None
    """Time of the last backup that was found good; None if there was none."""

    @property
    def sentence(self) -> str:
        """Return the failure as a sentence; the text is empty if the backup is good."""
        if not self.problem:
            return ""
        good = f"the last good one is of {self.good_at:%Y-%m-%d %H:%M} UTC" if self.good_at else "there is no good one"
        return f"the backup of {self.at:%Y-%m-%d %H:%M} UTC into {self.place} failed: {self.problem}; {good}"


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


class Finding(Struct, frozen=True):
    """Something that is not as gputui wrote it."""

    where: str
    """File, with a line or byte where that is known."""
    text: str
    is_harmless: bool = False
    """True if no data is affected."""

    @property
    def sentence(self) -> str:
        """Return it as a line."""
        return f"{self.where}: {self.text}" + (" (harmless)" if self.is_harmless else "")
