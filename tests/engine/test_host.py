"""The loop around ticks, and hand-over of leadership, with real threads and a real event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.bootstrap import SystemClock
from gputui.domain.errors import NotLeaderError, StoreFormatError
from gputui.domain.gpu import Drain, GpuState
from gputui.domain.job_spec import Submission
from gputui.domain.snapshot import Leader, Node, Snapshot
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.engine import host, loop
from gputui.engine.actions.actions import Actions
from gputui.engine.feed import Feed
from gputui.engine.host import Adapters, Extras, Host
from gputui.engine.leadership import LOCK_FILE, Leadership
from gputui.engine.loop import SchedulingFailedError
from gputui.engine.tick import snapshot_builder
from gputui.engine.tick.scheduler import Scheduler
from gputui.ports import SteadyClock
from gputui.store import TinyJobStore
from tests.engine.fakes import FakeProbe, FakeRuntime
from tests.engine.world import World
from tests.factories import ACTOR, spec, uuid, view


class Seat:
    """A host in a world, and its published snapshots."""

    def __init__(
        self,
        world: World,
        clock: SteadyClock,
        kind: str,
        *,
        may_lead: bool = True,
        hand_over: Callable[[], object] | None = None,
        stands_in: bool = False,
    ) -> None:
        self.feed = Feed()
        self.seen = threading.Condition()
        self.feed.subscribe(self._show)
        self.probe = FakeProbe(4, clock)
        self.host = Host(
            store=world.store,
            adapters=lambda: Adapters({"docker": world.docker, "process": world.host}, self.probe),
            settings=world.settings,
            clock=clock,
            directory=world.directory,
            me=Leader(1, "here", "root", kind, clock.now(), stands_in=stands_in),
            feed=self.feed,
            may_lead=may_lead,
            extras=Extras(hand_over),
        )

    def _show(self, _: Snapshot) -> None:
        with self.seen:
            self.seen.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        def wait() -> bool:
            with self.seen:
                return self.seen.wait_for(condition, 60)

        assert await asyncio.to_thread(wait), "it never came true"


def real(world: World) -> World:
    world.clock = SystemClock()  # type: ignore[assignment]
    world.docker = FakeRuntime("docker", world.clock)
    world.host = FakeRuntime("process", world.clock)
    return world


async def test_a_written_action_wakes_dispatch_at_once(world: World) -> None:
    seat = Seat(real(world), SystemClock(), "serve")
    task = asyncio.create_task(seat.host.run())
    await seat.until(lambda: seat.feed.latest.leads_here and all(r.up for r in seat.feed.latest.nodes[0].runtimes))
    begun = asyncio.get_running_loop().time()
    job_id = world.submit(1)
    await seat.until(lambda: world.job(job_id).state is JobState.RUNNING)
    assert asyncio.get_running_loop().time() - begun < world.settings.scheduler.tick_interval.total_seconds()
    seat.host.stop()
    await asyncio.wait_for(task, 60)
    assert not seat.host.leads


async def test_a_second_host_waits_and_takes_over_when_the_first_ends(world: World) -> None:
    real(world)
    first, second = Seat(world, SystemClock(), "console"), Seat(world, SystemClock(), "console")
    leading = asyncio.create_task(first.host.run())
    await first.until(lambda: first.feed.latest.leads_here)
    looking = asyncio.create_task(second.host.run())
    await second.until(lambda: second.feed.latest.leader is not None)
    assert not second.feed.latest.leads_here
    assert second.feed.latest.gpus == ()
    first.host.stop()
    await asyncio.wait_for(leading, 60)
    await second.until(lambda: second.feed.latest.leads_here)
    second.host.stop()
    await asyncio.wait_for(looking, 60)


async def test_pcie_throughput_is_requested_from_the_probe_of_the_leader(world: World) -> None:
    real(world)
    first, second = Seat(world, SystemClock(), "console"), Seat(world, SystemClock(), "console")
    first.host.want_pcie(uuid(1))  # nobody reads yet: it is asked for once this process does
    leading = asyncio.create_task(first.host.run())
    await first.until(lambda: first.feed.latest.leads_here)
    looking = asyncio.create_task(second.host.run())
    await second.until(lambda: second.feed.latest.leader is not None)
    first.host.want_pcie(uuid(2))
    second.host.want_pcie(uuid(3))
    await first.until(lambda: first.probe.pcie[-1:] == [uuid(2)])
    assert set(first.probe.pcie) == {uuid(1), uuid(2)}
    assert second.probe.pcie == []
    for seat in (second, first):
        seat.host.stop()
    await asyncio.wait_for(asyncio.gather(leading, looking), 60)
    asked = list(first.probe.pcie)
    first.host.want_pcie(None)
    assert first.probe.pcie == asked


async def test_serve_gives_up_when_the_leadership_is_not_free_in_time(world: World) -> None:
    real(world)
    first, second = Seat(world, SystemClock(), "serve"), Seat(world, SystemClock(), "serve")
    leading = asyncio.create_task(first.host.lead(0))
    await first.until(lambda: first.feed.latest.leads_here)
    assert not await second.host.lead(0.2)
    first.host.stop()
    assert await asyncio.wait_for(leading, 60)


def test_without_a_scheduler_the_snapshot_says_so(world: World) -> None:
    job_id = world.submit(1)
    snapshot = snapshot_builder.files_snapshot(world.store, world.directory, world.settings, world.clock.now())
    assert snapshot.leader is None
    assert "no scheduler is running" in snapshot.nodes[0].probe.text
    assert snapshot.reasons[job_id].text == "no scheduler is running: start `gputui` or `gputui serve`"


async def test_a_process_that_lost_the_lock_file_stops_scheduling(world: World) -> None:
    seat = Seat(real(world), SystemClock(), "serve")
    leading = asyncio.create_task(seat.host.lead(0))
    await seat.until(lambda: seat.feed.latest.leads_here)
    (world.directory / LOCK_FILE).unlink()
    job_id = world.submit()
    with pytest.raises(NotLeaderError, match="removed or replaced"):
        await asyncio.wait_for(leading, 60)
    assert world.job(job_id).state is JobState.PENDING


async def test_dispatch_survives_a_temporarily_unavailable_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seat = Seat(real(world), SystemClock(), "serve")
    task = asyncio.create_task(seat.host.run())
    await seat.until(lambda: seat.feed.latest.leads_here)
    version, gone = world.store.version, threading.Event()

    def away() -> object:
        gone.set()
        raise StoreFormatError("the queue is gone")

    monkeypatch.setattr(world.store, "version", away)
    assert await asyncio.to_thread(gone.wait, 60)
    await seat.until(lambda: any("the queue is gone" in notice.text for notice in seat.feed.latest.notices))
    monkeypatch.setattr(world.store, "version", version)
    job_id = world.submit()
    await seat.until(lambda: world.job(job_id).state is JobState.RUNNING)
    seat.host.stop()
    await asyncio.wait_for(task, 60)


async def test_scheduling_resumes_in_a_state_directory_that_comes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory may be moved away and back, or mounted again: lock and queue are gone meanwhile."""
    seat = Seat(real(world), SystemClock(), "console")
    task = asyncio.create_task(seat.host.run())
    await seat.until(lambda: seat.feed.latest.leads_here)
    acquire, version, jobs = Leadership.acquire, world.store.version, world.store.jobs

    def away(*_: object) -> object:
        raise StoreFormatError("the queue is gone")

    monkeypatch.setattr(Leadership, "acquire", lambda *_: False)
    monkeypatch.setattr(world.store, "version", away)
    monkeypatch.setattr(world.store, "jobs", away)
    (world.directory / LOCK_FILE).unlink()
    await seat.until(lambda: not seat.host.leads and "the queue is gone" in str(seat.feed.latest.notices))
    assert not seat.feed.latest.leads_here
    monkeypatch.setattr(world.store, "version", version)
    monkeypatch.setattr(world.store, "jobs", jobs)
    monkeypatch.setattr(Leadership, "acquire", acquire)
    job_id = world.submit()
    await seat.until(lambda: world.job(job_id).state is JobState.RUNNING)
    seat.host.stop()
    await asyncio.wait_for(task, 60)


