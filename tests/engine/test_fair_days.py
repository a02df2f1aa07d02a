"""Days of a server with the real scheduler: strict priority, a newcomer beside a dump, and tricks that do not pay."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.action import Cancel, Edit, EditJobs, Hold, Release
from gputui.domain.job_spec import JobId
from gputui.domain.settings import PolicySettings, SchedulerSettings, Settings
from gputui.replay.trace import HOUR, Site, TraceJob, generate, prepare
from tests.cases import cases
from tests.engine.virtual import VirtualServer
from tests.factories import NOW

ALIKE = Settings(SchedulerSettings(cpu_jobs=100), policy=PolicySettings(predict=False, newcomer_credit=timedelta()))
"""Settings without fair share: a tenant's usage makes no difference."""
CLASSES = {90: 10, 50: 60, 10: 30}
"""Priorities, and their parts of the jobs in hundredths."""
JOBS = 100


def one_gpu(directory: Path) -> VirtualServer:
    """Return a server whose only GPU is busy for ten hours, and at which Ann submits a job after eight."""
    server = VirtualServer(directory, 1, ALIKE)
    server.at(0, lambda: server.submit(10 * HOUR, limit=10 * HOUR + 2, tenant="other", name="blocker"))
    server.at(8 * HOUR, lambda: server.submit(HOUR, limit=4 * HOUR, tenant="ann", name="ann"))
    return server


def order(server: VirtualServer) -> list[str]:
    return [server.job(job_id).spec.name for job_id in sorted(server.started, key=server.started.__getitem__)]


Trick = Callable[[VirtualServer], None]


def held_until_ready(server: VirtualServer) -> None:
    def take() -> None:
        eve = server.submit(HOUR, limit=4 * HOUR, tenant="eve", name="eve")
        server.actions.act(Hold((eve,)))
        server.at(9 * HOUR, lambda: server.actions.act(Release((eve,))))

    server.at(60, take)


def held_again_and_again(server: VirtualServer) -> None:
    """Hold the job and release it briefly from time to time, as if it could run."""

    def take() -> None:
        eve = server.submit(HOUR, limit=4 * HOUR, tenant="eve", name="eve")
        server.actions.act(Hold((eve,)))
        for hour in range(1, 9):
            server.at(hour * HOUR, lambda: server.actions.act(Release((eve,))))
            server.at(hour * HOUR + 60, lambda: server.actions.act(Hold((eve,))))
        server.at(9 * HOUR, lambda: server.actions.act(Release((eve,))))

    server.at(60, take)


def begins_when_ready(server: VirtualServer) -> None:
    begin = NOW + timedelta(hours=9)
    server.at(60, lambda: server.submit(HOUR, limit=4 * HOUR, tenant="eve", name="eve", begin_at=begin))
    server.at(9 * HOUR, lambda: None)  # the scheduler looks when a job may begin


def after_another(server: VirtualServer) -> None:
    def take() -> None:
        before = server.submit(9 * HOUR - 60, 0, tenant="eve", name="placeholder")
        server.submit(HOUR, limit=4 * HOUR, tenant="eve", name="eve", after=(before,))

    server.at(60, take)


def asked_for_less_at_first(server: VirtualServer) -> None:
    def take() -> None:
        eve = server.submit(HOUR, limit=60, tenant="eve", name="eve")
        edit = Edit(spec=MappingProxyType({"time_limit": timedelta(hours=4)}))
        server.at(9 * HOUR, lambda: server.actions.act(EditJobs((eve,), edit)))

    server.at(60, take)


def without_limit(server: VirtualServer) -> None:
    server.at(8 * HOUR - 1, lambda: server.submit(HOUR, tenant="eve", name="eve"))


def submitted_anew(server: VirtualServer) -> None:
    def take() -> None:
        eve = server.submit(HOUR, limit=4 * HOUR, tenant="eve", name="eve")
        server.at(9 * HOUR, lambda: again(eve))

    def again(eve: JobId) -> None:
        server.actions.act(Cancel((eve,)))
        server.submit(HOUR, limit=4 * HOUR, tenant="eve", name="eve")

    server.at(60, take)


TRICKS = (
    held_until_ready,
    held_again_and_again,
    begins_when_ready,
    after_another,
    asked_for_less_at_first,
    without_limit,
    submitted_anew,
)


@cases("trick", TRICKS)
def test_the_job_that_could_run_first_starts_first(tmp_path: Path, trick: Trick) -> None:
    server = one_gpu(tmp_path)
    trick(server)
    server.run()
    assert [name for name in order(server) if name != "placeholder"] == ["blocker", "ann", "eve"]


