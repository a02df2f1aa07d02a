"""Whether anybody's waiting jobs are capped, read off the stored documents: a submit must not need more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gputui.domain.state import JobState

Rows = Mapping[str, Mapping[str, Any]]


def caps_waiting(controls: Rows) -> bool:
    """Whether the operator's wishes cap the waiting jobs of any tenant."""
    return any("pending" in tenant for tenant in controls.get("1", {}).get("tenants", ()))


def count_waiting(jobs: Rows) -> Mapping[str, int]:
    """How many jobs of each tenant wait, without making jobs of their documents."""
    waiting = str(JobState.PENDING)
    specs = (job.get("spec") for job in jobs.values() if isinstance(job, dict) and job.get("state") == waiting)
    return Counter(spec.get("tenant", "") for spec in specs if isinstance(spec, dict))
