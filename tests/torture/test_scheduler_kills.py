"""kill -9 of the scheduler at random moments of a load on a real engine.

Every acknowledged job runs exactly once per attempt, none is lost, and no GPU is in two containers: proved from what
the containers themselves wrote.
"""

from __future__ import annotations

import random
import time

import pytest

from gputui.domain.job_spec import JobId, Submission
from tests.e2e import witness
from tests.e2e.site import Site, submit_directly

pytestmark = [pytest.mark.docker, pytest.mark.nvml, pytest.mark.torture, pytest.mark.timeout(3000)]

KILLS = 10
"""Number of kills for each unit of `--torture`; `--torture 20` makes it 200."""
KILLS_IN_CI = 3
"""Number of kills for `--torture 1`."""


MOST_ELEMENTS = 4
STALLED = 90.0
"""Seconds without the end of a job after which the run counts as stuck."""


def load(site: Site, rng: random.Random, jobs: int, arrays: int = 0) -> dict[JobId, int]:
    """Submit jobs, at least `arrays` of them arrays; return the expected number of attempts of each job, by id."""
    site.config.write_text("[scheduler]\nfast_failing_jobs = 0\n")  # they are meant to fail
    submissions = [submission(site, rng, is_array=n < arrays or rng.random() < 0.25) for n in range(jobs)]
    ids = submit_directly(site.state, submissions)
    attempts = [each.spec.retries + 1 for each in submissions for _ in each.array or (0,)]
    return dict(zip(ids, attempts, strict=True))


def submission(site: Site, rng: random.Random, *, is_array: bool) -> Submission:
    """Return a job that fails once more than its retries, or succeeds; or an array of such jobs."""
    is_failing = rng.random() < 0.15
    count = rng.randint(2, MOST_ELEMENTS) if is_array else 0
    gpus, seconds = rng.randint(0, 2 if count else 4), rng.uniform(0.05, 0.3 if count else 1.0)
    spec = witness.spec(site.out, gpus, seconds, code=3 if is_failing else 0, retries=int(is_failing))
    return Submission(spec, array=tuple(range(count)), array_limit=rng.choice((None, 2)) if count else None)


def test_random_kills_of_the_scheduler_lose_no_job(site: Site, torture: float) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    kills = round(KILLS * torture) if torture > 1 else KILLS_IN_CI
    wanted: dict[JobId, int] = {}
    for kill in range(kills):
        wanted |= load(site, rng, rng.randint(1, 4), arrays=int(kill == 0))
        scheduler = site.serve()
        time.sleep(rng.uniform(0.15, 2.2))
        wanted |= load(site, rng, 1)
        site.kill(scheduler)
    site.serve()
    wait_for_the_end(site)
    check(site, wanted)
    of_arrays = sum(job["array"] is not None for job in site.jobs().values())
    assert of_arrays
    total = f"{len(wanted)} jobs ({of_arrays} elements of arrays), {sum(wanted.values())} attempts"
    print(f"\n{kills} kills, {total}, seed {seed}")


def wait_for_the_end(site: Site) -> None:
    """Wait until all jobs have ended, as long as they keep ending, however slow the machine is."""
    left = -1
    while left:
        before, deadline = left, time.monotonic() + STALLED
        while left == before:
            assert time.monotonic() < deadline, f"no job has ended for {STALLED} s\n{site.evidence()}"
            time.sleep(0.1)
            left = sum(job.count for job in site.queue.jobs().values() if not job.state.is_terminal)


def check(site: Site, wanted: dict[JobId, int]) -> None:
    """Compare the store with the witnesses."""
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
