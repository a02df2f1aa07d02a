"""Memory charged to each job on a shared GPU, and reasons that close such a GPU to others."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gputui.domain.container import ForeignContainer
from gputui.domain.gpu import Drain, GpuProcess, GpuState, Health, HealthCode, Sharer
from gputui.domain.job import Job
from gputui.domain.snapshot import Controls, Node, Snapshot
from tests.cases import cases
from tests.domain.policy.test_availability import evidence, only, stranger
from tests.factories import GIB, NOW, running, uuid


def sharer(job_id: int, memory: int = 10) -> Job:
    one = running(job_id, on=[uuid(0)])
    return replace(one, spec=replace(one.spec, gpus=replace(one.spec.gpus, memory=memory * GIB, share=True)))


def process(job_id: int, memory: int | None) -> GpuProcess:
    return GpuProcess(100 + job_id, memory if memory is None else memory * GIB, container_id=f"c{job_id}")


TWO = (sharer(4, 20), sharer(9, 10))


def sampled(*processes: GpuProcess, used: int | None = None, **changes: Any) -> dict[str, Any]:
    total = sum(one.memory or 0 for one in processes) if used is None else used * GIB
    return {"sample0": {"processes": processes, "memory_used": total, **changes}}


def test_jobs_of_a_shared_gpu() -> None:
    # a shared GPU names all its jobs
    row = only(evidence(jobs=TWO, **sampled(process(4, 15), process(9, 3))))
    assert (row.state, row.why, row.job_id, row.job_ids) == (GpuState.ALLOCATED, "jobs 4 and 9", 4, (4, 9))
    assert [(holder.kind, holder.memory) for holder in row.holders] == [("job", 15 * GIB), ("job", 3 * GIB)]
    shown = Snapshot(nodes=(Node("here", (row,)),), jobs=TWO)
    assert (shown.sharing_with(TWO[0]), shown.sharing_with(TWO[1])) == ((9,), (4,))
    # unattributed memory counts as that of the jobs up to their promises
    untold = (process(4, None), process(9, 3))
    assert only(evidence(jobs=TWO, **sampled(*untold, used=24))).closed == ""
    assert (
        "2G of its memory is used by an unknown process" in only(evidence(jobs=TWO, **sampled(*untold, used=25))).closed
    )


@cases(
    ("processes", "counts"),
    [
        ((), (20, 10)),
        ((process(4, 2),), (20, 10)),
        ((process(4, 19), process(9, 10)), (20, 10)),
        ((process(4, 21), process(9, 30), process(9, 2)), (21, 32)),
        ((process(4, None), process(9, 30)), (20, 30)),
    ],
)
def test_the_promise_counts_until_more_is_really_used(
    processes: tuple[GpuProcess, ...], counts: tuple[int, int]
) -> None:
    row = only(evidence(jobs=TWO, **sampled(*processes)))
    assert row.sharers == (Sharer(4, counts[0] * GIB), Sharer(9, counts[1] * GIB))
    assert row.closed == ""


CLOSED = {
    "a foreign process": (evidence(jobs=TWO, **sampled(stranger())), "process 4711 (python) of bob"),
    "memory of nobody": (
        evidence(jobs=TWO, **sampled(process(4, 5), used=8)),
        "3G of its memory is used by an unknown process",
    ),
    "a foreign container": (
        evidence(jobs=TWO, foreign=(ForeignContainer("c" * 64, "vllm", "bob", ("0",)),)),
        "in use by container vllm",
    ),
    "sick": (evidence(jobs=TWO, **sampled(health=Health(HealthCode.XID, "Xid 79"))), "Xid 79"),
    "drained": (evidence(jobs=TWO, controls=Controls(drains={uuid(0): Drain("fan", "root", NOW)})), "fan"),
    "unreadable": (evidence(jobs=TWO, **sampled(processes=None)), "process list"),
    "containers unknown": (evidence(jobs=TWO, foreign=None), "Docker does not answer"),
    "one just left": (evidence(jobs=TWO, freed_at={uuid(0): NOW}), "since its last job ended"),
    "mixed": (evidence(jobs=(*TWO, running(3, on=[uuid(0)]))), "job 3 does not share it"),
}


@cases("case", CLOSED)
def test_each_obstacle_closes_a_shared_gpu(case: str) -> None:
    found, words = CLOSED[case]
    row = only(found)
    assert (row.state, row.job_ids[:2]) == (GpuState.ALLOCATED, (4, 9))
    assert words in row.closed
