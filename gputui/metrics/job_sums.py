"""Sums over the jobs of the queue by tenant, kept up to date job by job, so that no scrape goes through all of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct, field

from gputui.domain.job import Job
from gputui.domain.policy.durations import LONGEST
from gputui.domain.policy.fairshare import UsageLedger
from gputui.domain.settings import Settings
from gputui.domain.state import JobState


class TenantSums(Struct):
    """Sums of one tenant."""

    states: Counter[JobState] = field(default_factory=Counter)
    waiting: int = 0
    """Jobs that wait and are not held."""
    backlog: float = 0.0
    """GPU-seconds that these ask for, but for those that ask for all GPUs."""
    whole: float = 0.0
    """Seconds for which those ask for all GPUs."""
    held: int = 0
    """GPUs that its jobs hold."""


class JobSums:
    """Sums by tenant. Called by one thread at a time."""

    def __init__(self, settings: Settings, now: datetime) -> None:
        longest = settings.policy.max_time or settings.scheduler.max_time or LONGEST
        self._longest = longest.total_seconds()
        self._ledger = UsageLedger(settings.policy.half_life.total_seconds(), now.timestamp())
        self.tenants: defaultdict[str, TenantSums] = defaultdict(TenantSums)

    def update(self, gone: Iterable[Job], came: Iterable[Job]) -> None:
        """Take jobs out, and add others."""
        for job in gone:
            self._add(job, -1)
        for job in came:
            self._add(job, 1)

    def used(self, now: datetime) -> dict[str, float]:
        """Return the GPU-seconds of each tenant in these jobs, older ones counted for less."""
        return self._ledger.used(now.timestamp())

    def seconds(self, job: Job) -> float:
        """Return the seconds that a job is planned to run, of an entry those of all its elements together."""
        limit = job.spec.time_limit
        return (self._longest if limit is None else limit / _SECOND) * (job.count if job.runs else 1)

    def _add(self, job: Job, sign: int) -> None:
        sums = self.tenants[job.spec.tenant]
        count = sign * (job.count if job.runs else 1)
        sums.states[job.state] += count
        if job.state is JobState.PENDING and not job.held:
            sums.waiting += count
            wanted = job.spec.gpus
            if wanted.everything:
                sums.whole += sign * self.seconds(job)
            elif wanted.minimum:
                sums.backlog += sign * wanted.minimum * self.seconds(job)
            if not sums.waiting:
                sums.backlog = sums.whole = 0.0  # nothing is left, not even what was rounded
        if job.attempts:
            sums.held += sign * len(job.gpus)
            self._charge(job, sign)

    def _charge(self, job: Job, sign: int) -> None:
        """Add the GPU time of the job's attempts, or take it away: time from b to a is less by that from a to b."""
        for attempt in job.attempts:
            gpus = sign * len(attempt.gpus) * attempt.gpu_share
            if gpus and attempt.started_at:
                self._ledger.begin(job.spec.tenant, gpus, attempt.started_at.timestamp())
                if attempt.ended_at:
                    self._ledger.end(job.spec.tenant, gpus, attempt.ended_at.timestamp())


_SECOND = timedelta(seconds=1)
