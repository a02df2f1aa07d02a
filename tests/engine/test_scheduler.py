"""Steps of a tick, one by one, with fakes of runtimes, GPUs and workers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest
from msgspec.structs import replace

from gputui.domain.action import Cancel, DrainGpus, Hold, Pause, Release, Requeue, Unpause
from gputui.domain.container import Created, ForeignContainer, Launch
from gputui.domain.errors import Cause, CauseCode, RuntimeFault, RuntimeUnavailableError, StoreFullError
from gputui.domain.gpu import GpuState, Health, HealthCode, ProbeCode, ProbeStatus
from gputui.domain.policy.availability import UNANSWERED, UNASKED
from gputui.domain.settings import SchedulerSettings, Settings
from gputui.domain.snapshot import Notice
from gputui.domain.state import JobState, PendingReason
from tests.engine.fakes import LaterExecutor
from tests.engine.world import World
from tests.factories import GIB, uuid

ON_REAL_POOLS = True


def test_a_job_runs_and_its_log_is_saved(world: World) -> None:
    # a job is started on a free GPU and completes
    job_id = world.submit(2)
    world.tick(2)
    job = world.job(job_id)
    assert (job.state, job.gpus) == (JobState.RUNNING, (uuid(0), uuid(1)))
    world.exit(job_id, 0)
    world.tick(3)
    job = world.job(job_id)
    assert (job.state, job.exit_code, job.gpus) == (JobState.COMPLETED, 0, ())
    assert job.started_at is not None
    assert job.ended_at is not None
    # its log is saved before its container is removed
    job_id = world.submit()
    world.tick(2)
    name = world.docker.running()[0].id
    world.exit(job_id)
    world.tick(3)
    assert (world.directory / f"logs/{job_id}/1.log").read_text() == f"output of {name}"
    assert world.job(job_id).attempts[0].log_path == f"logs/{job_id}/1.log"
    assert world.docker.made == {}


def test_a_container_whose_log_cannot_be_saved_is_kept_and_tried_again(world: World) -> None:
    job_id = world.submit()
    world.tick(2)
    world.exit(job_id)
    (world.directory / "logs").write_text("in the way")
    world.tick(3)
    assert len(world.docker.made) == 1
    (world.directory / "logs").unlink()
    world.tick(1, seconds=31)
    assert world.docker.made == {}


def test_a_running_attempt_does_not_show_the_end_of_the_previous_one(world: World) -> None:
    job_id = world.submit(retries=1)
    world.tick(2)
    world.exit(job_id, 3)
    world.tick(10)
    job = world.job(job_id)
    assert (job.state, len(job.attempts), job.exit_code, job.cause) == (JobState.RUNNING, 2, None, None)
    assert job.attempts[0].exit_code == 3


def test_a_short_attempt_does_not_end_before_it_started(world: World) -> None:
    job_id = world.submit()
    world.tick(2)
    [record] = world.docker.running()
    really = world.clock.now() - timedelta(seconds=3)
    world.docker.made[record.id] = replace(record, started_at=really)
    world.exit(job_id)
    world.docker.made[record.id] = replace(world.docker.made[record.id], ended_at=really + timedelta(seconds=1))
    world.tick()
    job = world.job(job_id)
    assert (job.started_at, job.attempts[0].started_at) == (really, really)
    assert job.ended_at == really + timedelta(seconds=1)


def test_a_clock_set_back_does_not_delay_gpus(world: World) -> None:
    world.probe.gpus = world.probe.gpus[:1]
    first, second = world.submit(1), world.submit(1)
    world.tick(2)
    world.exit(first)
    world.tick()
    world.clock.advance(-3600)
    world.tick(2)
    assert world.job(second).state is JobState.RUNNING


def test_a_clock_set_back_does_not_extend_a_grace(world: World) -> None:
    world.docker.obeys = False
    job_id = world.submit()
    world.tick(2)
    world.actions.act(Cancel((job_id,)))
    world.tick()
    world.clock.advance(-3600)
    world.tick(3, seconds=10)
    assert [how for _, how in world.docker.told] == ["terminate", "kill"]
    assert world.job(job_id).state is JobState.CANCELLED


def test_a_clock_set_back_does_not_extend_a_retry_pause(world: World) -> None:
    job_id = world.submit(retries=1)
    world.tick(2)
    world.exit(job_id, 3)
    world.tick()
    world.clock.advance(-3600)
    world.tick(2)
    assert (world.job(job_id).state, len(world.job(job_id).attempts)) == (JobState.RUNNING, 2)


def test_a_damaged_queue_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.store, "damage", lambda: ("queue.json.wal.1: a line is damaged",))
    world.submit()
    assert Notice("warning", "queue.json.wal.1: a line is damaged") in world.tick().notices


def test_lost_output_of_a_removed_container_delays_nothing(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit()
    world.tick(2)
    world.exit(job_id)

    def removed_by_hand(container_id: str, path: Path) -> None:
        del world.docker.made[container_id]
        raise RuntimeFault(Cause(CauseCode.RUNTIME_ERROR, f"No such container: {container_id}"))

    monkeypatch.setattr(world.docker, "save_log", removed_by_hand)
    world.tick(3)
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
        f"job {job_id}: the output of attempt 1 was removed with its container"
    ]


def test_the_next_job_gets_the_gpu_as_soon_as_a_newer_reading_is_there(world: World) -> None:
    world.probe.gpus = world.probe.gpus[:1]
    first, second = world.submit(1), world.submit(1)
    world.tick(2)
    world.exit(first)
    refreshed = world.probe.refreshed
    world.observe()
    world.scheduler.tick(world.clock.now())  # the reading is of this very moment, not after it
    assert world.probe.refreshed == refreshed + 1
    assert world.job(second).state is JobState.PENDING
    world.tick()
    assert world.job(second).state is JobState.RUNNING


def test_host_jobs_and_containers_go_to_their_own_runtime(world: World) -> None:
    container, process = world.submit(), world.submit(image=None)
    world.tick(2)
    assert [record.job_id for record in world.docker.running()] == [container]
    assert [record.job_id for record in world.host.running()] == [process]


def test_retries_start_again_after_growing_pauses(world: World) -> None:
    job_id = world.submit(1, retries=2)
    pauses = []
    for _ in range(2):
        world.tick(2)
        world.exit(job_id, 3)
        world.tick()
        job = world.job(job_id)
        assert job.state is JobState.PENDING
        assert job.not_before is not None
        assert job.attempts[-1].ended_at is not None
        pauses.append(job.not_before - job.attempts[-1].ended_at)
        assert world.tick().reasons[job_id].code is PendingReason.BACK_OFF
        world.clock.advance(pauses[-1].total_seconds())
    world.tick(2)
    world.exit(job_id, 3)
    world.tick(2)
    job = world.job(job_id)
    assert (job.state, job.exit_code, len(job.attempts)) == (JobState.FAILED, 3, 3)
    assert pauses[0] < pauses[1]


def test_waiting_and_running_jobs_are_cancelled(world: World) -> None:
    # cancel of a waiting job ends it without a container
    job_id = world.submit(9)
    world.actions.act(Cancel((job_id,)))
    world.tick()
    job = world.job(job_id)
    assert (job.state, job.attempts, job.cancel_requested) == (JobState.CANCELLED, (), False)
    # cancel of a running job asks politely and frees its GPUs
    job_id = world.submit(1)
    world.tick(2)
    world.actions.act(Cancel((job_id,)))
    world.tick(3)
    job = world.job(job_id)
    assert (job.state, job.exit_code) == (JobState.CANCELLED, 143)
    assert [how for _, how in world.docker.told] == ["terminate"]


def test_a_job_that_ignores_sigterm_is_killed_after_its_grace(world: World) -> None:
    world.docker.obeys = False
    job_id = world.submit(1)
    world.tick(2)
    world.actions.act(Cancel((job_id,)))
    world.tick(5)
    assert world.job(job_id).state is JobState.COMPLETING
    assert [how for _, how in world.docker.told] == ["terminate"]
    world.tick(7)
    assert [how for _, how in world.docker.told] == ["terminate", "kill"]
    assert world.job(job_id).state is JobState.CANCELLED


def test_a_new_scheduler_continues_a_stop_that_the_last_one_began(world: World) -> None:
    world.docker.obeys = False
    job_id = world.submit(1)
    world.tick(2)
    world.actions.act(Cancel((job_id,)))
    world.tick()
    world.reborn()
    world.tick(13)
    assert world.job(job_id).state is JobState.CANCELLED


def test_requeue_of_a_running_job_runs_it_again_with_its_age(world: World) -> None:
    job_id = world.submit(1)
    world.tick(2)
    age = world.job(job_id).submitted_at
    world.actions.act(Requeue((job_id,)))
    world.tick(5)
    job = world.job(job_id)
    assert (job.state, len(job.attempts), job.submitted_at) == (JobState.RUNNING, 2, age)
    assert not job.requeue_requested


def test_holds_and_pauses_stop_starts(world: World) -> None:
    # hold keeps a job waiting until release
    job_id = world.submit()
    world.actions.act(Hold((job_id,)))
    assert world.tick(2).reasons[job_id].code is PendingReason.JOB_HELD_USER
    world.actions.act(Release((job_id,)))
    world.tick(2)
    assert world.job(job_id).state is JobState.RUNNING
    # pause stops starts and nothing else
    first = world.submit(1)
    world.tick(2)
    world.actions.act(Pause("driver update"))
    second = world.submit(1)
    assert world.tick(2).reasons[second].code is PendingReason.SCHEDULER_PAUSED
    assert world.job(first).state is JobState.RUNNING
    world.actions.act(Unpause())
    world.tick(2)
    assert world.job(second).state is JobState.RUNNING


def test_a_job_over_its_time_limit_times_out(world: World) -> None:
    job_id = world.submit(time_limit=timedelta(seconds=30))
    world.tick(2)
    world.tick(1, seconds=28)
    assert world.job(job_id).state is JobState.RUNNING
    world.tick(5)
    assert world.job(job_id).state is JobState.TIMEOUT


def test_a_job_whose_gpu_is_lost_is_requeued_elsewhere_free_of_charge(world: World) -> None:
    job_id = world.submit(1)
    world.tick(2)
    world.probe.sick(0, health=Health(HealthCode.LOST, "fell off the bus"))
    world.tick(3)
    job = world.job(job_id)
    assert job.attempts[0].cause == Cause(CauseCode.GPU_LOST, f"{uuid(0)}: fell off the bus", (uuid(0),))
    assert not job.attempts[0].charged
    world.tick(2, seconds=10)
    job = world.job(job_id)
    assert (job.state, job.gpus) == (JobState.RUNNING, (uuid(1),))
    assert world.snapshots[-1].gpus[0].state is GpuState.DRAINED


def test_an_unkillable_job_is_requeued_and_its_gpus_stay_occupied(world: World) -> None:
    job_id = world.submit(2)
    world.tick(2)
    world.docker.dies = False
    world.probe.sick(0, health=Health(HealthCode.LOST, "fell off the bus"))
    world.tick(5, seconds=10)
    assert world.job(job_id).state is JobState.COMPLETING
    world.tick(5, seconds=10)
    job = world.job(job_id)
    assert (job.state, job.gpus) == (JobState.RUNNING, (uuid(2), uuid(3)))
    [holder] = world.snapshots[-1].gpus[1].holders
    assert (holder.kind, holder.name) == ("container", "attempt 1 of job 1, which does not stop")
    world.docker.dies = True
    world.tick(3, seconds=10)
    assert [view.state for view in world.snapshots[-1].gpus[:2]] == [GpuState.DRAINED, GpuState.FREE]


def test_drained_and_foreign_gpus_are_skipped_and_named(world: World) -> None:
    world.actions.act(DrainGpus((uuid(0),), "fan"))
    world.docker.others = (ForeignContainer("f" * 64, "vllm", "bob", ("1",)),)
    world.probe.sick(2, memory_used=30 * GIB)
    job_id = world.submit(1)
    snapshot = world.tick(2)
    assert world.job(job_id).gpus == (uuid(3),)
    states = [view.state for view in snapshot.gpus]
    assert states == [GpuState.DRAINED, GpuState.FOREIGN, GpuState.FOREIGN, GpuState.ALLOCATED]
    assert snapshot.gpus[1].holders[0].name == "vllm"


def test_a_hung_driver_stops_starts_with_a_reason_but_running_jobs_continue(world: World) -> None:
    first = world.submit(1)
    world.tick(2)
    world.probe.status = ProbeStatus(ProbeCode.WEDGED, "NVML has not answered for 12s")
    second = world.submit(1)
    reason = world.tick(2).reasons[second]
    assert reason.code is PendingReason.RESOURCES
    assert "3 unknown" in reason.text
    assert world.snapshots[-1].nodes[0].probe.text == "NVML has not answered for 12s"
    assert world.job(first).state is JobState.RUNNING
    assert world.job(second).state is JobState.PENDING


def test_an_image_is_pulled_before_gpus_are_taken(world: World, later: LaterExecutor) -> None:
    wide, narrow = world.submit(4, image="big"), world.submit(4)
    world.tick(2)
    seen: list[JobState] = []
    pull = world.docker.pull

    def slow(image: str, progress: object, cancelled: Event) -> None:
        seen.append(world.job(wide).state)
        seen.append(JobState.PENDING if world.job(wide).gpus else JobState.CONFIGURING)
        pull(image, progress, cancelled)  # type: ignore[arg-type]

    world.docker.pull = slow  # type: ignore[method-assign]
    for _ in range(4):
        later.work()
        world.tick()
    assert seen == [JobState.CONFIGURING, JobState.CONFIGURING]
    assert world.job(wide).state is JobState.RUNNING
    assert world.job(narrow).state is JobState.PENDING


def test_failures_of_a_job_before_its_start(world: World) -> None:
    # a missing image fails the job with its cause
    job_id = world.submit(image="nobody/has:this", retries=3)
    world.tick(3)
    job = world.job(job_id)
    assert job.state is JobState.FAILED
    assert job.cause == Cause(CauseCode.IMAGE_NOT_FOUND, "no image nobody/has:this")
    # a start failure caused by the job fails it
    world.docker.fault = Cause(CauseCode.COMMAND_NOT_FOUND, "no such command: trian.py")
    job_id = world.submit(1)
    world.tick(2)
    job = world.job(job_id)
    assert (job.state, job.exit_code) == (JobState.FAILED, 127)


def test_cancel_during_a_pull_is_obeyed_at_once(world: World, later: LaterExecutor) -> None:
    job_id = world.submit(image="big")
    world.tick()
    with world.store.transaction() as transaction:  # as the worker does when it begins to pull
        transaction.put(transaction.get(job_id).to(JobState.CONFIGURING))
    world.actions.act(Cancel((job_id,)))
    world.tick()
    assert world.job(job_id).state is JobState.CANCELLED
    later.work()
    world.tick()
    assert world.job(job_id).state is JobState.CANCELLED


def test_a_start_failure_caused_by_the_machine_is_retried_on_other_gpus(world: World) -> None:
    world.docker.fault = Cause(CauseCode.GPU_SETUP_FAILED, "the NVIDIA hook failed")
    job_id = world.submit(1)
    world.tick(2)
    world.docker.fault = None
    world.tick(2, seconds=10)
    job = world.job(job_id)
    assert (job.state, job.gpus, job.charged_attempts) == (JobState.RUNNING, (uuid(1),), 0)


def test_a_missing_engine_fails_no_job(world: World) -> None:
    first = world.submit(1)
    world.tick(2)
    world.docker.up = False
    second = world.submit(1)
    snapshot = world.tick(3)
    assert world.job(first).state is JobState.RUNNING
    assert snapshot.reasons[second].text == "docker does not answer"
    assert {view.state for view in snapshot.gpus[1:]} == {GpuState.UNKNOWN}
    world.docker.up = True
    world.tick(2)
    assert world.job(second).state is JobState.RUNNING


def test_a_job_that_succeeds_without_a_part_of_it_is_completed_with_a_note(world: World) -> None:
    job_id = world.submit(retries=3)
    after = world.submit(after=(job_id,))
    world.tick(2)
    [record] = world.docker.running()
    world.exit(job_id)
    world.docker.made[record.id] = replace(world.docker.made[record.id], notes=("a part of it was killed",))
    world.tick(3)
    job = world.job(job_id)
    assert (job.state, job.attempts[-1].notes) == (JobState.COMPLETED, ("a part of it was killed",))
    assert world.job(after).state is JobState.RUNNING


def test_a_container_removed_by_hand_may_have_finished_its_work(world: World) -> None:
    job_id = world.submit(1)
    world.tick(2)
    world.docker.made.clear()
    world.tick()
    job = world.job(job_id)
    assert (job.state, job.attempts[0].charged) == (JobState.FAILED, True)
    assert job.attempts[0].cause is not None
    assert job.attempts[0].cause.code is CauseCode.END_UNKNOWN


def test_a_start_that_an_engine_does_not_answer_has_a_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(launch: Launch) -> Created:
        world.docker.up = False
        raise RuntimeUnavailableError("docker does not answer")

    with monkeypatch.context() as dying:
        dying.setattr(world.docker, "create", die)
        job_id = world.submit(1)
        shown = world.tick(3)
        assert world.job(job_id).state is JobState.CONFIGURING
        assert shown.progress == {job_id: "starting: docker does not answer"}
    world.docker.up = True
    shown = world.tick(3)
    assert (world.job(job_id).state, shown.progress) == (JobState.RUNNING, {})


def test_a_start_that_takes_long_has_a_reason(world: World, later: LaterExecutor) -> None:
    job_id = world.submit(1)
    world.tick()
    later.work()  # looks for its image
    world.tick(seconds=4)
    assert world.tick(seconds=4).progress == {}
    assert world.tick(seconds=4).progress == {job_id: "starting: docker has not confirmed it yet"}
    later.work()
    assert world.tick(2).progress == {}
    assert world.job(job_id).state is JobState.RUNNING


def test_a_full_disk_stops_starts_with_a_notice_until_there_is_room(world: World) -> None:
    job_id = world.submit(1)
    transaction = world.store.transaction

    def full() -> object:
        raise StoreFullError("no space left on the disk")

    world.store.transaction = full  # type: ignore[method-assign,assignment]
    snapshot = world.tick(3)
    assert [notice.severity for notice in snapshot.notices] == ["error"]
    assert "no space left" in snapshot.notices[0].text
    assert world.docker.started == []
    world.store.transaction = transaction  # type: ignore[method-assign]
    assert world.tick(2).notices == ()
    assert world.job(job_id).state is JobState.RUNNING


def test_the_probe_reads_the_disks_of_the_state_directory_and_of_the_engine(world: World) -> None:
    world.tick()
    assert world.probe.disks == {"state": str(world.directory)}
    world.docker.data_root = "/srv/docker"
    world.tick(2)
    assert world.probe.disks == {"state": str(world.directory), "docker": "/srv/docker"}


def test_a_disk_that_fills_while_a_job_starts_loses_nothing(world: World, later: LaterExecutor) -> None:
    job_id = world.submit(1)
    world.tick()
    later.work()  # the image is looked up
    world.tick()  # claimed
    transaction = world.store.transaction

    def full() -> object:
        raise StoreFullError("no space left on the disk")

    world.store.transaction = full  # type: ignore[method-assign,assignment]
    later.work()  # started, but RUNNING cannot be written
    world.tick(2)
    assert world.job(job_id).state is JobState.CONFIGURING
    world.store.transaction = transaction  # type: ignore[method-assign]
    world.tick()
    assert world.job(job_id).state is JobState.RUNNING
    assert len(world.docker.started) == 1


def test_a_start_under_way_is_not_mistaken_for_a_lost_one(world: World, later: LaterExecutor) -> None:
    job_id = world.submit(1)
    world.tick()
    later.work()
    world.tick(3)
    job = world.job(job_id)
    assert (job.state, len(job.attempts), world.docker.started) == (JobState.CONFIGURING, 1, [])
    later.work()
    world.tick()
    assert world.job(job_id).state is JobState.RUNNING
    assert len(world.docker.started) == 1


def test_a_running_container_of_an_ended_attempt_is_killed(world: World) -> None:
    job_id = world.submit(1)
    world.tick(2)
    job = world.job(job_id)
    with world.store.transaction() as transaction:  # an older state was restored
        transaction.put(job.with_attempt(ended_at=world.clock.now()).to(JobState.FAILED))
    world.tick(2)
    assert [how for _, how in world.docker.told] == ["kill"]
    assert world.docker.running() == []


def test_a_container_of_an_unknown_job_keeps_running_and_its_gpus_stay_occupied(world: World, tmp_path: Path) -> None:
    world.submit(1)
    world.tick(2)
    other = World(tmp_path / "other")
    other.docker = world.docker
    other.reborn()
    snapshot = other.tick(2)
    assert snapshot.gpus[0].state is GpuState.FOREIGN
    assert "lost queue" in snapshot.gpus[0].holders[0].name
    assert world.docker.told == []


def test_jobs_without_gpus_run_up_to_their_limit(tmp_path: Path) -> None:
    world = World(tmp_path, settings=Settings(SchedulerSettings(cpu_jobs=3)))
    for _ in range(5):
        world.submit()
    world.tick(3)
    assert len(world.docker.running()) == 3


def test_a_host_job_whose_runtime_is_missing_waits_with_the_reason(world: World) -> None:
    del world.scheduler.observers["process"]
    job_id = world.submit(image=None)
    assert world.tick().reasons[job_id].text == "host jobs are switched off"


def test_an_engine_before_its_first_answer_has_no_warning(world: World) -> None:
    world.scheduler.tick(world.clock.now())
    assert {view.why for view in world.snapshots[-1].gpus} == {UNASKED}
    assert world.tick().gpus[0].state is GpuState.FREE


def test_an_engine_that_does_not_answer_the_first_question_is_reported(world: World) -> None:
    world.docker.up = False
    assert {view.why for view in world.tick().gpus} == {UNANSWERED}


def test_a_new_runtime_does_not_hide_an_unavailable_one(world: World) -> None:
    world.docker.up = False
    world.scheduler.observers["docker"].observe()
    world.scheduler.tick(world.clock.now())
    assert {view.why for view in world.snapshots[-1].gpus} == {UNANSWERED}
