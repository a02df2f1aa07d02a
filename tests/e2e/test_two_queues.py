"""Two users, each with a queue and a scheduler, on one server: no GPU goes to both."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec
from tests.e2e.site import Site, all_over, fresh_site, submit_directly
from tests.runtime.dockerd import IMAGE, NETWORK

pytestmark = [pytest.mark.docker, pytest.mark.nvml]

JOBS = 5
"""Number of jobs of each queue; four of two GPUs fill the server."""


def test_no_gpu_is_given_away_by_both(site: Site, tmp_path: Path) -> None:
    other = fresh_site(tmp_path / "other", site.engine)
    sites, stores = (site, other), (site.store(), other.store())
    options = ContainerOptions(network=NETWORK)
    spec = JobSpec(image=IMAGE, command=("sleep", "0.5"), name="try", gpus=GpuRequest(2, 2), options=options)
    try:
        for each in sites:
            each.serve()
        for each in sites:
            each.until(lambda each=each: each.run("gpus", check=False).stdout.count("FREE") == 8)  # type: ignore[misc]
        for each in sites:
            submit_directly(each.state, [spec] * JOBS)
        site.until(lambda: all(all_over(store.jobs().values()) for store in stores), 90)
        held = sorted(
            (uuid, attempt.started_at, attempt.ended_at)
            for store in stores
            for job in store.jobs().values()
            for attempt in job.attempts
            for uuid in attempt.gpus
            if attempt.started_at and attempt.ended_at
        )
    finally:
        for store in stores:
            store.close()
        other.close()
    assert len(held) == 2 * JOBS * 2
    twice = [(one, two) for one, two in pairwise(held) if one[0] == two[0] and two[1] < one[2]]
    assert twice == []
