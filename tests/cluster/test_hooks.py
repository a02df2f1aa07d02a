"""Hooks over a cluster: each end is told, by one process, and not again by the next."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.cluster.journal import AnnouncedEnds
from gputui.domain.action import DrainGpus, Hold, ResumeGpus
from gputui.domain.event import Event
from gputui.domain.gpu import Health, HealthCode
from gputui.domain.job_spec import Submission
from gputui.domain.settings import HookSettings, ReportSettings, Settings
from gputui.domain.snapshot import Snapshot
from gputui.engine.cluster.hooks import GAP, SILENT_AFTER, STUCK_AFTER, ClusterHooks
from gputui.engine.cluster.poll import ClusterPoll, SharedDuty, Turn
from gputui.engine.cluster.queue import EngineQueue
from gputui.engine.feed import Feed
from gputui.engine.hooks import Announcer, NotDeliveredError, RecordEnds, weekly_of
from tests.cluster.fake import FakeCluster
from tests.engine.fakes import InlineExecutor
from tests.factories import NOW, FakeClock, spec

WEEKLY = Settings(report=ReportSettings(weekly=f"{NOW.astimezone():%a %H:%M}"))
"""A report that is due when the clock of the tests starts."""


class Ear:
    """Hook that hears everything, unless it is deaf."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.is_deaf = False

    def __call__(self, event: Event) -> None:
        if self.is_deaf:
            raise NotDeliveredError("nobody there")
        self.heard.append(event)

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.heard]


class Process:
    """Process over a cluster that runs hooks when its turn comes."""

    def __init__(self, site: Site, settings: HookSettings) -> None:
        ticks = count(0, 10)
        store, self.feed = EngineQueue(site.cluster, lambda: float(next(ticks))), Feed()
        sinks = [("webhook", lambda _: True, site.ear)]

        def announcer(record: RecordEnds) -> Announcer:
            report = site.report
            weekly = weekly_of(WEEKLY, site.directory, lambda *_: report, InlineExecutor()) if report else None
            return Announcer(record, settings, sinks, lambda _: InlineExecutor(), weekly=weekly)

        def begin(_: Snapshot) -> ClusterHooks:
            ledger = AnnouncedEnds(site.directory)
            return ClusterHooks(site.cluster, announcer, ledger, settings, site.clock, InlineExecutor())

        self.duty = SharedDuty("hooks", Turn(site.directory / "hooks.lock"), begin)
        self.poll = ClusterPoll(store, self.feed, site.clock, timedelta(seconds=2), None, (self.duty,))

    def end(self) -> None:
        self.duty.close()


