"""Texts of the timeline: heading, selected bar or GPU, and agenda."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.arrays import Entries, count
from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, shown_id
from gputui.domain.policy.planning_context import DurationSource
from gputui.domain.policy.whatif import Bar, BarKind, KeptWindow, Timeline
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import fit, plain, width
from gputui.domain.units import format_duration, plural
from gputui.tui.present.bars import Scale
from gputui.tui.present.cells import Cell, Span, cell, clock
from gputui.tui.present.gpu_rows import Labels
from gputui.tui.present.job import JobContext, job_title, why
from gputui.tui.present.style import AMBER, BLUE, DIM, GREEN, PLAIN, STRONG
from gputui.tui.present.what_if import OLD


def heading(timeline: Timeline | None, snapshot: Snapshot, labels: Labels, scale: Scale, now: datetime) -> Cell:
    """Return the heading: scale, counts, and the reservation of the head of the queue."""
    spans: list[Span] = [("Timeline ", STRONG), (f"{step_words(scale.step)}/cell", DIM)]
    if timeline is None:
        return (*spans, (" │ working out the plan …", DIM))
    waiting = sum(job.count for job in snapshot.jobs if job.state is JobState.PENDING)
    planned = len(timeline.starts)
    runs = len(timeline.bars) - planned
    spans += [(" │ ", DIM), (f"{runs} run, {planned} planned", PLAIN)]
    if waiting > planned:
        spans.append((f", {waiting - planned} unplanned", AMBER))
    if timeline.promise is not None:
        head = timeline.promise
        job = snapshot.job(head.job_id)
        spans += [(" │ ", DIM), ("head ", DIM), (f"#{job.shown_id if job else shown_id(head.job_id)} ", BLUE)]
        spans.append((f"{clock(head.start, now)} {labels.of_all(head.gpus)}", PLAIN))
    if snapshot.controls.paused:
        spans.append((" │ PAUSED: nothing starts", AMBER))
    if now - timeline.at >= 2 * OLD:
        spans.append((f" │ {format_duration(now - timeline.at)} old", DIM))
    return tuple(spans)


def step_words(step: timedelta) -> str:
    """Return `10m` or `1h`, in one unit."""
    seconds = int(step.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def bar_lines(bar: Bar, job: Job | None, promise: Bar | None, labels: Labels, now: datetime) -> tuple[Cell, Cell]:
    """Return two lines about the selected bar: job and times."""
    title = job_title(job) if job else f"#{shown_id(bar.job_id)}"
    first: Cell = ((title, STRONG),)
    if job is not None:
        facts = f"  {plain(job.spec.tenant, 40)}, priority {job.priority}, {plural(len(bar.gpus), 'GPU')}"
        first = (*first, (facts, DIM))
    return first, _course(bar, promise, labels, now)


def _course(bar: Bar, promise: Bar | None, labels: Labels, now: datetime) -> Cell:
    where = labels.of_all(bar.gpus)
    end = f"{clock(bar.end, now)} (in {format_duration(bar.end - now)})"
    if bar.kind is BarKind.RUNNING:
        since = f"runs on {where} for {format_duration(now - bar.start)}"
        if bar.makes_way_for is not None:
            return ((f"{since}, ", PLAIN), (f"makes way for job {bar.makes_way_for} {clock(bar.end, now)}", AMBER))
        if bar.is_overrun:
            return ((since, PLAIN), (f", longer than planned: expected until {end}, nothing ends it", AMBER))
        is_limit = bar.source is DurationSource.LIMIT
        how = "ended by its limit" if is_limit else f"expected to end {bar.source.value}"
        return ((f"{since}, {how} {end}", PLAIN),)
    start = f"{clock(bar.start, now)}" + (f" (in {format_duration(bar.start - now)})" if bar.start > now else "")
    words = f"{start} on {where}, until {clock(bar.end, now)} {bar.source.value}"
    if bar.kind is BarKind.HEAD:
        kept = "kept free for it: nothing behind it may delay it"
        if promise is not None and (promise.gpus, promise.start) != (bar.gpus, bar.start):
            kept = f"promised {labels.of_all(promise.gpus)} at {clock(promise.start, now)}"
        return ((f"starts {words}; ", PLAIN), (kept, AMBER))
    return ((f"planned to start {words}", PLAIN),)


def bare_gpu_lines(view: GpuView, windows: Iterable[KeptWindow], labels: Labels, now: datetime) -> tuple[Cell, Cell]:
    """Return two lines about a GPU without a selected bar."""
    label = labels.by_uuid.get(view.gpu.uuid, "?")
    is_drained = view.state is GpuState.DRAINED and view.drain is not None
    why = plain(view.drain.reason if view.drain and is_drained else view.why or view.health.text, 200)
    state = "free" if view.state is GpuState.FREE else str(view.state).lower()
    kept = []
    for window in [each for each in windows if view.gpu.uuid in each.gpus]:
        whom = [f"tenant {plain(window.tenant, 40)}"] if window.tenant is not None else []
        whom += [f"priority {window.priority} and above"] if window.priority is not None else []
        when = f"{clock(window.start, now)} to {clock(window.end, now)}"
        kept.append(f"{plain(window.name, 40)} {when}" + (f" for {' or '.join(whom)}" if whom else ""))
    first: Cell = ((f"GPU {label}", STRONG), (f"  {state}" + (f": {why}" if why else ""), DIM))
    return first, cell("reserved: " + "; ".join(kept) if kept else "", PLAIN)


_ASSUMED = timedelta(hours=1)
"""Most of an assumed end that the whole plan shows."""


def whole_span(timeline: Timeline, now: datetime) -> timedelta:
    """Return the time from now until running jobs have ended and the first starts are made; at least five minutes.

    Ends that are only assumed, since the job has no limit, count for an hour at most: a day would leave no room for
    what is known.
    """
    assumed = now + _ASSUMED
    running = [bar for bar in timeline.bars if bar.kind is BarKind.RUNNING and not bar.is_overrun]
    ends = [min(bar.end, assumed) if bar.source is DurationSource.DEFAULT else bar.end for bar in running]
    starts = sorted(bar.start for bar in timeline.bars if bar.kind is not BarKind.RUNNING)[:40]
    head = [timeline.promise.end] if timeline.promise else []
    span = max([*ends, *starts, *head], default=now) - now
    return max(span * 9 / 8, timedelta(minutes=5))


LEAST = 4
"""Minimum number of lines of the agenda."""
_WHEN, _AHEAD, _NAME = 9, 10, 24
_Moment: TypeAlias = tuple[datetime, Bar | KeptWindow]


class _AgendaWords(Struct, frozen=True):
    """Data for the texts of the lines."""

    jobs: Mapping[JobId, Job]
    labels: Labels
    now: datetime
    names: int
    """Width of names in cells, so that the text after them aligns."""


def agenda_lines(timeline: Timeline | None, snapshot: Snapshot, labels: Labels, now: datetime, most: int) -> list[Cell]:
    """Return the agenda in at most `most` lines, the soonest moment first; empty if there is too little room.

    Up to a third of the lines is kept for jobs without a start.
    """
    if timeline is None or most < LEAST:
        return []
    room = most - 1
    moments = sorted(_moments(timeline, now), key=lambda moment: moment[0])
    never = [job for job in snapshot.jobs if job.state is JobState.PENDING and job.id not in timeline.starts]
    shown = moments[: room - min(len(never), room // 3)]
    told = never[: room - len(shown)]
    words = _words(snapshot, labels, now, [what for _, what in shown], told)
    heading = _heading(len(moments) - len(shown), count(never) - count(told), is_idle=not moments and not never)
    return [heading, *(_line(at, what, words) for at, what in shown), *(_never(job, snapshot, words) for job in told)]


def _words(
    snapshot: Snapshot, labels: Labels, now: datetime, shown: Iterable[Bar | KeptWindow], told: Iterable[Job]
) -> _AgendaWords:
    words = _AgendaWords(Entries({job.id: job for job in snapshot.jobs}), labels, now, _NAME)
    names = [_title(what, words) for what in shown] + [job_title(job) for job in told]
    return replace(words, names=min(_NAME, max(map(width, names), default=0)))


def _title(what: Bar | KeptWindow, words: _AgendaWords) -> str:
    if isinstance(what, KeptWindow):
        return plain(what.name, 60)
    job = words.jobs.get(what.job_id)
    return job_title(job) if job else f"#{shown_id(what.job_id)}"


def _heading(later: int, untold: int, *, is_idle: bool) -> Cell:
    spans: list[Span] = [("Coming next", STRONG)]
    if is_idle:
        spans.append(("  nothing: no job waits, and no running job has a known end", DIM))
    if later:
        spans.append((f"  {later} later ones are not listed", DIM))
    if untold:
        spans.append((f"  nor {untold} without a start" if later else f"  {untold} without a start not listed", DIM))
    return tuple(spans)


def _moments(timeline: Timeline, now: datetime) -> Iterator[_Moment]:
    for bar in timeline.bars:
        if bar.kind is not BarKind.RUNNING:
            yield bar.start, bar
        elif bar.gpus and not bar.is_overrun:
            yield bar.end, bar
    yield from ((window.start, window) for window in timeline.windows if window.start > now)


def _line(at: datetime, what: Bar | KeptWindow, words: _AgendaWords) -> Cell:
    ahead = f"in {format_duration(at - words.now)}" if at > words.now else ""
    told = _kept(what, words) if isinstance(what, KeptWindow) else _ends_or_starts(what, words)
    return ((f"{clock(at, words.now):<{_WHEN}} ", PLAIN), (f"{ahead:<{_AHEAD}} ", DIM), *told)


def _ends_or_starts(bar: Bar, words: _AgendaWords) -> Cell:
    where = words.labels.of_all(bar.gpus)
    if bar.kind is BarKind.RUNNING:
        how = "by its limit" if bar.source is DurationSource.LIMIT else bar.source.value
        how = how if bar.makes_way_for is None else f"makes way for job {bar.makes_way_for}"
        return (("■ ", DIM), *_name(_title(bar, words), words), (f" ends, {how}: {where}", DIM))
    is_head = bar.kind is BarKind.HEAD
    spans: list[Span] = [("▶ ", AMBER if is_head else GREEN), *_name(_title(bar, words), words)]
    spans.append((f" starts {f'on {where}' if bar.gpus else 'without a GPU'}", PLAIN))
    spans.append((f" until {clock(bar.end, words.now)}", DIM))
    if is_head:
        spans.append(("  promised to it", AMBER))
    return tuple(spans)


def _kept(window: KeptWindow, words: _AgendaWords) -> Cell:
    until = f"kept on {words.labels.of_all(window.gpus)} until {clock(window.end, words.now)}"
    return (("░ ", BLUE), (fit(_title(window, words), words.names), PLAIN), (f" {until}", DIM))


def _name(title: str, words: _AgendaWords) -> Cell:
    number, space, name = fit(title, words.names).partition(" ")
    return ((number, BLUE), (f"{space}{name}", PLAIN))


def _never(job: Job, snapshot: Snapshot, words: _AgendaWords) -> Cell:
    because = why(job, JobContext(words.now, snapshot.expected_starts, reasons=snapshot.reasons))
    name = _name(job_title(job), words)
    return ((f"{'no start':<{_WHEN + _AHEAD + 1}} ", DIM), ("· ", DIM), *name, (" ", DIM), *because)
