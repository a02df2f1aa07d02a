"""The fake cluster behaves as an engine does."""

from __future__ import annotations

import pytest

from gputui.domain.action import Cancel
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError
from gputui.domain.job_spec import Submission
from gputui.domain.state import JobState, PendingReason
from gputui.ports import Cluster
from tests.cluster.fake import FakeCluster
from tests.factories import FakeClock, spec


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(FakeClock())


def test_it_has_the_whole_port(cluster: FakeCluster) -> None:
    port: Cluster = cluster
    assert port.snapshot().nodes[0].name == "gpu1"


def test_jobs_start_on_free_gpus_and_the_next_one_when_one_ends(cluster: FakeCluster) -> None:
    ids = cluster.submit([Submission(spec(gpus=2))] * 4, "k")
    assert cluster.submit([Submission(spec(gpus=2))] * 4, "k") == ids == (1, 2, 3, 4)
    snapshot = cluster.snapshot()
    assert [job.state for job in snapshot.jobs] == [JobState.RUNNING] * 3 + [JobState.PENDING]
    assert snapshot.reasons[4].code is PendingReason.RESOURCES
    assert [view.job_id for view in snapshot.gpus] == [1, 1, 2, 2, 3, 3]
    cluster.end(2, 3)
    assert cluster.job(2).exit_code == 3
    assert cluster.job(4).attempts[0].node == "gpu2"


def test_waiting_elements_of_an_array_are_one_entry(cluster: FakeCluster) -> None:
    ids = cluster.submit([Submission(spec(gpus=1), array=tuple(range(10)), array_limit=2)], "k")
    jobs = cluster.snapshot().jobs
    assert [job.shown_id for job in jobs] == ["1_0", "1_1", "1_[2-9%2]"]
    assert cluster.job(1).id == ids[0]


def test_another_users_jobs_are_refused_to_all_but_operators() -> None:
    cluster = FakeCluster(FakeClock(), is_operator=False)
    (theirs,) = cluster.submit_as("bob", Submission(spec()))
    with pytest.raises(ClusterRefusedError, match="denied"):
        cluster.act(Cancel((theirs,)))


def test_it_can_be_away(cluster: FakeCluster) -> None:
    cluster.answers = False
    with pytest.raises(ClusterUnavailableError):
        cluster.snapshot()
