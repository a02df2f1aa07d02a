"""How a Snapshot is put together, in the scheduler and beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.domain.container import ContainerRecord, ForeignContainer
from gputui.domain.errors import NotFoundError, StoreBusyError, StoreDamagedError, StoreError, StoreFormatError
from gputui.domain.gpu import Drain, GpuState, GpuView, ProbeCode, ProbeReading, ProbeStatus
from gputui.domain.job import Job, JobId
from gputui.domain.policy.occupancy import Evidence, views
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Controls, Leader, Node, Notice, Snapshot, Usage
from gputui.domain.state import JobState
from gputui.domain.units import format_duration
from gputui.domain.unreadable import Unreadable
from gputui.engine import published
from gputui.engine.leader import current_leader
from gputui.engine.reconcile import strays
from gputui.ports import JobStore

if TYPE_CHECKING:
    from gputui.engine.observer import Observation

NOBODY = ProbeStatus(
    ProbeCode.STARTING, "no scheduler is running, so no GPU is watched: start `gputui` or `gputui serve`"
)


def with_plan(snapshot: Snapshot, decided: Plan) -> Snapshot:
    """The snapshot, with order, reasons and expected starts of its waiting jobs, and what else the plan came to."""
    return replace(
        snapshot,
        order=decided.order,
        reasons=decided.reasons,
        expected_starts=decided.forecast,
        windows=decided.windows,
        fragmentation=decided.fragmentation,
    )


@dataclass(frozen=True)
class World:
    """What the scheduler knows of everything outside the store."""

    reading: ProbeReading
    observations: tuple[Observation, ...]
    freed_at: Mapping[str, datetime]
    progress: Mapping[JobId, str]
    notices: tuple[Notice, ...]
    usage: Usage = Usage()


@dataclass(frozen=True)
class Queue:
    """What the store says, with the few things picked out of it that every look needs."""

    jobs: Mapping[JobId, Job] = field(default_factory=dict)
    active: tuple[Job, ...] = ()
    """Those of which an attempt may be under way."""
    wished: tuple[Job, ...] = ()
    """Those of which a user wished that they be cancelled or requeued."""
    elsewhere: tuple[Job, ...] = ()
    """Those in history that waiting ones depend on."""
    controls: Controls = Controls()
    recurring: Mapping[JobId, RecurringJob] = field(default_factory=dict)
    unreadable: tuple[Unreadable, ...] = ()

    @cached_property
    def everything(self) -> tuple[Job, ...]:
        """The jobs of the queue file, and those in history that they depend on."""
        return (*self.jobs.values(), *self.elsewhere)

    @classmethod
    def of(cls, store: JobStore) -> Queue:
        """The queue as it is now."""
        jobs = store.jobs()
        active = tuple(job for job in jobs.values() if job.state.is_active)
        wished = tuple(job for job in jobs.values() if job.cancel_requested or job.requeue_requested)
        elsewhere, recurring = tuple(dependencies(store, jobs)), store.recurring()
        return cls(jobs, active, wished, elsewhere, store.controls(), recurring, store.unreadable())


def within(
    store_id: str,
    queue: Queue,
    world: World,
    leader: Leader,
    settings: Settings,
    now: datetime,
) -> Snapshot:
    """The picture as the scheduler sees it."""
    evidence = Evidence(
        reading=world.reading,
        store_id=store_id,
        jobs=queue.active,
        controls=queue.controls,
        unreadable=queue.unreadable,
        foreign=_foreign(queue.jobs, world.observations),
        is_asked=_is_asked(world.observations),
        freed_at=world.freed_at,
        sessions=_sessions(world.observations),
    )
    node = Node(
        name=leader.host,
        gpus=views(evidence, settings.scheduler, now),
        probe=world.reading.status,
        driver_version=world.reading.driver_version,
        runtimes=tuple(seen.status for seen in world.observations),
    )
    return Snapshot(
        taken_at=now,
        nodes=(node,),
        jobs=queue.everything,
        controls=queue.controls,
        recurring=tuple(queue.recurring.values()),
        unreadable=queue.unreadable,
        leader=leader,
        leads_here=True,
        progress=world.progress,
        usage=world.usage,
        notices=(*world.notices, *(Notice("information", note) for note in world.reading.notes)),
    )


def _foreign(jobs: Mapping[JobId, Job], observations: Iterable[Observation]) -> tuple[ForeignContainer, ...] | None:
    """Other people's containers with GPUs; None as soon as one runtime cannot tell."""
    found: list[ForeignContainer] = []
    for seen in observations:
        if seen.foreign is None or seen.records is None:
            return None
        found += seen.foreign
        found += [ForeignContainer(r.id, _stray_name(r, jobs), None, r.gpus) for r in strays(jobs, seen.records)]
    return tuple(found)


