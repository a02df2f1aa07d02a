"""Two servers in one snapshot: a busy one, and one that may not answer."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.snapshot import Node, ServerView, Snapshot
from gputui.domain.state import PendingReason, Reason
from gputui.servers import IdMapper, merged
from tests.factories import NOW, job, running
from tests.tui import sample
from tests.tui.plans import since

REFUSED = "ssh: connect to host gpu2 port 22: Connection refused (`ssh gpu2` must work without a question)"


def second() -> Snapshot:
    """Return a small server: two GPUs, one job on both, one that waits."""
    held = sample.rich_snapshot()
    views = tuple(
        replace(view, gpu=replace(view.gpu, uuid=f"GPU-2{view.gpu.index:07x}"), job_id=3, job_ids=(3,), process_jobs={})
        for view in (sample.busy(0, 3), sample.busy(1, 3))
    )
    runs = since(running(3, on=[view.gpu.uuid for view in views], name="vit-large"), timedelta(hours=1))
    waits = job(4, name="distill", gpus=1, age=600.0)
    why = {4: Reason(PendingReason.RESOURCES, "needs 1 GPU: 0 free, 2 held by jobs")}
    node = Node("node2", views, held.nodes[0].probe)
    return Snapshot(NOW, (node,), (runs, waits), leader=held.leader, order=(4,), reasons=why)


def two_servers(problem: str = "") -> Snapshot:
    """Return both servers; `problem` says why the second one does not answer."""
    views = []
    for number, (name, snapshot) in enumerate((("gpu1", sample.rich_snapshot()), ("gpu2", second())), 1):
        is_silent = bool(problem) and name == "gpu2"
        seen_at = NOW - timedelta(minutes=3) if is_silent else NOW
        views.append(
            ServerView(name, IdMapper(number, name).snapshot(snapshot), seen_at=seen_at, problem=problem * is_silent)
        )
    return merged(views, NOW)


def one_silent() -> Snapshot:
    """Return both servers, of which the second one does not answer."""
    return two_servers(REFUSED)
