"""What a change would do to everybody's start: the same forecast, made twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TypeAlias

from gputui.domain.edit import Edit
from gputui.domain.gpu import Drain, GpuState, GpuView, Health
from gputui.domain.job import Job, JobId
from gputui.domain.policy.timeline import BarKind, Timeline, timeline
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState

Change: TypeAlias = Callable[[Snapshot], Snapshot]
LEAST = timedelta(seconds=1)
"""A start that moves by less does not shift."""


@dataclass(frozen=True)
class Shift:
    """When a job is expected to start, before and after a change; None: not known, or never."""

    job_id: JobId
    before: datetime | None
    after: datetime | None
    is_stopped: bool = False
    """It runs now, and would have to start again: preempted, or requeued."""

    @property
    def is_felt(self) -> bool:
        """Whether it is any: jobs that change places behind others that end at once differ by less than a second."""
        if self.before is None or self.after is None:
            return self.before is not self.after
        return abs(self.after - self.before) >= LEAST


@dataclass(frozen=True)
class Place:
    """Where a waiting job stands in the queue, from 1, before and after a change."""

    job_id: JobId
    before: int
    after: int


@dataclass(frozen=True)
class Comparison:
    """What is to come, without a change and with it."""

    before: Timeline
    after: Timeline

    @cached_property
    def shifts(self) -> tuple[Shift, ...]:
        """The waiting jobs whose start the change would shift, in the order after it."""
        before, after = self.before.starts, self.after.starts
        order = dict.fromkeys((*after, *before))
        running = {bar.job_id for bar in self.before.bars if bar.kind is BarKind.RUNNING}
        shifts = (
            Shift(job_id, before.get(job_id), after.get(job_id), job_id in running and job_id not in before)
            for job_id in order
        )
        return tuple(shift for shift in shifts if shift.is_felt)

    @cached_property
    def moves(self) -> tuple[Place, ...]:
        """The waiting jobs that come to stand in another place of the queue, in the order after the change."""
        before = {job_id: place for place, job_id in enumerate(self.before.order, 1)}
        return tuple(
            Place(job_id, before[job_id], place)
            for place, job_id in enumerate(self.after.order, 1)
            if before.get(job_id, place) != place
        )


def what_if(snapshot: Snapshot, change: Change, settings: Settings, now: datetime) -> tuple[Shift, ...]:
    """The waiting jobs whose start the change would shift, in the order after it."""
    return compared(snapshot, change, settings, now).shifts


def compared(
    snapshot: Snapshot,
    change: Change,
    settings: Settings,
    now: datetime,
    before: Timeline | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Comparison:
    """The same forecast, made twice; `before` where it is known already. Worthless once it is wanted no more."""
    before = before or timeline(snapshot, settings, now, is_wanted=is_wanted)
    return Comparison(before, timeline(change(snapshot), settings, now, is_wanted=is_wanted))


def prioritised(job_ids: Iterable[JobId], value: int, *, relative: bool = False) -> Change:
    """The jobs get this priority, or so much more of it."""
    wanted = frozenset(job_ids)
    return _each_job(lambda job: job.prioritised(value, relative=relative) if job.id in wanted else job)


def topped(job_ids: Iterable[JobId], at: datetime) -> Change:
    """The jobs are put first."""
    wanted = frozenset(job_ids)
    return _each_job(lambda job: job.evolve(topped_at=at) if job.id in wanted else job)


def held(job_ids: Iterable[JobId]) -> Change:
    """The waiting jobs are kept from starting."""
    return _each_waiting(job_ids, lambda job: job.evolve(held=True, hold_reason=None))


def released(job_ids: Iterable[JobId], at: datetime) -> Change:
    """The jobs may start again, and so may others of their image and tenant that failed fast."""
    return _each_waiting(job_ids, lambda job: job.evolve(held=False, hold_reason=None, released_at=at))


def requeued(job_ids: Iterable[JobId], at: datetime) -> Change:
    """The jobs wait again, with the age they had, and what they held is free."""
    wanted = frozenset(job_ids)

    def again(job: Job) -> Job:
        if job.id not in wanted or job.state is JobState.PENDING:
            return job
        over = job.with_attempt(ended_at=at) if job.attempt and not job.attempt.is_over else job
        return over.evolve(state=JobState.PENDING, ended_at=None, cancel_requested=False)

    def change(snapshot: Snapshot) -> Snapshot:
        freed = {uuid for job in snapshot.jobs if job.id in wanted for uuid in job.gpus}
        waiting = replace(snapshot, jobs=tuple(map(again, snapshot.jobs)))
        return _with_views(waiting, lambda view: _freed(view, wanted) if view.gpu.uuid in freed else view)

    return change


def cancelled(job_ids: Iterable[JobId]) -> Change:
    """The jobs are gone, and what they held is free."""
    gone = frozenset(job_ids)

    def change(snapshot: Snapshot) -> Snapshot:
        jobs = tuple(job for job in snapshot.jobs if job.id not in gone)
        freed = {uuid for job in snapshot.jobs if job.id in gone for uuid in job.gpus}
        return _with_views(
            replace(snapshot, jobs=jobs), lambda view: _freed(view, gone) if view.gpu.uuid in freed else view
        )

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


def resumed(uuids: Iterable[str]) -> Change:
    """Let drained GPUs, and those stopped by an Xid, take jobs again unless something else is against it."""
    names = frozenset(uuids)

    def change(view: GpuView) -> GpuView:
        if view.gpu.uuid not in names or (view.drain is None and not view.is_stopped_by_xid):
            return view
        health = Health() if view.is_stopped_by_xid else view.health
        back = replace(view, drain=None, closed="", health=health)
        return replace(back, state=_undrained(back)) if view.state is GpuState.DRAINED else back

    return lambda snapshot: _with_views(snapshot, change)


def edited(job_id: JobId, edit: Edit, at: datetime) -> Change:
    """The waiting job asks for that."""
    return _each_waiting((job_id,), lambda job: edit.on(job, at))


def replaced(job: Job) -> Change:
    """The job is as this one."""
    return _each_job(lambda other: job if other.id == job.id else other)


def submitted(*jobs: Job) -> Change:
    """The jobs wait as well."""
    return lambda snapshot: replace(snapshot, jobs=(*snapshot.jobs, *jobs))


def _freed(view: GpuView, gone: frozenset[JobId]) -> GpuView:
    left = tuple(job_id for job_id in view.job_ids if job_id not in gone)
    if left:
        sharers = tuple(sharer for sharer in view.sharers if sharer.job_id in left)
        return replace(view, job_id=left[0], job_ids=left, sharers=sharers)
    state = GpuState.DRAINED if view.drain else GpuState.FREE
    return replace(view, state=state, job_id=None, job_ids=(), sharers=()) if view.state is GpuState.ALLOCATED else view


def _undrained(view: GpuView) -> GpuState:
    """How it stands without its drain: the drain was all that the picture told of it."""
    if view.stale or not view.health.is_schedulable or view.sample is None:
        return GpuState.UNKNOWN
    return GpuState.FOREIGN if view.holders else GpuState.FREE


def _each_waiting(job_ids: Iterable[JobId], change: Callable[[Job], Job]) -> Change:
    wanted = frozenset(job_ids)
    return _each_job(lambda job: change(job) if job.id in wanted and job.state is JobState.PENDING else job)


def _each_job(change: Callable[[Job], Job]) -> Change:
    return lambda snapshot: replace(snapshot, jobs=tuple(map(change, snapshot.jobs)))


def _with_views(snapshot: Snapshot, change: Callable[[GpuView], GpuView]) -> Snapshot:
    nodes = (replace(node, gpus=tuple(map(change, node.gpus))) for node in snapshot.nodes)
    return replace(snapshot, nodes=tuple(nodes))
