"""Result of a repair of a damaged queue: recovered and lost jobs."""

from __future__ import annotations

from msgspec import Struct

from gputui.domain.job import JobId
from gputui.domain.units import plural


class Recovery(Struct, frozen=True):
    """The outcome of a repair, the same before and after it is carried out."""

    problem: str
    """Description of the damage, with the path of the file."""
    source: str
    """Source from which the queue is recovered."""
    jobs: int
    """Number of recovered jobs."""
    lost: tuple[JobId, ...]
    """Ids that were given out, of jobs of which nothing is left."""
    is_complete: bool
    """True if all that was acknowledged is recovered."""
    settled: tuple[JobId, ...] = ()
    """Jobs that are over according to the history, which is later than what is left of the queue."""
    doubtful: tuple[JobId, ...] = ()
    """Jobs that both the queue and the history have, of which nobody can tell which is later."""

    @property
    def summary(self) -> str:
        """Return a line for the audit."""
        lost = f"{len(self.lost)} lost: {ranges(self.lost)}" if self.lost else "none lost"
        return f"{plural(self.jobs, 'job')} from {self.source}, {lost}"

    @property
    def lines(self) -> list[str]:
        """Sentences for whoever has to agree to it."""
        found = [f"damage: {self.problem}", f"recovered: {plural(self.jobs, 'job')}, from {self.source}"]
        found.append(f"lost: {plural(len(self.lost), 'job')}: {ranges(self.lost)}" if self.lost else "lost: no job")
        if self.settled:
            found.append(f"over already, by the history: {ranges(self.settled)}")
        if self.doubtful:
            found.append(f"held, because the history may know later of them: {ranges(self.doubtful)}")
        if self.is_complete:
            found.append("no change is lost")
        else:
            found.append("changes to other jobs may be lost too, so no job is started until `gputui unpause`")
        return found


def ranges(ids: tuple[JobId, ...]) -> str:
    """`1-3, 7`, of ids in their order."""
    parts: list[list[JobId]] = []
    for job_id in ids:
        if parts and job_id == parts[-1][1] + 1:
            parts[-1][1] = job_id
        else:
            parts.append([job_id, job_id])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
