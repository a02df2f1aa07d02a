"""Jobs that ended before Slurm forgot them, recorded on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from gputui.cluster.journal import Journal
from gputui.cluster.slurm.details import JobDetail
from gputui.cluster.slurm.job_rows import JobRow
from gputui.domain.job_spec import JobId


class Ended(Struct, frozen=True):
    """A run of a job that has ended, as Slurm told it before it forgot the job."""

    row: JobRow
    detail: JobDetail


class EndedRuns:
    """Jobs that have ended, as long as the file keeps them."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory / "ended.jsonl", Ended)
        self._ended: dict[JobId, Ended] = {}

    def add(self, ended: Iterable[Ended]) -> None:
        """Keep jobs that have ended."""
        self._journal.append(ended)

    def of(self, job_id: JobId) -> Ended | None:
        """Return the last run of a job."""
        self._refresh()
        return self._ended.get(job_id)

    def all(self) -> Iterator[Ended]:
        """Yield the last runs of all jobs, in the order in which they ended."""
        self._refresh()
        yield from self._ended.values()

    def _refresh(self) -> None:
        is_new, found = self._journal.fresh()
        if is_new:
            self._ended = {}
        for each in found:
            self._ended.pop(each.row.job_id, None)
            self._ended[each.row.job_id] = each