def test_a_scheduler_that_does_not_respond_is_reported_whatever_the_clock_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leadership = Leadership(world.directory)
    me = Leader(4711, "here", "root", "serve", world.clock.now())
    leadership.acquire(me)
    job_id = world.submit()
    monotonic = time.monotonic

    def seen(seconds: int, clock_set_by: timedelta = timedelta()) -> Snapshot:
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + seconds)
        now = world.clock.now() + clock_set_by
        return snapshot_builder.files_snapshot(world.store, world.directory, world.settings, now)

    unheard = "the scheduler (serve of root, pid 4711) does not answer; this is what the files say"
    for early in (seen(9), seen(0, timedelta(days=1))):
        assert [notice.text for notice in early.notices] == [unheard]
        assert early.reasons[job_id].text == "the scheduler does not answer"
    for shown in (seen(40), seen(40, timedelta(days=-1))):
        [notice] = shown.notices
        assert notice.severity == "error"
        assert "the scheduler (serve of root, pid 4711) has not responded for 40s, so no job starts" in notice.text
        assert shown.reasons[job_id].text == "the scheduler has not responded for 40s"
    leadership.beat()
    assert [notice.text for notice in seen(41).notices] == [unheard]
    leadership.release()
    assert seen(100).notices == ()


def test_readings_age_while_the_scheduler_does_not_respond(world: World) -> None:
    now = world.clock.now()
    gpus = (view(0, age=timedelta(seconds=1)), view(1, GpuState.UNKNOWN, age=None))
    told = Snapshot(taken_at=now, nodes=(Node("here", gpus),), leader=Leader(4711, "here", "root", "serve", now))

    def seen(silence: float) -> list[tuple[GpuState, timedelta | None]]:
        shown = snapshot_builder.as_told(told, silence, world.settings, now)
        return [(each.state, each.age) for each in shown.nodes[0].gpus]

    stale = world.settings.scheduler.stale_after
    assert seen(2) == [(GpuState.FREE, timedelta(seconds=3)), (GpuState.UNKNOWN, None)]
    assert seen(stale.total_seconds()) == [
        (GpuState.UNKNOWN, stale + timedelta(seconds=1)),
        (GpuState.UNKNOWN, None),
    ]


