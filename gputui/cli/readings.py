"""GPUs for commands: the scheduler's readings, else a reading by this process."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import adapters
from gputui.config import Options
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.gpu import GpuView, ProbeCode, find_gpu
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.ports import JobStore


def gpu_views(options: Options, store: JobStore) -> tuple[GpuView, ...]:
    """Return the GPUs by index; raise GputuiError with the probe's own sentence when none can be read."""
    return picture(options, store).gpus


def picture(options: Options, store: JobStore) -> Snapshot:
    """Return a snapshot with GPUs; raise GputuiError with the probe's own sentence when none can be read."""
    snapshot = bootstrap.current_snapshot(options, store)
    if not snapshot.gpus:
        adapters.silence_probe_log()
        measured = adapters.measured_snapshot(options, store)
        snapshot = replace(measured, leader=snapshot.leader, notices=snapshot.notices)
    if not snapshot.gpus:
        status = snapshot.nodes[0].probe if snapshot.nodes else None
        raise GputuiError(status.text if status else "no GPUs are known", hint="gputui doctor shows more")
    return snapshot


def of_nodes(options: Options, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot of a cluster with readings of its nodes, where the settings want them; others unchanged.

    Says on stderr of which nodes there are none, and why.
    """
    if not options.in_cluster:
        return snapshot
    from gputui.bootstrap import nodes

    adapters.silence_probe_log()
    read = nodes.read_once(options, snapshot)
    for node in read.nodes if nodes.is_wanted(options) else ():
        if node.gpus and node.probe.code is not ProbeCode.OK:
            sys.stderr.write(f"{plain(node.name)}: {plain(node.probe.text)}\n")
    return read


def gpu_names(snapshot: Snapshot, uuids: Iterable[str]) -> str:
    """Return `GPU 3` or `GPUs 3 4`, by index; a GPU that cannot be read by its UUID; `node gpu1` for a node."""
    chosen = tuple(dict.fromkeys(uuids))
    if chosen and {node.name for node in snapshot.nodes}.issuperset(chosen):
        return f"{'node' if len(chosen) == 1 else 'nodes'} {' '.join(chosen)}"
    indices = {view.gpu.uuid: str(view.gpu.index) for view in snapshot.gpus}
    names = [indices.get(uuid, uuid) for uuid in chosen]
    return f"{'GPU' if len(names) == 1 else 'GPUs'} {' '.join(names)}"


def find_gpus(options: Options, store: JobStore, names: Iterable[str]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs named by index, UUID or its beginning; raise NotFoundError.

    A drained GPU is found by its UUID even while it cannot be read. In a cluster nodes are named; the names of GPUs
    are returned as they are.
    """
    wanted = tuple(names)
    if options.in_cluster:
        return wanted
    drained = store.controls().drains
    if all(name in drained for name in wanted):
        return wanted
    uuids = tuple(view.gpu.uuid for view in gpu_views(options, store))
    try:
        return tuple(name if name in drained else find_gpu(uuids, name) for name in wanted)
    except NotFoundError as error:
        raise NotFoundError(error.what, hint="gputui gpus lists them") from error
