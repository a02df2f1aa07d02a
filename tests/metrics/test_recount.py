"""Counters of a real run of many jobs agree with a recount from the queue, to the job."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.metrics.exporter import COMPLETED
from gputui.store import TinyJobStore
from tests.metrics.scraped import Scrape
from tests.metrics.test_serve import Served, served

COMMANDS = ('["true"]', '["false"]', '["sh", "-c", "sleep 0.2; exit 3"]', '["sleep", "0.3"]')
ENDS = 51
PATIENCE = 150.0
NOTICED_WITHIN = 3.0
"""Maximum seconds until a scheduler notices an end, on a busy machine."""


def submit(site: Served, directory: Path) -> None:
    jobs = [
        f'[[job]]\nhost = true\ncommand = {COMMANDS[number % 4]}\ngpus = {number % 3}\nbackoff = "0s"\n'
        f'tenant = "{("bob", "alice")[number % 2]}"\nretries = {number % 2}\n'
        for number in range(40)
    ]
    (directory / "jobs.toml").write_text("\n".join(jobs))
    site.run("submit", "-f", str(directory / "jobs.toml"))
    site.run("submit", "--host", "--gpus", "1", "--tenant", "bob", "--", "sleep", "600")
    site.run("submit", "--host", "--array", "0-9", "--tenant", "alice", "--", "true")
    site.run("submit", "--host", "--array", "0-19", "--hold", "--tenant", "bob", "--", "true")
    site.until(lambda found: found.value("gputui_gpu_job_info", job_id="41") == 1, PATIENCE)
    site.run("cancel", "41")


def ended(found: Scrape) -> float:
    """Return how many jobs have ended."""
    name = "gputui_jobs_ended_total"
    return sum(found.value(name, **labels) or 0 for labels in found.labels(name))


def agree(found: Scrape, jobs: list[Job]) -> None:
    states = Counter({(job.spec.tenant, job.state): 0 for job in jobs})
    for job in jobs:
        states[job.spec.tenant, job.state] += job.count
    for (tenant, state), count in states.items():
        assert found.value("gputui_jobs", tenant=tenant, state=state) == count
        if state is not JobState.PENDING:
            assert found.value("gputui_jobs_ended_total", tenant=tenant, state=state) == count
    attempts = [(job, attempt) for job in jobs for attempt in job.attempts]
    causes = Counter(str(attempt.cause.code) if attempt.cause else COMPLETED for _, attempt in attempts)
    for cause, count in causes.items():
        assert found.value("gputui_attempts_ended_total", cause=cause) == count
    assert found.value("gputui_job_retries_total", cause="NonZeroExit") == len(attempts) - sum(
        bool(job.attempts) for job in jobs
    )
    for tenant in ("alice", "bob"):
        own = [attempt for job, attempt in attempts if job.spec.tenant == tenant]
        assert found.value("gputui_attempts_started_total", tenant=tenant) == len(own)
        assert found.value("gputui_jobs_submitted_total", tenant=tenant) == sum(
            job.count for job in jobs if job.spec.tenant == tenant
        )
        seconds = sum(
            (each.ended_at - each.started_at).total_seconds() * len(each.gpus)
            for each in own
            if each.ended_at and each.started_at
        )
        counted = found.value("gputui_gpu_allocated_seconds_total", tenant=tenant)
        assert counted is not None
        assert (
            seconds - 0.01 <= counted <= seconds + NOTICED_WITHIN * 4
        )  # of four GPUs, while the last end is unheard of


@pytest.mark.long
def test_counters_of_a_run_agree_with_a_recount(tmp_path: Path) -> None:
    config = tmp_path / ".config" / "gputui" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[scheduler]\nfast_failing_jobs = 0\n")  # or jobs of a tenant wait when five fail in a row
    with served(tmp_path, "--metrics=0") as site:
        assert site.port  # what is in the queue before is not new
        submit(site, tmp_path)
        found = site.until(lambda found: ended(found) == ENDS, PATIENCE)
        store = TinyJobStore(site.state)
        try:
            agree(found, list(store.jobs().values()))
        finally:
            store.close()
