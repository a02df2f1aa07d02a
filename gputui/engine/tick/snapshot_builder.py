"""Builds snapshots: in the process that schedules, and in those that only show its view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.container import ContainerRecord, ForeignContainer
from gputui.domain.entries import Entries
from gputui.domain.errors import (
    NotFoundError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFormatError,
    StoreFullError,
)
from gputui.domain.gpu import Drain, GpuState, GpuView, ProbeCode, ProbeReading, ProbeStatus
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.gpus.availability import Evidence, gpu_views
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Controls, Leader, Node, Notice, Snapshot, Unreadable, Usage
from gputui.domain.state import JobState
from gputui.domain.units import format_duration
from gputui.engine.files import live_file
from gputui.engine.files.leadership import current_leader
from gputui.engine.tick.reconcile import find_strays
from gputui.ports import JobStore

if TYPE_CHECKING:
    from gputui.engine.tick.observer import Observation

NOBODY = ProbeStatus(
    ProbeCode.STARTING, "no scheduler is running, so no GPU is watched: start `gputui` or `gputui serve`"
)


def with_plan(snapshot: Snapshot, decided: Plan) -> Snapshot:
    """Return the snapshot with the plan's order, reasons, expected starts and reservations."""
    return replace(
        snapshot,
        order=decided.order,
        reasons=decided.reasons,
        expected_starts=decided.forecast,
        windows=decided.windows,
        fragmentation=decided.fragmentation,
    )


class Observations(Struct, frozen=True):
    """State outside the store, as the scheduler observed it: GPUs, runtimes, pulls, past usage."""

    reading: ProbeReading
    runtimes: tuple[Observation, ...]
    freed_at: Mapping[str, datetime]
    progress: Mapping[JobId, str]
    notices: tuple[Notice, ...]
    usage: Usage = Usage()
    idle_since: Mapping[str, datetime] = field(default_factory=dict)


class QueueView(Struct, frozen=True, dict=True):
    """Contents of the store, with the selections of jobs that every tick needs."""

    jobs: Entries = field(default_factory=lambda: Entries({}))
    active: tuple[Job, ...] = ()
    """Jobs with an attempt that may be active."""
    requested: tuple[Job, ...] = ()
    """Jobs with a request to cancel or to requeue them."""
    in_history: tuple[Job, ...] = ()
    """Jobs in history that waiting jobs depend on."""
    controls: Controls = Controls()
    recurring: Mapping[JobId, RecurringJob] = field(default_factory=dict)
    unreadable: tuple[Unreadable, ...] = ()

    @cached_property
    def all_jobs(self) -> tuple[Job, ...]:
        """Jobs of the queue, and those in history that they depend on."""
        return (*self.jobs.values(), *self.in_history)

    @classmethod
    def read(cls, store: JobStore) -> QueueView:
        """Read the queue from the store."""
        jobs = store.jobs()
        active = tuple(job for job in jobs.values() if job.state.is_active)
        requested = tuple(job for job in jobs.values() if job.cancel_requested or job.requeue_requested)
        in_history, recurring = tuple(dependencies(store, jobs)), store.recurring()
        return cls(jobs, active, requested, in_history, store.controls(), recurring, store.unreadable())


def leader_snapshot(
    store_id: str,
    queue: QueueView,
    observed: Observations,
    leader: Leader,
    settings: Settings,
    now: datetime,
) -> Snapshot:
    """Return the snapshot of the process that schedules, without its plan."""
    node = Node(
        name=leader.host,
        gpus=gpu_views(_evidence(store_id, queue, observed), settings.scheduler, now),
        probe=observed.reading.status,
        driver_version=observed.reading.driver_version,
        runtimes=tuple(seen.status for seen in observed.runtimes),
        host=observed.reading.host,
    )
    return Snapshot(
        taken_at=now,
        nodes=(node,),
        jobs=queue.all_jobs,
        controls=queue.controls,
        recurring=tuple(queue.recurring.values()),
        unreadable=queue.unreadable,
        leader=leader,
        leads_here=True,
        progress=observed.progress,
        usage=observed.usage,
        notices=(*observed.notices, *(Notice("information", note) for note in observed.reading.notes)),
    )


def _evidence(store_id: str, queue: QueueView, observed: Observations) -> Evidence:
    """Return the facts that decide which GPUs are free."""
    return Evidence(
        reading=observed.reading,
        store_id=store_id,
        jobs=queue.active,
        controls=queue.controls,
        unreadable=queue.unreadable,
        foreign=_foreign(queue.jobs, observed.runtimes),
        is_asked=_is_asked(observed.runtimes),
        freed_at=observed.freed_at,
        sessions=_sessions(observed.runtimes),
        idle_since=observed.idle_since,
    )


def _foreign(jobs: Mapping[JobId, Job], observations: Iterable[Observation]) -> tuple[ForeignContainer, ...] | None:
    """Return foreign containers with GPUs; None if any runtime cannot list them."""
    found: list[ForeignContainer] = []
    for seen in observations:
        if seen.foreign is None or seen.records is None:
            return None
        found += seen.foreign
        found += [
            ForeignContainer(r.id, _stray_name(r, jobs), None, r.gpus, started_at=r.started_at)
            for r in find_strays(jobs, seen.records)
        ]
    return tuple(found)


def _is_asked(observations: Iterable[Observation]) -> bool:
    """Return whether a runtime that cannot list containers has been asked at all."""
    return any(seen.begun for seen in observations if seen.foreign is None or seen.records is None)


