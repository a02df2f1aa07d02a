"""GPUs for commands: the scheduler's readings, else a reading by this process."""

from __future__ import annotations

from collections.abc import Iterable

from gputui.cli import terminal
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.gpu import find_gpu
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.ports.backend import DirectBackend


def picture(backend: DirectBackend) -> Snapshot:
    """Return a snapshot with GPUs; raise GputuiError with the probe's own sentence when none can be read.

    Says on stderr of which nodes of a cluster there are no readings, and why.
    """
    snapshot = backend.gpus(lambda words: terminal.write(f"{plain(words)}\n", err=True))
    if not snapshot.gpus:
        status = snapshot.nodes[0].probe if snapshot.nodes else None
        raise GputuiError(status.text if status else "no GPUs are known", hint="gputui doctor shows more")
    return snapshot


def gpu_names(snapshot: Snapshot, uuids: Iterable[str]) -> str:
    """Return `GPU 3` or `GPUs 3 4`, by index; a GPU that cannot be read by its UUID; `node gpu1` for a node."""
    chosen = tuple(dict.fromkeys(uuids))
    if chosen and {node.name for node in snapshot.nodes}.issuperset(chosen):
        return f"{'node' if len(chosen) == 1 else 'nodes'} {' '.join(chosen)}"
    indices = {view.gpu.uuid: str(view.gpu.index) for view in snapshot.gpus}
    names = [indices.get(uuid, uuid) for uuid in chosen]
    return f"{'GPU' if len(names) == 1 else 'GPUs'} {' '.join(names)}"


def find_gpus(backend: DirectBackend, names: Iterable[str]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs named by index, UUID or its beginning; raise NotFoundError.

    A drained GPU is found by its UUID even while it cannot be read. An engine is given the names
    as they are: it drains nodes.
    """
    wanted = tuple(names)
    if not backend.about().caps.runs_jobs:
        return wanted
    drained = backend.queue.controls().drains
    if all(name in drained for name in wanted):
        return wanted
    uuids = tuple(view.gpu.uuid for view in picture(backend).gpus)
    try:
        return tuple(name if name in drained else find_gpu(uuids, name) for name in wanted)
    except NotFoundError as error:
        raise NotFoundError(error.what, hint="gputui gpus lists them") from error
