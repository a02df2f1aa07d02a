"""What a change would do, in a few lines: who shifts by how much, and the GPUs concerned before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gputui.domain.gpu import GpuView
from gputui.domain.job import JobId
from gputui.domain.policy.timeline import Bar, KeptWindow, Timeline
from gputui.domain.policy.whatif import Comparison, Shift
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import fit, plain, width
from gputui.domain.units import format_duration, plural
from gputui.tui.present.bars import UNICODE, Drawn, Marks, axis, gpu_row
from gputui.tui.present.cells import Cell, Span, cell
from gputui.tui.present.labels import Labels
from gputui.tui.present.scale import Scale, step_for
from gputui.tui.present.style import AMBER, BLUE, DIM, GREEN, PLAIN, RED, STRONG
from gputui.tui.present.times import clock, distance

EARLIER, LATER, GONE, NEW = "▲", "▼", "✗", "+"
_LABEL, _LABEL_MOST = 9, 24
"""Cells for which GPUs a row is about, and the most: names of nodes are long."""
_WHEN = 5
"""Cells for `was` and `then`."""
OLD = timedelta(seconds=5)
"""A forecast older than this says its age."""


@dataclass(frozen=True)
class Subject:
    """What is proposed, in words."""

    words: str
    job_ids: tuple[JobId, ...] = ()
    cost: str = ""
    """What is lost for good."""
    doubt: str = ""
    """Why it makes no sense any more."""
    fate: str = "not foreseen"
    """What becomes of its own start when it has none afterwards."""


NOBODY = Subject("")


@dataclass(frozen=True)
class Outlook:
    """What is known of what it would do."""

    snapshot: Snapshot
    now: datetime
    comparison: Comparison | None = None
    """None: still being worked out."""
    is_current: bool = False
    """It is about the change shown, not about one before."""
    failure: str = ""
    names: Mapping[JobId, str] = field(default_factory=dict)


def what_if_lines(subject: Subject, outlook: Outlook, room: int, rows: int, marks: Marks = UNICODE) -> list[Cell]:
    """At most so many lines of at most so many cells."""
    lines = [cell(fit_words(subject.words, room), STRONG)]
    lines += [cell(fit_words(f"! {subject.doubt}", room), AMBER)] if subject.doubt else []
    lines += [cell(fit_words(subject.cost, room), RED)] if subject.cost else []
    comparison = outlook.comparison
    if comparison is None or not outlook.is_current:
        return [*lines, summary(outlook, subject)][:rows]
    lines += [*place_lines(comparison, subject, room), summary(outlook, subject)]
    ordered = by_impact(comparison.shifts, subject.job_ids)
    groups = changed_groups(comparison, outlook.snapshot, subject.job_ids)
    left = rows - len(lines)
    shown = min(len(ordered), max(1, left - 1 - 2 * len(groups), left // 2))
    lines += _shift_lines(ordered, shown, subject, outlook, room)
    lines += _group_lines(groups, comparison, ordered[:shown], outlook, room, rows - len(lines), marks)
    return lines[:rows]


def fit_words(words: str, room: int) -> str:
    """Harmless, and cut to the room."""
    words = plain(words)
    return words if width(words) <= room else fit(words, room)


_PLACES = 3
"""Jobs whose places are told, each in a line."""


def place_lines(comparison: Comparison, subject: Subject, room: int) -> list[Cell]:
    """Return where the jobs it is about come to stand in the queue, and beside whom."""
    order = comparison.after.order
    moved = [place for place in comparison.moves if place.job_id in subject.job_ids]
    lines = []
    for place in moved[:_PLACES]:
        behind = order[place.after] if place.after < len(order) else None
        now = f", now before job {behind}" if place.after < place.before and behind is not None else ""
        now = f", now behind job {order[place.after - 2]}" if place.after > place.before else now
        who = "It" if len(subject.job_ids) == 1 else f"Job {place.job_id}"
        words = f"{who} moves from place {place.before} to {place.after} of {len(order)} in the queue{now}"
        lines.append(cell(fit_words(words, room), GREEN if place.after < place.before else AMBER))
    return lines


def summary(outlook: Outlook, subject: Subject = NOBODY) -> Cell:
    """How many shift, and of when that is."""
    if outlook.failure:
        return cell(f"The forecast failed: {plain(outlook.failure, 200)}", RED)
    comparison = outlook.comparison
    if comparison is None or not outlook.is_current:
        return cell("Working out whose start would shift …", DIM)
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
"""What becomes of a job because it was asked for: it is no consequence."""


def _counts(shifts: Sequence[Shift], subject: Subject) -> Cell:
    willed = [shift for shift in shifts if shift.job_id in subject.job_ids and shift.after is None]
    if subject.fate not in _WILLED or not willed:
        return _shift_counts(shifts, "Nobody's start shifts")
    others = [shift for shift in shifts if shift not in willed]
    own: Span = (f"{plural(len(willed), 'start')} {subject.fate}; ", PLAIN)
    return (own, *_shift_counts(others, "nobody else's start shifts"))


def _shift_counts(shifts: Sequence[Shift], nobody: str) -> Cell:
    if not shifts:
        return cell(nobody, PLAIN)
    earlier = sum(direction(shift) in {EARLIER, NEW} for shift in shifts)
    spans: list[Span] = [(f"{plural(len(shifts), 'start')} would shift: ", PLAIN)]
    spans += [(f"{EARLIER} {earlier} earlier", GREEN)] if earlier else []
    gone = sum(direction(shift) == GONE for shift in shifts)
    if later := len(shifts) - earlier:
        words = " or never" if 0 < gone < later else ""
        told = f"{GONE} {gone} never" if gone == later else f"{LATER} {later} later{words}"
        spans += [("  " if earlier else "", DIM), (told, AMBER)]
    return tuple(spans)


def direction(shift: Shift) -> str:
    """The sign of a shift."""
    if shift.after is None:
        return GONE
    if shift.is_stopped:
        return LATER
    if shift.before is None:
        return NEW
    return EARLIER if shift.after < shift.before else LATER


def by_impact(shifts: Iterable[Shift], first: Sequence[JobId]) -> list[Shift]:
    """Those it is about, then those that gain or lose a start, then the largest shifts."""

    def key(shift: Shift) -> tuple[bool, bool, float, JobId]:
        known = shift.before is not None and shift.after is not None
        seconds = abs((shift.after - shift.before).total_seconds()) if shift.before and shift.after else 0.0
        return (shift.job_id not in first, known, -seconds, shift.job_id)

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
    """Sign, job, before -> after, by how much."""
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
        by = subject.fate if own else "no start foreseen"
    name = max(8, min(36, room - 53))
    return (
        (f"{sign} ", _STYLES[sign]),
        (f"{shift.job_id:>5} ", BLUE),
        (fit(outlook.names.get(shift.job_id, ""), name), STRONG if own else PLAIN),
        (f" {before:>11} ", DIM),
        ("-> ", DIM),
        (f"{after:<11} ", PLAIN),
        (by, _STYLES[sign]),
    )


@dataclass(frozen=True)
class Group:
    """GPUs whose time changes alike."""

    views: tuple[GpuView, ...]
    before: tuple[Bar, ...]
    after: tuple[Bar, ...]


def changed_groups(comparison: Comparison, snapshot: Snapshot, first: Sequence[JobId]) -> list[Group]:
    """The GPUs on which anything changes, those of the job or the reservation it is about first."""
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
"""So much of a long reservation is shown at least."""


def _alike(bars: Iterable[Bar]) -> tuple[tuple[JobId, datetime, datetime], ...]:
    return tuple((bar.job_id, bar.start, bar.end) for bar in bars)


def _kept(seen: Timeline, uuid: str) -> tuple[KeptWindow, ...]:
    """The reservations that the GPU is kept for."""
    return tuple(replace(window, gpus=()) for window in seen.windows if uuid in window.gpus)


def _group_lines(
    groups: Sequence[Group],
    comparison: Comparison,
    shown: Sequence[Shift],
    outlook: Outlook,
    room: int,
    rows: int,
    marks: Marks,
) -> list[Cell]:
    """The times, then each group before and after; only whole ones."""
    fitting = groups[: max(0, (rows - 1) // 2)]
    if not fitting:
        return []
    names = Labels.of(outlook.snapshot)
    labels = [names.of_all([view.gpu.uuid for view in group.views]) for group in fitting]
    wide = min(_LABEL_MOST, max(_LABEL, *(len(label) + 1 for label in labels)))
    scale = _scale(comparison, shown, room - wide - _WHEN)
    lines: list[Cell] = [((" " * (wide + _WHEN), DIM), *axis(scale, scale.cell(comparison.before.at), marks))]
    for label, group in zip(labels, fitting, strict=True):
        for words, bars, seen in (
            (f"{fit(label, wide)}was  ", group.before, comparison.before),
            (" " * wide + "then ", group.after, comparison.after),
        ):
            lines.append(((words, DIM), *_row(scale, bars, seen, outlook, marks, group.views[0])))
    return lines


def _row(scale: Scale, bars: Iterable[Bar], seen: Timeline, outlook: Outlook, marks: Marks, view: GpuView) -> Cell:
    return gpu_row(Drawn(scale, seen.at, seen.windows, outlook.names, marks), bars, view)


def _scale(comparison: Comparison, shown: Sequence[Shift], cells: int) -> Scale:
    """From now until a little after the last of the starts and reservations that change."""
    at = comparison.before.at
    starts = [start for shift in shown for start in (shift.before, shift.after) if start is not None]
    changed = set(comparison.before.windows) ^ set(comparison.after.windows)
    starts += [window.start + min(window.end - window.start, _MOST_OF_A_WINDOW) for window in changed]
    span = max((start - at for start in starts), default=timedelta(0)) * 4 / 3
    step = step_for(max(span, timedelta(minutes=1)), max(1, cells))
    return Scale(at, step, max(1, cells))
