"""Telemetry of the jobs of a cluster: measured by one process, shown by all."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import clusters
from gputui.cluster.journal import TelemetryRecords
from gputui.config import Options, ProbeSpec
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import GpuProcess, ProbeCode, ProbeStatus
from gputui.domain.idle_gpus import idle_gpus
from gputui.domain.job import Job
from gputui.domain.job_spec import Submission
from gputui.domain.settings import SchedulerSettings, Settings
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState
from gputui.domain.telemetry import Consumption
from gputui.domain.telemetry_series import unread_words
from gputui.engine.cluster.measurements import ClusterTelemetry, IdleEnds, MeasuredJobs, measured
from gputui.engine.cluster.poll import SharedDuty, Turn
from gputui.engine.cluster.queue import EngineQueue
from tests.cases import cases
from tests.cluster.commands import Run
from tests.cluster.fake import FakeCluster
from tests.engine.fakes import InlineExecutor
from tests.factories import GIB, FakeClock, sample, spec

STEP = 10.0
CONTAINER = "c" * 64
CONTAINED = GpuProcess(4711, 8 * GIB, container_id=CONTAINER)
SETTINGS = SchedulerSettings(idle_gpus_after=timedelta(minutes=5))


class Site:
    """A cluster whose nodes are read, and processes that measure its jobs when their turn comes."""

    def __init__(self, directory: Path) -> None:
        self.ends_idle_after: timedelta | None = None
        self.directory = directory
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock)
        self.hides_gpus = False
        self.contained: tuple[str, ...] = ()
        """GPUs on which a process of the job's container is."""
        self.used: Consumption | None = None
        """Use of the machine by that container."""
        self.used_age = 0.0
        """Seconds since that was read."""
        self.load = dict.fromkeys(("gpu1:0", "gpu1:1"), 0.5)
        self.store = self.new_store()
        self.process = self.new_process()

    def new_store(self) -> EngineQueue:
        ticks = count(0, 10)
        joined = MeasuredJobs(TelemetryRecords(self.directory), self.ends_idle_after, lambda: self.cluster.user)
        return EngineQueue(self.cluster, lambda: float(next(ticks)), directory=self.directory, measured=lambda: joined)

    def new_process(self) -> SharedDuty:
        def begin(_: Snapshot) -> ClusterTelemetry:
            records, worker = TelemetryRecords(self.directory), InlineExecutor()
            after = self.ends_idle_after
            ends = IdleEnds(self.cluster, records, after, self.clock, worker) if after is not None else None
            return ClusterTelemetry(records, self.directory, SETTINGS, self.clock, worker, ends=ends)

        return SharedDuty("telemetry", Turn(self.directory / "telemetry.duty"), begin)

    def submit(self, gpus: int = 2) -> int:
        return self.cluster.submit([Submission(spec(gpus=gpus))], f"{self.clock.now()}")[0]

    def passes(self, seconds: float, *processes: SharedDuty) -> None:
        """Let this time pass, with a reading every ten seconds."""
        for _ in range(int(seconds / STEP)):
            self.clock.advance(STEP)
            for process in processes or (self.process,):
                process.update(self.read())

    def read(self) -> Snapshot:
        snapshot = self.store.read()
        jobs = tuple(map(self._hidden, snapshot.jobs)) if self.hides_gpus else snapshot.jobs
        return replace(snapshot, jobs=jobs, nodes=tuple(map(self._read, snapshot.nodes)))

    def _hidden(self, job: Job) -> Job:
        """Return the job as an engine tells it that does not tell its GPUs."""
        attempts = (replace(attempt, gpus=(), container_id=CONTAINER) for attempt in job.attempts)
        return job.evolve(attempts=tuple(attempts))

    def _read(self, node: Node) -> Node:
        reading = sample(at=self.clock.now(), memory_used=8 * GIB, power=360.0, processes_at=self.clock.now())
        process = replace(CONTAINED, used=self.used, used_age=self.used_age)
        views = (
            replace(
                view,
                job_ids=() if self.hides_gpus else view.job_ids,
                process_jobs={} if self.hides_gpus or not view.job_ids else {process.pid: view.job_ids[0]},
                sample=replace(
                    reading,
                    uuid=view.gpu.uuid,
                    utilization=self.load.get(view.gpu.uuid, 0.0),
                    processes=(process,) if view.gpu.uuid in self.contained else (),
                ),
            )
            for view in node.gpus
        )
        return replace(node, gpus=tuple(views), probe=ProbeStatus(ProbeCode.OK, ""))

    def end(self, job_id: int) -> None:
        self.cluster.end(job_id)
        self.process.update(self.read())

    def job(self, job_id: int) -> Job:
        return self.new_store().get(job_id)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_an_ended_job_has_the_figures_of_its_gpus_also_after_the_engine_forgot_it(site: Site) -> None:
    job_id = site.submit()
    site.passes(600)
    site.end(job_id)
    known = site.job(job_id)
    site.cluster.forget(job_id)
    for job in (known, site.job(job_id), *site.new_store().past()):
        assert job.attempt is not None
        told = job.attempt.telemetry
        assert told is not None
        assert told.utilization is not None
        assert told.gpu_memory is not None
        assert (told.seconds, told.utilization.mean, told.gpu_memory.peak) == (600, 0.5, 8 * GIB)
        assert told.energy == pytest.approx(2 * 600 * 360)
        assert job.attempt.efficiency is not None
    [record] = [record for record in site.new_store().records() if record.id == job_id]
    assert record.attempts[0].telemetry is not None
    assert record.attempts[0].telemetry.busy == pytest.approx(600)


