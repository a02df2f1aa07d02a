"""Reading side of the queue of a cluster: what is asked of the engine, and what only a store of files has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from gputui.domain.action import Cancel
from gputui.domain.cluster import element_id
from gputui.domain.errors import NotFoundError
from gputui.domain.job_spec import Submission
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Controls
from gputui.engine.cluster.backend import EngineBackend
from gputui.engine.cluster.queue import FRESH, EngineQueue
from tests.cases import cases
from tests.cluster.fake import FakeCluster
from tests.factories import NOW, FakeClock, spec


class Reader:
    """A process that reads the queue, with a clock of its own."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock, {"gpu1": 2})
        self.store = EngineQueue(self.cluster, lambda: self.seconds)

    def submit(self, *submissions: Submission) -> tuple[int, ...]:
        return self.cluster.submit(submissions, f"key {self.seconds} {len(submissions)}")


def test_snapshots_and_tokens() -> None:
    # a snapshot is used for a second
    reader = Reader()
    first = reader.store.read()
    reader.submit(Submission(spec()))
    reader.seconds = FRESH
    assert reader.store.read() is first
    reader.seconds = FRESH + 0.1
    assert [each.id for each in reader.store.read().jobs] == [1]
    # a change is read at once and told
    reader, told = Reader(), list[str]()
    assert list(reader.store.jobs()) == []
    reader.store.on_refresh = lambda: told.append("changed")
    reader.submit(Submission(spec()))
    reader.store.refresh()
    assert (list(reader.store.jobs()), told) == ([1], ["changed"])
    # a token changes when the cluster would be asked again
    reader = Reader()
    before = reader.store.version()
    reader.seconds = FRESH / 2
    assert reader.store.version() == before
    reader.seconds = 2 * FRESH
    assert reader.store.version() != before


def test_arrays_in_the_queue() -> None:
    # an array is found by its own id and by its elements
    reader = Reader()
    reader.submit(Submission(spec(gpus=2), array=(0, 1, 2)))
    assert reader.store.get(1).id == element_id(1, 0)
    assert reader.store.get(element_id(1, 2)).array is not None
    places = reader.store.arrays()[1]
    assert {index: places[index] for index in (0, 1, 2)} == {index: element_id(1, index) for index in (0, 1, 2)}
    # what was submitted elsewhere since the last look is found
    reader = Reader()
    assert list(reader.store.jobs()) == []
    (job_id,) = reader.submit(Submission(spec()))
    assert reader.store.get(job_id).id == job_id
    reader.seconds += FRESH / 2
    array = reader.submit(Submission(spec(), held=True, array=(0, 1, 2)))
    assert reader.store.get(2).id == array[0]
    assert list(reader.store.arrays()[2].values()) == list(array)
    # an array that was submitted elsewhere is changed as a whole
    reader = Reader()
    backend = EngineBackend(reader.store, Settings())
    assert list(reader.store.jobs()) == []
    array = reader.submit(Submission(spec(), held=True, array=(0, 1, 2)))
    assert backend.act(Cancel((1,))).ids == array


def test_jobs_that_left_the_queue() -> None:
    # a job that left the queue is asked for
    reader = Reader()
    reader.submit(Submission(spec()))
    reader.cluster.end(1, 3)
    reader.cluster.forget(1)
    assert reader.store.jobs() == {}
    assert reader.store.get(1).exit_code == 3
    with pytest.raises(NotFoundError, match="there is no job 2"):
        reader.store.get(2)
    # forgotten jobs are history by month
    reader = Reader()
    reader.submit(*[Submission(spec())] * 4)
    reader.cluster.end(2)
    reader.clock.advance(timedelta(days=40).total_seconds())
    reader.cluster.end(1)
    reader.cluster.end(3)
    for job_id in (1, 2, 3):
        reader.cluster.forget(job_id)
    assert [each.id for each in reader.store.past()] == [1, 3, 2]
    assert [each.id for each in reader.store.past(NOW + timedelta(days=1))] == [1, 3]
    assert sorted(record.id for record in reader.store.records()) == [1, 2, 3, 4]
    # a job that the queue still has is no history
    reader = Reader()
    reader.submit(Submission(spec()))
    reader.cluster.end(1)
    assert list(reader.store.past()) == []
    assert [record.id for record in reader.store.records()] == [1]


@cases(
    ("read", "empty"),
    [
        (lambda store: store.controls(), Controls()),
        (lambda store: store.recurring(), {}),
        (lambda store: list(store.audit_log()), []),
        (lambda store: list(store.audit_log("1")), []),
        (lambda store: store.watch(), None),
        (lambda store: store.unread(), ()),
        (lambda store: store.unreadable(), ()),
    ],
)
def test_what_only_a_store_of_files_has_is_empty_without_asking(
    read: Callable[[EngineQueue], object], empty: object
) -> None:
    reader = Reader()
    reader.cluster.answers = False
    assert read(reader.store) == empty


def test_the_store_is_named_after_its_cluster_and_closes_it() -> None:
    reader = Reader()
    assert reader.store.store_id == "lab"
    reader.store.close()
    assert reader.cluster.closed
