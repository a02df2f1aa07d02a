"""Effect of a change on the start of every job ("what if"), from two forecasts; and the timeline of a forecast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import Enum
from functools import cached_property, partial, reduce
from itertools import takewhile
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.action import Action, Cancel, DrainGpus, EditJobs, JobAction, PlaceJobs, Requeue, ResumeGpus, put
from gputui.domain.errors import GputuiError
from gputui.domain.gpu import Drain, GpuState, GpuView, Health
from gputui.domain.job import Job
from gputui.domain.job_spec import CLASSES, JobId, whole_class
from gputui.domain.policy.decide import is_unsatisfiable
from gputui.domain.policy.lanes import ScoreTerms, level, score_terms
from gputui.domain.policy.plan import Reach, decide_starts, expected_runs
from gputui.domain.policy.planning_context import DurationSource, PlanningContext
from gputui.domain.policy.queue_order import OrderedQueue, order_queue, usage_by_tenant
from gputui.domain.policy.waits import Dependencies, keep_wait
from gputui.domain.runs import Spans, spans_of
from gputui.domain.settings import Settings, Window
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, Reason, utc_moment
from gputui.domain.text import format_duration, plural

MOST = 2000
"""Maximum number of forecast starts."""


class BarKind(Enum):
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


class Timeline(Struct, frozen=True, dict=True):
    """Running jobs and forecast starts, as of `at`."""

    at: datetime
    bars: tuple[Bar, ...] = ()
    """Running jobs, then forecast starts in order."""
    windows: tuple[Window, ...] = ()
    """Reservations that keep GPUs, with the UUIDs of these."""
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
    when, uuids = context.when, context.gpus.uuids
    planned = []
    for run in runs:
        kind = BarKind.HEAD if head is not None and run.id == head.id else BarKind.PLANNED
        start, end = when(run.started), when(run.started + run.duration)
        planned.append(Bar(run.id, kind, uuids(run.grant), start, end, context.expected(run.id).source))
    promise = None
    if head is not None and outcome.head is not None and context.gpus.is_known(head.grant):
        expected = context.expected(head.id)
        end = when(head.at + expected.seconds)
        promise = Bar(head.id, BarKind.HEAD, uuids(head.grant), when(head.at), end, expected.source)
    if promise is not None and all(bar.job_id != promise.job_id for bar in planned):
        planned.append(promise)
    windows = tuple(replace(keep.window, gpus=uuids(tuple(enumerate(keep.masks)))) for keep in context.cluster.keeps)
    bars = (*_running(context, snapshot.jobs), *planned)
    return Timeline(now, bars, windows, decided.waiting.ids(), promise, when(reach.at) if reach.is_short else None)


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


SnapshotChange: TypeAlias = Callable[[Snapshot], Snapshot]
LEAST = timedelta(seconds=1)
"""A start that moves by less counts as unchanged."""


class Shift(Struct, frozen=True):
    """Expected start of a job before and after a change; None: not known, or never."""

    job_id: JobId
    before: datetime | None
    after: datetime | None
    is_stopped: bool = False
    """True if a running job is stopped and has to start again: preempted, or requeued."""

    @property
    def is_felt(self) -> bool:
        """Return whether the start moves noticeably: jobs that swap places may differ by less than a second."""
        if self.before is None or self.after is None:
            return self.before is not self.after
        return abs(self.after - self.before) >= LEAST


class PlaceChange(Struct, frozen=True):
    """Position of a waiting job in the queue, from 1, before and after a change."""

    job_id: JobId
    before: int
    after: int


class Comparison(Struct, frozen=True, dict=True):
    """Timelines without a change and with it."""

    before: Timeline
    after: Timeline

    @cached_property
    def shifts(self) -> tuple[Shift, ...]:
        """Return the waiting jobs that the change would start earlier or later, in the order after it."""
        before, after = self.before.starts, self.after.starts
        order = dict.fromkeys((*after, *before))
        running = {bar.job_id for bar in self.before.bars if bar.kind is BarKind.RUNNING}
        shifts = (
            Shift(job_id, before.get(job_id), after.get(job_id), job_id in running and job_id not in before)
            for job_id in order
        )
        return tuple(shift for shift in shifts if shift.is_felt)

    @cached_property
    def moves(self) -> tuple[PlaceChange, ...]:
        """Return the waiting jobs that change their place in the queue, in the order after the change."""
        before = {job_id: place for place, job_id in enumerate(self.before.order, 1)}
        return tuple(
            PlaceChange(job_id, before[job_id], place)
            for place, job_id in enumerate(self.after.order, 1)
            if before.get(job_id, place) != place
        )


def compared(
    snapshot: Snapshot,
    change: SnapshotChange,
    settings: Settings,
    now: datetime,
    before: Timeline | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Comparison:
    """Return both timelines.

    Pass `before` if it is known already. The result is useless once `is_wanted` returns False.
    """
    before = before or timeline(snapshot, settings, now, is_wanted=is_wanted)
    return Comparison(before, timeline(change(snapshot), settings, now, is_wanted=is_wanted))


def change_of(action: Action, at: datetime) -> SnapshotChange:
    """Return what an action does to the snapshot once the scheduler has carried it out.

    Jobs that it does not suit stay as they are, and so does the snapshot for an action without a forecast.
    """
    match action:
        case Cancel():
            return _released(action.ids, lambda _: None)
        case Requeue():

            def again(job: Job) -> Job:  # with its present age
                if job.state is JobState.PENDING:
                    return job
                over = job.with_attempt(ended_at=at) if job.attempt and not job.attempt.is_over else job
                return over.evolve(state=JobState.PENDING, ended_at=None, cancel_requested=False, waiting_since=at)

            return _released(action.ids, again)
        case DrainGpus():
            return _on_gpus(action.uuids, lambda view: _drained(view, at))
        case ResumeGpus():
            return _on_gpus(action.uuids, _resumed)
        case PlaceJobs():
            moves = [_changed_jobs(each.ids, partial(put, placed=each.placed, by=""), at) for each in action.places]
            return lambda snapshot: reduce(lambda changed, change: change(changed), moves, snapshot)
        case EditJobs():
            edit = action.edit

            def edited(job: Job) -> Job:
                may = job.state is JobState.PENDING or (job.state.is_active and edit.suits_running)
                return edit.on(job, at) if may else job

            return _changed_jobs(action.ids, edited, at)
    if isinstance(action, JobAction) and action.has_forecast:
        return _changed_jobs(action.ids, lambda job: action.apply(job, at, ""), at)
    return lambda snapshot: snapshot


def _released(job_ids: Iterable[JobId], edit: Callable[[Job], Job | None]) -> SnapshotChange:
    """Return the change that edits the jobs (None removes one) and releases their GPUs."""
    wanted = spans_of(job_ids)

    def change(snapshot: Snapshot) -> Snapshot:
        freed = {uuid for job in snapshot.jobs if job.id in wanted for uuid in job.gpus}
        return _on_gpus(freed, lambda view: _freed(view, wanted))(_changed(snapshot, wanted, edit))

    return change


def _drained(view: GpuView, at: datetime) -> GpuView:
    state = GpuState.DRAINED if view.state is GpuState.FREE else view.state
    return replace(view, drain=Drain("", "", at), state=state)


def _resumed(view: GpuView) -> GpuView:
    """Return the GPU as resumed: drained or stopped by an Xid it takes jobs, unless another cause forbids it."""
    if view.drain is None and not view.is_stopped_by_xid:
        return view
    health = Health() if view.is_stopped_by_xid else view.health
    state = view.state
    if state is GpuState.DRAINED:  # without the drain, as far as the snapshot shows it
        is_unknown = view.stale or not health.is_schedulable or view.sample is None
        state = GpuState.UNKNOWN if is_unknown else GpuState.FOREIGN if view.holders else GpuState.FREE
    return replace(view, drain=None, closed="", health=health, state=state)


def replaced(job: Job) -> SnapshotChange:
    return lambda snapshot: _changed(snapshot, spans_of(job.ids), lambda other: job if other.id == job.id else None)


def submitted(*jobs: Job) -> SnapshotChange:
    return lambda snapshot: replace(snapshot, jobs=(*snapshot.jobs, *jobs))


def _freed(view: GpuView, gone: Spans) -> GpuView:
    left = tuple(job_id for job_id in view.job_ids if job_id not in gone)
    if left:
        sharers = tuple(sharer for sharer in view.sharers if sharer.job_id in left)
        return replace(view, job_id=left[0], job_ids=left, sharers=sharers)
    state = GpuState.DRAINED if view.drain else GpuState.FREE
    return replace(view, state=state, job_id=None, job_ids=(), sharers=()) if view.state is GpuState.ALLOCATED else view


def _changed_jobs(job_ids: Iterable[JobId], edit: Callable[[Job], Job], at: datetime) -> SnapshotChange:
    wanted = spans_of(job_ids)

    def edited(job: Job) -> Job:
        try:
            return edit(job)
        except GputuiError:  # it does not suit the job's state
            return job

    def change(snapshot: Snapshot) -> Snapshot:
        others = Dependencies.of(snapshot.jobs)
        return _changed(snapshot, wanted, lambda job: keep_wait(job, edited(job), others.ended_at(job, at), at))

    return change


def _changed(snapshot: Snapshot, wanted: Spans, change: Callable[[Job], Job | None]) -> Snapshot:
    """Return the snapshot with a change to the wanted jobs, even if they are part of an entry; None removes a job."""
    jobs: list[Job | None] = []
    for job in snapshot.jobs:
        taken, left = job.divided(wanted)
        jobs += (change(taken), left) if taken else (left,)
    found = [job for job in jobs if job is not None]
    if len(found) > len(snapshot.jobs):  # an entry was split in two
        found.sort(key=lambda job: job.id)
    return replace(snapshot, jobs=tuple(found))


def _on_gpus(uuids: Iterable[str], edit: Callable[[GpuView], GpuView]) -> SnapshotChange:
    names = frozenset(uuids)

    def change(snapshot: Snapshot) -> Snapshot:
        views = (tuple(edit(view) if view.gpu.uuid in names else view for view in node.gpus) for node in snapshot.nodes)
        return replace(
            snapshot, nodes=tuple(replace(node, gpus=gpus) for node, gpus in zip(snapshot.nodes, views, strict=True))
        )

    return change


def why_never(context: PlanningContext, job: Job) -> str:
    """Return why it can never start on this server under its tenant's caps; empty when it can."""
    ask, tenant = context.gpus.ask(job), job.spec.tenant
    wants = f"needs {plural(ask.minimum, 'GPU')}"
    if is_unsatisfiable(ask):
        fitting = max((mask.bit_count() for mask in ask.eligible), default=0)
        here = max((len(node) for node in context.gpus.rows), default=0)
        if not here:
            return f"{wants}, no GPU is known here"
        if fitting == here:
            return f"{wants}, this server has {here}"
        return f"{wants}, {fitting or 'none'} of {here} here {'is' if fitting < 2 else 'are'} suitable"
    caps = context.cluster.rules.caps.get(tenant)
    if caps is not None and caps.gpus is not None and ask.minimum > caps.gpus:
        return f"{wants}, {tenant} may hold {caps.gpus}"
    if caps is not None and caps.running == 0:
        return f"{tenant} may run no jobs"
    return ""


