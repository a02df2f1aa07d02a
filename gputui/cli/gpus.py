"""`gputui gpus`: the GPUs and their jobs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime

import click

from gputui.cli import output, terminal
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.domain.arrays import Names
from gputui.domain.as_json import gpu_json, host_json
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.gpu import GpuState, GpuView, HealthCode, Holder, ProbeCode, find_gpu, short_names
from gputui.domain.job_spec import RUNTIMES
from gputui.domain.snapshot import Snapshot, kept_words, reservations_by_gpu
from gputui.domain.text import format_duration, format_size, plain, plural
from gputui.ports.backend import DirectBackend

_FIRST_WITHIN = 5.0
"""Seconds that a scheduler which has just begun may take for its first reading."""


def picture(backend: DirectBackend) -> Snapshot:
    """Return a snapshot with GPUs; raise GputuiError with the probe's own sentence when none can be read.

    Says on stderr of which nodes of a cluster there are no readings, and which containers are not known, and why.
    """
    deadline = time.monotonic() + _FIRST_WITHIN
    while True:
        snapshot = backend.gpus(lambda words: terminal.write(f"{plain(words)}\n", err=True))
        status = snapshot.nodes[0].probe if snapshot.nodes else None
        if snapshot.gpus or status is None or status.code is not ProbeCode.STARTING or time.monotonic() > deadline:
            break
        time.sleep(0.1)  # its scheduler has just begun
    engines = (each for node in snapshot.nodes for each in node.runtimes if not RUNTIMES.get(each.name))
    down = [each for each in engines if each.asked and not each.up]
    if not snapshot.gpus:
        # an engine that is named wrongly may be elsewhere: a missing driver here is not the reason
        if unnamed := next((each.text for each in down if not each.address), ""):
            raise GputuiError(unnamed)
        raise GputuiError(status.text if status else "no GPUs are known", hint="gputui doctor shows more")
    terminal.write_lines((f"containers are not known: {plain(each.text)}\n" for each in down), err=True)
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


COLUMNS = (
    output.TextColumn("GPU", right=True),
    output.TextColumn("STATE"),
    output.TextColumn("MODEL", 24, least=6),
    output.TextColumn("UTIL", right=True),
    output.TextColumn("MEMORY", right=True),
    output.TextColumn("TEMP", right=True),
    output.TextColumn("POWER", right=True),
    output.TextColumn("UUID"),
    output.TextColumn("HOLDER OR WHY"),
)
NODE = output.TextColumn("NODE", 24, least=4)
"""Column where there are several nodes."""

NO_NAMES = Names()


@click.command("gpus")
@click.option("--json", "as_json", is_flag=True, help="Print an array of GPUs as JSON.")
@pass_session
def command(session: Session, as_json: bool) -> None:
    """List the GPUs, their states and their jobs."""
    with session.backend() as backend:
        snapshot = picture(backend)
    if as_json:
        told = [(node, view) for node in snapshot.nodes for view in node.gpus]
        print_json([gpu_json(view) | {"node": node.name, "host": host_json(node.host)} for node, view in told])
        return
    short, several = short_names(view.gpu.shown_uuid for view in snapshot.gpus), len(snapshot.nodes) > 1
    by_gpu = reservations_by_gpu(snapshot) if snapshot.windows else {}
    kept = {uuid: kept_words(windows, snapshot.taken_at) for uuid, windows in by_gpu.items()}
    names = Names(snapshot.jobs)
    columns = (NODE, *COLUMNS) if several else COLUMNS
    rows = [
        (*((node.name,) if several else ()), *row(view, short[view.gpu.shown_uuid], names, kept.get(view.gpu.uuid, "")))
        for node in snapshot.nodes
        for view in node.gpus
    ]
    written = output.lines(columns, rows, terminal.width())
    if snapshot.fragmentation:
        written.append(f"{plural(snapshot.fragmentation, 'GPU')} free that no waiting job can use")
    terminal.write("\n".join(written) + "\n")
    if snapshot.leader is not None and snapshot.leader.silent_for:
        terminal.write_lines(
            (f"{plain(notice.text)}\n" for notice in snapshot.notices if notice.severity == "error"), err=True
        )


def row(view: GpuView, uuid: str, names: Names = NO_NAMES, reserved: str = "") -> tuple[str, ...]:
    """Return a GPU's cells, with its UUID in that short form; values that could not be read are dashes, never 0."""
    gpu, sample = view.gpu, view.current
    total = (sample.memory_total if sample else None) or gpu.memory_total
    return (
        str(gpu.index),
        state(view),
        (gpu.model or "-").removeprefix("NVIDIA ") + (f" {gpu.mig_profile}" if gpu.mig_profile else ""),
        _number(sample.utilization * 100 if sample and sample.utilization is not None else None, "%"),
        f"{format_size(sample.memory_used if sample else None)}/{format_size(total)}",
        _number(sample.temperature if sample else None, "C"),
        _number(sample.power if sample else None, "W"),
        uuid,
        "; ".join(filter(None, (story(view, names), reserved))),
    )


def state(view: GpuView) -> str:
    is_lost = view.health.code is HealthCode.LOST
    if view.state is not GpuState.ALLOCATED:
        return "LOST" if is_lost else str(view.state)
    return f"{view.state}{', lost' if is_lost else ''}{', draining' if view.drain else ''}"


def story(view: GpuView, names: Names = NO_NAMES) -> str:
    ids = [f"{names.shown(job_id)} " for job_id in view.job_ids] + [""] * len(view.holders)
    at = view.current.sampled_at if view.current else None
    parts = [_holder(holder, job_id, at) for holder, job_id in zip(view.holders, ids, strict=False)]
    says_all = view.health.code is HealthCode.OK or view.state is GpuState.ALLOCATED
    parts += [] if view.holders and says_all else [view.why]
    if view.drain and "drained by" not in view.why:
        parts.append(f"drained by {view.drain.by}" + (f": {view.drain.reason}" if view.drain.reason else ""))
    parts += [f"no job may join: {view.closed}"] if view.sharers and view.closed else []
    if view.idle_since and view.current:
        parts.append(f"idle for {format_duration(view.current.sampled_at - view.idle_since)}")
    is_unread = view.state is GpuState.UNKNOWN and view.health.code is HealthCode.UNKNOWN  # then `why` says more
    told = view.health.code is HealthCode.OK or view.health.text in view.why or is_unread
    parts += [] if told else [f"{view.health.code}: {view.health.reason}"]
    age = format_duration(view.age) if view.stale and view.age is not None else ""
    parts += [f"read {age} ago"] if age and f"{age} old" not in view.why else []
    return "; ".join(dict.fromkeys(filter(None, parts)))


def _holder(holder: Holder, job_id: str, at: datetime | None) -> str:
    user = f" ({holder.user})" if holder.user else ""
    kind = "" if holder.job_id is not None else f"{holder.kind} "
    age = f" for {format_duration(at - holder.since)}" if at and holder.since and holder.kind != "job" else ""
    return f"{kind}{job_id}{holder.name}{user}{age}" + (", which does not hold it" if holder.job_id is not None else "")


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"
