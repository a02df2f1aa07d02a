"""Jobs whose containers were paused through their batch scripts: Slurm itself still calls them running."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from gputui.cluster.journal import Journal
from gputui.domain.job_spec import JobId


class Suspension(Struct, frozen=True):
    """A run of a job that was paused, or continued."""

    job_id: JobId
    run_key: str
    is_on: bool


class Suspensions:
    """Runs of jobs that are paused."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory / "suspended.jsonl", Suspension, most_bytes=1024**2)
        self._runs: dict[JobId, str] = {}

    def set(self, runs: Iterable[tuple[JobId, str]], is_on: bool) -> None:
        """Note that runs of jobs were paused, or continued."""
        self._journal.append(Suspension(job_id, run_key, is_on) for job_id, run_key in runs)

    def among(self, runs: Iterable[tuple[JobId, str]]) -> frozenset[JobId]:
        """Return the jobs whose runs are paused."""
        is_new, found = self._journal.fresh()
        if is_new:
            self._runs = {}
        for each in found:
            if each.is_on:
                self._runs[each.job_id] = each.run_key
            else:
                self._runs.pop(each.job_id, None)
        return (
            frozenset(job_id for job_id, run_key in runs if self._runs.get(job_id) == run_key)
            if self._runs
            else frozenset()
        )
