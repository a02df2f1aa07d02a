"""Contract of every job store: in memory, and over TinyDB."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from itertools import pairwise

import pytest
from msgspec.structs import replace

from gputui.domain.access import AuditEntry
from gputui.domain.errors import InputError, NotFoundError, StoreError
from gputui.domain.gpu import Drain
from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import JobId
from gputui.domain.recurring import Missed, Overlap, Skipped
from gputui.domain.snapshot import Controls
from gputui.domain.state import JobState
from gputui.ports import JobStore
from tests.factories import ACTOR, NOW, array, job, recurring, running, uuid


def submit(store: JobStore, count: int = 1) -> tuple[JobId, ...]:
    return store.submit([job(name=f"j{n}") for n in range(count)], actor=ACTOR)


def finish(store: JobStore, job_id: JobId, days_ago: float = 0) -> Job:
    with store.transaction() as transaction:
        done = transaction.get(job_id).evolve(state=JobState.COMPLETED, ended_at=NOW - timedelta(days=days_ago))
        transaction.put(done)
    return done


def test_an_id_names_the_store(store: JobStore) -> None:
    assert re.fullmatch("[a-z0-9]{12}", store.store_id)


def test_submitted_jobs_are_there_under_growing_ids(store: JobStore) -> None:
    assert submit(store, 2) == (1, 2)
    assert submit(store) == (3,)
    assert list(store.jobs()) == [1, 2, 3]
    assert [stored.spec.name for stored in store.jobs().values()] == ["j0", "j1", "j0"]
    assert store.get(2) == job(2, name="j1")


def test_every_field_of_a_job_is_kept(store: JobStore) -> None:
    submit(store)
    full = running(1, on=[uuid(0), uuid(1)], priority=80).evolve(
        topped_at=NOW, array=ArrayRef(1, 4, 2), avoid_gpus=(uuid(3),), not_before=NOW + timedelta(microseconds=1)
    )
    with store.transaction() as transaction:
        transaction.put(full)
    assert store.get(1) == full


def test_elements_of_arrays_are_found_by_index(store: JobStore) -> None:
    submit(store)
    store.submit([job(array=ArrayRef(-1, index)) for index in (0, 10)] + [job()], actor=ACTOR)
    store.submit([job(array=ArrayRef(-1, 3))], actor=ACTOR)
    assert store.arrays() == {2: {0: 2, 10: 3}, 5: {3: 5}}


def test_an_array_points_at_its_first_element(store: JobStore) -> None:
    submit(store, 4)
    elements = [job(array=ArrayRef(-2, index)) for index in range(2)]
    ids = store.submit([job(), *elements], actor=ACTOR)
    assert ids == (5, 6, 7)
    assert store.get(5).array is None
    assert [store.get(job_id).array for job_id in (6, 7)] == [ArrayRef(6, 0), ArrayRef(6, 1)]


def test_an_array_that_begins_outside_the_batch_refuses_the_whole_batch(store: JobStore) -> None:
    with pytest.raises(InputError):
        store.submit([job(), job(array=ArrayRef(-3, 0))], actor=ACTOR)
    assert not store.jobs()
    assert submit(store) == (1,)


def test_an_empty_submission_is_allowed(store: JobStore) -> None:
    before = store.version()
    assert store.submit([], actor=ACTOR) == ()
    assert store.version() == before


def test_an_unknown_job_is_not_found(store: JobStore) -> None:
    for job_id in (1, 0, -1):
        with pytest.raises(NotFoundError):
            store.get(job_id)
        with store.transaction() as transaction, pytest.raises(NotFoundError):
            transaction.get(job_id)
    with pytest.raises(NotFoundError), store.transaction() as transaction:
        transaction.put(job(1))
    assert not store.jobs()


def test_a_transaction_is_visible_only_to_itself_before_its_end(store: JobStore) -> None:
    submit(store)
    with store.transaction() as transaction:
        added = transaction.add(job(99, name="new"))
        transaction.put(transaction.get(1).evolve(priority=7))
        transaction.set_controls(Controls(paused=True))
        assert added.id == 2
        assert list(transaction.jobs()) == [1, 2]
        assert transaction.jobs()[1].priority == transaction.get(1).priority == 7
        assert transaction.controls().paused
        assert seen_by_another_thread(store) == ([1], 50, False)
    assert seen_by_another_thread(store) == ([1, 2], 7, True)


def seen_by_another_thread(store: JobStore) -> tuple[list[JobId], int, bool]:
    seen: list[tuple[list[JobId], int, bool]] = []

    def look() -> None:
        seen.append((list(store.jobs()), store.get(1).priority, store.controls().paused))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(60)
    return seen[0]


def test_an_exception_undoes_the_transaction(store: JobStore) -> None:
    submit(store)
    before = store.version()
    with pytest.raises(ZeroDivisionError), store.transaction() as transaction:  # noqa: PT012
        transaction.put(transaction.get(1).evolve(priority=7))
        transaction.add(job())
        transaction.set_controls(Controls(paused=True))
        transaction.audit(AuditEntry(NOW, 1, "a", "pause", "scheduler", "", ""))
        raise ZeroDivisionError
    assert store.version() == before
    assert store.jobs() == {1: job(1, name="j0")}
    assert not store.controls().paused
    assert [entry.verb for entry in store.audit_log()] == ["submit"]


def test_an_inner_transaction_is_part_of_the_outer(store: JobStore) -> None:
    submit(store, 2)
    with store.transaction() as outer:
        outer.put(outer.get(1).evolve(priority=1))
        with store.transaction() as inner:
            assert inner.get(1).priority == 1
            inner.put(inner.get(2).evolve(priority=2))
        with pytest.raises(ZeroDivisionError), store.transaction() as failed:  # noqa: PT012
            failed.put(failed.get(1).evolve(priority=99))
            raise ZeroDivisionError
        assert [stored.priority for stored in outer.jobs().values()] == [1, 2]
        assert store.submit([job()], actor=ACTOR) == (3,)
        assert list(outer.jobs()) == [1, 2, 3]
    assert [stored.priority for stored in store.jobs().values()] == [1, 2, 50]


def test_an_ended_transaction_changes_nothing(store: JobStore) -> None:
    submit(store)
    with store.transaction() as transaction:
        pass
    for late in (transaction.jobs, transaction.controls, lambda: transaction.add(job()), lambda: transaction.get(1)):
        with pytest.raises(StoreError):
            late()
    assert list(store.jobs()) == [1]


def test_unchanged_jobs_are_the_same_objects(store: JobStore) -> None:
    submit(store, 3)
    before = store.jobs()
    with store.transaction() as transaction:
        transaction.put(transaction.get(2).evolve(priority=7))
    after = store.jobs()
    assert before[1] is after[1]
    assert before[3] is after[3]
    assert (before[2].priority, after[2].priority) == (50, 7)


def test_returned_objects_cannot_change_the_store(store: JobStore) -> None:
    submit(store)
    drains = {uuid(0): Drain("hot", "alice", NOW)}
    with store.transaction() as transaction:
        transaction.set_controls(Controls(drains=drains))
    drains.clear()
    for mapping in (store.jobs(), store.controls().drains):
        with pytest.raises((TypeError, AttributeError)):
            mapping.clear()  # type: ignore[union-attr]
    assert store.controls().drains == {uuid(0): Drain("hot", "alice", NOW)}
    assert list(store.jobs()) == [1]


def test_the_version_differs_after_every_write(store: JobStore) -> None:
    versions = [store.version()]
    for _ in range(3):
        submit(store)
        versions.append(store.version())
        with store.transaction() as transaction:
            transaction.set_controls(Controls(paused=True))
        versions.append(store.version())
    assert all(first != second for first, second in pairwise(versions))
    assert store.version() == versions[-1]


def test_requests_are_known_by_their_keys(store: JobStore) -> None:
    alice, bob = (job(0, submitted_uid=uid, key="k.1") for uid in (1001, 1002))
    store.submit([alice, array([0, 1, 2], first=0, submitted_uid=1001, key="k2.1"), bob, job(0)], actor=ACTOR)
    with store.transaction() as transaction:
        for target in ("job 1", "job 4", "scheduler"):
            transaction.audit(AuditEntry(NOW, 1001, "alice", "hold", target, "", "", key="k3.1"))
    assert dict(store.requests(1001)) == {"k.1": (1,), "k2.1": (2, 3, 4), "k3.1": (1, 4)}
    assert dict(store.requests(1002)) == {"k.1": (5,)}
    assert dict(store.requests(1003)) == {}


def test_every_action_is_audited(store: JobStore) -> None:
    store.submit([job(held=True), job()], actor=ACTOR)
    entry = AuditEntry(NOW, 0, "root", "cancel", "job 1", "PENDING", "cancel requested")
    with store.transaction() as transaction:
        transaction.audit(entry)
    submitted = AuditEntry(NOW, 1000, "alice", "submit", "job 1", "", "PENDING: priority 50, held")
    assert list(store.audit_log("job 1")) == [submitted, entry]
    assert [logged.target for logged in store.audit_log()] == ["job 1", "job 2", "job 1"]
    store.maintain(NOW)
    assert list(store.audit_log("job 1")) == [submitted, entry]


def test_old_finished_jobs_go_to_history_and_are_found_there(store: JobStore) -> None:
    submit(store, 3)
    old = finish(store, 2, days_ago=8)
    recent = finish(store, 3, days_ago=6)
    store.maintain(NOW)
    assert list(store.jobs()) == [1, 3]
    assert store.get(2) == old
    assert store.get(3) == recent
    assert list(store.past()) == [old]
    assert submit(store) == (4,)


def test_the_number_of_finished_jobs_is_limited(store: JobStore) -> None:
    ids = submit(store, 6)
    for job_id in ids[:5]:
        finish(store, job_id, days_ago=1 - job_id / 100)
    store.maintain(NOW)
    assert list(store.jobs()) == [3, 4, 5, 6]
    assert sorted(moved.id for moved in store.past()) == [1, 2]


def test_history_is_by_month_and_can_begin_late(store: JobStore) -> None:
    submit(store, 4)
    for job_id, days in ((1, 10), (2, 100), (3, 70), (4, 9)):
        finish(store, job_id, days_ago=days)
    store.maintain(NOW)
    (*lately, third, second) = [moved.id for moved in store.past()]
    assert (sorted(lately), third, second) == ([1, 4], 3, 2)
    assert sorted(moved.id for moved in store.past(NOW - timedelta(days=71))) == [1, 3, 4]
    assert [moved.id for moved in store.past(NOW - timedelta(days=9, hours=1))] == [4]


def test_a_job_put_back_from_history_is_only_in_the_queue(store: JobStore) -> None:
    submit(store, 2)
    finish(store, 1, days_ago=40)
    store.maintain(NOW)
    with store.transaction() as transaction:
        again = transaction.get(1).to(JobState.PENDING, ended_at=None)
        transaction.put(again)
    assert list(store.jobs()) == [1, 2]
    assert store.get(1) == again
    assert list(store.past()) == []


def test_a_job_that_ended_twice_is_in_history_once(store: JobStore) -> None:
    submit(store)
    finish(store, 1, days_ago=70)
    store.maintain(NOW)
    again = finish(store, 1, days_ago=10)
    store.maintain(NOW)
    assert not store.jobs()
    assert list(store.past()) == [again]
    assert store.get(1) == again


def test_ids_are_not_reused_when_the_queue_is_empty(store: JobStore) -> None:
    submit(store, 2)
    for job_id in (1, 2):
        finish(store, job_id, days_ago=30)
    store.maintain(NOW)
    assert submit(store) == (3,)


def test_threads_write_one_after_another(store: JobStore) -> None:
    submit(store)

    def work() -> None:
        for _ in range(20):
            with store.transaction() as transaction:
                transaction.put(transaction.get(1).evolve(priority=transaction.get(1).priority + 1))
            submit(store)
            store.jobs()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert store.get(1).priority == 50 + 80
    assert list(store.jobs()) == list(range(1, 82))


# recurring jobs


def test_recurring_jobs_have_ids_of_the_same_sequence(store: JobStore) -> None:
    submit(store)
    with store.transaction() as transaction:
        added = transaction.add_recurring(recurring())
        assert transaction.recurring() == {2: added}
        assert transaction.add(job()).id == 3
    assert store.recurring() == {2: replace(recurring(), id=2)}
    assert list(store.jobs()) == [1, 3]
    assert submit(store) == (4,)


def test_every_field_of_a_recurring_job_is_kept(store: JobStore) -> None:
    full = recurring(
        "30 2 * * 1-5", "Europe/Berlin", array=(1, 5), array_limit=2, held=True, name="nightly", missed=Missed.SKIP,
        overlap=Overlap.ALLOW, paused=True, last_at=NOW, last_job_id=7, skipped=Skipped(NOW, "why"),
    )  # fmt: skip
    with store.transaction() as transaction:
        added = transaction.add_recurring(recurring())
        transaction.put_recurring(replace(full, id=added.id))
    assert store.recurring() == {added.id: replace(full, id=added.id)}
    assert store.recurring()[added.id] is store.recurring()[added.id]


def test_recurring_jobs_are_listed_by_id_and_can_be_removed(store: JobStore) -> None:
    with store.transaction() as transaction:
        ids = [transaction.add_recurring(recurring(name=f"r{n}")).id for n in range(12)]
        transaction.remove_recurring(ids[3])
        assert ids[3] not in transaction.recurring()
    assert list(store.recurring()) == [each for each in ids if each != ids[3]]
    version = store.version()
    with store.transaction() as transaction:
        transaction.remove_recurring(ids[0])
    assert store.version() != version
    assert ids[0] not in store.recurring()


def test_an_unknown_recurring_job_is_not_found(store: JobStore) -> None:
    submit(store)
    for change in ("put", "remove"):
        with pytest.raises(NotFoundError, match="no recurring job 1"), store.transaction() as transaction:
            transaction.put_recurring(replace(recurring(), id=1)) if change == "put" else transaction.remove_recurring(
                1
            )


def test_a_submission_inside_a_transaction_is_part_of_it(store: JobStore) -> None:
    with store.transaction() as transaction:
        added = transaction.add_recurring(recurring())
        ids = store.submit([job(), job()], actor=ACTOR)
        assert ids == (2, 3)
        assert list(transaction.jobs()) == [2, 3]
        transaction.put_recurring(replace(added, last_job_id=2))
    assert store.recurring()[1].last_job_id == 2
    assert [entry.target for entry in store.audit_log()] == ["job 2", "job 3"]
    with pytest.raises(ZeroDivisionError), store.transaction() as transaction:  # noqa: PT012
        store.submit([job()], actor=ACTOR)
        transaction.put_recurring(replace(added, last_job_id=4))
        raise ZeroDivisionError
    assert list(store.jobs()) == [2, 3]
    assert store.recurring()[1].last_job_id == 2
