"""Arrays under the scheduler: one entry until an element starts; an action costs the same for 100,000 elements."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.action import Action, Cancel, Edit, EditJobs, Hold, Release, Requeue, SetPriority, Top
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.event import Event, ended
from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import HookSettings, PolicySettings, Settings, StoreSettings, TenantSettings
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from gputui.engine.hooks import Announcer, stored_ends
from gputui.store import TinyJobStore
from tests.cases import cases
from tests.engine.fakes import Crash, InlineExecutor
from tests.engine.heard import HeardActions
from tests.engine.world import World
from tests.factories import ACTOR, NOW, FakeClock, job, spec
from tests.memory_store import MemoryJobStore

MANY = 100_000


def submit(world: World, count: int, gpus: int = 1, limit: int | None = None, **changes: object) -> tuple[JobId, ...]:
    submission = Submission(spec(gpus, **changes), array=tuple(range(count)), array_limit=limit)
    return world.actions.act(SubmitJobs((submission,))).ids


def entries(world: World) -> list[tuple[str, str, int]]:
    """Return first id, state and number of jobs of each entry."""
    return [(entry.shown_id, entry.state.short, entry.count) for entry in world.store.jobs().values()]


def test_elements_leave_the_entry_as_they_start_and_end_alone(world: World) -> None:
    ids = submit(world, 10)
    world.tick(2)
    assert entries(world) == [*((f"1_{n}", "R", 1) for n in range(4)), ("1_[4-9]", "PD", 6)]
    launches = list(world.docker.launches.values())
    assert sorted((launch.job_id, launch.array_index) for launch in launches) == [(n + 1, n) for n in range(4)]
    world.exit(ids[1])
    world.tick(2)
    assert entries(world)[1] == ("1_1", "CD", 1)
    assert entries(world)[4:] == [("1_4", "R", 1), ("1_[5-9]", "PD", 5)]


def test_an_element_of_a_sweep_starts_with_its_values(world: World) -> None:
    swept = spec(1, sweep=(("lr", "1e-3,1e-4"), ("seed", "0-1")), name="train", command=("t", "{lr}", "{index}"))
    world.actions.act(SubmitJobs((Submission(swept, array=tuple(range(4))),)))
    assert entries(world) == [("1_[0-3]", "PD", 4)]
    world.tick(2)
    launches = sorted(world.docker.launches.values(), key=lambda launch: launch.job_id)
    assert [launch.spec.command for launch in launches] == [
        *[("t", "1e-3", "0"), ("t", "1e-3", "1"), ("t", "1e-4", "2"), ("t", "1e-4", "3")]
    ]
    assert dict(launches[2].spec.options.env) == {"GPUTUI_SWEEP_LR": "1e-4", "GPUTUI_SWEEP_SEED": "0"}
    assert world.job(3).spec == swept, "a retry fills in the values again"


def test_an_element_that_its_sweep_lacks_fails(world: World) -> None:
    world.actions.act(SubmitJobs((Submission(spec(1, sweep=(("s", "a,b"),)), array=(0, 7)),)))
    world.tick(2)
    assert (world.job(1).state, world.job(2).state) == (JobState.RUNNING, JobState.FAILED)
    assert "no values for index 7" in str(world.job(2).cause)


def test_a_failed_element_waits_separately_for_its_retry(world: World) -> None:
    ids = submit(world, 6, retries=1)
    world.tick(2)
    world.exit(ids[0], 3)
    world.tick(2)
    assert entries(world)[0] == ("1_0", "PD", 1)
    assert world.job(ids[0]).not_before is not None
    assert entries(world)[-1] == ("1_5", "PD", 1)
    for job_id in ids[1:5]:
        world.exit(job_id)
    world.tick(60)
    assert [world.job(job_id).state.short for job_id in ids] == ["R", "CD", "CD", "CD", "CD", "R"]


def test_the_limit_of_an_array_holds_for_its_entry(world: World) -> None:
    ids = submit(world, 6, limit=2)
    world.tick(2)
    assert Counter(world.job(job_id).state.short for job_id in ids) == {"R": 2, "PD": 4}
    world.exit(ids[0])
    world.tick(2)
    assert [world.job(job_id).state.short for job_id in ids] == ["CD", "R", "R", "PD", "PD", "PD"]


class Desk:
    """A waiting array in a store on disk, without a scheduler."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = TinyJobStore(directory)
        self.actions = HeardActions(self.store, FakeClock(), ACTOR)
        self.ids = self.actions.act(SubmitJobs((Submission(spec(1), array=tuple(range(MANY))),))).ids
        self.heard = self.actions.heard

    @property
    def entries(self) -> list[Job]:
        return list(self.store.jobs().values())


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("state") / "queue")


