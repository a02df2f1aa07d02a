"""kill -9 of the scheduler at random moments of a load on a real engine.

Every acknowledged job runs exactly once per attempt, none is lost, and no GPU is in two containers: proved from what
the containers themselves wrote.
"""

from __future__ import annotations

import random
import time

import pytest

from gputui.domain.job import JobId
from tests.e2e import witness
from tests.e2e.site import Site, submit_directly

pytestmark = [pytest.mark.docker, pytest.mark.nvml, pytest.mark.torture, pytest.mark.timeout(3000)]

KILLS = 10
"""For `--torture 1`; `--torture 20` makes it 200."""


def load(site: Site, rng: random.Random, jobs: int) -> dict[JobId, int]:
    """Submit so many jobs; the number of attempts that each will take, by id."""
    fails = [rng.random() < 0.15 for _ in range(jobs)]
    specs = [
        witness.spec(
            site.out, rng.randint(0, 4), rng.uniform(0.05, 1.0), code=3 if fail else 0, retries=1 if fail else 0
        )
        for fail in fails
    ]
    store = site.store()
    ids = submit_directly(store, specs)
    store.close()
    return {job_id: 2 if fail else 1 for job_id, fail in zip(ids, fails, strict=True)}


def test_kills_at_random_moments(site: Site, torture: float) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    kills = max(3, round(KILLS * torture))
    wanted: dict[JobId, int] = {}
    for _ in range(kills):
        wanted |= load(site, rng, rng.randint(1, 4))
        scheduler = site.serve()
        time.sleep(rng.uniform(0.15, 2.2))
        wanted |= load(site, rng, 1)
        site.kill(scheduler)
    site.serve()
    site.until(lambda: all(job["ended_at"] for job in site.jobs().values()), 60 + 2 * kills)
    check(site, wanted)
    print(f"\n{kills} kills, {len(wanted)} jobs, {sum(wanted.values())} attempts, seed {seed}")


def check(site: Site, wanted: dict[JobId, int]) -> None:
    """Hold the store against the witnesses."""
    jobs, lines = site.jobs(), site.runs()
    assert jobs.keys() == wanted.keys()
    runs = witness.begun(lines)
    assert {tag: count for tag, count in runs.items() if count != 1} == {}
    attempts: dict[JobId, set[int]] = {}
    for tag in runs:
        _, job_id, attempt = tag.split(":")
        attempts.setdefault(int(job_id), set()).add(int(attempt))
    assert {one: sorted(numbers) for one, numbers in attempts.items()} == {
        one: list(range(1, count + 1)) for one, count in wanted.items()
    }
    states = {one: (job["state"], job["exit_code"]) for one, job in jobs.items()}
    assert states == {one: ("FAILED", 3) if count == 2 else ("COMPLETED", 0) for one, count in wanted.items()}
    assert witness.overlaps(lines) == []
    site.until(lambda: not site.engine.docker("ps", "-aq").split())
    for one, count in wanted.items():
        for number in range(1, count + 1):
            assert site.run("logs", "--attempt", str(number), str(one)).stdout.startswith("on ")
