"""Result of the last scheduled backup, as it is kept in the state directory."""

from __future__ import annotations

from datetime import datetime

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