WHOLE: dict[str, Callable[[tuple[int, ...]], Action]] = {
    "hold": Hold,
    "release": Release,
    "priority": lambda ids: SetPriority(ids, 70),
    "raise": lambda ids: SetPriority(ids, 5, relative=True),
    "top": Top,
}


@cases("make", WHOLE.values())
def test_an_action_on_a_whole_array_changes_one_record_and_can_be_undone(
    desk: Desk, make: Callable[[tuple[int, ...]], Action]
) -> None:
    journal = next(desk.directory.glob("queue.json.wal.*"))
    before, size, told = desk.entries, journal.stat().st_size, len(list(desk.store.audit_log()))
    desk.heard.clear()
    assert desk.actions.act(make(desk.ids)).ids == desk.ids
    assert [entry.count for entry in desk.entries] == [MANY]
    assert journal.stat().st_size - size < 1000
    [entry] = list(desk.store.audit_log())[told:]
    assert entry.target == "array 1"
    assert entry.after.startswith("elements 0-99999 PENDING")
    assert [why for _, why in desk.actions.undo(desk.heard)] == [""]
    after = [replace(one, waited=(), waiting_since=None, released_at=None) for one in desk.entries]
    assert after == [replace(one, waited=(), waiting_since=None, released_at=None) for one in before]


def test_an_action_about_a_part_splits_the_entry() -> None:
    store = MemoryJobStore()
    actions = Actions(store, FakeClock(), ACTOR)
    ids = actions.act(SubmitJobs((Submission(spec(1), array=tuple(range(10))),))).ids
    done = actions.act(Hold(ids[3:6]))
    assert done.ids == ids[3:6]
    assert [(one.shown_id, one.held) for one in store.jobs().values()] == [("1_[0-2,6-9]", False), ("1_[3-5]", True)]
    assert [entry.after for entry in store.audit_log("array 1")][1:] == ["elements 3-5 PENDING: priority 50, held"]
    assert [why for _, why in actions.undo(done.changes)] == [""]
    assert not any(one.held for one in store.jobs().values())
    assert actions.act(SetPriority((ids[0], ids[4]), 80)).ids == (ids[0], ids[4])
    assert [store.get(job_id).priority for job_id in ids] == [80, 50, 50, 50, 80, 50, 50, 50, 50, 50]


def test_undo_releases_unchanged_elements(world: World) -> None:
    ids = submit(world, 6)
    [change] = world.actions.act(Hold(tuple(ids))).changes
    world.actions.act(Release(tuple(ids[:1])))
    assert world.actions.undo([change]) == [(change, "")]
    assert not any(world.job(job_id).held for job_id in ids)
    assert world.job(ids[0]).released_at is not None


def test_cancelled_elements_that_never_ran_are_one_entry(world: World) -> None:
    ids = submit(world, 10)
    world.tick(2)
    assert world.actions.act(Cancel(tuple(ids))).ids == ids
    world.tick(2)
    [last] = [one for one in world.store.jobs().values() if one.count > 1]
    assert (last.shown_id, last.state, last.count) == ("1_[4-9]", JobState.CANCELLED, 6)
    assert last.cause is not None
    assert world.job(ids[7]).state is JobState.CANCELLED


def test_elements_of_a_cancelled_entry_come_back_one_by_one_or_together(world: World) -> None:
    ids = submit(world, 10, gpus=4)
    world.actions.act(Cancel(tuple(ids)))
    world.tick()
    world.actions.act(Requeue((ids[3], *ids[6:8])))
    world.tick(2)
    states = [world.job(job_id).state.short for job_id in ids]
    assert states == ["CA", "CA", "CA", "R", "CA", "CA", "PD", "PD", "CA", "CA"]