def _stray_name(record: ContainerRecord, jobs: Mapping[JobId, Job]) -> str:
    if record.job_id in jobs:
        end = "which does not stop" if record.attempt < jobs[record.job_id].next_attempt else "which the queue lost"
        return f"attempt {record.attempt} of job {record.job_id}, {end}"
    return f"job {record.job_id} of a lost queue"


def _sessions(observations: Iterable[Observation]) -> dict[int, JobId]:
    """Return jobs by session leader pid, to identify processes of host jobs with unreadable environments."""
    return {
        record.pid: record.job_id
        for seen in observations
        if seen.status.name == "process"
        for record in seen.records or ()
        if record.pid is not None
    }


def dependencies(store: JobStore, jobs: Mapping[JobId, Job]) -> Iterable[Job]:
    """Yield the jobs in history that waiting jobs depend on."""
    waiting = [job for job in jobs.values() if job.spec.after or job.spec.after_any]
    wanted = {
        job_id for job in waiting if job.state is JobState.PENDING for job_id in (*job.spec.after, *job.spec.after_any)
    }
    for job_id in sorted(wanted - jobs.keys()):
        try:
            yield store.get(job_id)
        except (NotFoundError, StoreFormatError):
            continue


def follower_snapshot(
    store: JobStore, directory: Path, settings: Settings, now: datetime, *, planned: bool = True
) -> Snapshot:
    """Return the snapshot of a process that does not schedule: the store, and the live view of the leader."""
    leader = current_leader(directory)
    live = live_file.read(directory) if leader else None
    age = max(now - live.taken_at, leader.silent_for) if live and leader else timedelta()
    jobs, controls = store.jobs(), store.controls()
    recurring = tuple(store.recurring().values())
    unreadable, told = store.unreadable(), live.notices if live else ()
    snapshot = Snapshot(
        taken_at=now,
        unreadable=unreadable,
        nodes=tuple(_drained(_aged(node, age, settings), controls) for node in live.nodes) if live else (),
        jobs=(*jobs.values(), *dependencies(store, jobs)),
        controls=controls,
        recurring=recurring,
        leader=leader,
        progress=live.progress if live else {},
        usage=live.usage if live else Usage(),
        notices=(*told, *_silence(leader), *_lost(store, told), *_left_out(unreadable, told)),
    )
    if leader is None:
        snapshot = replace(snapshot, nodes=(Node(name="", probe=NOBODY),))
    return with_plan(snapshot, plan(snapshot, settings, now)) if planned else snapshot


def refusal_notice(error: StoreError) -> Notice:
    """Return the notice of a scheduler whose store refuses; the advice comes first, since rows are short."""
    if isinstance(error, StoreDamagedError):
        why = f"{error.where}: {error.what}; running jobs continue"
        return Notice(
            "error", f"queue damaged, so no job starts: run `gputui state repair`. {why}", True, "queue damaged"
        )
    if isinstance(error, StoreBusyError):
        return Notice("error", f"queue locked, so no job starts: {error.what} ({error.hint})", True, "queue locked")
    short = "disk full" if isinstance(error, StoreFullError) else "queue not writable"
    return Notice("error", f"{error}; no job starts until this is repaired", True, short)


def _lost(store: JobStore, told: Iterable[Notice]) -> Iterable[Notice]:
    """Yield a notice of lost changes in the store, unless the scheduler has reported why it starts no jobs."""
    try:
        store.check()
    except StoreDamagedError as error:
        if not any(notice.halts for notice in told):
            yield refusal_notice(error)


def _left_out(unreadable: Iterable[Unreadable], told: Iterable[Notice]) -> Iterable[Notice]:
    """Return notices of unreadable entries that the scheduler has not reported."""
    known = {notice.text for notice in told}
    return (Notice("warning", entry.sentence) for entry in unreadable if entry.sentence not in known)


def _silence(leader: Leader | None) -> Iterable[Notice]:
    """Yield a notice of a scheduler that holds its lock and does not respond."""
    if leader is not None and leader.silent_for:
        who = f"{leader.kind} of {leader.user}, pid {leader.pid}"
        since = f"has not responded for {format_duration(leader.silent_for)}"
        todo = f"`kill -CONT {leader.pid}` continues a stopped one, `kill -9 {leader.pid}` lets another take over"
        yield Notice("error", f"the scheduler ({who}) {since}, so no job starts: {todo}")


def _aged(node: Node, by: timedelta, settings: Settings) -> Node:
    """Return the node with its readings aged by the time since it was published; they may be stale now."""
    if by < timedelta(seconds=1):
        return node
    return replace(node, gpus=tuple(_aged_view(view, by, settings.scheduler.stale_after) for view in node.gpus))


def _drained(node: Node, controls: Controls) -> Node:
    """Return the node with the drains made since it was published."""
    return replace(node, gpus=tuple(_drained_view(view, controls.drains.get(view.gpu.uuid)) for view in node.gpus))


def _drained_view(view: GpuView, drain: Drain | None) -> GpuView:
    if view.drain == drain:
        return view
    return replace(view, drain=drain, state=GpuState.DRAINED if view.state is GpuState.FREE and drain else view.state)


def _aged_view(view: GpuView, by: timedelta, stale_after: timedelta) -> GpuView:
    age = None if view.age is None else view.age + by
    if age is None or age <= stale_after:
        return replace(view, age=age)
    state = GpuState.UNKNOWN if view.state is GpuState.FREE else view.state
    old = "its last reading is too old"
    return replace(view, age=age, stale=True, state=state, why=view.why or old, closed=view.closed or old)