@cases("hides_gpus", [False, True])
def test_a_job_has_the_use_of_the_machine_by_its_container(tmp_path: Path, hides_gpus: bool) -> None:
    site = Site(tmp_path)
    site.hides_gpus, site.contained = hides_gpus, ("gpu1:0", "gpu1:1")
    job_id = site.submit()
    for number in range(6):
        cpu = 15.0 + 18 * number
        site.used = Consumption(cpu=cpu, memory=GIB, memory_peak=2 * GIB, io_read=number + 1, io_written=0)
        site.passes(STEP)
        site.clock.advance(2)
        site.used_age = 1.995  # told once more
        site.process.update(site.read())
        site.used_age = 0.0
    site.used = None
    site.passes(STEP)
    site.end(job_id)
    told = site.job(job_id).attempts[-1].telemetry
    assert told is not None
    assert told.cpus is not None
    assert told.memory is not None
    assert (told.cpu, told.cpus.mean, told.memory.peak) == (105.0, 1.5, 2 * GIB)
    assert told.cpus.peak == pytest.approx(1.5)
    assert told.memory.mean == pytest.approx(GIB, rel=0.001)
    assert (told.io_read, told.io_written) == (6, 0)


def test_the_next_process_continues_the_sums_and_the_series(site: Site) -> None:
    job_id = site.submit()
    site.passes(300)
    site.process.close()
    site.process = site.new_process()
    site.passes(300)
    running = measured(site.directory, site.job(job_id))[1]
    assert running.summary is not None
    site.end(job_id)
    told = measured(site.directory, site.job(job_id))[1]
    assert told.summary is not None
    assert told.summary.seconds == 600
    assert told.series is not None
    assert told.series.end - told.series.begin == pytest.approx(600, abs=STEP)


def test_a_job_that_ended_between_two_processes_keeps_what_was_saved(site: Site) -> None:
    job_id = site.submit()
    site.passes(300)
    site.process.close()
    site.clock.advance(100)
    site.cluster.end(job_id)
    site.process = site.new_process()
    site.passes(STEP)
    told = site.job(job_id).attempts[-1].telemetry
    assert told is not None
    assert told.seconds == 300
    assert told.allocated == 2 * 400


def test_jobs_that_have_not_changed_are_the_same_objects_in_the_next_snapshot(site: Site) -> None:
    first = site.submit()
    site.submit()
    site.passes(60)
    site.end(first)
    taken, seen = MeasuredJobs(TelemetryRecords(site.directory)), site.cluster.snapshot()
    before, after = taken.joined(seen), taken.joined(seen)
    assert before.jobs[0].attempts[0].telemetry is not None
    assert before.jobs is after.jobs


def test_two_processes_count_a_reading_once(site: Site) -> None:
    job_id = site.submit()
    site.passes(300, site.process, site.new_process())
    site.end(job_id)
    told = site.job(job_id).attempts[-1].telemetry
    assert told is not None
    assert told.seconds == 300


def test_gpus_that_the_engine_does_not_tell_are_those_with_processes_of_the_container(site: Site) -> None:
    site.hides_gpus = True
    job_id = site.submit()
    site.passes(60)
    assert not measured(site.directory, site.job(job_id))[1].summary
    site.contained = ("gpu1:1",)
    site.passes(60)
    site.contained = ()
    site.passes(60)
    site.end(job_id)
    records, started_at = TelemetryRecords(site.directory), site.job(job_id).started_at
    records.refresh()
    assert started_at is not None
    found = records.of(job_id, started_at)
    assert found is not None
    told, gpus = found
    assert gpus == ("gpu1:1",)
    assert told.utilization is not None
    assert (told.seconds, told.utilization.mean) == (140, 0.5)  # a reading counts for 30 s at most