class Site:
    """A cluster with processes that watch it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock)
        self.ear = Ear()
        self.report: Mapping[str, object] = {}

    def process(self, **settings: object) -> Process:
        made = Process(self, replace(HookSettings(), **settings))
        made.poll.poll()
        return made

    def submit(self, gpus: int = 1, user: str = "") -> int:
        submission = Submission(spec(gpus=gpus))
        if user:
            return self.cluster.submit_as(user, submission)[0]
        return self.cluster.submit([submission], f"{self.clock.now()}{gpus}{len(self.cluster.snapshot().jobs)}")[0]

    def passes(self, *processes: Process, seconds: float = 2, polls: int = 2) -> None:
        for _ in range(polls):
            self.clock.advance(seconds)
            for process in processes:
                process.poll.poll()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_each_end_of_an_own_job_is_told_once_by_one_of_two_processes(site: Site) -> None:
    first, second = site.process(), site.process()
    done, failed, other = site.submit(), site.submit(), site.submit(user="bob")
    site.passes(first, second)
    site.cluster.end(done)
    site.cluster.end(failed, 3)
    site.cluster.end(other)
    site.passes(first, second, polls=4)
    assert [(event.name, event.data["id"]) for event in site.ear.heard] == [
        ("job_completed", done),
        ("job_failed", failed),
    ]
    assert site.ear.heard[1].text == f"Job {failed} train (alice) failed after 4s: exit code 3"


def test_another_process_takes_over_and_tells_what_was_not_told(site: Site) -> None:
    first, second = site.process(), site.process()
    told, missed = site.submit(), site.submit()
    site.cluster.end(told)
    site.passes(first, second)
    first.end()
    site.ear.is_deaf = False
    site.cluster.end(missed)
    site.passes(second, polls=3)
    assert [event.data["id"] for event in site.ear.heard] == [told, missed]


def test_an_end_whose_delivery_failed_before_the_process_ended_is_told_by_the_next(site: Site) -> None:
    first = site.process()
    job = site.submit()
    site.ear.is_deaf = True
    site.cluster.end(job)
    site.passes(first)
    first.end()
    site.ear.is_deaf = False
    second = site.process()
    site.passes(second)
    assert [event.data["id"] for event in site.ear.heard] == [job]


def test_an_end_that_the_engine_forgot_while_nobody_looked_is_told_from_the_history(site: Site) -> None:
    first = site.process()
    job, old = site.submit(), site.submit()
    site.cluster.end(old)
    site.passes(first)
    first.end()
    site.cluster.end(job)
    site.cluster.forget(old)
    site.cluster.forget(job)
    site.passes(site.process(), polls=4, seconds=10)
    assert [event.data["id"] for event in site.ear.heard] == [old, job]


def test_a_job_that_vanishes_between_two_polls_is_looked_up(site: Site) -> None:
    process = site.process()
    job = site.submit()
    site.passes(process)
    site.cluster.end(job)
    site.cluster.forget(job)
    site.passes(process, polls=4, seconds=10)
    assert [event.data["id"] for event in site.ear.heard] == [job]


def test_ends_during_a_silence_of_the_engine_are_told_after_it(site: Site) -> None:
    process = site.process()
    job = site.submit()
    site.passes(process)
    site.cluster.end(job)
    site.cluster.forget(job)
    site.cluster.answers = False
    site.passes(process, seconds=GAP.total_seconds())
    site.cluster.answers = True
    site.passes(process, polls=4, seconds=10)
    assert [event.data["id"] for event in site.ear.heard] == [job]


def test_ends_that_are_too_old_are_told_to_nobody(site: Site) -> None:
    job = site.submit()
    site.cluster.end(job)
    site.clock.advance(2 * 3600)
    site.passes(site.process(max_age=timedelta(hours=1)), polls=3)
    assert site.ear.heard == []


def test_jobs_of_all_users_are_told_where_the_setting_says_so(site: Site) -> None:
    process = site.process(cluster_jobs="all")
    job = site.submit(user="bob")
    site.cluster.end(job)
    site.passes(process)
    assert [event.data["submitted_by"] for event in site.ear.heard] == ["bob"]


def test_nodes_that_go_down_and_return_are_told(site: Site) -> None:
    process = site.process()
    site.cluster.lose_node("gpu2")
    site.passes(process, polls=3)
    site.cluster.act(ResumeGpus(("gpu2",)))
    site.passes(process, polls=3)
    assert site.ear.names == ["node_down", "node_up"]
    assert site.ear.heard[0].document("head")["node"] == {
        "name": "gpu2",
        "why": "node gpu2 is down: Not responding",
        "gpus": 2,
    }


def test_a_gpu_that_falls_sick_is_told_by_its_node(site: Site) -> None:
    process = site.process()
    snapshot = site.cluster.snapshot()
    first = snapshot.nodes[0]
    sick = replace(first.gpus[0], health=Health(HealthCode.XID, "Xid 79: fell off the bus"))
    process.duty.update(replace(snapshot, nodes=(replace(first, gpus=(sick, *first.gpus[1:])), *snapshot.nodes[1:])))
    [event] = site.ear.heard
    assert (event.name, event.text) == ("gpu_sick", "GPU gpu1:0 (NVIDIA H200): Xid 79: fell off the bus")


def test_an_engine_that_does_not_answer_is_told_once_as_a_stuck_queue(site: Site) -> None:
    process = site.process()
    site.cluster.answers = False
    site.passes(process, seconds=SILENT_AFTER.total_seconds(), polls=3)
    assert site.ear.names == ["queue_stuck"]
    assert site.ear.heard[0].text == "Fake has not answered for 5m00s"


def test_a_job_that_leaves_gpus_idle_is_told_and_again_if_it_leaves_all_idle(site: Site) -> None:
    process = site.process()
    job, other = site.submit(gpus=2), site.submit(gpus=1, user="bob")

    def see(*idle: str) -> None:
        snapshot, since = site.cluster.snapshot(), site.clock.now()
        nodes = tuple(
            replace(node, gpus=tuple(replace(v, idle_since=since if v.gpu.uuid in idle else None) for v in node.gpus))
            for node in snapshot.nodes
        )
        process.duty.update(replace(snapshot, nodes=nodes))

    [of_other] = site.cluster.job(other).gpus
    for idle in (("gpu1:0", of_other), ("gpu1:0",), ("gpu1:0", "gpu1:1"), ("gpu1:0", "gpu1:1"), ("gpu1:0",)):
        see(*idle)
    assert [(event.name, event.data["id"], event.data["idle_gpus"]) for event in site.ear.heard] == [
        ("gpus_idle", job, ["gpu1:0"]),
        ("gpus_idle", job, ["gpu1:0", "gpu1:1"]),
    ]


def stuck(site: Site, change: Callable[[int], object] = lambda _: None) -> list[str]:
    """Return what is told while a job waits on a cluster without nodes."""
    site.cluster.act(DrainGpus(("gpu1", "gpu2", "gpu3"), "power"))
    job = site.submit()
    change(job)
    process = site.process()
    site.passes(process, seconds=STUCK_AFTER.total_seconds(), polls=3)
    return site.ear.names


def test_a_queue_in_which_nothing_starts_is_told_once(site: Site) -> None:
    assert stuck(site) == ["queue_stuck"]
    assert site.ear.heard[0].text == "1 job waits for GPUs, and none has started for 15m00s"


def test_a_queue_of_held_jobs_is_not_stuck(site: Site) -> None:
    assert stuck(site, lambda job: site.cluster.act(Hold((job,)))) == []


def test_the_weekly_report_of_a_cluster_is_sent_once(site: Site) -> None:
    """The report itself is that of the command; here it is a fixed one."""
    site.report = {"table": "TENANT JOBS", "report": {"total": {"gpu_hours": 12.5, "jobs": 3}}}
    first, second = site.process(), site.process()
    site.passes(first, second)
    first.end()
    site.passes(second, polls=4)
    [event] = site.ear.heard
    assert (event.name, event.data["table"]) == ("weekly_report", "TENANT JOBS")


def test_a_full_disk_keeps_no_event_back_and_tells_none_twice(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    process = site.process()
    jobs = [site.submit() for _ in range(3)]
    with monkeypatch.context() as patch:

        def full(self: AnnouncedEnds, events: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(AnnouncedEnds, "add", full)
        for job_id in jobs[:2]:
            site.cluster.end(job_id, 3)
            site.passes(process, polls=3)
        site.cluster.lose_node("gpu3")
        site.passes(process, polls=3)
        assert sorted(site.ear.names) == ["job_failed", "job_failed", "node_down"]
        assert [notice.text for notice in process.feed.latest.notices] == ["no hooks: No space left on device"]
    heard = list(site.ear.names)
    site.passes(process, polls=3)
    assert process.feed.latest.notices == ()
    process.end()
    site.passes(site.process(), polls=3)
    assert site.ear.names == heard
