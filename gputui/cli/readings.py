"""GPUs as a command sees them: the scheduler's readings, else a reading of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gputui import bootstrap
from gputui.config import Options
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.gpu import GpuView
from gputui.domain.snapshot import Snapshot
from gputui.engine.actions import find_gpu
from gputui.ports import JobStore


def say_nothing_twice() -> None:
    """Keep what the probe logs off stderr: the command says it itself."""
    import logging

    logging.getLogger("gputui").addHandler(logging.NullHandler())


def gpu_views(options: Options, store: JobStore) -> tuple[GpuView, ...]:
    """The GPUs by index; raises GputuiError with the probe's own sentence when there are none to be had."""
    return picture(options, store).gpus


def picture(options: Options, store: JobStore) -> Snapshot:
    """A picture that shows GPUs; raises GputuiError with the probe's own sentence when there are none to be had."""
    snapshot = bootstrap.current_snapshot(options, store)
    if not snapshot.gpus:
        say_nothing_twice()
        measured = bootstrap.measured_snapshot(options, store)
        snapshot = replace(measured, leader=snapshot.leader, notices=snapshot.notices)
    if not snapshot.gpus:
        status = snapshot.nodes[0].probe if snapshot.nodes else None
        raise GputuiError(status.text if status else "no GPUs are known", hint="gputui doctor tells more")
    return snapshot


def find_gpus(options: Options, store: JobStore, names: Iterable[str]) -> tuple[str, ...]:
    """The UUIDs of the GPUs named by index, UUID or its beginning; raises NotFoundError.

    One that is drained is found by its UUID even while it cannot be read.
    """
    wanted = tuple(names)
    drained = store.controls().drains
    if all(name in drained for name in wanted):
        return wanted
    uuids = tuple(view.gpu.uuid for view in gpu_views(options, store))
    try:
        return tuple(name if name in drained else find_gpu(uuids, name) for name in wanted)
    except NotFoundError as error:
        raise NotFoundError(error.what, hint="gputui gpus lists them") from error
