"""The timeline in words: its heading, and what the selected bar or GPU is."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.policy.durations import Source
from gputui.domain.policy.timeline import Bar, BarKind, KeptWindow, Timeline
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import plain
from gputui.domain.units import format_duration, plural
from gputui.tui.present.cells import Cell, Span, cell
from gputui.tui.present.detail import job_title
from gputui.tui.present.labels import Labels
from gputui.tui.present.scale import Scale
from gputui.tui.present.style import AMBER, BLUE, DIM, PLAIN, STRONG
from gputui.tui.present.times import clock
from gputui.tui.present.what_if import OLD


def heading(timeline: Timeline | None, snapshot: Snapshot, labels: Labels, scale: Scale, now: datetime) -> Cell:
    """What is in sight, what is planned, and what is promised to the head of the queue."""
    spans: list[Span] = [("Timeline ", STRONG), (f"{step_words(scale.step)}/cell", DIM)]
    if timeline is None:
        return (*spans, (" │ working out the plan …", DIM))
    waiting = sum(job.state is JobState.PENDING for job in snapshot.jobs)
    planned = len(timeline.starts)
    runs = len(timeline.bars) - planned
    spans += [(" │ ", DIM), (f"{runs} run, {planned} planned", PLAIN)]
    if waiting > planned:
        spans.append((f", {waiting - planned} unplanned", AMBER))
    if timeline.promise is not None:
        spans += [(" │ ", DIM), ("head ", DIM), *_promised(timeline.promise, labels, now)]
    if snapshot.controls.paused:
        spans.append((" │ PAUSED: nothing starts", AMBER))
    if now - timeline.at >= 2 * OLD:
        spans.append((f" │ {format_duration(now - timeline.at)} old", DIM))
    return tuple(spans)


def step_words(step: timedelta) -> str:
    """`10m`, `1h`: one unit is enough for what a cell stands for."""
    seconds = int(step.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _promised(bar: Bar, labels: Labels, now: datetime) -> Cell:
    return ((f"#{bar.job_id} ", BLUE), (f"{clock(bar.start, now)} {labels.of_all(bar.gpus)}", PLAIN))


def bar_lines(bar: Bar, job: Job | None, promise: Bar | None, labels: Labels, now: datetime) -> tuple[Cell, Cell]:
    """Which job, and when."""
    title = job_title(job) if job else f"#{bar.job_id}"
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
        return ((f"{since}, {_ending(bar.source)} {end}", PLAIN),)
    start = f"{clock(bar.start, now)}" + (f" (in {format_duration(bar.start - now)})" if bar.start > now else "")
    words = f"{start} on {where}, until {clock(bar.end, now)} {bar.source.value}"
    if bar.kind is BarKind.HEAD:
        kept = "kept free for it: nothing behind it may delay it"
        if promise is not None and (promise.gpus, promise.start) != (bar.gpus, bar.start):
            kept = f"promised {labels.of_all(promise.gpus)} at {clock(promise.start, now)}"
        return ((f"starts {words}; ", PLAIN), (kept, AMBER))
    return ((f"planned to start {words}", PLAIN),)


def _ending(source: Source) -> str:
    return "ended by its limit" if source is Source.LIMIT else f"expected to end {source.value}"


def gpu_lines(view: GpuView, windows: Iterable[KeptWindow], labels: Labels, now: datetime) -> tuple[Cell, Cell]:
    """How a GPU stands on which no bar is selected."""
    label = labels.by_uuid.get(view.gpu.uuid, "?")
    why = plain(view.why or view.health.text, 200)
    state = "free" if view.state is GpuState.FREE else str(view.state).lower()
    kept = [
        f"{plain(window.name, 40)} {clock(window.start, now)} to {clock(window.end, now)}{_whom(window)}"
        for window in windows
        if view.gpu.uuid in window.gpus
    ]
    first: Cell = ((f"GPU {label}", STRONG), (f"  {state}" + (f": {why}" if why else ""), DIM))
    return first, cell("kept for " + "; ".join(kept) if kept else "", PLAIN)


def _whom(window: KeptWindow) -> str:
    whom = [f"tenant {plain(window.tenant, 40)}"] if window.tenant is not None else []
    whom += [f"priority {window.priority} and above"] if window.priority is not None else []
    return f" for {' or '.join(whom)}" if whom else ""


def whole_span(timeline: Timeline, now: datetime) -> timedelta:
    """From now on: until all that runs has ended by plan and the first starts are made; at least some minutes."""
    ends = [bar.end for bar in timeline.bars if bar.kind is BarKind.RUNNING and not bar.is_overrun]
    starts = sorted(bar.start for bar in timeline.bars if bar.kind is not BarKind.RUNNING)[:40]
    head = [timeline.promise.end] if timeline.promise else []
    span = max([*ends, *starts, *head], default=now) - now
    return max(span * 9 / 8, timedelta(minutes=5))