def test_a_drain_is_shown_before_the_next_tick(world: World) -> None:
    now = world.clock.now()
    gpus = tuple(view(n, state) for n, state in enumerate((GpuState.FREE, GpuState.FOREIGN, GpuState.FREE)))
    drain = Drain("fan broken", "alice", now)
    with world.store.transaction() as transaction:
        controls = replace(transaction.controls(), drains={uuid(n): drain for n in range(2)})
        transaction.set_controls(controls)
    ticked = Snapshot(taken_at=now, nodes=(Node("here", gpus),))
    shown = snapshot_builder.renewed(ticked, world.store, world.settings, now)
    assert [(each.state, each.drain) for each in shown.gpus] == [
        (GpuState.DRAINED, drain),
        (GpuState.FOREIGN, drain),
        (GpuState.FREE, None),
    ]


async def test_an_inaccessible_lock_is_reported_in_the_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> bool:
        raise PermissionError(13, "Permission denied", "scheduler.lock")

    monkeypatch.setattr(Leadership, "acquire", refused)
    seat = Seat(real(world), SystemClock(), "console")
    task = asyncio.create_task(seat.host.run())
    await seat.until(lambda: bool(seat.feed.latest.notices))
    assert [notice.text for notice in seat.feed.latest.notices] == [
        "this process cannot schedule: scheduler.lock: Permission denied"
    ]
    seat.host.stop()
    await asyncio.wait_for(task, 60)


async def test_a_gpu_that_others_show_is_read_in_detail(world: World) -> None:
    leader = Seat(real(world), SystemClock(), "serve")
    leading = asyncio.create_task(leader.host.run())
    await leader.until(lambda: leader.feed.latest.leads_here)
    leader.host.read_for_others(uuid(2))
    leader.host.want_pcie(uuid(1))  # what this process shows itself comes first
    leader.host.read_for_others("GPU-3\nexit")
    leader.host.want_pcie(None)
    leader.host.stop()
    await leading
    assert leader.probe.pcie == [uuid(2), uuid(1), None]


async def test_a_repeatedly_failing_scheduler_hands_over_and_releases_leadership(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "AGAIN_AFTER", 0.0)
    handed_over = list[bool]()
    seat = Seat(real(world), SystemClock(), "console", hand_over=lambda: handed_over.append(seat.host.leads))
    tick = Scheduler.tick

    def broken(scheduler: Scheduler, now: datetime) -> Snapshot:
        if threading.current_thread().name == "tick" and seat.host.leads:
            raise KeyError("oh")
        return tick(scheduler, now)

    monkeypatch.setattr(Scheduler, "tick", broken)
    task = asyncio.create_task(seat.host.run())
    await seat.until(lambda: any("a background `gputui serve` continues" in n.text for n in seat.feed.latest.notices))
    assert handed_over == [False]
    assert not seat.feed.latest.leads_here
    [told] = [notice.text for notice in seat.feed.latest.notices]
    assert (
        "scheduling in this process failed 5 times within a minute, the last time in a tick by KeyError: 'oh'" in told
    )
    next_one, job_id = Seat(world, SystemClock(), "serve"), world.submit()
    leading = asyncio.create_task(next_one.host.lead(10))
    await next_one.until(lambda: world.job(job_id).state is JobState.RUNNING)
    for one in (seat, next_one):
        one.host.stop()
    await asyncio.wait_for(asyncio.gather(task, leading), 60)


