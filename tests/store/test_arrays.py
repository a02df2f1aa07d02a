"""Arrays in the store: one entry until an element starts, and each element is found and changed by its own id."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputui.domain import runs
from gputui.domain.errors import NotFoundError, StoreNewerError
from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from gputui.ports import JobStore
from gputui.store import TinyJobStore
from gputui.store.queue_files import SCHEMA, check_schema
from gputui.store.storage import raw_documents
from tests.factories import ACTOR, NOW, job, running, uuid
from tests.lane import examples
from tests.memory_store import MemoryJobStore
from tests.store.conftest import SETTINGS
from tests.store.repairing import repair

MANY = 100_000


def new(indices: Iterable[int], *, place: int = 0, **changes: Any) -> Job:
    """Return an array to submit as job `place` of a batch."""
    listed = list(indices)
    return job(array=ArrayRef(-place - 1, listed[0]), **changes).evolve(runs=runs.runs_of(0, listed))


def put(store: JobStore, job: Job) -> None:
    with store.transaction() as transaction:
        transaction.put(job)


def everything(store: JobStore) -> dict[JobId, Job]:
    """Return all jobs of the queue, each element by itself."""
    return {job_id: entry.element(job_id) for entry in store.jobs().values() for job_id in entry.ids}


def test_an_array_is_one_entry_with_ids_of_its_own(store: JobStore) -> None:
    assert store.submit([job(), new([0, 1, 5], place=1), job()], actor=ACTOR) == (1, 2, 5)
    entries = store.jobs()
    assert list(entries) == [1, 2, 5]
    assert (entries.count, next(iter(entries.with_runs)).count) == (5, 3)
    assert entries[4] == store.get(4) == job(4, array=ArrayRef(2, 5))
    assert store.get(2) == job(2, array=ArrayRef(2, 0))
    assert store.arrays() == {2: {0: 2, 1: 3, 5: 4}}
    assert store.submit([job()], actor=ACTOR) == (6,)


def test_a_large_array_is_one_line_and_one_audit_entry(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([new(range(MANY), command=("x" * 500,))], actor=ACTOR)
    assert (directory / "queue.json.wal.1").read_bytes().count(b"\n") == 1
    assert (directory / "queue.json.wal.1").stat().st_size < 2000
    assert [(entry.target, entry.after) for entry in tiny.audit_log()] == [
        ("array 1", "PENDING: priority 50, 100000 elements")
    ]
    assert tiny.get(MANY).shown_id == f"1_{MANY - 1}"
    with pytest.raises(NotFoundError):
        tiny.get(MANY + 1)


def test_an_element_that_is_put_leaves_its_entry(store: JobStore) -> None:
    store.submit([new(range(5))], actor=ACTOR)
    put(store, store.get(3).evolve(held=True))
    assert [(entry.id, list(entry.ids), entry.held) for entry in store.jobs().values()] == [
        (1, [1, 2, 4, 5], False),
        (3, [3], True),
    ]
    put(store, store.get(1).to(JobState.CONFIGURING))
    assert [(entry.id, list(entry.ids), entry.state) for entry in store.jobs().values()] == [
        (1, [1], JobState.CONFIGURING),
        (2, [2, 4, 5], JobState.PENDING),
        (3, [3], JobState.PENDING),
    ]


def test_elements_are_claimed_one_after_the_other_in_one_transaction(store: JobStore) -> None:
    store.submit([new(range(4))], actor=ACTOR)
    with store.transaction() as transaction:
        for job_id in (1, 2, 3):
            transaction.put(transaction.get(job_id).to(JobState.CONFIGURING))
        assert transaction.get(4).state is JobState.PENDING
        assert list(transaction.jobs()) == [1, 2, 3, 4]
    assert [entry.state.short for entry in store.jobs().values()] == ["CF", "CF", "CF", "PD"]


def test_part_of_an_entry_that_is_put_splits_it(store: JobStore) -> None:
    store.submit([new(range(10))], actor=ACTOR)
    with store.transaction() as transaction:
        [part] = transaction.chosen(range(4, 7))
        assert list(part.ids) == [4, 5, 6]
        transaction.put(part.evolve(priority=80))
        assert [list(one.ids) for one in transaction.chosen([1, 5])] == [[1], [5]]
    assert [(entry.priority, list(entry.ids)) for entry in store.jobs().values()] == [
        (50, [1, 2, 3, 7, 8, 9, 10]),
        (80, [4, 5, 6]),
    ]


def test_an_entry_that_is_put_completely_stays_one(store: JobStore) -> None:
    store.submit([new(range(MANY))], actor=ACTOR)
    with store.transaction() as transaction:
        [entry] = transaction.chosen(range(1, MANY + 1))
        transaction.put(entry.evolve(held=True))
    assert [(entry.count, entry.held) for entry in store.jobs().values()] == [(MANY, True)]


def test_unknown_ids_are_reported(store: JobStore) -> None:
    store.submit([new(range(3))], actor=ACTOR)
    with store.transaction() as transaction, pytest.raises(NotFoundError):
        list(transaction.chosen([2, 9]))


def test_an_undo_leaves_entries_whole(store: JobStore) -> None:
    store.submit([new(range(3))], actor=ACTOR)
    before = dict(store.jobs().items())
    with suppress(ZeroDivisionError), store.transaction() as transaction:
        transaction.put(transaction.get(2).evolve(held=True))
        raise ZeroDivisionError
    assert dict(store.jobs().items()) == before


def test_a_reopened_store_knows_the_ids_of_elements(directory: Path) -> None:
    store = TinyJobStore(directory, SETTINGS)
    store.submit([new(range(50))], actor=ACTOR)
    put(store, store.get(7).evolve(held=True))
    store.close()
    again = TinyJobStore(directory, SETTINGS)
    assert again.get(50).shown_id == "1_49"
    assert again.submit([job()], actor=ACTOR) == (51,)
    again.maintain(NOW)
    again.close()


def test_an_older_gputui_is_refused() -> None:
    """An older gputui would run one element of each entry and lose the others."""
    with pytest.raises(StoreNewerError):
        check_schema(SCHEMA + 1, Path("queue.json"))
    assert SCHEMA >= 3


def test_an_unreadable_entry_is_kept_unchanged(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([new(range(5)), job()], actor=ACTOR)
    tiny.close()
    path = directory / "queue.json.wal.1"
    queue = directory / "queue.json"
    store = TinyJobStore(directory, SETTINGS)
    store.storage.checkpoint()
    store.close()
    queue.write_bytes(queue.read_bytes().replace(b'"runs":[[1,0,5,1]]', b'"runs":[[1,0,5,0]]'))
    store = TinyJobStore(directory, SETTINGS)
    assert list(store.jobs()) == [6]
    assert store.submit([job()], actor=ACTOR) == (7,)
    store.storage.checkpoint()
    assert b'"runs":[[1,0,5,0]]' in queue.read_bytes()
    assert not path.exists()
    assert raw_documents(queue, next(directory.glob("*.wal.*")), "jobs", {"1"}).keys() == {"1"}
    store.close()


class TestHistory:
    def cancelled(self, store: JobStore, ids: Iterable[int], days_ago: float = 0) -> None:
        with store.transaction() as transaction:
            for part in transaction.chosen(ids):
                transaction.put(part.to(JobState.CANCELLED, ended_at=NOW - timedelta(days=days_ago)))

    def test_cancelled_elements_leave_together_and_are_found_by_id(self, store: JobStore) -> None:
        store.submit([new(range(10))], actor=ACTOR)
        self.cancelled(store, range(3, 11), days_ago=100)
        store.maintain(NOW)
        assert list(store.jobs()) == [1]
        assert store.get(7).state is JobState.CANCELLED
        assert store.get(7).shown_id == "1_6"
        assert [list(old.ids) for old in store.past()] == [list(range(3, 11))]
        assert store.submit([job()], actor=ACTOR) == (11,)

    def test_a_job_that_comes_back_is_only_in_the_queue(self, store: JobStore) -> None:
        store.submit([new(range(5))], actor=ACTOR)
        self.cancelled(store, range(1, 6), days_ago=100)
        store.maintain(NOW)
        put(store, store.get(3).to(JobState.PENDING, ended_at=None))
        assert list(store.jobs()) == [3]
        assert [list(old.ids) for old in store.past()] == [[1, 2, 4, 5]]
        put(store, store.get(3).to(JobState.CANCELLED, ended_at=NOW - timedelta(days=90)))
        store.maintain(NOW)
        assert sorted(list(old.ids) for old in store.past()) == [[1, 2, 4, 5], [3]]
        assert store.get(3).ended_at == NOW - timedelta(days=90)

    def test_the_later_of_two_entries_counts(self, store: JobStore) -> None:
        store.submit([new(range(6))], actor=ACTOR)
        self.cancelled(store, range(1, 7), days_ago=100)
        store.maintain(NOW)
        with store.transaction() as transaction:
            for part in transaction.chosen([2, 3, 4]):
                transaction.put(part.to(JobState.PENDING, ended_at=None))
        self.cancelled(store, [2, 3, 4], days_ago=60)
        store.maintain(NOW)
        assert not store.jobs()
        ended = {job_id: old.ended_at for old in store.past() for job_id in old.ids}
        assert ended == {job_id: NOW - timedelta(days=60 if 2 <= job_id <= 4 else 100) for job_id in range(1, 7)}
        assert store.get(3).ended_at == NOW - timedelta(days=60)

    def test_a_store_without_a_queue_reuses_no_id_of_an_element(self, directory: Path) -> None:
        store = TinyJobStore(directory, SETTINGS)
        store.submit([new(range(9))], actor=ACTOR)
        self.cancelled(store, range(1, 10), days_ago=100)
        store.maintain(NOW)
        store.close()
        for path in directory.glob("queue.json*"):
            path.unlink()
        again = TinyJobStore(directory, SETTINGS)
        assert again.submit([job()], actor=ACTOR) == (10,)
        again.close()


class TestRepair:
    def test_elements_are_neither_lost_nor_duplicated(self, directory: Path) -> None:
        """The journal has lost the line in which an element began; what came after it is still there."""
        store = TinyJobStore(directory, SETTINGS)
        store.submit([new(range(6))], actor=ACTOR)
        store.storage.checkpoint()
        put(store, store.get(1).to(JobState.CONFIGURING))
        wal = next(directory.glob("queue.json.wal.*"))
        first = wal.stat().st_size
        put(store, running(2, on=[uuid(0)]).evolve(array=ArrayRef(1, 1)))
        store.close()
        data = bytearray(wal.read_bytes())
        data[first // 2] ^= 1
        wal.write_bytes(data)
        found = repair(directory)
        assert found.jobs == 6
        assert found.lost == ()
        again = TinyJobStore(directory, SETTINGS)
        assert {job_id: one.state.short for job_id, one in everything(again).items()} == {
            1: "PD", 2: "R", 3: "PD", 4: "PD", 5: "PD", 6: "PD"
        }  # fmt: skip
        assert sorted(job_id for entry in again.jobs().values() for job_id in entry.ids) == [1, 2, 3, 4, 5, 6]
        again.close()

    def test_an_element_that_ended_in_history_does_not_run_again(self, directory: Path) -> None:
        store = TinyJobStore(directory, SETTINGS)
        store.submit([new(range(4))], actor=ACTOR)
        old = (directory / "queue.json").read_bytes(), (directory / "queue.json.wal.1").read_bytes()
        done = running(2, on=[uuid(0)]).evolve(array=ArrayRef(1, 1)).with_attempt(ended_at=NOW)
        put(store, done.to(JobState.COMPLETED, ended_at=NOW - timedelta(days=100)))
        store.maintain(NOW)
        store.storage.checkpoint()
        store.close()
        for path in directory.glob("queue.json*"):
            if path.suffix != ".lock":
                path.unlink()
        (directory / "queue.json").write_bytes(old[0])
        (directory / "queue.json.wal.1").write_bytes(old[1])
        found = repair(directory)
        assert (found.settled, found.jobs) == ((2,), 3)
        again = TinyJobStore(directory, SETTINGS)
        assert sorted(everything(again)) == [1, 3, 4]
        assert again.get(2).state is JobState.COMPLETED
        again.close()


ids = st.sets(st.integers(1, 24), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), ids),
        st.tuples(st.just("cancel"), ids),
        st.tuples(st.just("requeue"), ids),
        st.tuples(st.just("start"), ids),
        st.tuples(st.just("keep house"), ids),
    ),
    max_size=8,
)


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=steps, tiny=st.booleans())
def test_entries_equal_single_jobs(
    steps: list[tuple[str, set[int]]], tiny: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("state") / "queue"
    store = TinyJobStore(place, SETTINGS) if tiny else MemoryJobStore(SETTINGS)
    store.submit([job(), new([*range(10), *range(20, 40, 2)], place=1), job(), new([1, 5], place=22)], actor=ACTOR)
    model = everything(store)
    assert sorted(model) == list(range(1, 25))
    for number, (verb, chosen) in enumerate(steps):
        ended = NOW - timedelta(days=50 + number % 20)
        if verb == "keep house":
            store.maintain(NOW)
            continue
        with store.transaction() as transaction:
            for part in list(transaction.chosen(sorted(chosen))):
                after = _after(part, verb, ended)
                if verb == "start":
                    for job_id in part.ids:
                        transaction.put(after.element(job_id))
                else:
                    transaction.put(after)
        model |= {job_id: _after(model[job_id], verb, ended) for job_id in chosen}
    left = {**{job_id: one.element(job_id) for one in store.past() for job_id in one.ids}, **everything(store)}
    assert left == model
    assert {job_id: store.get(job_id) for job_id in model} == model
    if tiny:
        store.close()
        again = TinyJobStore(place, SETTINGS)
        assert {job_id: again.get(job_id) for job_id in model} == model
        again.close()


def _after(one: Job, verb: str, ended: object) -> Job:
    if verb == "hold":
        return one.evolve(held=True)
    if verb == "cancel":
        return one.evolve(state=JobState.CANCELLED, ended_at=ended)
    return one.evolve(state=JobState.PENDING if verb == "requeue" else JobState.RUNNING, ended_at=None)
