"""Order of waiting jobs: strictly by priority, and by score among jobs of equal priority."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache

from msgspec import Struct

from gputui.domain.job import Job, whole_class
from gputui.domain.settings import PolicySettings

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_TOPS = (25.5, 74.5, 100.5)
"""Levels above every priority of the class low, normal and high, and below those of the next class, however nice."""
_MOST_NICE = 10_000
_FEWER = 12.0
"""Seconds less credited for each that a job is planned to run."""
_WIDEST, _DOUBLINGS = 8, 5
"""A job of twice as many GPUs, up to so many, ages faster by one of these parts."""
FIRST = -float("inf")
"""Stand-in for the score of a promoted job, so that the job that became eligible first is first."""


def credit(used: float, settings: PolicySettings) -> float:
    """Return the most seconds of wait credited to jobs of a tenant that used less than its share; `used` is its U/S."""
    return settings.newcomer_credit.total_seconds() * max(0.0, 1.0 - used)


def credited(most: float, planned: float) -> float:
    """Return the seconds of wait credited to a job that is planned to run so many: the less the longer it is."""
    return max(0.0, most - _FEWER * planned)


@cache
def pace(gpus: int) -> float:
    """Return how fast a job ages that asks for so many GPUs, of a range for the fewest; 1 for a single one.

    Without it wide jobs go so late that less GPU time is allocated; faster ones make all others wait for longer.
    """
    return 1.0 + math.log2(min(max(1, gpus), _WIDEST)) / _DOUBLINGS


def scores(waits: Iterable[tuple[float, float, float, float]], now: float, unit: float) -> list[float]:
    """Return the score of each (eligible since, seconds planned, most seconds credited, pace): the least goes first.

    It is minus the expansion factor minus the age in units. It never grows with the wait, so the jobs of a lane stay in
    the order in which they became eligible.
    """
    return [
        -1.0
        - (now - since) * (1 / planned + rate / unit)
        - (bonus if (bonus := most / planned - _FEWER) > 0.0 else 0.0)
        for since, planned, most, rate in waits
    ]


def score(waited: float, planned: float, most: float, rate: float, settings: PolicySettings) -> float:
    """Return the score among jobs of equal priority, the higher goes first; `most` is what `credit` says."""
    [found] = scores([(0.0, planned, most, rate)], waited, settings.age_unit.total_seconds())
    return -found


def level(priority: int, nice: int, *, promoted: bool = False) -> float:
    """Return the level of a job: a higher one goes first, whatever the scores.

    It is the priority; nice lowers it by less than half a point; a promoted job is above all others of its class.
    """
    if promoted:
        return _TOPS[whole_class(priority)]
    return priority - 0.5 * min(nice, _MOST_NICE) / (_MOST_NICE + 1) if nice > 0 else priority


def is_top(height: float) -> bool:
    """Return whether it is the level of promoted jobs."""
    return height in _TOPS


class ScoreTerms(Struct, frozen=True):
    """Terms of a job's rank, as `explain` shows them."""

    level: float
    """Priority as it counts: lowered by nice, or that of a promoted job."""
    is_promoted: bool
    waited: float
    credited: float
    planned: float
    """Seconds of eligible wait, credited to it, and planned to run."""
    expansion: float
    """(waited + credited + planned) / planned."""
    age: float
    """Eligible wait in units of `policy.age_unit`, times the pace."""
    gpus: int
    """GPUs asked for, of a range the fewest."""
    pace: float
    """Rate at which the job ages, by these."""
    total: float
    """Score: of jobs on the same level the higher goes first."""


def score_terms(
    height: float, waited: float, planned: float, gpus: int, used: float, settings: PolicySettings
) -> ScoreTerms:
    """Return the terms of a job on that level: `used` is its tenant's U/S, the times are in seconds."""
    most, rate = credit(used, settings), pace(gpus)
    bonus = credited(most, planned)
    return ScoreTerms(
        level=height,
        is_promoted=is_top(height),
        waited=waited,
        credited=bonus,
        planned=planned,
        expansion=(waited + bonus + planned) / planned,
        age=waited / settings.age_unit.total_seconds() * rate,
        gpus=gpus,
        pace=rate,
        total=score(waited, planned, most, rate, settings),
    )


def topped(job: Job) -> float:
    """Return when it was put on top by hand, as a number; 0 when it was not."""
    return (job.topped_at - _LONG_AGO).total_seconds() if job.topped_at else 0.0