class TermWords(Struct, frozen=True):
    name: str
    points: float
    of: str
    """Description of the inputs; empty if the name says it all."""


class Explanation(Struct, frozen=True):
    """Everything that decides when a waiting job starts."""

    reason: Reason | None
    """Reason why it waits; None when it starts in the next pass of the scheduler."""
    terms: ScoreTerms
    used: float
    """U/S of its tenant: 0 means nothing used, 1 exactly its share."""
    planned: timedelta
    """Planned runtime."""
    position: int
    """Position in the order, from 1."""
    waiting: int
    """Number of waiting jobs."""
    waits_for: tuple[JobId, ...]
    """Running jobs whose end the forecast relies on, and jobs it depends on."""
    expected_start_at: datetime | None
    certainty: str
    """Certainty of the expected start, with the reasons."""


def explain(snapshot: Snapshot, job: Job, settings: Settings, now: datetime) -> Explanation:
    context = PlanningContext.at(snapshot, settings, now)
    line = order_queue(context)
    place = next(n for n, item in enumerate(line.items) if item.id <= job.id < item.id + item.count)
    ahead = line.at(range(place))
    start, until = snapshot.expected_starts.get(job.id), None
    if start is None:
        forecast = timeline(snapshot, settings, now)
        start, until = forecast.starts.get(job.id), forecast.until
    key, item, usage = line.keys[place], line.items[place], usage_by_tenant(context, context.waiting)
    promoted = item.since + context.cluster.rules.promote_after <= context.second
    height, waited = level(key.priority, key.nice, promoted=promoted), max(0.0, context.second - item.since)
    payer, planned = key.stands
    live = {other.id for other in snapshot.jobs if not other.state.is_terminal}
    waits_for = [other for other in dict.fromkeys((*job.spec.after, *job.spec.after_any)) if other in live]
    if not waits_for:
        waits_for = [other.id for other in snapshot.jobs if other.gpus and other.state is not JobState.PENDING]
    return Explanation(
        reason=snapshot.reasons.get(job.id),
        terms=score_terms(height, waited, planned, usage.get(payer, 0.0), context.settings.policy),
        used=usage.get(job.placed.tenant if job.placed else job.spec.tenant, 0.0),
        planned=timedelta(seconds=line.keys[place].duration),
        position=1 + sum(item.count for item in ahead.items) + job.id - line.items[place].id,
        waiting=sum(item.count for item in line.items),
        waits_for=tuple(waits_for),
        expected_start_at=start,
        certainty=_certainty(context, job, start, line, place, until),
    )


