"""The order in which waiting jobs are considered."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from gputui.domain.job import NORMAL_PRIORITY, Job
from gputui.domain.settings import PolicySettings

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ScoreTerms:
    """The score of a job in its parts, as `explain` shows them."""

    priority_class: float
    age: float
    duration: float
    """Subtracted already: what a long job is put back by."""
    fair_share: float
    nice: float
    """Subtracted already: a nice of 20 is -20 here."""

    @property
    def total(self) -> float:
        """The score: higher goes first."""
        return self.priority_class + self.age + self.duration + self.fair_share + self.nice


def score_terms(job: Job, settings: PolicySettings, fair: float, planned: float, now: datetime) -> ScoreTerms:
    """1000 x class + 1000 x wait / 24 h - 1000 x min(3, planned / 24 h) + 500 x F - nice, by the weights set.

    `fair` is the tenant's F, `planned` the seconds it is planned to run. The age counts from the first submission, so
    that a job that was retried, requeued or preempted keeps it.
    """
    return ScoreTerms(
        settings.class_weight * job.priority / NORMAL_PRIORITY,
        settings.age_weight * age(seconds_waited(job, now), settings),
        0.0 - put_back(planned, settings),
        settings.fair_weight * fair,
        0.0 - job.spec.nice,
    )


def put_back(planned: float, settings: PolicySettings) -> float:
    """The points that a job planned to run so many seconds is put back by."""
    return settings.duration_weight * min(settings.duration_cap, planned / settings.age_unit.total_seconds())


def seconds_waited(job: Job, now: datetime) -> float:
    """Seconds since it was submitted."""
    return max(0.0, (now - job.submitted_at).total_seconds())


def age(waited: float, settings: PolicySettings) -> float:
    """The wait in units, capped where a cap is set."""
    units = waited / settings.age_unit.total_seconds()
    return units if settings.age_cap is None else min(settings.age_cap, units)


def topped(job: Job) -> float:
    """When it was put on top by hand, as a number; 0 when it was not."""
    return (job.topped_at - _LONG_AGO).total_seconds() if job.topped_at else 0.0
