"""Idle GPUs: the rule, and the words in rows, conditions and commands."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from gputui.cli import gpus, queue
from gputui.domain.conditions import idle_conditions
from gputui.domain.gpu import GpuProcess, GpuState, GpuView, Holder
from gputui.domain.idle_gpus import IdleTracker, idle_gpus
from gputui.domain.job import Job
from gputui.domain.settings import ConsoleSettings, Settings
from gputui.domain.snapshot import Node
from gputui.domain.state import JobState
from gputui.tui.present.gpu_rows import GpuRow
from gputui.tui.present.job import JobContext, job_cells
from tests.cases import cases
from tests.factories import GIB, NOW, running, sample, snapshot, uuid, view


def held(index: int, job_id: int, minutes: float | None) -> GpuView:
    since = None if minutes is None else NOW - timedelta(minutes=minutes)
    return view(index, GpuState.ALLOCATED, job_id=job_id, job_ids=(job_id,), idle_since=since)


VIEWS = (held(0, 1, 45.5), held(1, 1, 90), held(2, 2, 31), held(3, 2, None), held(4, 3, None))


def test_idle_time_of_a_job_is_that_of_its_youngest_idle_gpu() -> None:
    assert idle_gpus(VIEWS, NOW) == {1: "GPU 0-1 idle 45m", 2: "GPU 2 idle 31m"}


def test_rows_of_jobs_and_gpus_show_idle_gpus() -> None:
    one, two = running(1, on=[uuid(0), uuid(1)]), running(3, on=[uuid(4)])
    seen = snapshot([one, two], VIEWS)
    context = JobContext.of(seen, NOW, {each.gpu.uuid: str(each.gpu.index) for each in VIEWS})
    told = ["".join(words for words, _ in job_cells(job, "why", context)) for job in (one, two)]
    assert told == ["! GPU 0-1 idle 45m", "GPU 4"]
    assert [queue.why(job, seen) for job in (one, two)] == ["GPU 0-1 idle 45m", ""]
    assert gpus.story(VIEWS[1]).endswith("idle for 1h30m")
    rows = [GpuRow(each, now=NOW) for each in VIEWS]
    assert [row.idle for row in rows] == [
        timedelta(minutes=45.5),
        timedelta(minutes=90),
        timedelta(minutes=31),
        None,
        None,
    ]


ALICE = GpuProcess(7, GIB, "alice", "python")
EVE = GpuProcess(8, GIB, "eve", "python")


class Watched:
    """A GPU that a tracker sees every second."""

    def __init__(self, *jobs: Job, **console: Any) -> None:
        self.tracker = IdleTracker(Settings(console=ConsoleSettings(**console)))
        self.jobs = {job.id: job for job in jobs}
        self.now = NOW

    def see(self, seconds: int, load: float | None, *users: GpuProcess, **changes: Any) -> timedelta | None:
        """Return for how long it is idle after so many seconds of this load."""
        for _ in range(seconds):
            self.now += timedelta(seconds=1)
            reading = sample(0, at=self.now, utilization=load, processes=users, memory_used=len(users) * GIB)
            holders = tuple(Holder("process", "python", each.user, each.pid) for each in users)
            state = GpuState.ALLOCATED if self.jobs else GpuState.FOREIGN if users else GpuState.FREE
            ids = tuple(self.jobs)
            fields: dict[str, Any] = {
                "state": state,
                "job_id": ids[0] if ids else None,
                "job_ids": ids,
                "holders": holders,
                "sample": reading,
            }
            shown = view(0, **{**fields, **changes})
            [node] = self.tracker.marked((Node("here", (shown,)),), self.jobs, self.now)
        since = node.gpus[0].idle_since
        return None if since is None else self.now - since


def test_a_gpu_is_idle_after_minutes_below_the_limit() -> None:
    """The rule is the same for a job and for a foreign process."""
    for watched, users in ((Watched(running(1, on=[uuid(0)])), ()), (Watched(), (ALICE,))):
        assert watched.see(60, 0.5, *users) is None
        assert watched.see(300, 0.09, *users) is None
        assert watched.see(1, 0.09, *users) == timedelta(minutes=5)
        assert watched.see(3600, 0.0, *users) == timedelta(minutes=65)
        assert watched.see(11, 0.1, *users) is None
        assert watched.see(300, 0.0, *users) is None


def test_the_mean_decides_and_no_single_reading() -> None:
    watched = Watched(running(1, on=[uuid(0)]))
    for _ in range(40):
        watched.see(1, 1.0)
        watched.see(14, 0.0)
    assert watched.see(1, 1.0) == timedelta(seconds=599)
    for _ in range(40):
        watched.see(3, 1.0)
        told = watched.see(7, 0.0)
    assert told is None


@cases(
    "job",
    [
        running(1, on=[uuid(0)]).evolve(suspended=True),
        running(1, on=[uuid(0)]).evolve(state=JobState.CONFIGURING),
    ],
)
def test_suspended_and_starting_jobs_may_leave_it_idle(job: Job) -> None:
    assert Watched(job).see(600, 0.0) is None


def test_unknown_use_free_gpus_and_settings() -> None:
    assert Watched(running(1, on=[uuid(0)])).see(600, None) is None
    assert Watched().see(600, 0.0) is None
    assert Watched(idle_below=0).see(600, 0.0, ALICE) is None
    assert Watched(idle_after=timedelta(minutes=20)).see(600, 0.0, ALICE) is None
    claimed = Holder("container", "dcgm-exporter", "root", container_id="f00d")
    assert Watched().see(600, 0.0, state=GpuState.FOREIGN, holders=(claimed,)) is None  # it keeps no memory in use


def test_another_holder_begins_anew() -> None:
    watched = Watched()
    assert watched.see(600, 0.0, ALICE) == timedelta(seconds=599)
    assert watched.see(1, 0.0, ALICE, EVE) == timedelta(seconds=600)
    assert watched.see(1, 0.0, EVE) == timedelta(seconds=601)
    assert watched.see(1, 0.0, ALICE) is None
    job = running(1, on=[uuid(0)])
    watched = Watched(job.evolve(started_at=NOW + timedelta(minutes=10)))
    assert watched.see(900, 0.0) == timedelta(minutes=5)


def test_a_gap_in_the_readings_is_not_idle_time_and_telemetry_knows_more() -> None:
    watched = Watched(running(1, on=[uuid(0)]))
    assert watched.see(400, 0.0) is not None
    assert watched.see(1, 0.0, stale=True) is None
    assert watched.see(1, 0.0) is not None
    watched.now += timedelta(minutes=1)
    assert watched.see(1, 0.0) is None
    assert watched.see(1, 0.0, idle_since=NOW - timedelta(hours=3)) == watched.now - NOW + timedelta(hours=3)


def test_the_status_line_and_the_list_name_who_leaves_gpus_idle() -> None:
    job = running(5, on=[uuid(0), uuid(1)])
    eve = Holder("process", "python", "root", 22110)
    foreign = view(2, GpuState.FOREIGN, holders=(eve,), idle_since=NOW - timedelta(minutes=7, seconds=30))
    seen = snapshot([job], (held(0, 5, 6), held(1, 5, 6.5), foreign))
    first, second = idle_conditions(seen, NOW)
    assert first.short == second.short == "3 GPUs idle 7m: pid 22110 root, #5"
    assert [first.place, second.place] == [("process", "22110"), ("job", "5")]
    assert first.text == "pid 22110 root holds GPU 2 idle"
    assert second.text == "job #5 train (alice) leaves GPUs 0-1 idle"
    assert [each.since for each in (first, second)] == [foreign.idle_since, held(0, 5, 6).idle_since]
    [alone] = idle_conditions(replace(seen, nodes=(Node("here", (held(1, 5, 61),)),)), NOW)
    assert alone.short == "GPU 1 idle 1h01m: #5"
