"""Readings of a cluster's nodes, joined with what the cluster's engine says about their GPUs.

The engine decides which jobs hold a GPU; the reading adds the driver's figures, faults, and processes that the engine
does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.gpu import (
    Gpu,
    GpuProcess,
    GpuSample,
    GpuState,
    GpuView,
    HealthCode,
    Holder,
    Link,
    ProbeCode,
    ProbeReading,
    ProbeStatus,
)
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Node
from gputui.domain.text import format_size

MIG = "its GPUs are divided into MIG instances, and which of them the engine counts as which is not known"
JUST_FREED = timedelta(minutes=1)
"""Age from which the end of a job no longer matters for readings."""
_SLACK = timedelta(seconds=5)
"""Difference between the clocks of engine and console that is allowed for, with the time that processes take to end."""


class ReadingRules(Struct, frozen=True):
    """Settings by which readings are judged."""

    late_after: timedelta
    """Age from which a reading is late."""
    memory_floor: int
    """Bytes in use up to which a GPU without processes counts as unused."""
    ignored: tuple[str, ...] = ()
    """Programs that do not make a GPU busy."""
    has_gpu_ids: bool = True
    """False if the engine does not tell which GPUs a job has: then users of GPUs cannot be compared with its jobs."""


class EngineJobs(Struct, frozen=True):
    """Jobs of the engine, as far as readings are judged by them."""

    held: Mapping[JobId, Job]
    """Jobs by id."""
    freed_at: Mapping[str, datetime]
    """Time at which each GPU was released by a job that has just ended, by the GPU's name."""


def engine_jobs(jobs: Iterable[Job], now: datetime) -> EngineJobs:
    held: dict[JobId, Job] = {}
    freed: dict[str, datetime] = {}
    for job in jobs:
        if job.state.is_active:
            held[job.id] = job
        elif job.ended_at is not None and now - job.ended_at < JUST_FREED and job.attempts:
            for name in job.attempts[-1].gpus:
                freed[name] = max(job.ended_at, freed.get(name, job.ended_at))
    return EngineJobs(held, freed)


def by_engine_index(gpus: Iterable[Gpu], count: int) -> Mapping[int, Gpu]:
    """Return the driver's GPUs by the engine's index, of which there are `count`; empty if they are cut into instances.

    Slurm counts the device files of its configuration: with as many of them as the driver has GPUs, an index is the
    place of /dev/nvidia<n> among them, else it is the n.
    """
    whole = [gpu for gpu in gpus if gpu.mig_parent is None]
    if any(gpu.mig_enabled for gpu in whole):
        return {}
    by_minor = {gpu.index if gpu.minor is None else gpu.minor: gpu for gpu in whole}
    if len(by_minor) == count:
        return dict(enumerate(by_minor[minor] for minor in sorted(by_minor)))
    return {minor: gpu for minor, gpu in by_minor.items() if minor < count}


def named_gpus(views: Iterable[GpuView], gpus: Iterable[Gpu]) -> Mapping[str, Gpu]:
    shown = tuple(views)
    found = by_engine_index(gpus, len(shown))
    names = {found[view.gpu.index].uuid: view.gpu.uuid for view in shown if view.gpu.index in found}
    named = {}
    for known in (view.gpu for view in shown if view.gpu.index in found):
        gpu = found[known.index]
        links = tuple(Link(names[link.peer], link.kind, link.lanes) for link in gpu.links if link.peer in names)
        model = gpu.model or known.model
        named[known.uuid] = replace(
            gpu, uuid=known.uuid, index=known.index, model=model, links=links, drivers_uuid=gpu.uuid
        )
    return named


def read_node(
    node: Node, reading: ProbeReading, named: Mapping[str, Gpu], jobs: EngineJobs, rules: ReadingRules, now: datetime
) -> Node:
    """Return the node with a reading; `named` has its GPUs as `named_gpus` returns them."""
    status = reading.status
    if status.code is ProbeCode.OK and reading.gpus and not named:
        status = ProbeStatus(ProbeCode.UNREACHABLE, f"no readings: {MIG}", status.since)
    gpus = tuple(
        _read_view(view, gpu, reading.samples.get(gpu.drivers_uuid or ""), jobs, rules, now)
        if (gpu := named.get(view.gpu.uuid)) is not None
        else view
        for view in node.gpus
    )
    return replace(node, gpus=gpus, probe=status, driver_version=reading.driver_version, host=reading.host)