async def test_serve_reports_repeated_failures(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "AGAIN_AFTER", 0.0)
    monkeypatch.setattr(Scheduler, "tick", lambda *_: 1 // 0)
    seat = Seat(real(world), SystemClock(), "serve")
    with pytest.raises(SchedulingFailedError, match=r"failed 5 times .* ZeroDivisionError"):
        await asyncio.wait_for(seat.host.lead(0), 60)
    assert not seat.host.leads


async def test_a_failed_start_is_reported_and_retried(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "AGAIN_AFTER", 0.0)
    seat = Seat(real(world), SystemClock(), "console")
    start, failing = Scheduler.start, iter([True, True])

    def begin(scheduler: Scheduler) -> None:
        if next(failing, False):
            raise OSError(24, "Too many open files")
        start(scheduler)

    monkeypatch.setattr(Scheduler, "start", begin)
    texts: list[str] = []
    seat.feed.subscribe(lambda snapshot: texts.extend(notice.text for notice in snapshot.notices))
    task = asyncio.create_task(seat.host.run())
    await seat.until(lambda: seat.feed.latest.leads_here)
    assert any(text.startswith("scheduling failed here and will be tried again: OSError") for text in texts)
    seat.host.stop()
    await asyncio.wait_for(task, 60)


def test_a_host_can_be_stopped_from_another_thread_at_any_time(world: World) -> None:
    real(world)
    for before in (True, False):
        seat = Seat(world, SystemClock(), "console")
        if before:
            seat.host.stop()
        thread = threading.Thread(target=lambda seat=seat: asyncio.run(seat.host.run()))
        thread.start()
        while not before and not seat.feed.latest.leads_here:
            time.sleep(0.01)
        seat.host.stop()
        thread.join(60)
        assert not thread.is_alive()
        seat.host.stop()


async def test_a_screen_that_fails_on_a_snapshot_fails_no_tick(world: World, caplog: pytest.LogCaptureFixture) -> None:
    seat = Seat(real(world), SystemClock(), "console")

    def broken(_: Snapshot) -> None:
        raise KeyError("no such widget")

    seat.feed.subscribe(broken)
    task = asyncio.create_task(seat.host.run())
    job_id = world.submit()
    await seat.until(lambda: world.job(job_id).state is JobState.RUNNING)
    seat.host.stop()
    await asyncio.wait_for(task, 60)
    assert "a picture could not be shown" in caplog.text
    assert "the scheduler failed" not in caplog.text


async def test_a_console_whose_directory_was_replaced_says_so_and_leaves_the_new_one_to_others(
    world: World, tmp_path: Path
) -> None:
    real(world)
    world.directory = state = tmp_path / "state"
    world.store = TinyJobStore(state)
    seat = Seat(world, SystemClock(), "console")
    task = asyncio.create_task(seat.host.run())
    await seat.until(lambda: seat.feed.latest.leads_here)
    TinyJobStore(tmp_path / "new").close()
    state.rename(tmp_path / "old")
    (tmp_path / "new").rename(state)
    await seat.until(lambda: any("was removed or replaced" in n.text for n in seat.feed.latest.notices))
    assert not seat.host.leads
    assert seat.feed.latest.gpus == ()  # nobody reads them
    world.store = TinyJobStore(state)
    actions, other = Actions(world.store, SystemClock(), ACTOR), Seat(world, SystemClock(), "serve")
    leading = asyncio.create_task(other.host.lead(0))
    [job_id] = actions.act(SubmitJobs((Submission(spec(0)),))).ids
    await other.until(lambda: world.job(job_id).state is JobState.RUNNING)
    assert not seat.host.leads
    for one in (seat, other):
        one.host.stop()
    await asyncio.wait_for(asyncio.gather(task, leading), 60)


async def test_serve_waits_until_the_lock_file_can_be_created(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real(world)
    acquire, refusals = Leadership.acquire, iter([True, True, True])

    def refused(leadership: Leadership, me: Leader) -> bool:
        if next(refusals, False):
            raise OSError(28, "No space left on device", str(world.directory / LOCK_FILE))
        return acquire(leadership, me)

    monkeypatch.setattr(Leadership, "acquire", refused)
    impatient = Seat(world, SystemClock(), "serve")
    with pytest.raises(OSError, match="No space left") as info:
        await impatient.host.lead(0)
    assert info.value.filename == str(world.directory / LOCK_FILE)
    patient = Seat(world, SystemClock(), "serve")
    leading = asyncio.create_task(patient.host.lead(10))
    await patient.until(lambda: patient.feed.latest.leads_here)
    patient.host.stop()
    assert await asyncio.wait_for(leading, 60)
