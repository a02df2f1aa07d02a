"""The real scheduler over days of a server: it starts what a replay starts, and its forecasts hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.forecast import Quality, Told, made_up, virtual
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.state import JobState
from gputui.replay.policies import plan
from gputui.replay.trace import Site
from tests.engine.virtual import VirtualServer

WITHOUT_NAMES = PolicySettings(predict=False)
JOBS = 80


def test_the_scheduler_starts_the_jobs_of_a_trace_when_a_replay_does(tmp_path: Path) -> None:
    trace = [replace(job, duration=max(60.0, job.duration)) for job in made_up(1, JOBS)]
    trace = [replace(job, limit=job.duration) for job in trace]
    server = VirtualServer(tmp_path, 8, Settings(policy=WITHOUT_NAMES))
    numbers = {}
    for job in trace:

        def submit(job=job) -> None:  # type: ignore[no-untyped-def]
            options = {"tenant": job.tenant, "priority": job.priority}
            numbers[server.submit(job.duration, job.gpus, job.limit + 2, **options)] = job.number

        server.at(job.submit, submit)
    server.run()
    assert all(server.job(number).state is JobState.COMPLETED for number in numbers)
    replayed = {ran.job.number: ran.start for ran in plan(trace, Site(8), WITHOUT_NAMES)}
    late = [abs(server.started[job_id] - replayed[number]) for job_id, number in numbers.items()]
    assert sum(seconds < 5 for seconds in late) >= 0.98 * JOBS, sorted(late)[-5:]


def test_first_forecasts_come_true_without_later_submissions(tmp_path: Path) -> None:
    together = [replace(job, submit=0.0) for job in made_up(2, JOBS // 2)]
    quality = Quality.of([virtual(together, tmp_path, WITHOUT_NAMES)])
    assert quality.jobs >= JOBS // 4
    assert quality.in_order >= 0.99 * quality.pairs, quality
    assert -120 <= quality.median <= 5, quality


def test_the_quality_of_forecasts_follows_its_definition() -> None:
    one, other, later = Told(0.0, 10.0, 12.0), Told(0.0, 20.0, 11.0), Told(50.0, 60.0, 55.0)
    found = Quality.of([[one, other, later]])
    assert (found.jobs, found.mean, found.least, found.most) == (3, -4.0, -9.0, 2.0)
    assert (found.pairs, found.in_order) == (1, 0)
