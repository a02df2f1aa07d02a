"""Words about idle GPUs in the rows of jobs and GPUs."""

from __future__ import annotations

from datetime import timedelta

from gputui.cli import gpus, queue
from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.idle_gpus import idle_gpus
from gputui.tui.present.gpu_rows import GpuRow
from gputui.tui.present.job import JobContext, job_cells
from tests.factories import NOW, running, snapshot, uuid, view


def held(index: int, job_id: int, minutes: float | None) -> GpuView:
    since = None if minutes is None else NOW - timedelta(minutes=minutes)
    return view(index, GpuState.ALLOCATED, job_id=job_id, job_ids=(job_id,), idle_since=since)


VIEWS = (held(0, 1, 45.5), held(1, 1, 90), held(2, 2, 31), held(3, 2, None), held(4, 3, None))


def test_idle_time_of_a_job_is_that_of_its_youngest_idle_gpu() -> None:
    assert idle_gpus(VIEWS, NOW) == {1: "idle 45m", 2: "1 of 2 idle 31m"}


def test_rows_of_jobs_and_gpus_show_idle_gpus() -> None:
    one, two = running(1, on=[uuid(0), uuid(1)]), running(3, on=[uuid(4)])
    seen = snapshot([one, two], VIEWS)
    context = JobContext.of(seen, NOW, {each.gpu.uuid: str(each.gpu.index) for each in VIEWS})
    told = ["".join(words for words, _ in job_cells(job, "why", context)) for job in (one, two)]
    assert told == ["GPU 0,1 · idle 45m", "GPU 4"]
    assert [queue.why(job, seen) for job in (one, two)] == ["idle 45m", ""]
    assert gpus.story(VIEWS[1]).endswith("idle for 1h30m")
    rows = [GpuRow(each, now=NOW) for each in VIEWS]
    assert [row.idle for row in rows] == [
        timedelta(minutes=45.5),
        timedelta(minutes=90),
        timedelta(minutes=31),
        None,
        None,
    ]
