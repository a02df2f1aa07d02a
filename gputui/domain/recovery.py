"""Result of a repair of a damaged queue: recovered and lost jobs."""

from __future__ import annotations

from msgspec import Struct

from gputui.domain.job_spec import JobId
from gputui.domain.units import plural


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
        """Return a line for the audit log."""
        lost = f"{len(self.lost)} lost: {id_ranges(self.lost)}" if self.lost else "none lost"
        return f"{plural(self.jobs, 'job')} from {self.source}, {lost}"

    @property
    def lines(self) -> list[str]:
        """Return sentences for the user who has to confirm the repair."""
        found = [f"damage: {self.problem}", f"recovered: {plural(self.jobs, 'job')}, from {self.source}"]
        found.append(f"lost: {plural(len(self.lost), 'job')}: {id_ranges(self.lost)}" if self.lost else "lost: no job")
        if self.settled:
            found.append(f"ended already, according to the history: {id_ranges(self.settled)}")
        if self.doubtful:
            found.append(f"held, because the history may have newer entries: {id_ranges(self.doubtful)}")
        if self.is_complete:
            found.append("no change is lost")
        else:
            found.append("changes to other jobs may be lost too, so no job is started until `gputui unpause`")
        return found


def id_ranges(ids: tuple[JobId, ...]) -> str:
    """Return `1-3, 7` for sorted ids."""
    parts: list[list[JobId]] = []
    for job_id in ids:
        if parts and job_id == parts[-1][1] + 1:
            parts[-1][1] = job_id
        else:
            parts.append([job_id, job_id])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
