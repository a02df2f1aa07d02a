"""Records in a state directory: findings of checks and repairs, the last backup, and data about ended jobs."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from gputui.domain.job_spec import JobId
from gputui.domain.text import plural, ranges


class BackupRecord(Struct, frozen=True):
    """Result of the last backup into a directory."""

    at: datetime
    """Time at which it began."""
    place: str
    """Directory of the backups."""
    problem: str = ""
    """Reason why it is no good backup; empty if it is one."""
    good_at: datetime | None = None
    """Time of the last backup that was found good; None if there was none."""

    @property
    def sentence(self) -> str:
        if not self.problem:
            return ""
        good = f"the last good one is of {self.good_at:%Y-%m-%d %H:%M} UTC" if self.good_at else "there is no good one"
        return f"the backup of {self.at:%Y-%m-%d %H:%M} UTC into {self.place} failed: {self.problem}; {good}"


class EngineRecord(Struct, frozen=True):
    """The engine that has a queue's containers."""

    id: str
    """Id that it keeps, as `docker info` tells it; of Podman, its storage."""
    machine: str = ""
    address: str = ""
    """Name of its machine, and its address, when a container was last made there."""
    context: str = ""
    """Name of the docker context that chose it; empty: none did."""
    certificates: str = ""
    """Directory of the TLS files, as in DOCKER_CERT_PATH; empty: no TLS, or those of the context."""
    verifies: bool = True
    """True if its certificate is checked."""

    @property
    def words(self) -> str:
        return f"{self.machine or 'an unknown machine'} ({self.address})"


class KeepLimits(Struct, frozen=True):
    """Largest age and total size of one kind of data; None: no limit."""

    max_age: timedelta | None = None
    max_size: int | None = None

    @property
    def are_set(self) -> bool:
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
        return f"{self.where}: {self.text}" + (" (harmless)" if self.is_harmless else "")


class Recovery(Struct, frozen=True):
    """Result of a repair, the same before and after it is carried out."""

    problem: str
    """Description of the damage, with the path of the file."""
    source: str
    """Source from which the queue is recovered."""
    jobs: int
    """Number of recovered jobs."""
    lost: tuple[JobId, ...]
    """Assigned ids of jobs that cannot be recovered."""
    is_complete: bool
    """True if all acknowledged changes are recovered."""
    settled: tuple[JobId, ...] = ()
    """Jobs that have ended according to the history, which is newer than the recovered queue."""
    doubtful: tuple[JobId, ...] = ()
    """Jobs in both queue and history, where it is unknown which is newer."""

    @property
    def summary(self) -> str:
        lost = f"{len(self.lost)} lost: {ranges(self.lost, ', ')}" if self.lost else "none lost"
        return f"{plural(self.jobs, 'job')} from {self.source}, {lost}"

    @property
    def lines(self) -> list[str]:
        """Return sentences for the user who has to confirm the repair."""
        found = [f"damage: {self.problem}", f"recovered: {plural(self.jobs, 'job')}, from {self.source}"]
        found.append(
            f"lost: {plural(len(self.lost), 'job')}: {ranges(self.lost, ', ')}" if self.lost else "lost: no job"
        )
        if self.settled:
            found.append(f"ended already, according to the history: {ranges(self.settled, ', ')}")
        if self.doubtful:
            found.append(f"held, because the history may have newer entries: {ranges(self.doubtful, ', ')}")
        if self.is_complete:
            found.append("no change is lost")
        else:
            found.append("changes to other jobs may be lost too, so no job is started until `gputui unpause`")
        return found
