"""Reads the queue for a tick, and builds the snapshots of processes that do not schedule."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from operator import is_
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.arrays import Entries
from gputui.domain.errors import (
    NotFoundError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFormatError,
    StoreFullError,
)
from gputui.domain.gpu import Drain, GpuState, GpuView, ProbeCode, ProbeStatus
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Controls, Leader, Node, Notice, Snapshot, Unreadable
from gputui.domain.state import HOW_TO_SCHEDULE, JobState
from gputui.domain.text import format_duration
from gputui.engine.leadership import current_leader
from gputui.ports import JobStore

NOBODY = ProbeStatus(ProbeCode.STARTING, f"no scheduler is running, so no GPU is watched: {HOW_TO_SCHEDULE}")


def with_plan(snapshot: Snapshot, decided: Plan) -> Snapshot:
    return replace(
        snapshot,
        order=decided.order,
        reasons=decided.reasons,
        expected_starts=decided.forecast,
        windows=decided.windows,
        fragmentation=decided.fragmentation,
    )


class QueueView(Struct, frozen=True, dict=True):
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
        jobs = store.jobs()
        active = tuple(job for job in jobs.values() if job.state.is_active)
        requested = tuple(job for job in jobs.values() if job.cancel_requested or job.requeue_requested)
        in_history, recurring = tuple(dependencies(store, jobs)), store.recurring()
        return cls(jobs, active, requested, in_history, store.controls(), recurring, store.unreadable())


def dependencies(store: JobStore, jobs: Mapping[JobId, Job]) -> Iterable[Job]:
    waiting = [job for job in jobs.values() if job.spec.after or job.spec.after_any]
    wanted = {
        job_id for job in waiting if job.state is JobState.PENDING for job_id in (*job.spec.after, *job.spec.after_any)
    }
    for job_id in sorted(wanted - jobs.keys()):
        try:
            yield store.get(job_id)
        except (NotFoundError, StoreFormatError):
            continue


def files_snapshot(
    store: JobStore, directory: Path, settings: Settings, now: datetime, *, planned: bool = True
) -> Snapshot:
    """Return what the files tell a process that does not schedule, and gets no answer from one that does.

    It has no GPUs. Unless `planned`, it has no plan.
    """
    leader, jobs, unreadable = current_leader(directory), store.jobs(), store.unreadable()
    notices: tuple[Notice, ...] = ()
    if leader is not None:  # it holds its lock, and this process gets no answers from it
        text = f"the scheduler ({_named(leader)}) does not answer; this is what the files say"
        notices = _silence(leader) or (Notice("warning", text),)
    try:
        store.check()
    except StoreDamagedError as error:
        notices = (*notices, refusal_notice(error))
    snapshot = Snapshot(
        taken_at=now,
        unreadable=unreadable,
        nodes=(Node("", probe=NOBODY),) if leader is None else (),
        jobs=(*jobs.values(), *dependencies(store, jobs)),
        controls=store.controls(),
        recurring=tuple(store.recurring().values()),
        leader=leader,
        notices=(*notices, *(Notice("warning", entry.sentence) for entry in unreadable)),
    )
    return with_plan(snapshot, plan(snapshot, settings, now)) if planned else snapshot


def as_told(snapshot: Snapshot, silence: float, settings: Settings, now: datetime) -> Snapshot:
    """Return the last snapshot that the scheduler's process told; `silence` in seconds since it was heard.

    One that does not respond is named, and its readings age.
    """
    leader = snapshot.leader
    if leader is None:
        return replace(snapshot, taken_at=now)
    silent_for = max(leader.silent_for, timedelta(seconds=int(silence)))
    leader = replace(leader, silent_for=silent_for)
    nodes = snapshot.nodes
    if silent_for >= timedelta(seconds=1):
        stale_after = settings.scheduler.stale_after
        nodes = tuple(
            replace(node, gpus=tuple(_aged_view(view, silent_for, stale_after) for view in node.gpus)) for node in nodes
        )
    return replace(snapshot, taken_at=now, leader=leader, nodes=nodes, notices=(*snapshot.notices, *_silence(leader)))


def renewed(snapshot: Snapshot, store: JobStore, settings: Settings, now: datetime) -> Snapshot:
    """Return the scheduler's last snapshot, planned anew if users have written since then; else the same object."""
    jobs, controls, recurring = store.jobs(), store.controls(), tuple(store.recurring().values())
    present = (*jobs.values(), *dependencies(store, jobs))
    is_same = len(present) == len(snapshot.jobs) and all(map(is_, present, snapshot.jobs))
    if is_same and controls == snapshot.controls and recurring == snapshot.recurring:
        return snapshot
    nodes = tuple(
        replace(node, gpus=tuple(_drained_view(view, controls.drains.get(view.gpu.uuid)) for view in node.gpus))
        for node in snapshot.nodes
    )
    changed = replace(snapshot, taken_at=now, jobs=present, controls=controls, recurring=recurring, nodes=nodes)
    return with_plan(changed, plan(changed, settings, now))


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


def _silence(leader: Leader) -> tuple[Notice, ...]:
    if leader.silent_for:
        since = f"has not responded for {format_duration(leader.silent_for)}"
        todo = f"`kill -CONT {leader.pid}` continues a stopped one, `kill -9 {leader.pid}` lets another take over"
        if os.geteuid() not in {0, leader.uid}:
            todo = f"ask {leader.user}, who can end it"
        return (Notice("error", f"the scheduler ({_named(leader)}) {since}, so no job starts: {todo}"),)
    return ()


def _named(leader: Leader) -> str:
    return f"{leader.kind} of {leader.user}, pid {leader.pid}"


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
