"""Timeline: which job has which GPUs when, running now or forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from functools import cached_property
from itertools import takewhile

from msgspec import Struct

from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.cluster_state import RunningJob
from gputui.domain.policy.forecast import Reach, expected_runs
from gputui.domain.policy.plan import StartDecision, decide_starts
from gputui.domain.policy.planning_context import DurationSource, PlanningContext
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot

MOST = 2000
"""Maximum number of forecast starts."""


class BarKind(Enum):
    """Kind of a bar."""

    RUNNING = "runs"
    PLANNED = "is planned"
    HEAD = "is promised these GPUs"
    """The first job that does not fit yet; others must not delay it."""


class Bar(Struct, frozen=True):
    """A job on its GPUs, from start to end."""

    job_id: JobId
    kind: BarKind
    gpus: tuple[str, ...]
    """UUIDs; empty for a job without GPUs."""
    start: datetime
    end: datetime
    """Planned end."""
    source: DurationSource
    """Source of the planned end; only a limit is certain."""
    is_overrun: bool = False
    """True if the job has run longer than planned."""
    makes_way_for: JobId | None = None
    """Job that preempts it at the end; it starts again later."""


class KeptWindow(Struct, frozen=True):
    """GPUs that a reservation keeps."""

    name: str
    start: datetime
    end: datetime
    gpus: tuple[str, ...]
    tenant: str | None = None
    priority: int | None = None


class Timeline(Struct, frozen=True, dict=True):
    """Running jobs and forecast starts, as of `at`."""

    at: datetime
    bars: tuple[Bar, ...] = ()
    """Running jobs, then forecast starts in order."""
    windows: tuple[KeptWindow, ...] = ()
    order: tuple[JobId, ...] = ()
    """Ids of all waiting jobs, first to start first."""
    promise: Bar | None = None
    """Current reservation of the head of the queue; its bar among the others shows the forecast instead."""
    until: datetime | None = None
    """End of the forecast; None: it covers every foreseeable start."""

    @cached_property
    def starts(self) -> Mapping[JobId, datetime]:
        """Expected start of each waiting job, where known, including those that start now."""
        return {bar.job_id: bar.start for bar in self.bars if bar.kind is not BarKind.RUNNING}

    @cached_property
    def by_gpu(self) -> Mapping[str, tuple[Bar, ...]]:
        """Return the bars of each GPU, by UUID, first to start first."""
        found: dict[str, list[Bar]] = {}
        for bar in sorted(self.bars, key=lambda bar: bar.start):
            for uuid in bar.gpus:
                found.setdefault(uuid, []).append(bar)
        return {uuid: tuple(bars) for uuid, bars in found.items()}


def timeline(
    snapshot: Snapshot,
    settings: Settings,
    now: datetime,
    most: int = MOST,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Timeline:
    """Return the running jobs and the first `most` forecast starts; stops early once `is_wanted` returns False."""
    decided = decide_starts(snapshot, settings, now)
    context, outcome = decided.context, decided.outcome
    head = outcome.hold
    reach = Reach()
    foreseen = expected_runs(context, decided.gated.line, most, reach)
    runs = [*outcome.starts, *takewhile(lambda _: is_wanted(), foreseen)]
    planned = [_bar(context, run, head is not None and run.id == head.id) for run in runs]
    promise = _promise(decided)
    if promise is not None and all(bar.job_id != promise.job_id for bar in planned):
        planned.append(promise)
    bars = (*_running(context, snapshot.jobs), *planned)
    order = decided.waiting.ids()
    until = context.when(reach.at) if reach.is_short else None
    return Timeline(now, bars, tuple(_windows(context)), order, promise, until)


def _bar(context: PlanningContext, run: RunningJob, is_head: bool) -> Bar:
    start, source = context.when(run.started), context.expected(run.id).source
    kind = BarKind.HEAD if is_head else BarKind.PLANNED
    return Bar(run.id, kind, context.gpus.uuids(run.grant), start, context.when(run.started + run.duration), source)


def _promise(decided: StartDecision) -> Bar | None:
    context, hold, head = decided.context, decided.outcome.hold, decided.outcome.head
    if hold is None or head is None:
        return None
    expected = context.expected(hold.id)
    start, end = context.when(hold.at), context.when(hold.at + expected.seconds)
    return Bar(hold.id, BarKind.HEAD, context.gpus.uuids(hold.grant), start, end, expected.source)


def _running(context: PlanningContext, jobs: Iterable[Job]) -> Iterator[Bar]:
    """Yield bars of the jobs that hold GPUs, including drained GPUs that no job gets afterwards."""
    for job in jobs:
        run = context.cluster.runs.get(job.id) if job.state.is_active else None
        if run is None or not job.attempts or job.attempts[-1].is_over:
            continue
        is_overrun = run.started + run.duration <= context.second
        start, end = context.when(run.started), context.when(run.ends(context.second))
        by = context.making_way.get(job.id)
        yield Bar(job.id, BarKind.RUNNING, job.gpus, start, end, context.sources[job.id], is_overrun, by)


def _windows(context: PlanningContext) -> Iterator[KeptWindow]:
    for keep in context.cluster.keeps:
        grant = tuple(enumerate(keep.masks))
        start, end = context.when(keep.start), context.when(keep.end)
        yield KeptWindow(keep.name, start, end, context.gpus.uuids(grant), keep.tenant, keep.priority)
