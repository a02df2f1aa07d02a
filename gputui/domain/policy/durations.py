"""Planned and expected runtimes of jobs.

A job is planned to run until its limit; a job without a limit, for the longest time allowed, so never shorter than one
with a limit: omitting the limit brings no advantage. Order and backfill use only the planned runtime. The last runs of
the same kind only predict when a running job without a limit will end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple, TypeAlias

from gputui.domain.job import Job
from gputui.domain.settings import PolicySettings
from gputui.domain.state import JobState

LONGEST = timedelta(hours=72)
"""Longest time allowed if the site sets none and no job has a longer limit."""
_LAST = 2
"""Tsafrir et al. (TPDS 2007): the mean of the user's last two runs predicts better than users do."""
RunKind: TypeAlias = tuple[str, str]
"""Tenant, and name or image."""


class DurationSource(Enum):
    """Source of a planned duration."""

    LIMIT = "by its limit"
    PREDICTION = "if it runs as long as the last ones did"
    DEFAULT = "by the longest time allowed"


class Planned(NamedTuple):
    """Planned runtime and its source."""

    seconds: float
    source: DurationSource


class Durations:
    """Planned and expected durations, from the jobs of a queue and the rules of the site."""

    def __init__(self, jobs: Iterable[Job], settings: PolicySettings, max_time: timedelta | None = None) -> None:
        """`max_time` is the longest limit that users may set; `settings` may override it for planning."""
        known = list(jobs)
        allowed = settings.max_time or max_time
        self.longest = allowed.total_seconds() if allowed else _longest_stated(known)
        """Seconds that a job without a limit is planned to run."""
        self._most = float("inf") if not allowed else self.longest if settings.max_time else _extended(known, allowed)
        self._predicted = _predictions(known) if settings.predict else {}

    @property
    def predicts(self) -> bool:
        """Return whether any job may have an expected duration other than its planned one."""
        return bool(self._predicted)

    @property
    def basis(self) -> object:
        """Values that the planned durations depend on, apart from the jobs; if they are equal, so are the durations."""
        return (self._most, self.longest)

    def seconds(self, job: Job) -> float:
        """Return the planned seconds, used for order and backfill."""
        return self.planned(job.spec.time_limit)

    def planned(self, limit: timedelta | None) -> float:
        """Return the planned seconds of a job with this limit."""
        if limit is None:
            return self.longest
        seconds = limit.total_seconds()
        return seconds if seconds < self._most else self._most  # noqa: FURB136 - min() costs more

    def planned_for(self, job: Job) -> Planned:
        """Return the planned duration of a job."""
        return Planned(
            self.seconds(job), DurationSource.DEFAULT if job.spec.time_limit is None else DurationSource.LIMIT
        )

    def expected(self, job: Job) -> Planned:
        """Return the expected duration of a job once it has started; no job is ended because of it."""
        predicted = self._predicted.get(run_kind(job)) if job.spec.time_limit is None else None
        if predicted is not None and predicted < self.longest:
            return Planned(predicted, DurationSource.PREDICTION)
        return self.planned_for(job)

    def prediction(self, job: Job) -> float | None:
        """Return the expected seconds if they differ from the planned ones."""
        if not self._predicted or job.spec.time_limit is not None:
            return None
        found = self.expected(job)
        return found.seconds if found.source is DurationSource.PREDICTION else None


def run_kind(job: Job) -> RunKind:
    """Return the kind by which it is predicted: tenant and name, or image if it has no name."""
    return (job.spec.tenant, job.spec.name or job.spec.image or "")


def predict_seconds(took: Sequence[float]) -> float | None:
    """Return the expected seconds of the next run from past runtimes; None if there are too few."""
    last = took[-_LAST:]
    return max(1.0, sum(last) / _LAST) if len(last) == _LAST else None


def _longest_stated(jobs: Iterable[Job]) -> float:
    """Return the longest time allowed if the site sets none: the longest limit of live jobs that are not held."""
    long = [job for job in jobs if (limit := job.spec.time_limit) is not None and limit > LONGEST]
    live = (job.spec.time_limit for job in long if not job.state.is_terminal and not job.held)
    return max(
        LONGEST.total_seconds(), max((limit.total_seconds() for limit in live if limit is not None), default=0.0)
    )


def _extended(jobs: Iterable[Job], allowed: timedelta) -> float:
    """Return the maximum seconds of any job: the site's, or more if an operator extended a running job."""
    limits = (job.spec.time_limit for job in jobs if job.limit_changed_at is not None and job.state.is_active)
    return max(allowed.total_seconds(), *(limit.total_seconds() for limit in limits if limit and limit > allowed), 0.0)


def _predictions(jobs: Iterable[Job]) -> dict[RunKind, float]:
    done: dict[RunKind, list[tuple[datetime, float]]] = {}
    for job in jobs:
        if job.state is JobState.COMPLETED and job.started_at and job.ended_at and run_kind(job)[1]:
            took = (job.ended_at - job.started_at).total_seconds()
            done.setdefault(run_kind(job), []).append((job.ended_at, took))
    found = {which: predict_seconds([took for _, took in sorted(runs)]) for which, runs in done.items()}
    return {which: seconds for which, seconds in found.items() if seconds is not None}
