"""Console whose GPUs have processes: of a job, in a foreign container, and foreign."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.container import ProcessRow
from gputui.domain.gpu import GpuProcess, GpuState, Holder
from gputui.domain.settings import ConsoleSettings
from gputui.domain.snapshot import Snapshot
from tests.factories import GIB, NOW, sample, view
from tests.foreign import JUPYTER, FakeContainers, FakeHost
from tests.tui.console import Console
from tests.tui.sample import rich_snapshot

FOREIGN, INSIDE, OURS = 300, 200, 100


def occupied() -> Snapshot:
    """Return GPUs with job 101 on GPU 0, a container on GPU 3, and a foreign process on GPUs 3 and 4."""
    base = rich_snapshot()
    ours = GpuProcess(OURS, 2 * GIB, "alice", "train.py", "c101", ticks=10)
    inside = GpuProcess(INSIDE, GIB, "root", "jupyter", JUPYTER.id, ticks=5)
    foreign = GpuProcess(FOREIGN, 3 * GIB, "bob", "python \x1b[2Jeval.py [red]--all[/]", ticks=30)
    holder = Holder("container", "jupyter-bob", "bob", container_id=JUPYTER.id, image="lab:2")
    found = list(base.nodes[0].gpus)
    found[0] = replace(found[0], sample=sample(0, processes=(ours,), processes_at=NOW), process_jobs={OURS: 101})
    found[3] = view(3, GpuState.FOREIGN, sample=sample(3, processes=(inside, foreign)), holders=(holder,))
    found[4] = view(4, GpuState.FOREIGN, sample=sample(4, processes=(foreign,)))
    return replace(base, nodes=(replace(base.nodes[0], gpus=tuple(found)),))


def occupied_console(snapshot: Snapshot | None = None, *, read_only: bool = False) -> Console:
    """Return a console that records signals and stops."""
    host = FakeHost()
    host.names = ("CUDA_VISIBLE_DEVICES=3,4", "HOME=/home/bob", "WANDB_MODE=offline")
    host.known = {
        FOREIGN: ProcessRow(FOREIGN, "bob", "python eval.py", 1.5, 4 * GIB, timedelta(hours=2), 299, 30),
        299: ProcessRow(299, "bob", "bash run.sh", 0.0, 1024, timedelta(hours=2), 1, 29),
    }
    settings = ConsoleSettings("off", read_only=read_only)
    return Console(snapshot or occupied(), host=host, containers=FakeContainers(), console=settings)
