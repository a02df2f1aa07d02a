"""Retries by cause, the fast-failure guard, and more GPU memory after running out of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.action import Release
from gputui.domain.errors import Cause, CauseCode, RuntimeUnavailableError, StoreFullError
from gputui.domain.job_spec import GpuRequest, JobId, Submission
from gputui.domain.settings import SchedulerSettings, Settings
from gputui.domain.state import JobState, PendingReason
from gputui.domain.submit_action import SubmitJobs
from gputui.ports.store import Transaction
from tests.cases import cases
from tests.engine.fakes import FakeLog, LaterExecutor
from tests.engine.world import World
from tests.factories import GIB, spec, uuid

OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def fail(world: World, job_id: JobId, code: int = 1, *, after: float = 0, output: bytes = b"") -> None:
    """Start the job, let it run `after` seconds, then fail."""
    world.tick(2)
    [record] = [one for one in world.docker.running() if one.job_id == job_id]
    world.clock.advance(after)
    world.docker.output[record.id] = [b"epoch 1", output, b"bye"]
    world.exit(job_id, code)
    world.tick(2)


def fail_again(world: World, job_id: JobId, code: int = 1, **how: Any) -> None:
    """Fail the next attempt, once the pause before it is over."""
    world.clock.advance(3600)
    fail(world, job_id, code, **how)


# retry on


@cases(
    ("retry_on", "code", "again"),
    [
        ((), 1, True),
        (("1", "75"), 1, True),
        (("1", "75"), 75, True),
        (("1", "75"), 2, False),
        (("SIGNAL",), 143, True),
        (("SIGNAL",), 1, False),
        (("143",), 143, True),
        (("EXIT",), 9, True),
        (("EXIT",), 143, False),
        (("OOM",), 1, False),
    ],
)
def test_only_failures_of_the_listed_causes_are_retried(
    tmp_path: Path, retry_on: tuple[str, ...], code: int, again: bool
) -> None:
    world = World(tmp_path)
    job_id = world.submit(retries=1, retry_on=retry_on)
    fail(world, job_id, code)
    assert world.job(job_id).state is (JobState.PENDING if again else JobState.FAILED)


@cases(("retry_on", "attempts"), [((), 1), (("TIMEOUT",), 2)])
def test_a_timeout_is_retried_on_request_within_its_retries(
    tmp_path: Path, retry_on: tuple[str, ...], attempts: int
) -> None:
    world = World(tmp_path)
    job_id = world.submit(retries=1, retry_on=retry_on, time_limit=timedelta(seconds=30))
    for _ in range(6):
        world.tick(3, seconds=40)
    job = world.job(job_id)
    assert (job.state, len(job.attempts)) == (JobState.TIMEOUT, attempts)


def test_failures_of_the_machine_are_always_retried(world: World) -> None:
    job_id = world.submit(1, retry_on=("75",), retries=1)
    world.docker.fault = Cause(CauseCode.RUNTIME_ERROR, "containerd is full")
    world.tick(2)
    job = world.job(job_id)
    assert (job.state, job.attempts[0].charged) == (JobState.PENDING, False)


# fast failures


def test_requested_retries_are_used_even_if_the_job_fails_fast(world: World) -> None:
    job_id = world.submit(retries=5)
    for _ in range(5):
        fail_again(world, job_id)
        assert (world.job(job_id).state, world.job(job_id).held) == (JobState.PENDING, False)
    fail_again(world, job_id)
    job = world.job(job_id)
    assert (job.state, len(job.attempts)) == (JobState.FAILED, 6)
    assert job.cause is not None
    assert job.cause.text == "exit code 1; failed 6 times in a row, each within 10s"
    assert job.attempts[-1].cause is not None
    assert job.attempts[-1].cause.text == "exit code 1"


def test_one_slow_failure_resets_the_count_of_fast_ones(world: World) -> None:
    job_id = world.submit(retries=4)
    for seconds in (0, 0, 11, 0, 0):
        fail_again(world, job_id, after=seconds)
    job = world.job(job_id)
    assert (job.state, job.cause and job.cause.text) == (JobState.FAILED, "exit code 1")


def ruin(world: World, count: int, **changes: Any) -> list[JobId]:
    """Let `count` different jobs fail fast, one after the other."""
    ids = []
    for _ in range(count):
        ids.append(world.submit(**changes))
        fail(world, ids[-1])
    return ids


def test_an_image_whose_jobs_fail_fast_is_paused_with_the_reason_until_one_is_released(world: World) -> None:
    world.docker.images.add("broken")
    for number in range(5):
        ruin(world, 1, image="broken", tenant=f"t{number}")
    waiting, other = world.submit(image="broken", tenant="x"), world.submit(tenant="x")
    reason = world.tick(3).reasons[waiting]
    assert reason.code is PendingReason.BACK_OFF
    assert reason.text == (
        "image broken is paused, since its last 5 jobs failed within 10s (job 5: exit code 1); release one to continue"
    )
    assert world.job(other).state is JobState.RUNNING
    world.reborn()
    assert waiting in world.tick(2).reasons  # read off the stored jobs
    world.actions.act(Release((waiting,)))
    world.tick(2)
    assert world.job(waiting).state is JobState.RUNNING


def test_no_user_pauses_an_image_or_a_tenant_for_others(world: World) -> None:
    world.docker.images.add("broken")
    ruin(world, 5, image="broken")
    mine, others = world.submit(image="broken"), world.submit(image="broken")
    with world.store.transaction() as transaction:
        transaction.put(transaction.get(others).evolve(submitted_uid=61_001))
    assert "is paused" in world_reason(world, mine)
    assert world.job(others).state is JobState.RUNNING


def test_after_a_release_the_guard_counts_from_zero(world: World) -> None:
    world.docker.images.add("broken")
    ruin(world, 5, image="broken")
    waiting = world.submit(image="broken")
    world.tick(2)
    world.actions.act(Release((waiting,)))
    fail(world, waiting)
    ruin(world, 3, image="broken")
    fifth = world.submit(image="broken")
    fail(world, fifth)
    assert "is paused" in world_reason(world, world.submit(image="broken"))


def world_reason(world: World, job_id: JobId) -> str:
    return world.tick(2).reasons[job_id].text


def test_a_tenant_whose_jobs_fail_fast_in_any_image_is_paused(world: World) -> None:
    for number in range(5):
        world.docker.images.add(f"image{number}")
        ruin(world, 1, image=f"image{number}", tenant="bob")
    waiting, other = world.submit(tenant="bob"), world.submit(tenant="carol")
    assert world_reason(world, waiting).startswith("tenant bob is paused, since its last 5 jobs failed within 10s")
    assert world.job(other).state is JobState.RUNNING


def test_one_success_releases_an_image(world: World) -> None:
    running = world.submit()
    world.tick(2)
    ruin(world, 5)
    waiting = world.submit()
    assert "is paused" in world_reason(world, waiting)
    world.exit(running, 0)
    world.tick(3)
    assert world.job(waiting).state is JobState.RUNNING


def test_unknown_ends_after_a_killed_engine_pause_nobody(world: World) -> None:
    for _ in range(6):
        world.submit()
        world.tick(2)
        world.docker.made.clear()
        world.tick()
    job_id = world.submit()
    world.tick(2)
    assert world.job(job_id).state is JobState.RUNNING


def test_four_are_not_enough_and_the_guard_can_be_switched_off(tmp_path: Path) -> None:
    world = World(tmp_path / "four")
    ruin(world, 4)
    job_id = world.submit()
    world.tick(2)
    assert world.job(job_id).state is JobState.RUNNING
    off = World(tmp_path / "off", settings=Settings(SchedulerSettings(fast_failing_jobs=0, fast_failures=0)))
    ruin(off, 8)
    job_id = off.submit(retries=10)
    for _ in range(5):
        fail_again(off, job_id)
    assert not off.job(job_id).held


# GPU memory


def submit_for_30g(world: World) -> JobId:
    wanted = replace(spec(retries=3, gpu_memory_step=20 * GIB), gpus=GpuRequest(1, 1, memory=30 * GIB))
    [job_id] = world.actions.act(SubmitJobs((Submission(wanted),))).ids
    return job_id


def test_out_of_gpu_memory_is_recognised_by_the_last_lines(world: World) -> None:
    job_id = world.submit(1)
    fail(world, job_id, output=OOM)
    job = world.job(job_id)
    assert job.state is JobState.OUT_OF_MEMORY
    assert job.cause == Cause(CauseCode.GPU_OUT_OF_MEMORY, f"out of GPU memory (exit code 1): {OOM.decode()}")


@cases(("retry_on", "state"), [(("GPU_OOM",), JobState.PENDING), (("75",), JobState.OUT_OF_MEMORY)])
def test_out_of_gpu_memory_can_be_retried(tmp_path: Path, retry_on: tuple[str, ...], state: JobState) -> None:
    world = World(tmp_path)
    job_id = world.submit(1, retries=1, retry_on=retry_on)
    fail(world, job_id, output=b"RuntimeError: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")
    assert world.job(job_id).state is state


def test_the_next_attempt_asks_for_one_step_more_memory(world: World) -> None:
    job_id = submit_for_30g(world)
    fail(world, job_id, output=OOM)
    job = world.job(job_id)
    assert job.spec.gpus.memory == 50 * GIB
    assert str(job.cause and job.cause.text).endswith("; the next attempt asks for 50G per GPU")
    assert job.attempts[0].cause == job.cause
    fail_again(world, job_id, output=OOM)
    assert world.job(job_id).spec.gpus.memory == 70 * GIB


def test_no_attempt_asks_for_more_memory_than_any_gpu_has(world: World) -> None:
    job_id = world.submit(1, retries=5, gpu_memory_step=20 * GIB)
    fail(world, job_id, output=OOM)
    job = world.job(job_id)
    assert job.spec.gpus.memory is None
    assert "no GPU here has more than 80G, so the next attempt asks for no more" in str(job.cause)
    world.tick(2, seconds=10)
    assert world.job(job_id).gpus == (uuid(0),)


def test_other_failures_do_not_raise_the_memory_request(world: World) -> None:
    job_id = submit_for_30g(world)
    fail(world, job_id, output=b"ValueError")
    assert world.job(job_id).spec.gpus.memory == 30 * GIB
    assert world.job(job_id).cause == Cause(CauseCode.NON_ZERO_EXIT, "exit code 1")


def test_output_of_a_job_without_gpus_is_not_checked(world: World) -> None:
    job_id = world.submit()
    fail(world, job_id, output=OOM)
    assert world.job(job_id).state is JobState.FAILED


def test_the_tick_does_not_wait_for_the_check_and_the_next_scheduler_repeats_it(world: World) -> None:
    job_id = world.submit(1)
    world.tick(2)
    world.docker.output[world.docker.running()[0].id] = [OOM]
    world.exit(job_id, 1)
    for _ in range(2):
        later = LaterExecutor()
        world.workers = later
        world.reborn()
        world.tick(3)
        assert world.job(job_id).state is JobState.RUNNING
        assert len(later.waiting) == 3  # the history and the control groups are to be read too
    later.work()
    world.tick()
    assert world.job(job_id).state is JobState.OUT_OF_MEMORY


def test_unreadable_output_gives_no_cause(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(container_id: str, **_: object) -> None:
        raise RuntimeUnavailableError("docker does not answer")

    monkeypatch.setattr(world.docker, "logs", gone)
    job_id = world.submit(1)
    fail(world, job_id, output=OOM)
    assert world.job(job_id).cause == Cause(CauseCode.NON_ZERO_EXIT, "exit code 1")


def test_the_error_line_of_a_failed_attempt_is_kept(world: World) -> None:
    job_id = world.submit(0, retries=1)
    fail(world, job_id, output=b"ValueError: bad shape")
    waiting = world.job(job_id)
    assert waiting.cause == Cause(CauseCode.NON_ZERO_EXIT, "exit code 1")
    assert waiting.end_words == waiting.attempts[0].error == "ValueError: bad shape"
    assert world.tick().reasons[job_id].text.endswith(": ValueError: bad shape")
    world.clock.advance(3600)
    world.tick(2)
    assert world.job(job_id).end_words == ""
    fail(world, job_id, output=b"nothing of note")
    assert [attempt.error for attempt in world.job(job_id).attempts] == ["ValueError: bad shape", ""]
    assert world.job(job_id).end_words == "exit code 1"


def test_output_is_read_once_and_an_end_told_once_however_often_a_full_disk_refuses_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    job_id = world.submit(1)
    world.tick(2)
    [record] = world.docker.running()
    world.docker.output[record.id] = [OOM]
    reads: list[str] = []
    logs = world.docker.logs

    def read(container_id: str, **how: Any) -> FakeLog:
        reads.append(container_id)
        return logs(container_id, **how)

    monkeypatch.setattr(world.docker, "logs", read)
    world.exit(job_id, 1)
    transaction = world.store.transaction

    @contextmanager
    def refused() -> Iterator[Transaction]:
        with transaction() as made:
            yield made
            raise StoreFullError("no space left on the disk")

    with monkeypatch.context() as full:
        full.setattr(world.store, "transaction", refused)
        world.tick(5)
    world.tick(2)
    job = world.job(job_id)
    assert job.cause is not None
    assert (job.cause.code, reads) == (CauseCode.GPU_OUT_OF_MEMORY, [record.id])
    assert [text for text in caplog.messages if "by Finish" in text] == [
        f"job {job_id}: RUNNING to OUT_OF_MEMORY by Finish"
    ]