def test_elements_in_history_come_back(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    store = MemoryJobStore(StoreSettings(keep_finished=0))
    world.use(store)
    ids = submit(world, 5, gpus=4)
    world.actions.act(Cancel(tuple(ids)))
    world.tick()
    store.maintain(world.clock.now())
    assert not store.jobs()
    world.actions.act(Requeue(tuple(ids[1:3])))
    world.tick(2)
    assert [world.job(job_id).state.short for job_id in ids] == ["CA", "R", "PD", "CA", "CA"]


class Ear:
    """Hook that records ends."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.heard.append(event)


def test_hooks_get_a_cancelled_entry_once_with_its_count(world: World) -> None:
    ear, hooks = Ear(), HookSettings()
    sinks = [("webhook", lambda event: True, ear)]
    world.scheduler.announcer = Announcer(stored_ends(world.store), hooks, sinks, lambda name: InlineExecutor())
    world.actions.act(Cancel(tuple(submit(world, MANY))))
    world.tick(3)
    [event] = ear.heard
    assert event.text == "100000 elements of array 1 train (alice) were cancelled: cancelled by alice"
    assert (event.data["count"], event.data["array"]) == (MANY, {"id": 1, "indices": "0-99999"})
    world.reborn()
    world.scheduler.announcer = Announcer(stored_ends(world.store), hooks, sinks, lambda name: InlineExecutor())
    world.tick(3)
    assert len(ear.heard) == 1


def test_a_single_element_is_announced_with_its_index() -> None:
    [both] = Actions(MemoryJobStore(), FakeClock(), ACTOR).foresee(SubmitJobs((Submission(spec(), array=(4, 9)),))).jobs
    one = both.element(2)
    data = ended(one.evolve(state=JobState.CANCELLED, ended_at=NOW)).data
    assert (data["count"], data["array"]) == (1, {"id": 1, "indices": "9"})
    assert ended(job().evolve(state=JobState.CANCELLED)).data["array"] is None


def test_an_unsatisfiable_array_is_cancelled_as_one_entry(world: World) -> None:
    first = world.submit()
    submit(world, MANY, after=(first,))
    behind = world.submit(after=(2,))
    world.tick(2)
    world.exit(first, 3)
    world.tick(3)
    assert entries(world)[1:] == [("2_[0-99999]", "CA", MANY), (str(behind), "CA", 1)]


def test_one_element_may_be_waited_for(world: World) -> None:
    ids = submit(world, 3, gpus=4)
    behind = world.submit(after=(ids[1],))
    for job_id in ids[:2]:
        world.tick(2)
        assert world.job(behind).state is JobState.PENDING
        world.exit(job_id)
    world.tick(3)
    assert world.job(behind).state is JobState.RUNNING
    assert world.job(ids[2]).state is JobState.RUNNING


def test_every_element_counts_for_the_cap_of_its_tenant() -> None:
    store = MemoryJobStore()
    policy = PolicySettings(tenants=(TenantSettings("alice", pending=5),))
    actions = Actions(store, FakeClock(), ACTOR, policy=policy)
    actions.act(SubmitJobs((Submission(spec(), array=(0, 1, 2)),)))
    with pytest.raises(Exception, match="alice has 3 jobs waiting and may have 5: 3 more are too many"):
        actions.act(SubmitJobs((Submission(spec(), array=(0, 1, 2)),)))
    assert len(actions.act(SubmitJobs((Submission(spec(), array=(0, 1)),))).ids) == 2


def test_indices_at_random_become_entries_of_bounded_size() -> None:
    store = MemoryJobStore()
    actions = Actions(store, FakeClock(), ACTOR)
    indices = tuple(random.Random(4).sample(range(10**6), 2000))
    ids = actions.act(
        SubmitJobs((Submission(spec(), array=indices, array_limit=3), Submission(spec(), array=(7, 9))))
    ).ids
    assert ids == tuple(range(1, 2003))
    assert [store.get(job_id).array for job_id in ids[:2000]] == [ArrayRef(1, index, 3) for index in indices]
    assert store.get(2002).shown_id == "2001_9"
    assert max(len(one.runs) for one in store.jobs().values()) <= 256
    assert [entry.target for entry in store.audit_log()] == ["array 1", "array 2001"]


@cases("seed", range(12))
def test_elements_run_once_each_whenever_the_scheduler_is_killed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = World(tmp_path / "world", settings=Settings())
    ids = submit(world, 8, retries=2)
    failing = set(rng.sample(ids, 3))
    for _ in range(300):
        if all(world.job(job_id).state is JobState.COMPLETED for job_id in ids):
            break
        if rng.random() < 0.5:
            world.tripwire.left = rng.randint(1, 12)
        try:
            world.tick(seconds=20)
        except Crash:
            world.reborn()
        for record in world.docker.running():
            if rng.random() < 0.5:
                again = record.job_id in failing and record.attempt == 1
                world.docker.exit(record.id, 3 if again else 0)
    assert [len(world.job(job_id).attempts) for job_id in ids] == [1 + (job_id in failing) for job_id in ids]
    assert max(Counter(world.docker.started).values()) == 1
    assert world.store.jobs().count == 8
    assert sorted(job_id for one in world.store.jobs().values() for job_id in one.ids) == list(ids)


def test_a_start_that_is_not_made_durable_leaves_the_entry_whole(tmp_path: Path) -> None:
    """The claim is one line of the journal: a crash before its end is one as if it had never been."""
    store = TinyJobStore(tmp_path / "state")
    Actions(store, FakeClock(), ACTOR).act(SubmitJobs((Submission(spec(1), array=tuple(range(5))),)))
    path = next((tmp_path / "state").glob("queue.json.wal.*"))
    whole = path.read_bytes()
    with store.transaction() as transaction:
        for job_id in (1, 2):
            transaction.put(transaction.get(job_id).to(JobState.CONFIGURING))
    line = path.read_bytes()[len(whole) :]
    assert line.count(b"\n") == 1
    store.close()
    for length in range(0, len(line), 37):
        path.write_bytes(whole + line[:length])
        (tmp_path / "state" / "queue.json.lock").unlink(missing_ok=True)
        again = TinyJobStore(tmp_path / "state")
        assert [(one.id, one.count) for one in again.jobs().values()] == [(1, 5)]
        again.close()


def test_old_elements_that_were_stored_one_by_one_continue(world: World) -> None:
    """Files in the form of an older gputui."""
    [whole] = world.actions.foresee(SubmitJobs((Submission(spec(1), array=tuple(range(6))),))).jobs
    alone = (whole.element(job_id) for job_id in whole.ids)
    world.store.submit([one.evolve(array=replace(one.array, id=-1)) for one in alone if one.array], actor=ACTOR)
    assert [one.shown_id for one in world.store.jobs().values()] == [f"1_{n}" for n in range(6)]
    world.tick(2)
    world.clock.advance(timedelta(seconds=1).total_seconds())
    assert Counter(world.job(job_id).state.short for job_id in range(1, 7)) == {"R": 4, "PD": 2}


def test_the_rest_of_an_entry_keeps_its_place_and_its_reason_in_the_tick_of_a_start(world: World) -> None:
    submit(world, 10, image=None)
    later = world.submit(1, image=None)
    world.tick()
    assert [one.state.short for one in world.store.jobs().values()][:4] == ["R"] * 4
    told = world.snapshots[-1]
    assert told.order[0] == 5
    assert told.order[-1] == later
    assert told.reasons[5].text.startswith("needs 1 GPU")
    assert "ahead of it" in told.reasons[8].text


def test_a_whole_array_is_edited_as_one(world: World) -> None:
    ids = submit(world, 10, gpus=4, image=None)
    world.tick()
    assert world.actions.act(EditJobs(tuple(ids[1:]), Edit(spec={"nice": 5}))).ids == ids[1:]
    assert entries(world) == [("1_0", "R", 1), ("1_[1-9]", "PD", 9)]
    assert world.job(ids[5]).spec.nice == 5
    assert [entry.after for entry in world.store.audit_log("array 1")][1:] == ["elements 1-9: nice 5"]
    assert world.actions.act(EditJobs(tuple(ids[1:]), Edit(spec={"nice": 5}))).ids == ()
    assert world.actions.act(EditJobs((ids[5],), Edit(spec={"nice": 6}))).ids
    assert [world.job(job_id).spec.nice for job_id in ids] == [0, 5, 5, 5, 5, 6, 5, 5, 5, 5]
    with pytest.raises(GputuiError, match="1_0 is RUNNING"):
        world.actions.act(EditJobs(tuple(ids), Edit(spec={"nice": 7})))
    assert world.job(ids[5]).spec.nice == 6


@cases("waits", [3, 1])
def test_an_element_does_not_come_to_wait_for_its_own_array(world: World, waits: JobId) -> None:
    submit(world, 5, gpus=4)
    behind = world.submit(after=(1,))
    for other in (1, behind):
        with pytest.raises(InputError, match="would wait for itself"):
            world.actions.act(EditJobs((waits,), Edit(spec={"after": (other,)})))
