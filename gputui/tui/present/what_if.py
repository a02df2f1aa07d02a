"""Effects of a change in a few lines: shifts of starts, and affected GPUs before and after."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.gpu import GpuView
from gputui.domain.job_spec import JobId
from gputui.domain.policy.whatif import Bar, Comparison, KeptWindow, Shift, Timeline
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import fit, plain, width
from gputui.domain.units import format_duration, plural
from gputui.tui.present.bars import UNICODE, BarMarks, Drawn, Scale, axis, gpu_row, step_for
from gputui.tui.present.cells import Cell, Span, cell, clock, distance
from gputui.tui.present.gpu_rows import Labels
from gputui.tui.present.style import AMBER, BLUE, DIM, GREEN, PLAIN, RED, STRONG

EARLIER, LATER, GONE, NEW = "▲", "▼", "✗", "+"
_LABEL, _LABEL_MOST = 9, 24
"""Usual and maximum cells of the GPU labels of a row; names of nodes may be long."""
_WHEN = 5
"""Cells for `was` and `then`."""
OLD = timedelta(seconds=5)
"""Age from which a forecast shows its age."""


class Subject(Struct, frozen=True):
    """Proposed change as text."""

    words: str
    job_ids: Collection[JobId] = ()
    cost: str = ""
    """Irreversible loss, as text."""
    doubt: str = ""
    """Reason why the change no longer makes sense."""
    fate: str = "no forecast"
    """Word for the job's own start if it has none afterwards."""


NOBODY = Subject("")


class Outlook(Struct, frozen=True):
    """Known effects of a change."""

    snapshot: Snapshot
    now: datetime
    comparison: Comparison | None = None
    """Comparison of the forecasts; None while it is being computed."""
    is_current: bool = False
    """True if the comparison is about the shown change, not an earlier one."""
    failure: str = ""
    names: Mapping[JobId, str] = field(default_factory=dict)
    shown_id: Callable[[JobId], str] = str


