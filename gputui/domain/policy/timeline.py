"""Which job has which GPUs from when to when: what runs now, and what the plan foresees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import cached_property
from itertools import takewhile

from gputui.domain.job import Job, JobId
from gputui.domain.policy.board import Run
from gputui.domain.policy.durations import Source
from gputui.domain.policy.forecast import expected_runs
from gputui.domain.policy.forward import Reach
from gputui.domain.policy.look import Look
from gputui.domain.policy.plan import Decision, decision
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot

MOST = 2000
"""Of so many waiting jobs the start is foreseen."""


class BarKind(Enum):
    """What a stretch of time is."""

    RUNNING = "runs"
    PLANNED = "is planned"
    HEAD = "is promised these GPUs"
    """The first job that does not fit yet: others may not get into its way."""


@dataclass(frozen=True)
class Bar:
    """A job on its GPUs, from start to end."""

    job_id: JobId
    kind: BarKind
    gpus: tuple[str, ...]
    """UUIDs; empty for a job without GPUs."""
    start: datetime
    end: datetime
    """When it is planned to end."""
    source: Source
    """Where that end comes from: a limit ends the job, the others are guesses."""
    is_overrun: bool = False
    """It runs longer than it was planned to."""
    makes_way_for: JobId | None = None
    """It is stopped for that job then, to start again later."""


@dataclass(frozen=True)
class KeptWindow:
    """GPUs kept for somebody by a reservation."""

    name: str
    start: datetime
    end: datetime
    gpus: tuple[str, ...]
    tenant: str | None = None
    priority: int | None = None


@dataclass(frozen=True)
class Timeline:
    """What is to come, as seen at `at`."""

    at: datetime
    bars: tuple[Bar, ...] = ()
    """Those that run, then the others in the order of their starts."""
    windows: tuple[KeptWindow, ...] = ()
    order: tuple[JobId, ...] = ()
    """All waiting jobs, first to start first."""
    promise: Bar | None = None
    """What is kept for the head of the queue now; its bar among the others is where the forecast puts it."""
    until: datetime | None = None
    """How far it reaches; None: every start that can be foreseen is in it."""

    @cached_property
    def starts(self) -> Mapping[JobId, datetime]:
        """When each waiting job is expected to start, where that is known: those that start now included."""
        return {bar.job_id: bar.start for bar in self.bars if bar.kind is not BarKind.RUNNING}

    @cached_property
    def by_gpu(self) -> Mapping[str, tuple[Bar, ...]]:
        """The bars of each GPU, by UUID, first to start first."""
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
    """What runs now, and the first `most` starts that the plan foresees; fewer once it is wanted no more."""
    decided = decision(snapshot, settings, now)
    look, outcome = decided.look, decided.outcome
    jobs = {job.id: job for job in snapshot.jobs}
    head = outcome.hold
    reach = Reach()
    foreseen = expected_runs(look, decided.gated.line, most, reach)
    runs = [*outcome.starts, *takewhile(lambda _: is_wanted(), foreseen)]
    planned = [_bar(look, jobs[run.id], run, head is not None and run.id == head.id) for run in runs]
    promise = _promise(decided, jobs)
    if promise is not None and all(bar.job_id != promise.job_id for bar in planned):
        planned.append(promise)
    bars = (*_running(look, snapshot.jobs), *planned)
    order = tuple([job.id for job in decided.waiting.jobs])
    until = look.when(reach.at) if reach.is_short else None
    return Timeline(now, bars, tuple(_windows(look)), order, promise, until)


def _bar(look: Look, job: Job, run: Run, is_head: bool) -> Bar:
    start, source = look.when(run.started), look.durations.of(job).source
    kind = BarKind.HEAD if is_head else BarKind.PLANNED
    return Bar(job.id, kind, look.places.uuids(run.grant), start, look.when(run.started + run.duration), source)


def _promise(decided: Decision, jobs: Mapping[JobId, Job]) -> Bar | None:
    look, hold = decided.look, decided.outcome.hold
    if hold is None:
        return None
    planned = look.durations.of(jobs[hold.id])
    start, end = look.when(hold.at), look.when(hold.at + planned.seconds)
    return Bar(hold.id, BarKind.HEAD, look.places.uuids(hold.grant), start, end, planned.source)


def _running(look: Look, jobs: Iterable[Job]) -> Iterator[Bar]:
    """Those that hold GPUs, with all that they hold: also what nobody may have after them."""
    for job in jobs:
        run = look.board.runs.get(job.id) if job.state.is_active else None
        if run is None or not job.attempts or job.attempts[-1].is_over:
            continue
        is_overrun = run.started + run.duration <= look.second
        start, end = look.when(run.started), look.when(run.ends(look.second))
        by = look.making_way.get(job.id)
        yield Bar(job.id, BarKind.RUNNING, job.gpus, start, end, look.sources[job.id], is_overrun, by)


def _windows(look: Look) -> Iterator[KeptWindow]:
    for keep in look.board.keeps:
        grant = tuple(enumerate(keep.masks))
        start, end = look.when(keep.start), look.when(keep.end)
        yield KeptWindow(keep.name, start, end, look.places.uuids(grant), keep.tenant, keep.priority)