def _read_view(
    view: GpuView, gpu: Gpu, sample: GpuSample | None, jobs: EngineJobs, rules: ReadingRules, now: datetime
) -> GpuView:
    if sample is None:
        return replace(view, gpu=gpu)
    age = max(now - sample.sampled_at, timedelta())
    is_late = age > rules.late_after
    health = (
        view.health if sample.health.code is HealthCode.OK else sample.health
    )  # the engine's, if the driver has none
    read = replace(view, gpu=gpu, sample=replace(sample, uuid=gpu.uuid), age=age, stale=is_late, health=health)
    if is_late or sample.processes is None or not rules.has_gpu_ids:
        return read
    if view.state is GpuState.FREE:
        freed_at = jobs.freed_at.get(read.gpu.uuid)
        read_at = min(sample.sampled_at, sample.processes_at or sample.sampled_at)
        if freed_at is not None and read_at <= freed_at + _SLACK:
            return read
        strangers = _computing(sample, rules)
        if strangers:
            first = strangers[0]
            why = f"process {first.pid} ({first.command or 'unknown'}) of {first.user or 'unknown'}"
            return replace(read, state=GpuState.FOREIGN, why=why, holders=tuple(map(_holder, strangers)))
        if sample.memory_used is not None and sample.memory_used > rules.memory_floor:
            why = f"{format_size(sample.memory_used)} of its memory is used by an unknown process"
            return replace(read, state=GpuState.FOREIGN, why=why)
        return read
    return _with_users(read, sample, jobs, rules) if view.state is GpuState.ALLOCATED else read


def _with_users(view: GpuView, sample: GpuSample, jobs: EngineJobs, rules: ReadingRules) -> GpuView:
    """Return a GPU that jobs hold with the memory in use, the job of each process, and foreign ones.

    A process is foreign if it runs as another user than the jobs; inside a container it may run as anybody.
    """
    held = [jobs.held[job_id] for job_id in view.job_ids if job_id in jobs.held]
    if not held:
        return view
    users = {job.submitted_by for job in held}
    strangers = [
        each
        for each in _computing(sample, rules)
        if each.visible and each.container_id is None and each.user not in users
        if each.user and not each.user.isdigit()  # accounts of the cluster may be unknown to a node
    ]
    own = view.holders
    if len(own) == 1:
        own = (replace(own[0], memory=sample.memory_used),)
    pids = {each.pid for each in strangers}
    return replace(
        view,
        holders=(*own, *map(_holder, strangers)),
        process_jobs={each.pid: held[0].id for each in sample.processes or () if each.pid not in pids}
        if len(held) == 1
        else {},
    )


def _computing(sample: GpuSample, rules: ReadingRules) -> list[GpuProcess]:
    return [each for each in sample.processes or () if each.compute and not each.is_any_of(rules.ignored)]


def _holder(process: GpuProcess) -> Holder:
    name = process.command or f"pid {process.pid}"
    return Holder(
        "process",
        name,
        user=process.user,
        pid=process.pid,
        container_id=process.container_id,
        memory=process.memory,
        since=process.started_at,
    )


class Verdict(StrEnum):
    """Outcome of the check of a node."""

    OK = "ok"
    FAULTY = "faulty"
    UNCHECKED = "not checked"


class NodeCheck(Struct, frozen=True):
    """Findings of a probe job on a node."""

    node: str
    gpus: int
    """Number of GPUs that the engine knows there."""
    job: int | None = None
    """Number of the probe job; None: there was none."""
    allocated: tuple[str, ...] = ()
    """GPUs that the engine gave the job, by its own numbers."""
    expected: tuple[str, ...] = ()
    """UUIDs of these GPUs; empty for one that the node does not know."""
    host: tuple[str, ...] = ()
    """UUIDs that nvidia-smi listed in the job, outside of a container."""
    seen: tuple[str, ...] | None = None
    """UUIDs that a container with all of these GPUs saw; None: none ran."""
    user: str = ""
    """User that the job ran as: `1000 alice`."""
    container_engine: str = ""
    """Version of the node's container engine; empty: it could not be reached, or the site uses none."""
    is_cleaned: bool | None = None
    """True if a container that the job had left was gone after it; None: that was not tried."""
    faults: tuple[str, ...] = ()
    """Sentences about what is wrong."""
    why_not: str = ""
    """Sentence that says why the node was not checked, or not wholly."""

    @property
    def verdict(self) -> Verdict:
        if self.faults:
            return Verdict.FAULTY
        return Verdict.OK if self.seen is not None and not self.why_not else Verdict.UNCHECKED