def _is_asked(observations: Iterable[Observation]) -> bool:
    """Whether a runtime that cannot tell has been asked at all."""
    return any(seen.begun for seen in observations if seen.foreign is None or seen.records is None)


def _stray_name(record: ContainerRecord, jobs: Mapping[JobId, Job]) -> str:
    if record.job_id in jobs:
        end = "which does not end" if record.attempt < jobs[record.job_id].next_attempt else "which the queue lost"
        return f"attempt {record.attempt} of job {record.job_id}, {end}"
    return f"job {record.job_id} of a lost queue"


def _sessions(observations: Iterable[Observation]) -> dict[int, JobId]:
    """Session leaders of host attempts: processes are told apart by them where their environment is not readable."""
    return {
        record.pid: record.job_id
        for seen in observations
        if seen.status.name == "process"
        for record in seen.records or ()
        if record.pid is not None
    }


def dependencies(store: JobStore, jobs: Mapping[JobId, Job]) -> Iterable[Job]:
    """Jobs that waiting ones depend on and that have moved to history already."""
    waiting = [job for job in jobs.values() if job.spec.after or job.spec.after_any]
    wanted = {
        job_id for job in waiting if job.state is JobState.PENDING for job_id in (*job.spec.after, *job.spec.after_any)
    }
    for job_id in sorted(wanted - jobs.keys()):
        try:
            yield store.get(job_id)
        except (NotFoundError, StoreFormatError):
            continue


def beside(store: JobStore, directory: Path, settings: Settings, now: datetime, *, planned: bool = True) -> Snapshot:
    """The picture as a process sees it that does not schedule: the store, and what the scheduler published."""
    leader = current_leader(directory)
    live = published.read(directory) if leader else None
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


def refusal(error: StoreError) -> Notice:
    """Return the notice of a scheduler whose store refuses; what to do comes first, for rows are short."""
    if isinstance(error, StoreDamagedError):
        why = f"{error.where}: {error.what}; running jobs go on"
        return Notice("error", f"queue damaged, so no job starts: run `gputui state repair`. {why}", halts=True)
    if isinstance(error, StoreBusyError):
        return Notice("error", f"queue locked, so no job starts: {error.what} ({error.hint})", halts=True)
    return Notice("error", f"{error}; nothing is started until this is mended", halts=True)


def _lost(store: JobStore, told: Iterable[Notice]) -> Iterable[Notice]:
    """Tell of acknowledged changes that are missing, unless the scheduler has told what keeps it from starting."""
    try:
        store.check()
    except StoreDamagedError as error:
        if not any(notice.halts for notice in told):
            yield refusal(error)


def _left_out(unreadable: Iterable[Unreadable], told: Iterable[Notice]) -> Iterable[Notice]:
    """Tell of entries that cannot be read, unless the scheduler has."""
    known = {notice.text for notice in told}
    return (Notice("warning", entry.sentence) for entry in unreadable if entry.sentence not in known)


def _silence(leader: Leader | None) -> Iterable[Notice]:
    """Tell of a scheduler that holds its lock and does not respond."""
    if leader is not None and leader.silent_for:
        who = f"{leader.kind} of {leader.user}, pid {leader.pid}"
        since = f"has not responded for {format_duration(leader.silent_for)}"
        todo = f"`kill -CONT {leader.pid}` lets a stopped one go on, `kill -9 {leader.pid}` lets another take over"
        yield Notice("error", f"the scheduler ({who}) {since}, so no job starts: {todo}")


def _aged(node: Node, by: timedelta, settings: Settings) -> Node:
    """The node as it was published so long ago: readings are older by that, and may have gone stale."""
    if by < timedelta(seconds=1):
        return node
    return replace(node, gpus=tuple(_aged_view(view, by, settings.scheduler.stale_after) for view in node.gpus))


def _drained(node: Node, controls: Controls) -> Node:
    """The node with the GPUs drained that have been since it was published."""
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