def test_honest_jobs_start_in_the_order_in_which_they_could_run(tmp_path: Path) -> None:
    server = one_gpu(tmp_path)
    server.at(7 * HOUR, lambda: server.submit(HOUR, limit=4 * HOUR, tenant="eve", name="eve"))
    server.run()
    assert order(server) == ["blocker", "eve", "ann"]


def test_a_job_ended_by_its_limit_waits_behind_newer_ones(tmp_path: Path) -> None:
    server = VirtualServer(tmp_path, 1, ALIKE)
    slices: dict[str, Any] = {"retries": 9, "retry_on": ("TIMEOUT",), "backoff": timedelta(seconds=1)}

    def together() -> None:
        server.submit(2 * HOUR, limit=HOUR, tenant="eve", name="eve", **slices)
        server.submit(HOUR / 2, limit=HOUR, tenant="ann", name="ann")
        server.submit(HOUR / 2, limit=HOUR, tenant="ben", name="ben")

    server.at(0, together)
    server.run()
    eve, ann, ben = (server.job(number) for number in (1, 2, 3))
    assert eve.attempts[0].cause is not None
    began = [job.attempts[-1].started_at for job in (ann, ben, eve)]
    assert began == sorted(began, key=lambda at: (at is None, at))


def test_a_newcomer_waits_two_hours_at_most_behind_a_dump(tmp_path: Path) -> None:
    server = VirtualServer(tmp_path, 8, Settings(policy=PolicySettings(predict=False, forecast_jobs=0)))
    newcomer: list[JobId] = []

    def dump() -> None:
        for _ in range(260):
            server.submit(HOUR, limit=HOUR + 2, tenant="ann")

    server.at(0, dump)
    server.at(24.5 * HOUR, lambda: newcomer.append(server.submit(HOUR, limit=HOUR + 2, tenant="ben")))
    server.run(done=lambda: bool(newcomer) and newcomer[0] in server.started)
    assert server.started[newcomer[0]] - 24.5 * HOUR <= 2 * HOUR


def with_classes(seed: int) -> list[TraceJob]:
    """Return a trace with a load of 1.0 in which one in ten is of high and three in ten are of low priority."""
    rng = random.Random(seed)
    trace = prepare(generate(JOBS, seed, widest=8, days=28.0 * JOBS / 2500), Site(8), 1.0, "bucket")
    priorities = rng.choices(list(CLASSES), list(CLASSES.values()), k=len(trace))
    return [dataclasses.replace(job, priority=priority) for job, priority in zip(trace, priorities, strict=True)]


def test_a_job_of_high_priority_starts_before_all_as_wide_or_wider(tmp_path: Path) -> None:
    settings = Settings(policy=PolicySettings(predict=False, forecast_jobs=0))
    server, trace = VirtualServer(tmp_path, 8, settings), with_classes(4)
    jobs: dict[JobId, TraceJob] = {}

    def submit(job: TraceJob) -> None:
        work, options = max(1.0, job.duration), {"tenant": job.tenant, "priority": job.priority}
        jobs[server.submit(work, job.gpus, max(job.limit, work + 2), **options)] = job

    for job in trace:
        server.at(job.submit, lambda job=job: submit(job))  # type: ignore[misc]
    server.run()
    assert server.started.keys() == jobs.keys(), "all have run"
    overtaken = [
        (high, other)
        for high, urgent in jobs.items()
        for other, less in jobs.items()
        if urgent.priority == 90 and less.priority < 90 and less.gpus >= urgent.gpus
        if urgent.submit + 1 < server.started[other] < server.started[high] - 1
    ]
    assert not overtaken


@cases(("hours", "waited"), [(5, 5), (0, 20)])
def test_a_promoted_job_goes_first_only_in_its_class(tmp_path: Path, hours: int, waited: int) -> None:
    """A job an hour of priority 70 would keep one of 30 waiting for ever, and one of 10 is of another class."""
    policy = replace(ALIKE.policy, promote_after=timedelta(hours=hours))
    server = VirtualServer(tmp_path, 1, replace(ALIKE, policy=policy))
    for hour in range(20):
        server.at(hour * HOUR, lambda: server.submit(HOUR, limit=HOUR + 2, priority=70))
    server.at(1, lambda: server.submit(HOUR, limit=HOUR + 2, priority=30, name="normal"))
    server.at(1, lambda: server.submit(HOUR, limit=HOUR + 2, priority=10, name="low"))
    server.run()
    began = {server.job(job_id).spec.name: at / HOUR for job_id, at in server.started.items()}
    assert began["normal"] == pytest.approx(waited, abs=1.1)
    assert began["low"] == max(began.values())
