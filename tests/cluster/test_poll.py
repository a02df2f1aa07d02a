"""The feed of a console over a cluster, which may be away."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from itertools import count

from gputui.domain.job_spec import Submission
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.cluster.backend import EngineBackend
from gputui.engine.cluster.poll import LONGEST_PAUSE, ClusterPoll
from gputui.engine.cluster.queue import EngineQueue
from gputui.engine.feed import Feed
from tests.cluster.fake import FakeCluster
from tests.factories import FakeClock, spec


class Polled:
    """A poll over a fake cluster, and the snapshots that it published."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock)
        ticks = count(0, 10)
        self.store = EngineQueue(self.cluster, lambda: float(next(ticks)))
        self.feed = Feed()
        self.seen: list[Snapshot] = []
        self.feed.subscribe(self.seen.append)
        self.poll = ClusterPoll(self.store, self.feed, self.clock, timedelta(seconds=2))


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
    assert polled.seen[0].leader is None
    assert "does not answer" in polled.seen[0].notices[0].text


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