def describe_terms(job: Job, explanation: Explanation) -> tuple[TermWords, ...]:
    """Return the terms of the score, after the level that precedes every score."""
    terms = explanation.terms
    waited, planned, credited = (
        format_duration(timedelta(seconds=each)) for each in (terms.waited, terms.planned, terms.credited)
    )
    stands = f"as job {job.placed.past}: " if job.placed else ""
    bonus = f" + {credited} credited" if terms.credited else ""
    tenant = job.placed.tenant if job.placed else job.spec.tenant
    used = f": tenant {tenant} has used {explanation.used:.2f} of its share" if terms.credited else ""
    expansion = f"{stands}(waited {waited}{bonus} + planned {planned}) / planned {planned}{used}"
    height, nice = f"priority {job.priority}", job.placed.nice if job.placed else job.spec.nice
    if terms.is_promoted:
        height += f", before all others of class {CLASSES[whole_class(job.priority)]} because of its long wait"
    elif nice > 0:
        height += f", lowered by nice {nice}"
    height += f"; placed by hand beside job {job.placed.past}" if job.placed else ""
    return (
        TermWords("level", terms.level, height),
        TermWords("expansion", terms.expansion, expansion),
        TermWords("age", terms.age, f"waited {waited}"),
    )


def _certainty(
    context: PlanningContext, job: Job, start: datetime | None, line: OrderedQueue, place: int, until: datetime | None
) -> str:
    if start is None and (why := why_never(context, job)):
        return f"never: {why}"
    if start is None and until is not None and not job.held:
        return f"not known: the forecast reaches to {utc_moment(until, context.now)}, and it does not start until then"
    if start is None:
        return "not known: it waits for something that has no known end"
    sources = Counter(context.sources.values())
    words = []
    if sources[DurationSource.DEFAULT]:
        running = plural(sources[DurationSource.DEFAULT], "running job")
        words.append(f"{running} without a limit, taken to run for the longest time allowed")
    if sources[DurationSource.PREDICTION]:
        words.append(
            f"{plural(sources[DurationSource.PREDICTION], 'running job')} taken to run as long as the last ones did"
        )
    ahead = Counter(context.durations.expected(other).source for other in line.jobs[:place])
    if ahead[DurationSource.DEFAULT]:
        words.append(f"{plural(ahead[DurationSource.DEFAULT], 'job')} ahead of it without a limit, taken alike")
    if words:
        return "rough: " + "; ".join([*words, *_shifting(context, line)])
    certain = "at the latest, if nothing else changes: every running job has a limit"
    return "; ".join([certain, *_shifting(context, line)])


def _shifting(context: PlanningContext, line: OrderedQueue) -> list[str]:
    """Return the changes of order that the forecast cannot foresee: it uses the scores at its events."""
    credit = context.settings.policy.newcomer_credit
    paces = {(key.priority, key.duration, key.tenant if credit else "") for key in line.keys}
    if len(paces) > len({key.priority for key in line.keys}):
        return ["scores that grow at different paces may change the order"]
    return []
