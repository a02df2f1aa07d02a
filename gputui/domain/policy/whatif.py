"""What a change would do to everybody's start: the same forecast, made twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from gputui.domain.gpu import Drain, GpuState, GpuView
from gputui.domain.job import Job, JobId
from gputui.domain.policy.plan import plan
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot

Change: TypeAlias = Callable[[Snapshot], Snapshot]
MOST = 2000
"""Of so many jobs starts are compared."""


@dataclass(frozen=True)
class Shift:
    """When a job is expected to start, before and after a change; None: not known, or never."""

    job_id: JobId
    before: datetime | None
    after: datetime | None


def what_if(snapshot: Snapshot, change: Change, settings: Settings, now: datetime) -> tuple[Shift, ...]:
    """The waiting jobs whose start the change would shift, in the order after it."""
    before = expected(snapshot, settings, now)
    changed = change(snapshot)
    after = expected(changed, settings, now)
    order = dict.fromkeys((*after, *before))
    return tuple(
        Shift(job_id, before.get(job_id), after.get(job_id))
        for job_id in order
        if before.get(job_id) != after.get(job_id)
    )


def expected(snapshot: Snapshot, settings: Settings, now: datetime) -> dict[JobId, datetime]:
    """When each waiting job is expected to start, where that is known: those that start now included."""
    far = replace(settings, policy=replace(settings.policy, forecast_jobs=MOST))
    found = plan(snapshot, far, now)
    return {**{start.job_id: now for start in found.starts}, **found.forecast}


def prioritised(job_ids: Iterable[JobId], value: int, *, relative: bool = False) -> Change:
    """The jobs get this priority, or so much more of it."""
    wanted = frozenset(job_ids)
    return _each_job(lambda job: job.prioritised(value, relative=relative) if job.id in wanted else job)


def topped(job_ids: Iterable[JobId], at: datetime) -> Change:
    """The jobs are put first."""
    wanted = frozenset(job_ids)
    return _each_job(lambda job: job.evolve(topped_at=at) if job.id in wanted else job)


def cancelled(job_ids: Iterable[JobId]) -> Change:
    """The jobs are gone, and what they held is free."""
    gone = frozenset(job_ids)

    def change(snapshot: Snapshot) -> Snapshot:
        jobs = tuple(job for job in snapshot.jobs if job.id not in gone)
        freed = {uuid for job in snapshot.jobs if job.id in gone for uuid in job.gpus}
        return _with_views(replace(snapshot, jobs=jobs), lambda view: _freed(view) if view.gpu.uuid in freed else view)

    return change


def drained(uuids: Iterable[str], at: datetime) -> Change:
    """The GPUs take no further jobs; those on them run on."""
    names, drain = frozenset(uuids), Drain("", "", at)

    def change(view: GpuView) -> GpuView:
        if view.gpu.uuid not in names:
            return view
        state = GpuState.DRAINED if view.state is GpuState.FREE else view.state
        return replace(view, drain=drain, state=state)

    return lambda snapshot: _with_views(snapshot, change)


def submitted(*jobs: Job) -> Change:
    """The jobs wait as well."""
    return lambda snapshot: replace(snapshot, jobs=(*snapshot.jobs, *jobs))


def _freed(view: GpuView) -> GpuView:
    state = GpuState.DRAINED if view.drain else GpuState.FREE
    return replace(view, state=state, job_id=None) if view.state is GpuState.ALLOCATED else view


def _each_job(change: Callable[[Job], Job]) -> Change:
    return lambda snapshot: replace(snapshot, jobs=tuple(map(change, snapshot.jobs)))


def _with_views(snapshot: Snapshot, change: Callable[[GpuView], GpuView]) -> Snapshot:
    nodes = (replace(node, gpus=tuple(map(change, node.gpus))) for node in snapshot.nodes)
    return replace(snapshot, nodes=tuple(nodes))
