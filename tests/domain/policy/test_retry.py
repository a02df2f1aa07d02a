"""Fate of a job after an attempt, by the blame for its end."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.errors import Cause, CauseCode, cause_of_exit
from gputui.domain.job import Attempt, Job, Stopping
from gputui.domain.policy.retry import JITTER, backoff, conclude, pause_end, requeued
from gputui.domain.settings import SchedulerSettings
from gputui.domain.state import JobState
from tests.cases import cases
from tests.factories import NOW, running, uuid

SETTINGS = SchedulerSettings()
CAP = SETTINGS.backoff_cap


def ended(job: Job, exit_code: int) -> Job:
    return conclude(job, cause_of_exit(exit_code), exit_code, NOW, SETTINGS)


def broken(job: Job, code: CauseCode) -> Job:
    return conclude(job, Cause(code, "words"), None, NOW, SETTINGS)


def again(job: Job) -> Job:
    """The job running its next attempt."""
    attempt = Attempt(len(job.attempts) + 1, (uuid(0),), started_at=NOW)
    return job.to(JobState.CONFIGURING, attempts=(*job.attempts, attempt)).to(JobState.RUNNING)


def test_an_end_without_retries() -> None:
    # exit code 0 completes
    done = ended(running(1, on=[uuid(0)]), 0)
    assert (done.state, done.exit_code, done.ended_at, done.gpus) == (JobState.COMPLETED, 0, NOW, ())
    # a failure without retries fails with its cause
    failed = ended(running(1), 3)
    assert (failed.state, failed.exit_code) == (JobState.FAILED, 3)
    assert failed.cause == Cause(CauseCode.NON_ZERO_EXIT, "exit code 3")


def test_two_retries_make_three_attempts_with_growing_pauses() -> None:
    job = running(1, retries=2)
    first = ended(job, 3)
    second = ended(again(first), 3)
    last = ended(again(second), 3)
    assert (first.state, second.state, last.state) == (JobState.PENDING, JobState.PENDING, JobState.FAILED)
    assert first.not_before is not None
    assert second.not_before is not None
    assert timedelta(seconds=5) <= first.not_before - NOW < second.not_before - NOW <= timedelta(seconds=11)
    assert [attempt.number for attempt in last.attempts] == [1, 2, 3]
    assert last.submitted_at == job.submitted_at


@cases(
    ("later", "is_paused"),
    [(-3600.0, False), (-300.0, False), (-40.0, True), (0.0, True), (4.9, True), (6.0, False), (3600.0, False)],
)
def test_a_pause_ends_early_where_the_clock_was_set_back(later: float, is_paused: bool) -> None:
    failed = ended(running(1, retries=1), 3)
    now = NOW + timedelta(seconds=later)
    assert pause_end(failed, now, CAP) == (failed.not_before if is_paused else None)
    unended = failed.evolve(attempts=())
    assert (pause_end(unended, now, CAP) is not None) == (-600 < later < 5)


@given(st.integers(1, 1000), st.text(max_size=5))
def test_pauses_double_up_to_the_cap_with_a_little_jitter(failures: int, seed: str) -> None:
    pause = backoff(timedelta(seconds=5), failures, CAP, seed)
    plain = min(CAP, timedelta(seconds=5 * 2.0 ** min(failures - 1, 30)))
    assert plain <= pause <= plain * (1 + JITTER)
    assert pause == backoff(timedelta(seconds=5), failures, CAP, seed)


@cases(
    "code",
    [
        CauseCode.IMAGE_NOT_FOUND,
        CauseCode.BAD_SPEC,
        CauseCode.NOT_ALLOWED,
        CauseCode.COMMAND_NOT_FOUND,
        CauseCode.COMMAND_NOT_EXECUTABLE,
    ],
)
def test_a_job_that_cannot_run_as_written_is_never_retried(code: CauseCode) -> None:
    assert broken(running(1, retries=5), code).state is JobState.FAILED


@cases("code", [CauseCode.RUNTIME_ERROR, CauseCode.CONTAINER_LOST, CauseCode.PULL_FAILED])
def test_failures_of_the_machine_are_retried_free_of_charge(code: CauseCode) -> None:
    job = broken(running(1, on=[uuid(0)]), code)
    assert (job.state, job.charged_attempts, job.avoid_gpus) == (JobState.PENDING, 0, ())


@cases(
    ("cause", "avoided"),
    [
        (Cause(CauseCode.GPU_LOST, "fell off the bus", (uuid(3),)), (uuid(3),)),
        (Cause(CauseCode.GPU_LOST, "fell off the bus", (uuid(1), uuid(3))), (uuid(1), uuid(3))),
        (Cause(CauseCode.GPU_SETUP_FAILED, f"device error: {uuid(2)}: unknown device"), (uuid(2),)),
        (Cause(CauseCode.GPU_SETUP_FAILED, "nvidia-container-cli: initialization error"), ()),
    ],
)
def test_a_retry_avoids_only_the_gpu_named_by_the_cause(cause: Cause, avoided: tuple[str, ...]) -> None:
    job = conclude(running(1, on=[uuid(n) for n in range(4)]), cause, None, NOW, SETTINGS)
    assert (job.state, job.avoid_gpus) == (JobState.PENDING, avoided)
    assert requeued(job.evolve(requeue_requested=True, state=JobState.FAILED), NOW).avoid_gpus == ()


def test_failures_of_the_machine_and_preemptions() -> None:
    # repeated failures of the machine hold a job
    job = running(1)
    for _ in range(SETTINGS.infrastructure_retries - 1):
        job = broken(job, CauseCode.RUNTIME_ERROR)
        assert not job.held
        job = again(job)
    job = broken(job, CauseCode.RUNTIME_ERROR)
    assert job.held
    assert "20 starts that the machine failed" in (job.hold_reason or "")
    # preemptions are not failures of the machine
    job = running(1)
    for _ in range(SETTINGS.infrastructure_retries + 1):
        job = broken(job, CauseCode.PREEMPTED)
        assert (job.state, job.held, job.not_before, job.charged_attempts) == (JobState.PENDING, False, None, 0)
        job = again(job)
    assert not broken(job, CauseCode.RUNTIME_ERROR).held


def test_ends_that_a_limit_or_a_stop_explains() -> None:
    # out of memory and timeout are states of their own
    assert broken(running(1), CauseCode.OUT_OF_MEMORY).state is JobState.OUT_OF_MEMORY
    stopped = running(1).to(JobState.COMPLETING, stopping=Stopping(Cause(CauseCode.TIME_LIMIT, "over"), NOW))
    timed_out = ended(stopped, 143)
    assert (timed_out.state, timed_out.exit_code) == (JobState.TIMEOUT, 143)
    # a lost container keeps the reason of its stop
    stopped = running(1).to(JobState.COMPLETING, stopping=Stopping(Cause(CauseCode.TIME_LIMIT, "over"), NOW))
    lost = broken(stopped, CauseCode.CONTAINER_LOST)
    assert (lost.state, lost.cause) == (JobState.TIMEOUT, Cause(CauseCode.TIME_LIMIT, "over"))
    # a time limit counts even when the job obeys with 0
    stopped = running(1, retries=3).to(JobState.COMPLETING, stopping=Stopping(Cause(CauseCode.TIME_LIMIT, "over"), NOW))
    assert ended(stopped, 0).state is JobState.TIMEOUT


@cases(
    ("stop", "cause", "state"),
    [
        (CauseCode.GPU_LOST, None, JobState.COMPLETED),
        (CauseCode.PREEMPTED, None, JobState.COMPLETED),
        (CauseCode.GPU_LOST, CauseCode.END_UNKNOWN, JobState.FAILED),
        (CauseCode.PREEMPTED, CauseCode.END_UNKNOWN, JobState.PENDING),
        (CauseCode.GPU_LOST, CauseCode.NON_ZERO_EXIT, JobState.PENDING),
        (CauseCode.CANCELLED, CauseCode.END_UNKNOWN, JobState.CANCELLED),
    ],
)
def test_work_that_is_or_may_be_done_is_not_repeated_because_of_our_stop(
    stop: CauseCode, cause: CauseCode | None, state: JobState
) -> None:
    """A preemptible job may be: its user agreed to that."""
    stopped = running(1).to(JobState.COMPLETING, stopping=Stopping(Cause(stop, "stopped"), NOW))
    after = ended(stopped, 0) if cause is None else broken(stopped, cause)
    assert after.state is state


def test_cancelled_and_requeued_jobs() -> None:
    # a cancelled job stays cancelled however it ends
    for code in (0, 1, 143):
        job = ended(running(1, retries=3).evolve(cancel_requested=True), code)
        assert (job.state, job.cancel_requested) == (JobState.CANCELLED, False)
    # a requeued job keeps its age and attempts and has its retries back
    failed = ended(running(1, retries=0, age=500), 3)
    back = requeued(failed.evolve(requeue_requested=True), NOW)
    assert (back.state, back.requeue_requested, back.not_before) == (JobState.PENDING, False, None)
    assert (back.submitted_at, len(back.attempts), back.charged_attempts) == (failed.submitted_at, 1, 0)
