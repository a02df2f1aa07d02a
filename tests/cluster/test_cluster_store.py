"""Queue of a cluster in the form of a job store: what it reads, and what it leaves to the engine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from gputui.domain.cluster import element_id
from gputui.domain.errors import CapabilityError, NotFoundError
from gputui.domain.job_spec import Submission
from gputui.domain.snapshot import Controls
from gputui.engine.cluster.store import FRESH, ClusterStore
from tests.cluster.fake import FakeCluster
from tests.factories import ACTOR, NOW, FakeClock, job, spec


class Reader:
    """A process that reads the queue, with a clock of its own."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock, {"gpu1": 2})
        self.store = ClusterStore(self.cluster, lambda: self.seconds)

    def submit(self, *submissions: Submission) -> tuple[int, ...]:
        return self.cluster.submit(submissions, f"key {self.seconds} {len(submissions)}")


def test_a_snapshot_is_used_for_a_second() -> None:
    reader = Reader()
    first = reader.store.snapshot()
    reader.submit(Submission(spec()))
    reader.seconds = FRESH
    assert reader.store.snapshot() is first
    reader.seconds = FRESH + 0.1
    assert [each.id for each in reader.store.snapshot().jobs] == [1]


def test_a_change_is_read_at_once_and_told() -> None:
    reader, told = Reader(), list[str]()
    assert list(reader.store.jobs()) == []
    reader.store.on_refresh = lambda: told.append("changed")
    reader.submit(Submission(spec()))
    reader.store.refresh()
    assert (list(reader.store.jobs()), told) == ([1], ["changed"])


def test_a_token_changes_when_the_cluster_would_be_asked_again() -> None:
    reader = Reader()
    before = reader.store.version()
    reader.seconds = FRESH / 2
    assert reader.store.version() == before
    reader.seconds = 2 * FRESH
    assert reader.store.version() != before


def test_an_array_is_found_by_its_own_id_and_by_its_elements() -> None:
    reader = Reader()
    reader.submit(Submission(spec(gpus=2), array=(0, 1, 2)))
    assert reader.store.get(1).id == element_id(1, 0)
    assert reader.store.get(element_id(1, 2)).array is not None
    places = reader.store.arrays()[1]
    assert {index: places[index] for index in (0, 1, 2)} == {index: element_id(1, index) for index in (0, 1, 2)}


def test_a_job_that_left_the_queue_is_asked_for() -> None:
    reader = Reader()
    reader.submit(Submission(spec()))
    reader.cluster.end(1, 3)
    reader.cluster.forget(1)
    assert reader.store.jobs() == {}
    assert reader.store.get(1).exit_code == 3
    with pytest.raises(NotFoundError, match="there is no job 2"):
        reader.store.get(2)


def test_forgotten_jobs_are_history_by_month() -> None:
    reader = Reader()
    reader.submit(*[Submission(spec())] * 4)
    reader.cluster.end(2)
    reader.clock.advance(timedelta(days=40).total_seconds())
    reader.cluster.end(1)
    reader.cluster.end(3)
    for job_id in (1, 2, 3):
        reader.cluster.forget(job_id)
    assert [each.id for each in reader.store.history()] == [2, 1, 3]
    assert [each.id for each in reader.store.past()] == [1, 3, 2]
    assert [each.id for each in reader.store.history(NOW + timedelta(days=1))] == [1, 3]
    assert sorted(record.id for record in reader.store.records()) == [1, 2, 3, 4]


def test_a_job_that_the_queue_still_has_is_no_history() -> None:
    reader = Reader()
    reader.submit(Submission(spec()))
    reader.cluster.end(1)
    assert list(reader.store.history()) == []
    assert [record.id for record in reader.store.records()] == [1]


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.transaction(),
        lambda store: store.submit((job(),), actor=ACTOR),
        lambda store: store.run_as(spec()),
    ],
)
def test_a_write_is_refused(write: Callable[[ClusterStore], object]) -> None:
    reader = Reader()
    with pytest.raises(CapabilityError, match="the queue is Fake's: gputui asks Fake for changes and stores none"):
        write(reader.store)
    assert reader.cluster.snapshot().jobs == ()


@pytest.mark.parametrize(
    ("read", "empty"),
    [
        (lambda store: store.controls(), Controls()),
        (lambda store: store.recurring(), {}),
        (lambda store: list(store.audit_log()), []),
        (lambda store: list(store.audit_log("1")), []),
        (lambda store: store.watch(), None),
        (lambda store: store.caps_waiting(), False),
        (lambda store: store.damage(), ()),
        (lambda store: store.history_damage(), ()),
        (lambda store: store.unreadable(), ()),
    ],
)
def test_what_only_a_store_of_files_has_is_empty_without_asking(
    read: Callable[[ClusterStore], object], empty: object
) -> None:
    reader = Reader()
    reader.cluster.answers = False
    assert read(reader.store) == empty


def test_the_upkeep_of_files_asks_the_cluster_nothing() -> None:
    reader, writes = Reader(), list[float]()
    reader.cluster.answers = False
    with reader.store.lock_timeout(0.1):
        reader.store.time_writes(writes.append)
        reader.store.maintain(NOW)
        reader.store.check()
    asked = spec(gpus=1)
    assert (reader.store.with_warrant(asked, 1000), writes) == (asked, [])


def test_the_store_is_named_after_its_cluster_and_closes_it() -> None:
    reader = Reader()
    assert reader.store.store_id == "lab"
    reader.store.close()
    assert reader.cluster.closed
