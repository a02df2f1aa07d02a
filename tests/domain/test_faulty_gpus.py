"""Lost and sick GPUs in the rows of their jobs, and readings that no longer describe a GPU."""

from __future__ import annotations

from datetime import timedelta

from gputui.cli import gpus, queue
from gputui.domain import as_json
from gputui.domain.gpu import Gpu, GpuProcess, GpuSample, GpuState, GpuView, Health, HealthCode, faulty_gpus
from gputui.domain.gpu_processes import process_rows
from gputui.domain.job import Job
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import UNKNOWN
from gputui.metrics.collector import Holders, add_dcgm, add_gpus
from gputui.metrics.families import SeriesPage, TenantLabels
from gputui.tui.present.cells import RED
from gputui.tui.present.gpu import gpu_cells
from gputui.tui.present.gpu_rows import GpuRow
from gputui.tui.present.job import JobContext, job_cells
from gputui.tui.present.status import summary_line
from gputui.tui.widgets.queue_rows import job_loads
from tests.factories import NOW, running, snapshot, uuid, view

LOST, XID = Health(HealthCode.LOST, "lost: fell off the bus"), Health(HealthCode.XID, "Xid 79")
AGO = timedelta(minutes=2)
PROCESS = GpuProcess(4242, memory=50 << 30, sm=0.9, command="python train.py")


def sample(index: int) -> GpuSample:
    return GpuSample(
        uuid(index),
        NOW - AGO,
        utilization=0.92,
        memory_used=62 << 30,
        memory_total=80 << 30,
        temperature=70,
        power=644,
        power_limit=700,
        sm_clock=1980,
        fan=0.4,
        throttle=("power cap",),
        processes=(PROCESS,),
        processes_at=NOW - AGO,
    )


def held(index: int, job_id: int, health: Health | None = None, *, stale: bool = False) -> GpuView:
    ids, known = (job_id,), health or Health()
    return view(
        index,
        GpuState.ALLOCATED,
        health=known,
        sample=sample(index),
        age=AGO,
        stale=stale,
        job_id=job_id,
        job_ids=ids,
        holders=(),
        process_jobs={},
    )


def info(job: Job, seen: Snapshot) -> str:
    names = {each.gpu.uuid: str(each.gpu.index) for each in seen.gpus}
    context = JobContext.of(seen, NOW, names)
    return "".join(words for words, _ in job_cells(job, "why", context))


def test_lost_and_sick_gpus() -> None:
    # lost GPUs come before sick ones and those that the driver does not list have their UUID
    gone = GpuView(Gpu("GPU-12345678-90", -1), GpuState.ALLOCATED, Health(), stale=True, job_id=3, job_ids=(3,))
    views = (held(4, 1, LOST), held(5, 1, LOST), held(6, 1, XID), held(7, 2), gone)
    assert faulty_gpus(views) == {1: "GPU 4-5 lost, GPU 6 sick", 3: "GPU GPU-1234567… lost"}
    # the row of a job says that its GPU is lost and shows no load
    one, two = running(1, on=[uuid(4)]), running(2, on=[uuid(5), uuid(6)])
    seen = snapshot([one, two], [held(4, 1, LOST), held(5, 2), held(6, 2, XID)])
    assert [info(job, seen) for job in (one, two)] == ["GPU 4 lost", "GPU 5,6 · GPU 6 sick"]
    context = JobContext.of(seen, NOW, {uuid(4): "4"})
    assert ("GPU 4 lost", RED) in job_cells(one, "why", context)
    assert [queue.why(job, seen) for job in (one, two)] == ["GPU 4 lost", "GPU 6 sick"]
    assert 1 not in job_loads(seen.gpus)
    # figures of a lost GPU are dashes
    row = GpuRow(held(0, 1, LOST), now=NOW)
    for key in ("percent", "memory", "temperature", "power", "clock", "fan"):
        assert gpu_cells(row, key, 9)[0][0] == UNKNOWN, key
    assert "slowed" not in "".join(words for words, _ in gpu_cells(row, "who", 60))


def test_a_sample_of_a_lost_gpu_and_an_old_one_are_shown_nowhere_as_current() -> None:
    for gone in (held(0, 1, LOST), held(0, 1, stale=True)):
        seen = snapshot([running(1, on=[uuid(0)])], [gone])
        assert gone.current is None
        assert "92%" not in " ".join(gpus.row(gone, "GPU-0"))
        told = as_json.gpu_json(gone)
        assert [told[key] for key in ("utilization", "memory_used", "temperature", "power")] == [None] * 4
        assert told["age"] == 120
        assert "".join(words for words, _ in summary_line(seen, NOW)) == "1 GPU"
        (row,) = process_rows(seen)
        assert (row.pid, row.gpu_memory, row.sm) == (4242, None, None)
        page = SeriesPage()
        add_gpus(page, seen.nodes[0], Holders({}, TenantLabels(5), "store"))
        add_dcgm(page, seen.nodes[0], {})
        values = [each.value for family in page.metrics() for each in family.samples]
        assert not {0.92, 92, 644} & set(values)
    assert held(0, 1).current is not None