def what_if_lines(subject: Subject, outlook: Outlook, room: int, rows: int, marks: BarMarks = UNICODE) -> list[Cell]:
    """Return at most `rows` lines of at most `room` cells."""
    lines = [cell(fit_words(subject.words, room), STRONG)]
    lines += [cell(fit_words(f"! {subject.doubt}", room), AMBER)] if subject.doubt else []
    lines += [cell(fit_words(subject.cost, room), RED)] if subject.cost else []
    comparison = outlook.comparison
    if comparison is None or not outlook.is_current:
        return [*lines, summary(outlook, subject)][:rows]
    own = [shift for shift in comparison.shifts if shift.job_id in subject.job_ids]
    others = [shift for shift in comparison.shifts if shift.job_id not in subject.job_ids]
    lines += place_lines(comparison, subject, outlook, room)
    lines += _shift_lines(by_impact(own), min(len(own), max(1, (rows - len(lines)) // 3)), subject, outlook, room)
    lines.append(summary(outlook, subject))
    groups = changed_groups(comparison, outlook.snapshot, subject.job_ids)
    left = rows - len(lines)
    shown = min(len(others), max(1, left - 1 - 2 * len(groups), left // 2))
    ordered = by_impact(others)
    lines += _shift_lines(ordered, shown, subject, outlook, room)
    lines += _group_lines(groups, comparison, (*own, *ordered[:shown]), outlook, room, rows - len(lines), marks)
    return lines[:rows]


def fit_words(words: str, room: int) -> str:
    """Return the words without control characters, cut to the room."""
    words = plain(words)
    return words if width(words) <= room else fit(words, room)


_PLACES = 3
"""Maximum number of jobs whose places are shown, one per line."""


def place_lines(comparison: Comparison, subject: Subject, outlook: Outlook, room: int) -> list[Cell]:
    """Return the new places of the jobs in the queue, and their neighbours."""
    order = comparison.after.order
    moved = [place for place in comparison.moves if place.job_id in subject.job_ids]
    lines = []
    for place in moved[:_PLACES]:
        behind = order[place.after] if place.after < len(order) else None
        now = ""
        if place.after > place.before:
            now = f", now behind job {outlook.shown_id(order[place.after - 2])}"
        elif place.after < place.before and behind is not None:
            now = f", now before job {outlook.shown_id(behind)}"
        who = "It" if len(subject.job_ids) == 1 else f"Job {outlook.shown_id(place.job_id)}"
        words = f"{who} moves from place {place.before} to {place.after} of {len(order)} in the queue{now}"
        lines.append(cell(fit_words(words, room), GREEN if place.after < place.before else AMBER))
    return lines


def summary(outlook: Outlook, subject: Subject = NOBODY) -> Cell:
    """Return the number of shifted starts, and the age of the forecast."""
    if outlook.failure and outlook.snapshot.servers:
        return cell(f"No forecast: {outlook.failure}", DIM)
    if outlook.failure:
        return cell(f"The forecast failed: {plain(outlook.failure, 200)}", RED)
    comparison = outlook.comparison
    if comparison is None or not outlook.is_current:
        return cell("Working out which jobs it would delay …", DIM)
    age = outlook.now - comparison.before.at
    spans: list[Span] = [*_counts(comparison.shifts, subject)]
    if outlook.snapshot.controls.paused:
        spans.append((", while the scheduler is paused", AMBER))
    elif outlook.snapshot.leader is None:
        spans.append((", while no scheduler runs", AMBER))
    if age >= OLD:
        spans.append((f"  · as of {format_duration(age)} ago", DIM))
    return tuple(spans)


_WILLED = frozenset({"cancelled", "held"})
"""Intended losses of a start, which are not side effects."""


def _counts(shifts: Sequence[Shift], subject: Subject) -> Cell:
    """Return how many other jobs are delayed and by how much, after the jobs that are removed or held."""
    own_ids = subject.job_ids if subject.fate in _WILLED else ()
    willed = sum(shift.job_id in own_ids and shift.after is None for shift in shifts)
    others = [shift for shift in shifts if shift.job_id not in subject.job_ids]
    if not willed:
        return _shift_counts(others, "No other job is delayed")
    verb = "Removes" if subject.fate == "cancelled" else "Holds"
    own: Span = (f"{verb} {plural(willed, 'waiting job')}; ", PLAIN)
    return (own, *_shift_counts(others, "no other job is delayed"))


def _shift_counts(shifts: Sequence[Shift], nobody: str) -> Cell:
    earlier = sum(direction(shift) in {EARLIER, NEW} for shift in shifts)
    gone = sum(direction(shift) == GONE for shift in shifts)
    delayed = [shift for shift in shifts if direction(shift) == LATER]
    known = [shift.after - shift.before for shift in delayed if shift.before and shift.after]
    most = f" by {'up to ' if len(known) > 1 else ''}{format_duration(max(known))}" if known else ""
    told = [(f"{LATER} delays {plural(len(delayed), 'job')}{most}", AMBER)] if delayed else []
    told += [(f"{GONE} {plural(gone, 'job')} without a start", AMBER)] if gone else []
    told = told or [(nobody, PLAIN)]
    told += [(f"{EARLIER} {plural(earlier, 'job')} earlier", GREEN)] if earlier else []
    return tuple(span for place, each in enumerate(told) for span in ((("  ", DIM), each) if place else (each,)))


def direction(shift: Shift) -> str:
    if shift.after is None:
        return GONE
    if shift.is_stopped:
        return LATER
    if shift.before is None:
        return NEW
    return EARLIER if shift.after < shift.before else LATER


def by_impact(shifts: Iterable[Shift]) -> list[Shift]:
    """Return the shifts sorted: jobs without a start, then delayed ones by delay, then those that start earlier."""

    def key(shift: Shift) -> tuple[bool, bool, float, JobId]:
        known = shift.before is not None and shift.after is not None
        seconds = abs((shift.after - shift.before).total_seconds()) if shift.before and shift.after else 0.0
        return (direction(shift) in {EARLIER, NEW}, known, -seconds, shift.job_id)

    return sorted(shifts, key=key)


def _shift_lines(ordered: Sequence[Shift], shown: int, subject: Subject, outlook: Outlook, room: int) -> list[Cell]:
    if len(ordered) > shown > 1:
        shown -= 1
    lines = [_shift_line(shift, subject, outlook, room) for shift in ordered[:shown]]
    if rest := len(ordered) - shown:
        lines.append(cell(f"  … and {rest} more", DIM))
    return lines


_STYLES = {EARLIER: GREEN, NEW: GREEN, LATER: AMBER, GONE: AMBER}


def _shift_line(shift: Shift, subject: Subject, outlook: Outlook, room: int) -> Cell:
    """Return sign, job, start before and after, and the difference."""
    now, sign = outlook.now, direction(shift)
    before = "runs now" if shift.is_stopped else clock(shift.before, now) if shift.before else "–"
    after = clock(shift.after, now) if shift.after else "–"
    own = shift.job_id in subject.job_ids
    if shift.before and shift.after:
        by = distance(shift.before, shift.after)
    elif shift.is_stopped:
        by = "starts again"
    elif shift.after:
        by = "gets a start"
    else:
        by = subject.fate if own else "no expected start"
    which = f"{outlook.shown_id(shift.job_id):>5}"
    name = max(8, min(36, room - 48 - len(which)))
    return (
        (f"{sign} ", _STYLES[sign]),
        (f"{which} ", BLUE),
        (fit(outlook.names.get(shift.job_id, ""), name), STRONG if own else PLAIN),
        (f" {before:>11} ", DIM),
        ("-> ", DIM),
        (f"{after:<11} ", PLAIN),
        (by, _STYLES[sign]),
    )


class Group(Struct, frozen=True):
    """GPUs that change alike."""

    views: tuple[GpuView, ...]
    before: tuple[Bar, ...]
    after: tuple[Bar, ...]


def changed_groups(comparison: Comparison, snapshot: Snapshot, first: Collection[JobId]) -> list[Group]:
    """Return the groups of GPUs with changes, those of the proposed job or reservation first."""
    found: dict[object, list[GpuView]] = {}
    before, after = comparison.before.by_gpu, comparison.after.by_gpu
    for view in snapshot.gpus:
        uuid = view.gpu.uuid
        was = (_alike(before.get(uuid, ())), _kept(comparison.before, uuid))
        then = (_alike(after.get(uuid, ())), _kept(comparison.after, uuid))
        if was != then:
            found.setdefault((was, then), []).append(view)
    groups = [
        Group(tuple(views), before.get(views[0].gpu.uuid, ()), after.get(views[0].gpu.uuid, ()))
        for views in found.values()
    ]

    def is_remote(group: Group) -> bool:
        uuid = group.views[0].gpu.uuid
        has_window = _kept(comparison.before, uuid) != _kept(comparison.after, uuid)
        return not has_window and not any(bar.job_id in first for bar in (*group.before, *group.after))

    return sorted(groups, key=is_remote)


_MOST_OF_A_WINDOW = timedelta(hours=12)
"""Part of a long reservation that is always shown."""
_LEAST_OF_A_CHANGE = timedelta(minutes=30)
"""Minimum time that is shown around a change in the far future."""


def _alike(bars: Iterable[Bar]) -> tuple[tuple[JobId, datetime, datetime], ...]:
    return tuple((bar.job_id, bar.start, bar.end) for bar in bars)


def _kept(seen: Timeline, uuid: str) -> tuple[KeptWindow, ...]:
    return tuple(replace(window, gpus=()) for window in seen.windows if uuid in window.gpus)


def _group_lines(
    groups: Sequence[Group],
    comparison: Comparison,
    shown: Sequence[Shift],
    outlook: Outlook,
    room: int,
    rows: int,
    marks: BarMarks,
) -> list[Cell]:
    """Return the time axis, then each group before and after, as far as whole groups fit."""
    fitting = groups[: max(0, (rows - 1) // 2)]
    if not fitting:
        return []
    names = Labels.of(outlook.snapshot)
    labels = [names.of_all([view.gpu.uuid for view in group.views]) for group in fitting]
    wide = min(_LABEL_MOST, max(_LABEL, *(len(label) + 1 for label in labels)))
    scale = scale_of(comparison, shown, fitting, room - wide - _WHEN)
    now = scale.cell(comparison.before.at)
    lines: list[Cell] = [((" " * (wide + _WHEN), DIM), *axis(scale, now if now >= 0 else None, marks))]
    for label, group in zip(labels, fitting, strict=True):
        for words, bars, seen in (
            (f"{fit(label, wide)}was  ", group.before, comparison.before),
            (" " * wide + "then ", group.after, comparison.after),
        ):
            lines.append(((words, DIM), *_row(scale, bars, seen, outlook, marks, group.views[0])))
    return lines


def _row(scale: Scale, bars: Iterable[Bar], seen: Timeline, outlook: Outlook, marks: BarMarks, view: GpuView) -> Cell:
    return gpu_row(Drawn(scale, seen.at, seen.windows, outlook.names, marks, None, outlook.shown_id), bars, view)


def scale_of(comparison: Comparison, shown: Sequence[Shift], groups: Sequence[Group], cells: int) -> Scale:
    """Return the scale from shortly before the first changed start or reservation until after the last.

    It begins now, unless the first change is so far away that it would be a small part of the picture.
    """
    now = comparison.before.at
    starts = [start for shift in shown for start in (shift.before, shift.after) if start is not None]
    starts = starts or [bar[1] for group in groups for bar in set(_alike(group.before)) ^ set(_alike(group.after))]
    changed = set(comparison.before.windows) ^ set(comparison.after.windows)
    ends = [window.start + min(window.end - window.start, _MOST_OF_A_WINDOW) for window in changed]
    first = max(now, min([*starts, *(window.start for window in changed)], default=now))
    span = max((at - first for at in (*starts, *ends)), default=timedelta(0)) * 4 / 3
    if first - now > max(span, _LEAST_OF_A_CHANGE):
        start = first - max(span, _LEAST_OF_A_CHANGE) / 4
        span = max(span, _LEAST_OF_A_CHANGE) * 5 / 4
    else:
        start, span = now, (first - now) + span if span else (first - now) * 4 / 3
    step = step_for(max(span, timedelta(minutes=1)), max(1, cells))
    return Scale(start, step, max(1, cells))
