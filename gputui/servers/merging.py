"""Merges the snapshots of several servers into one. Nobody schedules across them: each keeps its own order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain

from msgspec.structs import replace

from gputui.domain.gpu import GpuState, GpuView, ProbeCode, ProbeStatus
from gputui.domain.snapshot import Controls, Node, Notice, ServerView, Snapshot


def merged(servers: Sequence[ServerView], now: datetime) -> Snapshot:
    """Return the snapshot of all servers, in their order; readings of a silent one are old."""
    servers = _without_twins(servers)
    parts = [server.snapshot for server in servers]
    controls = [part.controls for part in parts]
    return Snapshot(
        taken_at=now,
        nodes=tuple(node for server in servers for node in _nodes(server, now)),
        jobs=_joined([part.jobs for part in parts]),
        controls=Controls(
            paused=bool(controls) and all(each.paused for each in controls),
            drains={uuid: drain for each in controls for uuid, drain in each.drains.items()},
            resumed={uuid: at for each in controls for uuid, at in each.resumed.items()},
            faults={uuid: fault for each in controls for uuid, fault in each.faults.items()},
        ),
        order=_joined([part.order for part in parts]),
        reasons={job_id: reason for part in parts for job_id, reason in part.reasons.items()},
        expected_starts={job_id: at for part in parts for job_id, at in part.expected_starts.items()},
        progress={job_id: words for part in parts for job_id, words in part.progress.items()},
        recurring=_joined([part.recurring for part in parts]),
        windows=_joined([part.windows for part in parts]),
        fragmentation=sum(part.fragmentation for part in parts),
        servers=tuple(servers),
    )


def _joined(parts: Sequence[tuple[object, ...]]) -> tuple:  # type: ignore[type-arg]
    return tuple(chain.from_iterable(parts)) if len(parts) != 1 else parts[0]


def _without_twins(servers: Sequence[ServerView]) -> tuple[ServerView, ...]:
    """Return the servers without GPUs that an earlier one has too: two queues of one machine, or one queue twice."""
    owners: dict[str, str] = {}
    found = []
    for server in servers:
        uuids = [view.gpu.uuid for view in server.snapshot.gpus]
        twin = next((owners[uuid] for uuid in uuids if uuid in owners), "")
        owners |= {uuid: server.name for uuid in uuids if uuid not in owners}
        found.append(_without_gpus_of(server, twin, owners) if twin else server)
    return tuple(found)


def _without_gpus_of(server: ServerView, twin: str, owners: Mapping[str, str]) -> ServerView:
    own = server.snapshot
    nodes = tuple(
        replace(node, gpus=tuple(view for view in node.gpus if owners[view.gpu.uuid] == server.name))
        for node in own.nodes
    )
    notice = Notice("warning", f"it has the same GPUs as {twin}, which are shown there", short=f"the GPUs of {twin}")
    return replace(server, snapshot=replace(own, nodes=nodes, notices=(notice, *own.notices)))


def _nodes(server: ServerView, now: datetime) -> tuple[Node, ...]:
    """Return the nodes of a server without what its own notices tell."""
    nodes = server.snapshot.nodes or (Node(server.name),)
    if not server.problem:
        return tuple(replace(node, runtimes=()) for node in nodes)
    age = now - server.seen_at if server.seen_at else None
    status = ProbeStatus(ProbeCode.OK if any(node.gpus for node in nodes) else ProbeCode.FAILED, server.problem)
    why = f"{server.name} does not answer"
    return tuple(
        replace(node, runtimes=(), probe=status, host=None, gpus=tuple(_old(view, age, why) for view in node.gpus))
        for node in nodes
    )


def _old(view: GpuView, age: timedelta | None, why: str) -> GpuView:
    """Return a GPU as it was last seen."""
    state = GpuState.UNKNOWN if view.state is GpuState.FREE else view.state
    total = view.age + age if view.age is not None and age is not None else None
    return replace(view, age=total, stale=True, state=state, why=view.why or why, closed=view.closed or why)
