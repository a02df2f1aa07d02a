"""A server's own finished jobs as a trace."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.errors import Cause, CauseCode
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import GpuRequest
from gputui.domain.state import JobState
from gputui.replay import trace
from gputui.replay.policies import plan
from gputui.replay.simulation import figures
from gputui.replay.trace import HOUR, Site, generate, prepare
from tests.cases import cases
from tests.factories import NOW, job, uuid


def attempt(number: int, start: float, end: float, *gpus: int) -> Attempt:
    """Return an attempt that held these GPUs from `start` to `end`, in seconds from NOW."""
    at = [NOW + timedelta(seconds=second) for second in (start, end)]
    return Attempt(number, tuple(uuid(gpu) for gpu in gpus), at[0], "c", at[0], at[1])


def ended(
    job_id: int, *attempts: Attempt, submitted: float = 0, state: JobState = JobState.COMPLETED, **more: Any
) -> Job:
    """Return a finished job, submitted that many seconds after NOW."""
    last = attempts[-1].ended_at if attempts else NOW
    return job(job_id, age=-submitted, **more).evolve(state=state, attempts=attempts, ended_at=last)


def found(*jobs: Job) -> trace.JobHistory:
    made = trace.job_history(jobs)
    assert made is not None
    return made


def test_times_and_limits_of_replayed_jobs() -> None:
    # a replayed job keeps times width tenant limit and priority
    limited = ended(
        2, attempt(1, 50, 150, 0, 1), submitted=40, tenant="bob", time_limit=timedelta(hours=2), priority=80
    )
    own = found(limited, ended(1, attempt(1, 10, 40, 3), submitted=5, nice=7))
    assert [(each.submit, each.duration, each.gpus, each.tenant) for each in own.jobs] == [
        (0, 30, 1, "alice"),
        (35, 100, 2, "bob"),
    ]
    assert [(each.priority, each.nice, each.stated) for each in own.jobs] == [(50, 7, None), (80, 0, 7200)]
    assert [(each.start, each.end) for each in own.as_it_was(own.jobs)] == [(5, 35), (45, 145)]
    assert (own.gpus, own.failed, own.left_out) == (3, 0, 0)
    assert (own.since, own.until) == (NOW + timedelta(seconds=5), NOW + timedelta(seconds=150))
    assert figures(own.as_it_was(own.jobs), 4).wait_mean == 7.5
    assert own.as_it_was(prepare(own.jobs, Site(4), limits="none"))[0].job.limit == 72 * HOUR
    # limits of users stay and missing ones are generated
    own = found(
        ended(1, attempt(1, 0, 600, 0), time_limit=timedelta(hours=2)), ended(2, attempt(1, 0, 600, 0)), ended(3)
    )
    assert [each.limit for each in prepare(own.jobs, Site(8), limits="bucket")] == [2 * HOUR, HOUR]
    assert [each.limit for each in prepare(own.jobs, Site(8), limits="exact")] == [2 * HOUR, 600]


def test_attempts_of_replayed_jobs() -> None:
    # retries count with all the time they held GPUs
    retried = ended(1, attempt(1, 10, 20, 0), attempt(2, 100, 130, 0, 1), state=JobState.FAILED)
    [each] = found(retried).jobs
    assert (each.gpus, each.duration) == (2, 35)
    assert found(retried).failed == 1
    # preempted runs are lost and not part of the job
    cause = Cause(CauseCode.PREEMPTED, "preempted")
    first = replace(attempt(1, 10, 40, 0, 1), cause=cause)
    own = found(ended(1, first, attempt(2, 100, 150, 0, 1), preemptible=True))
    assert (own.jobs[0].duration, own.jobs[0].preemptible) == (50, True)
    [was] = own.as_it_was(own.jobs)
    assert (was.start, was.end, was.preemptions, was.lost) == (100, 150, 1, 60)
    never = found(ended(1, first, state=JobState.CANCELLED))
    assert (never.jobs[0].duration, never.as_it_was(never.jobs)[0].preemptions) == (30, 0)


def test_limits_that_are_planned() -> None:
    # names and images are kept for predictions
    own = found(
        ended(1, attempt(1, 0, 5, 0), name="train"),
        ended(2, attempt(1, 0, 5, 1), name="", image="busybox", state=JobState.FAILED),
    )
    assert [(each.name, each.ended_well) for each in own.jobs] == [("train", True), ("busybox", False)]
    # without a limit a job is planned as the longest allowed however long others ran
    own = found(ended(1, attempt(1, 0, 5, 0)), ended(2, attempt(1, 0, 400 * HOUR, 1)))
    ready = prepare(own.jobs, Site(8), limits="none", max_time=400 * HOUR, unlimited=72 * HOUR)
    assert [(each.limit, each.is_limited, each.duration) for each in ready] == [
        (72 * HOUR, False, 5),
        (72 * HOUR, False, 400 * HOUR),
    ]


def test_which_jobs_are_replayed() -> None:
    # jobs without GPUs or still running are left out
    cancelled = ended(2, state=JobState.CANCELLED)
    on_the_cpu = ended(3, attempt(1, 0, 5))
    still_runs = job(4, gpus=1).evolve(state=JobState.RUNNING, attempts=(replace(attempt(1, 0, 1, 5), ended_at=None),))
    own = found(ended(1, attempt(1, 0, 5, 0)), cancelled, on_the_cpu, still_runs)
    assert (len(own.jobs), own.left_out, own.gpus) == (1, 2, 1)
    assert trace.job_history([cancelled, still_runs]) is None
    # a job is submitted when it became eligible
    first = ended(1, attempt(1, 0, 100, 0))
    second = ended(2, attempt(1, 130, 140, 0), after=(1,))
    third = ended(3, attempt(1, 70, 80, 1), begin_at=NOW + timedelta(seconds=60))
    odd = ended(4, attempt(1, 20, 30, 1), begin_at=NOW + timedelta(seconds=500))
    assert [each.submit for each in found(first, second, third, odd).jobs] == [0, 20, 60, 100]
    # sharing jobs are reported
    sharer = ended(1, attempt(1, 0, 5, 0)).evolve()
    shares = replace(sharer, spec=replace(sharer.spec, gpus=GpuRequest(1, 1, memory=2**30, share=True)))
    assert found(shares).shared == 1
    assert found(sharer).shared == 0


@cases("back", [-30.0, 0.0])
def test_a_clock_set_back_gives_no_negative_time(back: float) -> None:
    [each] = found(ended(1, attempt(1, 0, back, 0))).jobs
    assert each.duration == 1


def test_a_replay_of_its_own_history_repeats_it() -> None:
    site = Site(8)
    ready = prepare(generate(300, 3, widest=8), site, 1.0)
    ran = list(plan(ready, site))
    jobs = [
        ended(
            each.job.number + 1,
            attempt(1, each.start, each.end, *range(each.gpus)),
            submitted=each.job.submit,
            tenant=each.job.tenant,
            time_limit=timedelta(seconds=each.job.limit),
        )
        for each in ran
    ]
    own = found(*jobs)
    again = prepare(own.jobs, site)
    assert figures(list(plan(again, site)), 8).wait_mean == pytest.approx(figures(ran, 8).wait_mean, rel=1e-3)
    assert figures(own.as_it_was(again), 8).wait_mean == pytest.approx(figures(ran, 8).wait_mean, rel=1e-6)
