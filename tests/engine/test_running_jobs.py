"""Changes of running jobs: time limits, rights, signals and suspension."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gputui.domain.access import Actor
from gputui.domain.action import Cancel, Edit, EditJobs, Signal, Suspend, Unsuspend
from gputui.domain.errors import Cause, CauseCode, GputuiError, InputError, RuntimeFault, RuntimeUnavailableError
from gputui.domain.job_spec import LimitWarning
from gputui.domain.policy.planning_context import Durations
from gputui.domain.settings import AccessSettings, PolicySettings, SchedulerSettings, Settings
from gputui.domain.state import JobState
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.permissions import UserPermissions
from gputui.engine.telemetry_files import telemetry_path
from tests.cases import cases
from tests.engine.callers import actions_of, caller_of
from tests.engine.real_pools import RealPools
from tests.engine.world import World
from tests.factories import GIB, NOW, job, running, uuid
from tests.memory_store import MemoryJobStore

ON_REAL_POOLS = True
HOUR = timedelta(hours=1)
OWNER, MEMBER, ROOT = Actor(61_233, "alice"), Actor(61_234, "member"), Actor(0, "root")


def limit(value: timedelta | None) -> Edit:
    return Edit(spec={"time_limit": value})


# the scheduler


def test_an_extended_job_continues_and_is_warned_before_its_new_limit(world: World) -> None:
    job_id = world.submit(1, time_limit=timedelta(seconds=100), warning=LimitWarning(10, timedelta(seconds=40)))
    world.tick(2)
    world.tick(1, seconds=61)
    assert [how for _, how in world.docker.told] == ["signal 10"]
    world.actions.act(EditJobs((job_id,), limit(timedelta(seconds=200))))
    world.reborn()
    world.tick(1, seconds=60)
    assert world.job(job_id).state is JobState.RUNNING
    assert len(world.docker.told) == 1
    world.tick(1, seconds=40)
    assert [how for _, how in world.docker.told] == ["signal 10", "signal 10"]
    world.tick(1, seconds=40)
    assert world.job(job_id).state is JobState.COMPLETING
    world.tick(2)
    ended = world.job(job_id)
    assert (ended.state, len(ended.attempts), len(world.docker.started)) == (JobState.TIMEOUT, 1, 1)
    assert ended.cause is not None
    assert ended.cause.text == "over its time limit of 3m20s"


def test_a_shortened_job_is_warned_at_once_and_ended_sooner(world: World) -> None:
    job_id = world.submit(1, time_limit=HOUR, warning=LimitWarning(10, timedelta(seconds=40)))
    world.tick(2)
    world.tick(1, seconds=30)
    world.actions.act(EditJobs((job_id,), limit(timedelta(seconds=60))))
    world.tick()
    assert [how for _, how in world.docker.told] == ["signal 10"]
    world.tick(2, seconds=30)
    assert world.job(job_id).state is JobState.TIMEOUT


def test_an_extension_in_the_middle_of_a_tick_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = world.submit(1, time_limit=timedelta(seconds=100))
    world.tick(2)
    refresh = world.scheduler.context.refresh

    def late() -> None:
        refresh()
        monkeypatch.setattr(world.scheduler.context, "refresh", refresh)
        world.actions.act(EditJobs((job_id,), limit(timedelta(seconds=300))))

    monkeypatch.setattr(world.scheduler.context, "refresh", late)
    world.clock.advance(120)
    world.observe()
    world.scheduler.tick(world.clock.now())
    assert world.job(job_id).state is JobState.RUNNING
    assert world.docker.told == []


def test_an_extended_job_is_planned_to_run_to_its_limit_though_the_site_allows_less() -> None:
    day, policy = timedelta(days=1), PolicySettings()
    extended, waiting = limit(3 * day).on(running(1, time_limit=day), NOW), job(2)
    durations = Durations([extended, waiting], policy, day)
    assert (durations.seconds(extended), durations.seconds(waiting)) == (3 * 86400, 86400)
    assert Durations([extended], PolicySettings(max_time=day), day).seconds(extended) == 86400


# signals


def told(world: World) -> list[str]:
    return [how for _, how in world.docker.told]


def test_signals_are_sent_once_in_order_and_by_the_next_scheduler_too(world: World) -> None:
    job_id = world.submit(1)
    world.tick(2)
    world.actions.act(Signal((job_id,), 10))
    world.actions.act(Signal((job_id,), 12))
    world.reborn()
    world.tick(2)
    assert told(world) == ["signal 10", "signal 12"]
    assert world.job(job_id).signals == ()
    assert [entry.after for entry in world.store.audit_log(f"job {job_id}") if entry.verb == "signal"][-1] == (
        "RUNNING: priority 50, to be sent SIGUSR1, to be sent SIGUSR2"
    )


def test_a_signal_waits_for_a_runtime_that_does_not_answer(world: World) -> None:
    job_id = world.submit(1)
    world.tick(2)
    world.actions.act(Signal((job_id,), 10))
    world.docker.up = False
    world.tick(2)
    assert told(world) == []
    world.docker.up = True
    world.tick(2)
    assert told(world) == ["signal 10"]


def test_signals_that_a_failing_runtime_did_not_take_are_sent_later_once_and_in_order(world: World) -> None:
    """Raise a fault of the runtime between two signals, after the tick found it reachable."""
    job_id = world.submit(1)
    world.tick(2)
    send = world.docker.signal

    def fail_at_second(container_id: str, number: int) -> None:
        if number == 12:
            raise RuntimeUnavailableError("docker does not answer")
        send(container_id, number)

    for number in (10, 12, 15):
        world.actions.act(Signal((job_id,), number))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.docker, "signal", fail_at_second)
        world.tick(2)
        assert told(world) == ["signal 10"]
    world.tick(2)
    assert told(world) == ["signal 10", "signal 12", "signal 15"]
    assert world.job(job_id).signals == ()


def test_a_signal_that_the_runtime_refuses_is_not_sent_again(world: World) -> None:
    job_id = world.submit(1)
    world.tick(2)
    asked = []

    def refuse(container_id: str, number: int) -> None:
        del container_id
        asked.append(number)
        raise RuntimeFault(Cause(CauseCode.RUNTIME_ERROR, "no such process"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.docker, "signal", refuse)
        world.actions.act(Signal((job_id,), 10))
        world.tick(3)
    assert asked == [10]
    assert world.job(job_id).signals == ()


def test_only_running_jobs_get_signals_and_an_ended_one_forgets_them(world: World) -> None:
    job_id, waiting = world.submit(1), world.submit(99)
    with pytest.raises(GputuiError, match="job 2 is PENDING: only a running job can be sent a signal"):
        world.actions.act(Signal((waiting,), 10))
    world.tick(2)
    world.docker.up = False
    for _ in range(16):
        world.actions.act(Signal((job_id,), 10))
    with pytest.raises(GputuiError, match="has 16 signals to get already"):
        world.actions.act(Signal((job_id,), 10))
    world.docker.up = True
    world.exit(job_id)
    world.observe()
    world.scheduler.tick(world.clock.now())
    assert (world.job(job_id).signals, told(world)) == ((), [])


# suspension


@cases("how", ["suspend", "unsuspend"])
def test_a_runtime_that_fails_is_asked_again(tmp_path: Path, pools: RealPools | None, how: str) -> None:
    world = World(tmp_path, pools=pools)
    job_id = world.submit(1)
    world.tick(2)
    if how == "unsuspend":
        world.actions.act(Suspend((job_id,)))
        world.tick(2)

    def fail(container_id: str) -> None:
        raise RuntimeFault(Cause(CauseCode.RUNTIME_ERROR, f"{container_id}: it cannot be frozen"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.docker, how, fail)
        world.actions.act(Suspend((job_id,)) if how == "suspend" else Unsuspend((job_id,)))
        world.tick(2)
    assert how not in told(world)
    world.tick(3)
    assert told(world)[-1] == how
    assert told(world).count(how) == 1


def test_a_job_is_suspended_and_woken_across_schedulers(world: World) -> None:
    job_id = world.submit(1, time_limit=HOUR)
    world.tick(2)
    world.actions.act(Suspend((job_id,)))
    world.tick(2)
    assert told(world) == ["suspend"]
    job = world.job(job_id)
    assert (job.state, job.is_suspended, len(job.gpus)) == (JobState.RUNNING, True, 1)
    world.reborn()
    world.tick(3)
    assert told(world) == ["suspend"]
    with pytest.raises(GputuiError, match="is suspended, and gets no signals"):
        world.actions.act(Signal((job_id,), 10))
    world.actions.act(Unsuspend((job_id,)))
    world.reborn()
    world.tick(3)
    assert told(world) == ["suspend", "unsuspend"]
    assert not world.job(job_id).is_suspended
    assert world.actions.act(Unsuspend((job_id,))).ids == ()


def test_a_job_woken_by_the_engine_is_suspended_again_and_foreign_suspensions_stay(world: World) -> None:
    job_id, other = world.submit(1), world.submit(1)
    world.tick(2)
    world.actions.act(Suspend((job_id,)))
    world.tick(2)
    first, second = sorted(record.id for record in world.docker.running())
    world.docker.made[first] = replace(world.docker.made[first], is_suspended=False)
    world.docker.made[second] = replace(world.docker.made[second], is_suspended=True)
    world.tick(2)
    assert world.docker.told == [(first, "suspend"), (first, "suspend")]
    assert not world.job(other).is_suspended


def test_a_suspended_job_is_not_warned_but_ends_at_its_limit_and_is_cancelled_at_once(world: World) -> None:
    warning = LimitWarning(10, timedelta(seconds=40))
    limited, cancelled = (world.submit(1, time_limit=timedelta(seconds=100), warning=warning) for _ in range(2))
    world.tick(2)
    world.actions.act(Suspend((limited, cancelled)))
    world.tick(2)
    world.actions.act(Cancel((cancelled,)))
    world.tick(3)
    assert world.job(cancelled).state is JobState.CANCELLED
    world.tick(1, seconds=60)
    world.tick(3, seconds=40)
    assert world.job(limited).state is JobState.TIMEOUT
    assert not world.job(limited).suspended
    assert told(world) == ["suspend", "suspend", "terminate", "terminate"]


def test_only_running_jobs_are_suspended(world: World) -> None:
    waiting = world.submit(99)
    with pytest.raises(GputuiError, match="is PENDING: only a running job can be suspended"):
        world.actions.act(Suspend((waiting,)))


# who may, and how far


class Desk:
    """A shared queue with a job of alice that has run for a minute of its hour."""

    def __init__(
        self, directory: Path, *, extend: str = "owner", users: tuple[str, ...] = ("*",), **changes: Any
    ) -> None:
        self.store = MemoryJobStore()
        policy = PolicySettings(extend=extend)
        settings = Settings(SchedulerSettings(max_time=4 * HOUR), access=AccessSettings(users=users), policy=policy)
        self.permissions = UserPermissions(directory, settings)
        changes = {"time_limit": HOUR, "submitted_by": "alice", "submitted_uid": OWNER.uid, **changes}
        with self.store.transaction() as transaction:
            transaction.add(running(1, **changes))

    def of(self, actor: Actor) -> Actions:
        return actions_of(caller_of(actor, self.permissions), self.store, self.permissions)

    @property
    def limit(self) -> timedelta | None:
        return self.store.get(1).spec.time_limit


def test_limits_of_running_jobs_and_rights(tmp_path: Path) -> None:
    # the owner shortens and extends within the site s limits
    desk = Desk(tmp_path)
    for wanted in (timedelta(minutes=30), 4 * HOUR, 2 * HOUR):
        assert desk.of(OWNER).act(EditJobs((1,), limit(wanted))).ids
        assert desk.limit == wanted
    too_much: tuple[timedelta | None, ...] = (5 * HOUR, None)
    for more in too_much:
        with pytest.raises(GputuiError, match="is longer than a job may run here"):
            desk.of(OWNER).act(EditJobs((1,), limit(more)))
    assert [entry.after for entry in desk.store.audit_log("job 1")][-1] == "time_limit 2:00:00"
    # operators may exceed the limits and others may change nothing
    desk = Desk(tmp_path)
    with pytest.raises(GputuiError, match="job 1: only alice, who submitted it, and operators may edit it"):
        desk.of(MEMBER).act(EditJobs((1,), limit(timedelta(minutes=30))))
    desk.of(ROOT).act(EditJobs((1,), limit(9 * HOUR)))
    assert desk.limit == 9 * HOUR
    desk.of(OWNER).act(EditJobs((1,), limit(8 * HOUR)))
    assert desk.limit == 8 * HOUR, "shorter, though more than the site allows"
    desk.of(ROOT).act(EditJobs((1,), limit(None)))
    assert desk.store.get(1).spec.time_limit is None
    # a site may leave extensions to operators
    desk = Desk(tmp_path, extend="operator")
    with pytest.raises(GputuiError, match="only operators may give a running job more time"):
        desk.of(OWNER).act(EditJobs((1,), limit(2 * HOUR)))
    desk.of(OWNER).act(EditJobs((1,), limit(HOUR / 2)))
    desk.of(ROOT).act(EditJobs((1,), limit(2 * HOUR)))
    assert desk.limit == 2 * HOUR
    # in a private queue everyone may extend jobs
    desk = Desk(tmp_path, extend="operator", users=())
    desk.of(MEMBER).act(EditJobs((1,), limit(9 * HOUR)))
    assert desk.limit == 9 * HOUR
    # what the kernel told counts for more than the name
    desk = Desk(tmp_path, submitted_uid=61_234)
    with pytest.raises(GputuiError, match="only alice"):
        desk.of(OWNER).act(EditJobs((1,), limit(HOUR / 2)))
    desk.of(MEMBER).act(EditJobs((1,), limit(HOUR / 2)))


def test_who_suspends_signals_and_comments(tmp_path: Path) -> None:
    # suspending is for the owner and operators
    desk = Desk(tmp_path)
    with pytest.raises(GputuiError, match="only alice, who submitted it, and operators may suspend it"):
        desk.of(MEMBER).act(Suspend((1,)))
    assert desk.of(OWNER).act(Suspend((1,))).ids == (1,)
    with pytest.raises(GputuiError, match="may let it continue"):
        desk.of(MEMBER).act(Unsuspend((1,)))
    assert desk.of(ROOT).act(Unsuspend((1,))).ids == (1,)
    # signals are for the owner and operators
    desk = Desk(tmp_path)
    with pytest.raises(GputuiError, match="only alice, who submitted it, and operators may send it signals"):
        desk.of(MEMBER).act(Signal((1,), 10))
    desk.of(OWNER).act(Signal((1,), 10))
    desk.of(ROOT).act(Signal((1,), 15))
    assert desk.store.get(1).signals == (10, 15)
    # the comment of a running job is its owner s
    desk = Desk(tmp_path)
    note = Edit(spec={"comment": "diverged at step 100"})
    desk.of(OWNER).act(EditJobs((1,), note))
    after = desk.store.get(1)
    assert (after.spec.comment, after.limit_changed_at) == ("diverged at step 100", None)
    with pytest.raises(GputuiError, match="only alice"):
        desk.of(MEMBER).act(EditJobs((1,), note))
    # a job whose image is being fetched can be changed
    desk = Desk(tmp_path, state=JobState.PENDING)
    with desk.store.transaction() as transaction:
        transaction.put(transaction.get(1).evolve(state=JobState.CONFIGURING, attempts=(), started_at=None))
    desk.of(OWNER).act(EditJobs((1,), limit(timedelta(seconds=1))))
    assert desk.limit == timedelta(seconds=1)


def test_impossible_changes_of_running_jobs_are_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path, warning=LimitWarning(10, timedelta(minutes=5)))
    root = desk.of(ROOT)
    with pytest.raises(InputError, match="job 1 has run for 1m00s: the limit of 1m has already passed"):
        root.act(EditJobs((1,), limit(timedelta(minutes=1))))
    with pytest.raises(InputError, match="5m before the end is before the start"):
        root.act(EditJobs((1,), limit(timedelta(minutes=4))))
    with pytest.raises(InputError, match="warns of a time limit, but the job has none"):
        root.act(EditJobs((1,), limit(None)))
    with pytest.raises(GputuiError, match="only its time limit and its comment can be changed now"):
        root.act(EditJobs((1,), Edit(spec={"time_limit": HOUR, "name": "late"})))
    with pytest.raises(GputuiError, match="only its time limit and its comment can be changed now"):
        root.foresee(EditJobs((1,), Edit(held=True)))
    for state in (JobState.COMPLETING, JobState.TIMEOUT):
        with desk.store.transaction() as transaction:
            transaction.put(transaction.get(1).evolve(state=state, ended_at=NOW))
        with pytest.raises(GputuiError, match=f"job 1 is {state}: it can no longer be edited"):
            root.act(EditJobs((1,), limit(2 * HOUR)))
    assert desk.limit == HOUR


# how it used its GPUs


def test_the_use_of_gpus_is_measured_across_schedulers(world: World) -> None:
    job_id = world.submit(2)
    world.tick(2)
    gpus = [int(each[4:12], 16) for each in world.job(job_id).gpus]
    for index in gpus:
        world.probe.changed[uuid(index)] = {"utilization": 0.8, "memory_used": 20 * GIB}
    world.tick(10)
    world.scheduler.stop()
    world.reborn()
    for index in gpus:
        world.probe.changed[uuid(index)] = {"utilization": 0.0, "memory_used": 10 * GIB}
    world.tick(9)
    world.exit(job_id)
    world.tick(2)
    job = world.job(job_id)
    told = job.attempts[0].efficiency
    assert told is not None
    assert told.utilization is not None
    assert told.idle is not None
    assert 0.35 < told.utilization < 0.45
    assert 0.45 < told.idle < 0.55
    assert (told.memory_peak, told.memory_total) == (20 * GIB, 80 * GIB)
    assert 19 <= told.seconds <= 22
    assert job.end_info == f"util {told.utilization * 100:.0f}%  mem 20G/80G"
    world.tick(1, seconds=61)
    assert job.attempts[0].telemetry is not None
    assert {each.name for each in (world.directory / "logs" / str(job_id)).iterdir()} == {"1.log", "1.telemetry"}


def test_invalid_telemetry_does_not_stop_the_scheduler(world: World) -> None:
    job_id = world.submit(1)
    world.tick(3)
    world.scheduler.stop()
    container_id = world.job(job_id).attempts[0].container_id
    tally = {"gpus": 1, "began": "2026-01-01T00:00:00"}  # not a number of seconds
    path = world.directory / telemetry_path(job_id, 1)
    path.write_bytes(msgspec.msgpack.encode({"container_id": container_id, "tally": tally}))
    world.reborn()
    world.tick(3)
    world.exit(job_id)
    world.tick(2)
    assert world.job(job_id).attempts[0].efficiency is not None


def test_a_job_without_gpus_and_a_damaged_file_have_no_figures(world: World) -> None:
    job_id = world.submit(0)
    world.tick(3)
    world.scheduler.stop()
    path = world.directory / telemetry_path(job_id, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"torn")
    world.reborn()
    world.exit(job_id)
    world.tick(2)
    assert world.job(job_id).attempts[0].efficiency is None
