"""Fast failures: attempts that fail within seconds. Many in a row mean that something is broken.

A user's retries are never withheld: the guard pauses the other jobs of an image or a tenant. It reads only stored jobs;
jobs from before the last release of the image or tenant do not count.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import Struct, field

from gputui.domain.attempt import Attempt
from gputui.domain.cause import Blame, CauseCode
from gputui.domain.job import Job
from gputui.domain.settings import SchedulerSettings
from gputui.domain.units import format_duration


def is_fast_failure(attempt: Attempt, settings: SchedulerSettings) -> bool:
    """Return whether the job itself failed, within seconds of its start."""
    if attempt.cause is None or attempt.cause.blame is not Blame.JOB:
        return False
    if attempt.cause.code is CauseCode.END_UNKNOWN:  # nobody knows whether it failed, or how long it ran
        return False
    if attempt.started_at is None or attempt.ended_at is None:
        return False
    return attempt.ended_at - attempt.started_at < settings.fast_failure


def repeated_failures(job: Job, settings: SchedulerSettings) -> str:
    """Return a sentence for a job whose latest attempts all failed fast; empty when fewer than `fast_failures` did."""
    row = 0
    for attempt in reversed(job.attempts):
        if not attempt.charged or not is_fast_failure(attempt, settings):
            break
        row += 1
    if not settings.fast_failures or row < settings.fast_failures:
        return ""
    return f"failed {row} times in a row, each within {format_duration(settings.fast_failure)}"


class _Outcome(Struct, frozen=True):
    at: datetime
    job: Job
    is_fast: bool


_Groups = dict[str, list[_Outcome]]


class FastFailureGuard(Struct, frozen=True):
    """Images and tenants whose latest jobs all failed fast, each with a sentence."""

    images: Mapping[str, str] = field(default_factory=dict)
    tenants: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Iterable[Job], settings: SchedulerSettings) -> FastFailureGuard:
        """Return the guard for the jobs in the queue file."""
        if not settings.fast_failing_jobs:
            return cls()
        images: _Groups = defaultdict(list)
        tenants: _Groups = defaultdict(list)
        released: dict[str, datetime] = {}
        for job in jobs:
            if job.released_at is not None:
                for key in (f"image {job.spec.image}", f"tenant {job.spec.tenant}"):
                    released[key] = max(job.released_at, released.get(key, job.released_at))
            if job.attempts and (outcome := _outcome(job, settings)):
                images[job.spec.image or ""].append(outcome)
                tenants[job.spec.tenant].append(outcome)
        images.pop("", None)  # host jobs have none
        return cls(
            _paused("image", images, released, settings),
            _paused("tenant", tenants, released, settings),
        )

    def __bool__(self) -> bool:
        return bool(self.images or self.tenants)

    def reason(self, job: Job) -> str | None:
        """Return why the job waits with its image or its tenant; None when it does not."""
        return self.images.get(job.spec.image or "") or self.tenants.get(job.spec.tenant)


def _outcome(job: Job, settings: SchedulerSettings) -> _Outcome | None:
    """Return how the job ended; None while it has retries left, or where the machine or a user ended it."""
    attempt = job.attempts[-1]
    if not job.state.is_terminal or attempt.ended_at is None:
        return None
    if attempt.cause is not None and attempt.cause.blame is not Blame.JOB:
        return None
    return _Outcome(attempt.ended_at, job, is_fast_failure(attempt, settings))


def _paused(
    kind: str, groups: _Groups, released: Mapping[str, datetime], settings: SchedulerSettings
) -> dict[str, str]:
    many = settings.fast_failing_jobs
    paused = {}
    for name, outcomes in groups.items():
        if len(outcomes) < many:
            continue
        latest = heapq.nlargest(many, outcomes, key=lambda outcome: (outcome.at, outcome.job.id))
        since = released.get(f"{kind} {name}")
        if all(outcome.is_fast and (since is None or outcome.at > since) for outcome in latest):
            last = latest[0]
            cause = next((each.cause.text for each in reversed(last.job.attempts) if each.cause), "")
            paused[name] = (
                f"{kind} {name} is paused, since its last {settings.fast_failing_jobs} jobs failed within "
                f"{format_duration(settings.fast_failure)} (job {last.job.shown_id}: {cause}); release one to continue"
            )
    return paused
