"""How long jobs are planned to run: by the user's limit, by what the tenant's last runs took, or by a default."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple, TypeAlias

from gputui.domain.job import Job, whole_class
from gputui.domain.settings import PolicySettings
from gputui.domain.state import JobState

_LAST = 2
"""Tsafrir et al. (TPDS 2007): the mean of the user's last two runs predicts better than users do."""
Kind: TypeAlias = tuple[str, str]
"""Tenant, and name or image."""


class Source(Enum):
    """Where a planned duration comes from."""

    LIMIT = "by its limit"
    PREDICTION = "if it runs as long as the last ones did"
    DEFAULT = "by the default limit"


class Planned(NamedTuple):
    """A planned duration."""

    seconds: float
    source: Source


class Durations:
    """What the jobs seen so far say about those to come."""

    def __init__(self, jobs: Iterable[Job], settings: PolicySettings, max_time: timedelta | None = None) -> None:
        """`max_time` is the longest limit that users may set; `settings` may say otherwise for planning."""
        self._limits = (
            settings.limit_low.total_seconds(),
            settings.limit_normal.total_seconds(),
            settings.limit_high.total_seconds(),
        )
        longest = settings.max_time or max_time
        self._most = longest.total_seconds() if longest else float("inf")
        self._predicted = _predictions(jobs) if settings.predict else {}
        self._by_priority: dict[int, float] = {}

    @property
    def basis(self) -> object:
        """What it all depends on: as long as that is equal, so is what is planned for a job."""
        return (self._limits, self._most, self._predicted)

    def seconds(self, job: Job) -> float:
        """How long it is planned to run: what `of` says, in the fewest steps."""
        spec = job.spec
        limit = spec.time_limit
        seconds = self._default(job) if limit is None else limit.total_seconds()
        if self._predicted:
            predicted = self._predicted.get((spec.tenant, spec.name or spec.image or ""), seconds)
            seconds = predicted if predicted < seconds else seconds  # noqa: FURB136 - min() costs more
        return seconds if seconds < self._most else self._most  # noqa: FURB136 - min() costs more

    def _default(self, job: Job) -> float:
        found = self._by_priority.get(job.priority)
        if found is None:
            found = self._by_priority[job.priority] = self._limits[default_class(job)]
        return found

    def of(self, job: Job) -> Planned:
        """How long it is planned to run. Nothing is ever ended by a prediction."""
        limit = job.spec.time_limit
        source = Source.DEFAULT if limit is None else Source.LIMIT
        seconds = self._limits[default_class(job)] if limit is None else limit.total_seconds()
        seconds = min(seconds, self._most)
        if self._predicted and (predicted := self._predicted.get(kind(job), seconds)) < seconds:
            return Planned(predicted, Source.PREDICTION)
        return Planned(seconds, source)


def default_class(job: Job) -> int:
    """0, 1 or 2: low, normal or high, whichever its priority is nearest to."""
    return whole_class(job.priority)


def kind(job: Job) -> Kind:
    """The jobs it is judged by: the tenant's of that name, or of that image where it has no name."""
    return (job.spec.tenant, job.spec.name or job.spec.image or "")


def _predictions(jobs: Iterable[Job]) -> dict[Kind, float]:
    done: dict[Kind, list[tuple[datetime, timedelta]]] = {}
    for job in jobs:
        if job.state is JobState.COMPLETED and job.started_at and job.ended_at and kind(job)[1]:
            done.setdefault(kind(job), []).append((job.ended_at, job.ended_at - job.started_at))
    return {which: _mean(runs) for which, runs in done.items() if len(runs) >= _LAST}


def _mean(runs: list[tuple[datetime, timedelta]]) -> float:
    last = sorted(runs)[-_LAST:]
    return max(1.0, sum(took.total_seconds() for _, took in last) / _LAST)