def test_the_duty_of_a_process_measures_and_records(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "clock", lambda: site.clock)
    options = Options(site.directory, probe=ProbeSpec(), settings=replace(Settings(), scheduler=SETTINGS))
    site.process = clusters.telemetry_duty(options, site.store)
    job_id = site.submit()
    site.passes(300)
    site.end(job_id)
    site.process.close()
    told = site.job(job_id).attempts[-1].telemetry
    assert told is not None
    assert told.seconds == 300


def test_idle_gpus_are_marked_in_every_process_while_they_are_idle(site: Site) -> None:
    job_id = site.submit()
    site.load["gpu1:1"] = 0.0
    site.passes(320)
    shown = site.new_store().read()
    assert idle_gpus(shown.gpus, site.clock.now()) == {job_id: "GPU 1 idle 5m"}
    assert [notice.text for notice in shown.notices] == [f"job {job_id} train (alice) leaves 1 of its 2 GPUs idle"]
    site.load["gpu1:1"] = 0.3
    site.passes(STEP)
    assert not idle_gpus(site.new_store().read().gpus, site.clock.now())


def test_marks_of_a_process_that_has_ended_do_not_last(site: Site) -> None:
    site.submit()
    site.load = {}
    site.passes(320)
    site.process.close()
    site.clock.advance(60)
    assert not idle_gpus(site.new_store().read().gpus, site.clock.now())


def test_an_own_job_that_leaves_all_its_gpus_idle_is_ended_some_time_after_the_warning(site: Site) -> None:
    site.ends_idle_after = timedelta(minutes=10)
    site.store = site.new_store()
    own = site.submit(1)
    [other] = site.cluster.submit_as("bob", Submission(spec(gpus=1)))
    site.load = {}
    site.passes(320)
    ends = ": it is ended if that lasts for another 10m"
    texts = [notice.text for notice in site.new_store().read().notices]
    assert texts == [
        f"job {own} train (alice) leaves its 1 GPU idle{ends}",
        f"job {other} train (alice) leaves its 1 GPU idle",
    ]
    site.passes(580)
    assert site.job(own).state is JobState.RUNNING
    site.passes(30)
    states = [site.job(each).state for each in (own, other)]
    assert states == [JobState.CANCELLED, JobState.RUNNING]
    words = "its GPUs were idle for 15m00s: no use, and no change of memory (scheduler.idle_gpus_end)"
    assert [site.job(own).cause, site.job(own).attempts[-1].cause] == [Cause(CauseCode.TIME_LIMIT, words)] * 2


def test_a_new_process_warns_again_before_it_ends_a_job(site: Site) -> None:
    site.ends_idle_after = timedelta(minutes=10)
    job_id = site.submit(1)
    site.load = {}
    site.passes(800)
    site.process.close()
    site.process = site.new_process()
    site.passes(500)
    assert site.job(job_id).state is JobState.RUNNING
    site.passes(120)
    assert site.job(job_id).state is JobState.CANCELLED


def test_a_job_that_the_engine_does_not_cancel_is_tried_again_and_told(site: Site) -> None:
    site.ends_idle_after = timedelta(0)
    job_id = site.submit(1)
    site.load = {}
    site.cluster.refuses_cancel = "not now"
    site.passes(320)
    [notice] = site.process.notices()
    assert notice.text == f"job {job_id} leaves its GPUs idle and cannot be ended: not now"
    site.cluster.refuses_cancel = ""
    site.passes(70)
    assert (site.job(job_id).state, site.process.notices()) == (JobState.CANCELLED, ())


def test_it_is_said_why_nothing_was_measured(site: Site) -> None:
    job_id = site.submit()
    running = site.job(job_id)
    site.cluster.end(job_id)
    ended = site.job(job_id)
    hidden = replace(ended, attempts=(replace(ended.attempts[0], gpus=()),))
    assert [
        unread_words(job, job.attempts[0], "Kubernetes", is_read=is_read)
        for job, is_read in ((running, False), (running, True), (ended, True), (hidden, True))
    ] == [
        "nothing: the nodes are not read (cluster.probe)",
        "no readings yet",
        "nothing: no process of gputui read its nodes meanwhile",
        "nothing: Kubernetes does not tell which GPUs it has, and no process of it was seen on one",
    ]


def test_show_says_why_nothing_was_measured(run: Run, cluster: FakeCluster) -> None:
    [job_id] = cluster.submit([Submission(spec(gpus=1))], "key")
    shown = run("show", str(job_id))
    assert "measured              nothing: the nodes are not read (cluster.probe)" in shown.out
