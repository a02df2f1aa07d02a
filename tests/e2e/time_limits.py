"""Ends running jobs by their time limit soon, even on busy machines."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from gputui.domain.job_spec import JobId
from tests.e2e.site import Site

_SOON = 1.5
"""Seconds left to a job whose limit is changed, where the command takes no longer than that."""


def has_run(site: Site, job_id: JobId) -> float:
    """Return for how many seconds the job has run."""
    began = datetime.fromisoformat(site.json("show", str(job_id))["started_at"])
    return (datetime.now(UTC) - began).total_seconds()


def end_soon(site: Site, job_id: JobId) -> None:
    """Change the limit of a running job so that it ends in some seconds.

    A limit that is over by the time the command runs is refused and changes nothing: then try again with a later one.
    """
    left = _SOON

    def is_accepted() -> bool:
        nonlocal left
        limit = f"{math.ceil(has_run(site, job_id) + left)}s"
        left *= 2
        return site.run("edit", str(job_id), "--time-limit", limit, check=False).returncode == 0

    site.until(is_accepted)
