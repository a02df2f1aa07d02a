"""The feed of a console over a cluster, which may be away."""

from __future__ import annotations

import asyncio
import errno
import threading
from datetime import timedelta
from itertools import count

from gputui.domain.conditions import pressing
from gputui.domain.job_spec import Submission
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.cluster.backend import EngineBackend
from gputui.engine.cluster.poll import LONGEST_PAUSE, ClusterPoll
from gputui.engine.cluster.queue import EngineQueue
from gputui.engine.feed import Feed
from tests.cases import cases
from tests.cluster.fake import FakeCluster
from tests.factories import FakeClock, spec


class OddCluster(FakeCluster):
    """A cluster that can be made to fail, or to take its time, when it is asked for a snapshot."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.fault: Exception | None = None
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.is_asked = threading.Event()
        self.asked = 0

    def snapshot(self) -> Snapshot:
        self.asked += 1
        self.is_asked.set()
        self.goes_on.wait(60)
        if self.fault is not None:
            raise self.fault
        return super().snapshot()


class Polled:
    """A poll over a fake cluster, and the snapshots that it published."""

    def __init__(self, cluster: OddCluster | None = None, patience: float = 45.0) -> None:
        self.clock = cluster.clock if cluster is not None else FakeClock()
        self.cluster = cluster or FakeCluster(self.clock)
        ticks = count(0, 10)
        self.store = EngineQueue(self.cluster, lambda: float(next(ticks)))
        self.feed = Feed()
        self.seen: list[Snapshot] = []
        self.feed.subscribe(self.seen.append)
        self.poll = ClusterPoll(self.store, self.feed, self.clock, timedelta(seconds=2), patience=patience)


def test_the_last_snapshot_stays_with_its_age_and_a_notice_while_the_cluster_is_away() -> None:
    polled = Polled()
    polled.cluster.submit([Submission(spec(gpus=1))], "k")
    polled.poll.poll()
    polled.cluster.answers = False
    polled.clock.advance(30)
    polled.poll.poll()
    good, old = polled.seen
    assert old.jobs == good.jobs
    assert old.taken_at == good.taken_at
    assert old.leader is not None
    assert old.leader.silent_for == timedelta(seconds=30)
    assert [notice.text for notice in old.notices] == ["Fake does not answer: lab: the cluster does not answer"]
    polled.cluster.answers = True
    polled.poll.poll()
    assert polled.seen[-1].notices == ()


@cases(
    ("fault", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/state/x"), "/state/x: No space left on device"),
        (KeyError("gone"), "KeyError: 'gone'"),
    ],
)
def test_no_error_ends_the_poll_or_leaves_an_old_picture_that_looks_new(fault: Exception, words: str) -> None:
    cluster = OddCluster(FakeClock())
    polled = Polled(cluster)
    polled.poll.poll()
    cluster.fault = fault
    polled.clock.advance(30)
    polled.poll.poll()
    old = polled.seen[-1]
    assert old.leader is not None
    assert old.leader.silent_for == timedelta(seconds=30)
    assert [notice.text for notice in old.notices] == [f"the cluster cannot be read: {words}"]
    cluster.fault = None
    polled.poll.poll()
    assert polled.seen[-1].notices == ()
    assert polled.poll.pause == 2


def test_a_cluster_that_takes_too_long_counts_as_silent_until_its_answer_comes() -> None:
    cluster = OddCluster(FakeClock())
    polled = Polled(cluster, patience=0.05)
    polled.poll.poll()
    cluster.goes_on.clear()
    polled.poll.poll()
    polled.poll.poll()
    told = [[notice.text for notice in snapshot.notices] for snapshot in polled.seen]
    words = "Fake does not answer: nothing has come for 0 s, and it is waited for"
    assert told == [[], [words], [words]]
    assert cluster.asked == 2
    came = threading.Event()
    polled.feed.subscribe(lambda snapshot: came.set() if not snapshot.notices else None)
    thread = threading.Thread(target=lambda: asyncio.run(polled.poll.run()))
    thread.start()
    cluster.goes_on.set()
    assert came.wait(60)
    polled.poll.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_a_poll_that_waits_for_its_cluster_can_be_stopped() -> None:
    cluster = OddCluster(FakeClock())
    cluster.goes_on.clear()
    polled = Polled(cluster)
    thread = threading.Thread(target=lambda: asyncio.run(polled.poll.run()))
    thread.start()
    assert cluster.is_asked.wait(60)
    polled.poll.stop()
    thread.join(30)
    assert not thread.is_alive()
    cluster.goes_on.set()


def test_tries_become_rarer_and_return_to_the_usual_pace() -> None:
    polled = Polled()
    polled.cluster.answers = False
    pauses = []
    for _ in range(6):
        polled.poll.poll()
        pauses.append(polled.poll.pause)
    assert pauses == [4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    polled.cluster.answers = True
    polled.poll.poll()
    assert polled.poll.pause == 2


def test_a_cluster_that_never_answered_is_told_too() -> None:
    polled = Polled()
    polled.cluster.answers = False
    polled.poll.poll()
    polled.clock.advance(30)
    polled.poll.poll()
    leaders = [snapshot.leader for snapshot in polled.seen]
    assert [each and (each.kind, each.silent_for.total_seconds()) for each in leaders] == [("fake", 1), ("fake", 30)]
    assert "does not answer" in polled.seen[0].notices[0].text
    assert not [
        notice for each in polled.seen for notice in pressing(each, polled.clock.now()) if "serve" in notice.text
    ]


def test_a_change_by_this_process_is_shown_without_waiting_for_the_next_poll() -> None:
    polled = Polled()
    changed = threading.Event()

    def look(snapshot: Snapshot) -> None:
        if snapshot.jobs:
            changed.set()

    polled.feed.subscribe(look)
    poll = ClusterPoll(polled.store, polled.feed, polled.clock, timedelta(hours=1))
    thread = threading.Thread(target=lambda: asyncio.run(poll.run()))
    thread.start()
    EngineBackend(polled.store, Settings()).act(SubmitJobs((Submission(spec()),)))
    assert changed.wait(60)
    poll.stop()
    thread.join(60)
    assert not thread.is_alive()
