"""Order of waiting jobs: strictly by priority, and by score among jobs of equal priority."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import Struct

from gputui.domain.job import Job
from gputui.domain.job_spec import whole_class
from gputui.domain.settings import PolicySettings

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_TOPS = (25.5, 74.5, 100.5)
"""Levels above every priority of class low, normal and high, but below every level of the next class."""
_MOST_NICE = 10_000
_FEWER = 12.0
"""Seconds of credit lost per second of planned runtime."""
FIRST = -float("inf")
"""Stand-in for the score of a promoted job, so that the job that became eligible first is first."""


def credit(used: float, settings: PolicySettings) -> float:
    """Return the maximum credited seconds of wait for jobs of a tenant that used less than its share.

    `used` is its U/S.
    """
    return settings.newcomer_credit.total_seconds() * max(0.0, 1.0 - used)


def credited(most: float, planned: float) -> float:
    """Return the credited seconds of wait for a job with that many planned seconds: the longer the job, the less."""
    return max(0.0, most - _FEWER * planned)


def scores(waits: Iterable[tuple[float, float, float]], now: float, unit: float) -> list[float]:
    """Return the score of each (eligible since, planned seconds, maximum credit); the least goes first.

    It is minus the expansion factor minus the age in units. It never grows with the wait, so the jobs of a lane stay in
    the order in which they became eligible.
    """
    return [
        -1.0 - (now - since) * (1 / planned + 1 / unit) - (bonus if (bonus := most / planned - _FEWER) > 0.0 else 0.0)
        for since, planned, most in waits
    ]


def score(waited: float, planned: float, most: float, settings: PolicySettings) -> float:
    """Return the score among jobs of equal priority; the higher goes first. `most` is the result of `credit`."""
    [found] = scores([(0.0, planned, most)], waited, settings.age_unit.total_seconds())
    return -found


def level(priority: int, nice: int, *, promoted: bool = False) -> float:
    """Return the level of a job; a higher level goes first, whatever the scores.

    It is the priority, lowered by less than half a point by nice; a promoted job is above all others of its class.
    """
    if promoted:
        return _TOPS[whole_class(priority)]
    return priority - 0.5 * min(nice, _MOST_NICE) / (_MOST_NICE + 1) if nice > 0 else priority


def is_top(height: float) -> bool:
    """Return whether it is the level of promoted jobs."""
    return height in _TOPS


class ScoreTerms(Struct, frozen=True):
    """Terms of a job's rank, for `explain`."""

    level: float
    """Effective priority: lowered by nice, or that of a promoted job."""
    is_promoted: bool
    waited: float
    credited: float
    planned: float
    """Seconds of eligible wait, of credit, and of planned runtime."""
    expansion: float
    """(waited + credited + planned) / planned."""
    age: float
    """Eligible wait in units of `policy.age_unit`."""
    total: float
    """Score; on the same level the higher goes first."""


def score_terms(height: float, waited: float, planned: float, used: float, settings: PolicySettings) -> ScoreTerms:
    """Return the terms of a job on that level; `used` is its tenant's U/S, times are in seconds."""
    most = credit(used, settings)
    bonus = credited(most, planned)
    return ScoreTerms(
        level=height,
        is_promoted=is_top(height),
        waited=waited,
        credited=bonus,
        planned=planned,
        expansion=(waited + bonus + planned) / planned,
        age=waited / settings.age_unit.total_seconds(),
        total=score(waited, planned, most, settings),
    )


def topped_at_number(job: Job) -> float:
    """Return the time at which it was put at the head of the queue by hand, as a number; 0 if it was not."""
    return (job.topped_at - _LONG_AGO).total_seconds() if job.topped_at else 0.0
