"""What comes next on the GPUs, moment by moment: who ends, who starts where, and who has no start in sight and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from gputui.domain.job import Job, JobId
from gputui.domain.policy.durations import Source
from gputui.domain.policy.timeline import Bar, BarKind, KeptWindow, Timeline
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import fit, plain, width
from gputui.domain.units import format_duration
from gputui.tui.present.cells import Cell, Span
from gputui.tui.present.detail import job_title
from gputui.tui.present.job import JobContext, why
from gputui.tui.present.labels import Labels
from gputui.tui.present.style import AMBER, BLUE, DIM, GREEN, PLAIN, STRONG
from gputui.tui.present.times import clock

LEAST = 4
"""Lines below which it is not worth its heading."""
_WHEN, _AHEAD, _NAME = 9, 10, 24
_Moment: TypeAlias = tuple[datetime, Bar | KeptWindow]


@dataclass(frozen=True)
class _Words:
    """What the lines are put into words with."""

    jobs: Mapping[JobId, Job]
    labels: Labels
    now: datetime
    names: int
    """Cells that each name takes, so that what is said of it stands in a column."""


def agenda_lines(timeline: Timeline | None, snapshot: Snapshot, labels: Labels, now: datetime, most: int) -> list[Cell]:
    """A heading and what fits into `most` lines with it, the soonest first; nothing where there is too little room.

    Jobs without a start keep a third of the lines, should there be so many of them.
    """
    if timeline is None or most < LEAST:
        return []
    room = most - 1
    moments = sorted(_moments(timeline, now), key=lambda moment: moment[0])
    never = [job for job in snapshot.jobs if job.state is JobState.PENDING and job.id not in timeline.starts]
    shown = moments[: room - min(len(never), room // 3)]
    told = never[: room - len(shown)]
    words = _words(snapshot, labels, now, [what for _, what in shown], told)
    heading = _heading(len(moments) - len(shown), len(never) - len(told), is_idle=not moments and not never)
    return [heading, *(_line(at, what, words) for at, what in shown), *(_never(job, snapshot, words) for job in told)]


def _words(
    snapshot: Snapshot, labels: Labels, now: datetime, shown: Iterable[Bar | KeptWindow], told: Iterable[Job]
) -> _Words:
    words = _Words({job.id: job for job in snapshot.jobs}, labels, now, _NAME)
    names = [_title(what, words) for what in shown] + [_job_title(job.id, words) for job in told]
    return replace(words, names=min(_NAME, max(map(width, names), default=0)))


def _title(what: Bar | KeptWindow, words: _Words) -> str:
    return plain(what.name, 60) if isinstance(what, KeptWindow) else _job_title(what.job_id, words)


def _job_title(job_id: JobId, words: _Words) -> str:
    job = words.jobs.get(job_id)
    return job_title(job) if job else f"#{job_id}"


def _heading(later: int, untold: int, *, is_idle: bool) -> Cell:
    spans: list[Span] = [("What comes next", STRONG)]
    if is_idle:
        spans.append(("  nothing: no job waits, and no end is known of one that runs", DIM))
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


def _line(at: datetime, what: Bar | KeptWindow, words: _Words) -> Cell:
    ahead = f"in {format_duration(at - words.now)}" if at > words.now else ""
    told = _kept(what, words) if isinstance(what, KeptWindow) else _ends_or_starts(what, words)
    return ((f"{clock(at, words.now):<{_WHEN}} ", PLAIN), (f"{ahead:<{_AHEAD}} ", DIM), *told)


def _ends_or_starts(bar: Bar, words: _Words) -> Cell:
    where = words.labels.of_all(bar.gpus)
    if bar.kind is BarKind.RUNNING:
        return (("■ ", DIM), *_name(bar.job_id, words), (f" ends, {_how(bar)}: {where}", DIM))
    is_head = bar.kind is BarKind.HEAD
    spans: list[Span] = [("▶ ", AMBER if is_head else GREEN), *_name(bar.job_id, words)]
    spans.append((f" starts {f'on {where}' if bar.gpus else 'without a GPU'}", PLAIN))
    spans.append((f" until {clock(bar.end, words.now)}", DIM))
    if is_head:
        spans.append(("  promised to it", AMBER))
    return tuple(spans)


def _how(bar: Bar) -> str:
    if bar.makes_way_for is not None:
        return f"makes way for job {bar.makes_way_for}"
    return "by its limit" if bar.source is Source.LIMIT else bar.source.value


def _kept(window: KeptWindow, words: _Words) -> Cell:
    until = f"kept on {words.labels.of_all(window.gpus)} until {clock(window.end, words.now)}"
    return (("░ ", BLUE), (fit(_title(window, words), words.names), PLAIN), (f" {until}", DIM))


def _name(job_id: JobId, words: _Words) -> Cell:
    number, space, name = fit(_job_title(job_id, words), words.names).partition(" ")
    return ((number, BLUE), (f"{space}{name}", PLAIN))


def _never(job: Job, snapshot: Snapshot, words: _Words) -> Cell:
    because = why(job, JobContext(words.now, snapshot.reasons, snapshot.expected_starts))
    return ((f"{'no start':<{_WHEN + _AHEAD + 1}} ", DIM), ("· ", DIM), *_name(job.id, words), (" ", DIM), *because)
