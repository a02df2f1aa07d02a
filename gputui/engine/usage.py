"""What tenants used in jobs that have moved to history, for their fair share."""

from __future__ import annotations

from datetime import datetime, timedelta

from gputui.domain.snapshot import Usage
from gputui.ports import JobStore

REFRESH = timedelta(minutes=10)
"""Between two readings of the history; what moved there since is missed for so long."""
_HALF_LIVES = 8
"""What is older counts for less than half a percent of itself."""


def past_usage(store: JobStore, half_life: timedelta, now: datetime) -> Usage:
    """GPU-seconds by tenant, decayed to `now` from the end of each attempt."""
    used: dict[str, float] = {}
    for job in store.history(now - _HALF_LIVES * half_life):
        for attempt in job.attempts:
            if attempt.gpus and attempt.started_at and attempt.ended_at:
                gpus = len(attempt.gpus) * attempt.gpu_share
                seconds = (attempt.ended_at - attempt.started_at).total_seconds() * gpus
                decay = 0.5 ** (max(now - attempt.ended_at, timedelta(0)) / half_life)
                used[job.spec.tenant] = used.get(job.spec.tenant, 0.0) + max(0.0, seconds) * decay
    return Usage(now, used)
