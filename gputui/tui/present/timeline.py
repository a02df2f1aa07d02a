"""The timeline's bars and texts, and the effects of a change on it in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace
from rich.style import Style

from gputui.domain.arrays import Entries, count
from gputui.domain.gpu import GpuState, GpuView, HealthCode
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, shown_id
from gputui.domain.policy.planning_context import DurationSource
from gputui.domain.policy.whatif import Bar, BarKind, Comparison, Shift, Timeline
from gputui.domain.settings import Window
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import distance, fit, format_duration, format_limit, plain, plural, width
from gputui.tui.present.cells import (
    AMBER,
    BAD,
    BLUE,
    DIM,
    GOOD,
    GREEN,
    HEAD,
    INK,
    OVERRUN,
    PLAIN,
    PLANNED,
    RED,
    RUNS,
    STRONG,
    TRACK,
    VIOLET,
    WARN,
    Cell,
    Span,
    cell,
    clock,
    joined,
)
from gputui.tui.present.gpu_rows import Labels
from gputui.tui.present.job import JobContext, job_title, why

_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
STEPS = tuple(timedelta(seconds=seconds) for seconds in _SECONDS)
"""Durations that a cell may represent, finest first."""
_TICKS = (*STEPS, *(timedelta(days=days) for days in (2, 7, 14, 28)))
_APART = 9
"""Minimum distance in cells between two labels of the axis."""


class Scale(Struct, frozen=True):
    """Time axis: `cells` cells from `start` on, each `step` long."""

    start: datetime
    step: timedelta
    cells: int

    @property
    def end(self) -> datetime:
        return self.start + self.step * self.cells

    def cell(self, at: datetime) -> int:
        """Return the cell of a time: below 0 before the first, from `cells` on after the last."""
        return (at - self.start) // self.step

    def ticks(self, *, with_day: bool = False) -> list[tuple[int, str]]:
        apart = next((tick for tick in _TICKS if tick / self.step >= _APART), _TICKS[-1])
        midnight = self.start.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        at = midnight + apart * ((self.start - midnight) // apart)
        found: list[tuple[int, str]] = []
        while (cell := self.cell(at)) < self.cells:
            local, is_short = at.astimezone(), apart < timedelta(minutes=1)
            is_midnight = local.hour == local.minute == local.second == 0
            words = f"{local:%H:%M:%S}" if is_short else f"{local:%a} {local.day}" if is_midnight else f"{local:%H:%M}"
            words = f"{local:%a} {words}" if with_day and not (found or is_short or is_midnight) else words
            found += [(cell, words)] if cell >= 0 else []
            at += apart
        return found


def step_for(span: timedelta, cells: int) -> timedelta:
    return next((step for step in STEPS if step * cells >= span), STEPS[-1])


def zoomed(step: timedelta, finer: int) -> timedelta:
    here = next((number for number, known in enumerate(STEPS) if known >= step), len(STEPS) - 1)
    return STEPS[max(0, min(len(STEPS) - 1, here - finer))]


_LIMIT, _GUESS, _OVERRUN_BAR = "┣━┫", "┣╍╍", "┣≈≈"
"""Characters at the beginning, inside and at the end of a bar: up to its limit, to a guessed end, or overrun."""
_PLANNED_LIMIT, _PLANNED_GUESS, _HEAD_LIMIT, _HEAD_GUESS = "├─┤", "├╌╌", "╞═╡", "╞══"
KEPT, DRAINED, UNKNOWN, OTHERS = "░", "×", "?", "▒"
"""Why no job starts there: it is reserved, drained, not known, or in foreign use."""
MORE = "▸"
"""Mark of a bar that continues beyond the right edge."""
_LEAST_LABEL = 8
"""Cells from which on a longer label is cut, not left out."""
_RUNS = Style(color=GOOD, bgcolor=RUNS)
_OVERRUN = Style(color=BAD, bgcolor=OVERRUN)
_PLANNED = Style(color=INK, bgcolor=PLANNED)
_HEAD = Style(color=WARN, bgcolor=HEAD)


class Drawn(Struct, frozen=True):
    scale: Scale
    now: datetime
    windows: tuple[Window, ...] = ()
    names: Mapping[JobId, str] = field(default_factory=dict)
    picked: JobId | None = None
    shown_id: Callable[[JobId], str] = str


def gpu_row(drawn: Drawn, bars: Sequence[Bar], view: GpuView | None = None) -> Cell:
    scale, now = drawn.scale, drawn.scale.cell(drawn.now)
    canvas = _Canvas(scale.cells)
    places = [(first := scale.cell(bar.start), max(first + 1, scale.cell(bar.end))) for bar in bars]
    taken = sorted([(now, now + 1), *places])
    for x, _ in scale.ticks():
        canvas.put(x, "·", TRACK)
    if view is not None and (against := _against(view)):
        canvas.fill(now + 1, scale.cells, against[0], DIM)
        canvas.label(now + 1, scale.cells, taken, against[1], AMBER)
    for window in drawn.windows:
        if view is not None and view.gpu.uuid in window.gpus:
            first, last = scale.cell(window.start), scale.cell(window.end)
            canvas.fill(first, last, KEPT, VIOLET)
            canvas.label(first, last, taken, plain(window.name, 40), VIOLET)
    canvas.put(now, "│", AMBER)
    for bar, place in zip(bars, places, strict=True):
        _paint(canvas, drawn, bar, *place)
    return canvas.spans()


def shape_of(bar: Bar) -> str:
    known = bar.source is DurationSource.LIMIT
    if bar.is_overrun:
        return _OVERRUN_BAR
    if bar.kind is BarKind.RUNNING:
        return _LIMIT if known else _GUESS
    if bar.kind is BarKind.HEAD:
        return _HEAD_LIMIT if known else _HEAD_GUESS
    return _PLANNED_LIMIT if known else _PLANNED_GUESS


def axis(scale: Scale, now: int) -> Cell:
    """Return the labels of the axis; `now` is the cell of the present, without which the day is told."""
    canvas, is_seen = _Canvas(scale.cells), 0 <= now < scale.cells
    for x, words in scale.ticks(with_day=not is_seen):
        hidden = is_seen and x < now + 6 and now - 1 < x + len(words)
        if x + len(words) <= scale.cells and not hidden:
            canvas.write(x, words, DIM)
    if is_seen:
        canvas.write(now, "│now", AMBER)
    return canvas.spans()


def legend(room: int = 10_000) -> Cell:
    parts: list[tuple[str, Style, str]] = [
        ("━━┫", _RUNS, "runs to limit"),
        ("╍╍╍", _RUNS, "guessed end"),
        ("├──", _PLANNED, "planned"),
        ("╞══", _HEAD, "head's reservation"),
        ("≈≈", _OVERRUN, "overrun"),
        (KEPT * 2, VIOLET, "window"),
        (DRAINED * 2, DIM, "drained"),
        (OTHERS * 2, DIM, "others"),
        (UNKNOWN * 2, DIM, "unknown"),
    ]
    spans: list[Span] = []
    used = 0
    for shown, style, words in parts:
        used += len(shown) + len(words) + 1 + (2 if spans else 0)
        if used > room:
            break
        spans += [("  " if spans else "", DIM), (shown, style), (f" {words}", DIM)]
    return tuple(spans)


def _paint(canvas: _Canvas, drawn: Drawn, bar: Bar, first: int, last: int) -> None:
    scale = drawn.scale
    if first >= scale.cells or last <= 0:
        return
    begins, inside, ends = tuple(shape_of(bar))
    style = {BarKind.RUNNING: _RUNS, BarKind.PLANNED: _PLANNED, BarKind.HEAD: _HEAD}[bar.kind]
    style = _OVERRUN if bar.is_overrun else style
    if drawn.picked == bar.job_id:
        style += Style(reverse=True, bold=True)
    canvas.fill(first, last, inside, style)
    if last - first > 1 and last <= scale.cells:
        canvas.put(last - 1, ends, style)
    if last > scale.cells:
        canvas.put(scale.cells - 1, MORE, style)
    canvas.put(first, begins, style)
    name = drawn.names.get(bar.job_id, "")
    begin, room = max(0, first + 1), min(last, scale.cells) - max(0, first + 1) - 1
    number = drawn.shown_id(bar.job_id)
    if room >= len(number):
        label = f"{number} {plain(name, 60)}".strip() if room > len(number) + 2 else number
        canvas.write(begin, label if width(label) <= room else fit(label, room), style)


def _against(view: GpuView) -> tuple[str, str] | None:
    """Return why no job can start there, as a character and text; None if one may, or one runs."""
    if view.health.code not in {HealthCode.OK, HealthCode.REMAP_PENDING, HealthCode.UNKNOWN}:
        return UNKNOWN, plain(view.health.text or view.health.code, 80)
    if view.drain is not None or view.state is GpuState.DRAINED:
        reason = f": {plain(view.drain.reason, 60)}" if view.drain and view.drain.reason else ""
        return DRAINED, f"drained{reason}"
    if view.state is GpuState.UNKNOWN:
        return UNKNOWN, plain(f"unknown: {view.why}" if view.why else "unknown", 80)
    if view.state is GpuState.FOREIGN:
        names = ", ".join(plain(holder.name, 30) for holder in view.holders)
        return OTHERS, f"used by {names}" if names else "used by others"
    return None


class _Canvas:
    def __init__(self, cells: int) -> None:
        self._cells: list[Span] = [(" ", PLAIN)] * cells

    def put(self, x: int, character: str, style: Style) -> None:
        if 0 <= x < len(self._cells):
            if self._cells[x][0] == "" and x:  # half of a wide character: the other half becomes blank
                self._cells[x - 1] = (" ", self._cells[x - 1][1])
            if x + 1 < len(self._cells) and self._cells[x + 1][0] == "":
                self._cells[x + 1] = (" ", self._cells[x + 1][1])
            self._cells[x] = (character, style)

    def fill(self, first: int, last: int, character: str, style: Style) -> None:
        for x in range(max(0, first), min(last, len(self._cells))):
            self.put(x, character, style)

    def label(self, first: int, last: int, taken: Iterable[tuple[int, int]], words: str, style: Style) -> None:
        """Write the words, cut if necessary, between two of the sorted cells that are taken; nothing without room."""
        begin, last, words = max(0, first), min(last, len(self._cells)), f" {words} "
        for start, end in taken:
            if start >= last or start - begin >= _LEAST_LABEL:
                last = min(start, last)
                break
            begin = max(begin, end)
        room = last - begin
        if room >= min(width(words), _LEAST_LABEL):
            self.write(begin, words if width(words) <= room else fit(words, room), style)

    def write(self, x: int, words: str, style: Style) -> None:
        for character in words:
            cells = width(character)
            if cells and x + cells <= len(self._cells):
                self.put(x, character, style)
                if cells == 2:
                    self.put(x + 1, " ", style)
                    self._cells[x + 1] = ("", style)
            x += cells

    def spans(self) -> Cell:
        found: list[tuple[list[str], Style]] = []
        for character, style in self._cells:
            if found and found[-1][1] == style:
                found[-1][0].append(character)
            else:
                found.append(([character], style))
        return tuple(("".join(characters), style) for characters, style in found)


def lanes(bars: Iterable[Bar]) -> list[list[Bar]]:
    """Return the bars of one GPU in as few lines as keep them apart: one, unless jobs share it."""
    found: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda bar: bar.start):
        lane = next((lane for lane in found if lane[-1].end <= bar.start), None)
        if lane is None:
            found.append([bar])
        else:
            lane.append(bar)
    return found or [[]]


EARLIER, LATER, GONE, NEW = "▲", "▼", "✗", "+"
_LABEL, _LABEL_MOST = 9, 24
"""Usual and maximum cells of the GPU labels of a row; names of nodes may be long."""
_WHEN = 5
OLD = timedelta(seconds=5)
"""Age from which a forecast shows its age."""


class Subject(Struct, frozen=True):
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
    snapshot: Snapshot
    now: datetime
    comparison: Comparison | None = None
    """Comparison of the forecasts; None while it is being computed."""
    is_current: bool = False
    """True if the comparison is about the shown change, not an earlier one."""
    failure: str = ""
    names: Mapping[JobId, str] = field(default_factory=dict)
    shown_id: Callable[[JobId], str] = str


def what_if_lines(subject: Subject, outlook: Outlook, room: int, rows: int) -> list[Cell]:
    """Return at most `rows` lines of at most `room` cells."""
    lines = [cell(fit_words(subject.words, room), STRONG)]
    lines += [cell(fit_words(f"! {subject.doubt}", room), AMBER)] if subject.doubt else []
    lines += [cell(fit_words(subject.cost, room), RED)] if subject.cost else []
    comparison = outlook.comparison
    if comparison is None or not outlook.is_current:
        return [*lines, summary(outlook, subject)][:rows]
    own = [shift for shift in comparison.shifts if shift.job_id in subject.job_ids]
    others = [shift for shift in comparison.shifts if shift.job_id not in subject.job_ids]
    order = comparison.after.order
    moved = [place for place in comparison.moves if place.job_id in subject.job_ids]
    for place in moved[:3]:  # maximum number of jobs whose places are shown, one per line
        now = ""
        if place.after > place.before:
            now = f", now behind job {outlook.shown_id(order[place.after - 2])}"
        elif place.after < place.before and place.after < len(order):
            now = f", now before job {outlook.shown_id(order[place.after])}"
        who = "It" if len(subject.job_ids) == 1 else f"Job {outlook.shown_id(place.job_id)}"
        words = f"{who} moves from place {place.before} to {place.after} of {len(order)} in the queue{now}"
        lines.append(cell(fit_words(words, room), GREEN if place.after < place.before else AMBER))
    lines += _shift_lines(by_impact(own), min(len(own), max(1, (rows - len(lines)) // 3)), subject, outlook, room)
    lines.append(summary(outlook, subject))
    groups = changed_groups(comparison, outlook.snapshot, subject.job_ids)
    left = rows - len(lines)
    charts = 1 + 2 * min(2, len(groups))  # lines of the axis, and of where its job would run before and after
    shown = min(len(others), max(1, left - 1 - 2 * len(groups), min(left // 2, left - charts)))
    ordered = by_impact(others)
    lines += _shift_lines(ordered, shown, subject, outlook, room)
    lines += _group_lines(groups, comparison, (*own, *ordered[:shown]), outlook, room, rows - len(lines))
    return lines[:rows]


def fit_words(words: str, room: int) -> str:
    words = plain(words)
    return words if width(words) <= room else fit(words, room)


def summary(outlook: Outlook, subject: Subject = NOBODY) -> Cell:
    if outlook.failure and outlook.snapshot.servers:
        return cell(f"No forecast: {outlook.failure}", DIM)
    if outlook.failure:
        return cell(f"The forecast failed: {plain(outlook.failure, 200)}", RED)
    comparison = outlook.comparison
    if comparison is None or not outlook.is_current:
        return cell("Working out which jobs it would delay …", DIM)
    age = outlook.now - comparison.before.at
    own_ids = subject.job_ids if subject.fate in {"cancelled", "held"} else ()  # intended, no side effects
    willed = sum(shift.job_id in own_ids and shift.after is None for shift in comparison.shifts)
    others = [shift for shift in comparison.shifts if shift.job_id not in subject.job_ids]
    verb = "Removes" if subject.fate == "cancelled" else "Holds"
    spans: list[Span] = [(f"{verb} {plural(willed, 'waiting job')}; ", PLAIN)] if willed else []
    spans += _shift_counts(others, f"{'no' if willed else 'No'} other job is delayed")
    if outlook.snapshot.controls.paused:
        spans.append((", while the scheduler is paused", AMBER))
    elif outlook.snapshot.leader is None:
        spans.append((", while no scheduler runs", AMBER))
    if age >= OLD:
        spans.append((f"  · as of {format_duration(age)} ago", DIM))
    return tuple(spans)


def _shift_counts(shifts: Sequence[Shift], nobody: str) -> Cell:
    earlier = sum(direction(shift) in {EARLIER, NEW} for shift in shifts)
    gone = sum(direction(shift) == GONE for shift in shifts)
    delayed = [shift for shift in shifts if direction(shift) == LATER]
    known = [shift.after - shift.before for shift in delayed if shift.before and shift.after]
    most = f" by {'up to ' if len(known) > 1 else ''}{format_limit(max(known))}" if known else ""
    parts = [(f"{LATER} delays {plural(len(delayed), 'job')}{most}", AMBER)] if delayed else []
    parts += [(f"{GONE} {plural(gone, 'job')} without a start", AMBER)] if gone else []
    parts = parts or [(nobody, PLAIN)]
    parts += [(f"{EARLIER} {plural(earlier, 'job')} earlier", GREEN)] if earlier else []
    return joined(((part,) for part in parts), ("  ", DIM))


def direction(shift: Shift) -> str:
    if shift.after is None:
        return GONE
    if shift.is_stopped:
        return LATER
    if shift.before is None:
        return NEW
    return EARLIER if shift.after < shift.before else LATER


def by_impact(shifts: Iterable[Shift]) -> list[Shift]:
    def key(shift: Shift) -> tuple[bool, bool, float, JobId]:
        known = shift.before is not None and shift.after is not None
        seconds = abs((shift.after - shift.before).total_seconds()) if shift.before and shift.after else 0.0
        return (direction(shift) in {EARLIER, NEW}, known, -seconds, shift.job_id)

    return sorted(shifts, key=key)


_STYLES = {EARLIER: GREEN, NEW: GREEN, LATER: AMBER, GONE: AMBER}


def _shift_lines(ordered: Sequence[Shift], shown: int, subject: Subject, outlook: Outlook, room: int) -> list[Cell]:
    if len(ordered) > shown > 1:
        shown -= 1
    lines: list[Cell] = []
    for shift in ordered[:shown]:
        now, sign = outlook.now, direction(shift)
        before = "runs now" if shift.is_stopped else clock(shift.before, now) if shift.before else "–"
        after = clock(shift.after, now) if shift.after else "–"
        own = shift.job_id in subject.job_ids
        by = "gets a start" if shift.after else subject.fate if own else "no expected start"
        if shift.before and shift.after:
            by = distance(shift.before, shift.after)
        elif shift.is_stopped:
            by = "starts again"
        which = f"{outlook.shown_id(shift.job_id):>5}"
        name = max(8, min(36, room - 48 - len(which)))
        line: Cell = (
            (f"{sign} ", _STYLES[sign]),
            (f"{which} ", BLUE),
            (fit(outlook.names.get(shift.job_id, ""), name), STRONG if own else PLAIN),
            (f" {before:>11} ", DIM),
            ("-> ", DIM),
            (f"{after:<11} ", PLAIN),
            (by, _STYLES[sign]),
        )
        lines.append(line)
    if rest := len(ordered) - shown:
        lines.append(cell(f"  … and {rest} more", DIM))
    return lines


class Group(Struct, frozen=True):
    views: tuple[GpuView, ...]
    before: tuple[Bar, ...]
    after: tuple[Bar, ...]


def changed_groups(comparison: Comparison, snapshot: Snapshot, first: Collection[JobId]) -> list[Group]:
    """Return the groups with changes: one each where the jobs `first` run before and after, their others, the rest."""
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
    sides = [
        {uuid for uuid, bars in side.items() if any(bar.job_id in first for bar in bars)} for side in (before, after)
    ]
    foremost = [next((group for group in groups if group.views[0].gpu.uuid in side), None) for side in sides]

    def rank(group: Group) -> tuple[bool, bool]:
        uuid = group.views[0].gpu.uuid
        has_window = _kept(comparison.before, uuid) != _kept(comparison.after, uuid)
        is_own = has_window or any(uuid in side for side in sides)
        return not is_own, not any(group is each for each in foremost)

    return sorted(groups, key=rank)


_MOST_OF_A_WINDOW = timedelta(hours=12)
"""Part of a long reservation that is always shown."""
_LEAST_OF_A_CHANGE = timedelta(minutes=30)
"""Minimum time that is shown around a change in the far future."""


def _alike(bars: Iterable[Bar]) -> tuple[tuple[JobId, datetime, datetime], ...]:
    return tuple((bar.job_id, bar.start, bar.end) for bar in bars)


def _kept(plan: Timeline, uuid: str) -> tuple[Window, ...]:
    return tuple(replace(window, gpus=()) for window in plan.windows if uuid in window.gpus)


def _group_lines(
    groups: Sequence[Group], comparison: Comparison, shown: Sequence[Shift], outlook: Outlook, room: int, rows: int
) -> list[Cell]:
    fitting = groups[: max(0, (rows - 1) // 2)]
    if not fitting:
        return []
    names = Labels.of(outlook.snapshot)
    labels = [names.of_all([view.gpu.uuid for view in group.views]) for group in fitting]
    wide = min(_LABEL_MOST, max(_LABEL, *(len(label) + 1 for label in labels)))
    scale = scale_of(comparison, shown, fitting, room - wide - _WHEN)
    lines: list[Cell] = [((" " * (wide + _WHEN), DIM), *axis(scale, scale.cell(comparison.before.at)))]
    for label, group in zip(labels, fitting, strict=True):
        for words, bars, plan in (
            (f"{fit(label, wide)}was  ", group.before, comparison.before),
            (" " * wide + "then ", group.after, comparison.after),
        ):
            drawn = Drawn(scale, plan.at, plan.windows, outlook.names, None, outlook.shown_id)
            lines.append(((words, DIM), *gpu_row(drawn, bars, group.views[0])))
    return lines


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


def heading(timeline: Timeline | None, snapshot: Snapshot, labels: Labels, scale: Scale, now: datetime) -> Cell:
    step, sizes = int(scale.step.total_seconds()), (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    words = next(f"{step // size}{unit}/cell" for unit, size in sizes if step % size == 0)  # in one unit
    spans: list[Span] = [("Timeline ", STRONG), (words, DIM)]
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


def bar_lines(bar: Bar, job: Job | None, promise: Bar | None, labels: Labels, now: datetime) -> tuple[Cell, Cell]:
    title: Cell = ((job_title(job) if job else f"#{shown_id(bar.job_id)}", STRONG),)
    if job is not None:
        facts = f"  {plain(job.spec.tenant, 40)}, priority {job.priority}, {plural(len(bar.gpus), 'GPU')}"
        title = (*title, (facts, DIM))
    where = labels.of_all(bar.gpus)
    end = f"{clock(bar.end, now)} (in {format_duration(bar.end - now)})"
    if bar.kind is BarKind.RUNNING:
        since = f"runs on {where} for {format_duration(now - bar.start)}"
        if bar.makes_way_for is not None:
            way = f"makes way for job {bar.makes_way_for} {clock(bar.end, now)}"
            return title, ((f"{since}, ", PLAIN), (way, AMBER))
        if bar.is_overrun:
            return title, ((since, PLAIN), (f", longer than planned: expected until {end}, nothing ends it", AMBER))
        is_limit = bar.source is DurationSource.LIMIT
        how = "ended by its limit" if is_limit else f"expected to end {bar.source.value}"
        return title, cell(f"{since}, {how} {end}", PLAIN)
    start = f"{clock(bar.start, now)}" + (f" (in {format_duration(bar.start - now)})" if bar.start > now else "")
    words = f"{start} on {where}, until {clock(bar.end, now)} {bar.source.value}"
    if bar.kind is not BarKind.HEAD:
        return title, cell(f"planned to start {words}", PLAIN)
    kept = "kept free for it: nothing behind it may delay it"
    if promise is not None and (promise.gpus, promise.start) != (bar.gpus, bar.start):
        kept = f"promised {labels.of_all(promise.gpus)} at {clock(promise.start, now)}"
    return title, ((f"starts {words}; ", PLAIN), (kept, AMBER))


def bare_gpu_lines(view: GpuView, windows: Iterable[Window], labels: Labels, now: datetime) -> tuple[Cell, Cell]:
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


def whole_span(timeline: Timeline, now: datetime) -> timedelta:
    """Return the time from now until running jobs have ended and the first starts are made; at least five minutes.

    Ends that are only assumed, since the job has no limit, count for an hour at most: a day would leave no room for
    what is known.
    """
    assumed = now + timedelta(hours=1)  # most of an assumed end that the whole plan shows
    running = [bar for bar in timeline.bars if bar.kind is BarKind.RUNNING and not bar.is_overrun]
    ends = [min(bar.end, assumed) if bar.source is DurationSource.DEFAULT else bar.end for bar in running]
    starts = sorted(bar.start for bar in timeline.bars if bar.kind is not BarKind.RUNNING)[:40]
    head = [timeline.promise.end] if timeline.promise else []
    span = max([*ends, *starts, *head], default=now) - now
    return max(span * 9 / 8, timedelta(minutes=5))


LEAST = 4
_TIMELINE_WHEN, _AHEAD, _NAME = 11, 10, 24
_Entry: TypeAlias = Bar | Window | Job


class _AgendaLines:
    """Lines of the agenda, with names as wide as the widest, so that the text after them aligns."""

    def __init__(self, jobs: Mapping[JobId, Job], labels: Labels, now: datetime, shown: Iterable[_Entry]) -> None:
        self.jobs, self.labels, self.now = jobs, labels, now
        self.names = min(_NAME, max((width(self._title(what)) for what in shown), default=0))

    def _title(self, what: _Entry) -> str:
        if isinstance(what, Window):
            return plain(what.name, 60)
        job = what if isinstance(what, Job) else self.jobs.get(what.job_id)
        return job_title(job) if job else f"#{shown_id(what.job_id if isinstance(what, Bar) else what.id)}"

    def name(self, what: _Entry) -> Cell:
        number, space, name = fit(self._title(what), self.names).partition(" ")
        return ((number, BLUE), (f"{space}{name}", PLAIN))

    def line(self, at: datetime, what: Bar | Window) -> Cell:
        ahead = f"in {format_duration(at - self.now)}" if at > self.now else ""
        when: Cell = ((f"{clock(at, self.now):<{_TIMELINE_WHEN}} ", PLAIN), (f"{ahead:<{_AHEAD}} ", DIM))
        if isinstance(what, Window):
            until = f" kept on {self.labels.of_all(what.gpus)} until {clock(what.end, self.now)}"
            return (*when, ("░ ", BLUE), (fit(self._title(what), self.names), PLAIN), (until, DIM))
        where = self.labels.of_all(what.gpus)
        if what.kind is BarKind.RUNNING:
            how = "by its limit" if what.source is DurationSource.LIMIT else what.source.value
            how = how if what.makes_way_for is None else f"makes way for job {what.makes_way_for}"
            return (*when, ("■ ", DIM), *self.name(what), (f" ends, {how}: {where}", DIM))
        is_head = what.kind is BarKind.HEAD
        start = f" starts {f'on {where}' if what.gpus else 'without a GPU'}"
        until = f" until {clock(what.end, self.now)}"
        promised: Cell = (("  promised to it", AMBER),) if is_head else ()
        mark: Span = ("▶ ", AMBER if is_head else GREEN)
        return (*when, mark, *self.name(what), (start, PLAIN), (until, DIM), *promised)


def agenda_lines(timeline: Timeline | None, snapshot: Snapshot, labels: Labels, now: datetime, most: int) -> list[Cell]:
    """Return the agenda in at most `most` lines, the soonest moment first; empty if there is too little room.

    Up to a third of the lines is kept for jobs without a start.
    """
    if timeline is None or most < LEAST:
        return []
    room = most - 1
    moments: list[tuple[datetime, Bar | Window]] = []
    for bar in timeline.bars:
        if bar.kind is not BarKind.RUNNING:
            moments.append((bar.start, bar))
        elif bar.gpus and not bar.is_overrun:
            moments.append((bar.end, bar))
    moments += [(window.start, window) for window in timeline.windows if window.start > now]
    moments.sort(key=lambda moment: moment[0])
    unplanned = [job for job in snapshot.jobs if job.state is JobState.PENDING and job.id not in timeline.starts]
    shown = moments[: room - min(len(unplanned), room // 3)]
    listed = unplanned[: room - len(shown)]
    heading: list[Span] = [("Coming next", STRONG)]
    if not moments and not unplanned:
        heading.append(("  nothing: no job waits, and no running job has a known end", DIM))
    if later := len(moments) - len(shown):
        heading.append((f"  {later} later ones are not listed", DIM))
    if others := count(unplanned) - count(listed):
        heading.append((f"  nor {others} without a start" if later else f"  {others} without a start not listed", DIM))
    jobs = Entries({job.id: job for job in snapshot.jobs})
    agenda = _AgendaLines(jobs, labels, now, [*(what for _, what in shown), *listed])
    context = JobContext(now, snapshot.expected_starts, reasons=snapshot.reasons)
    lines = [agenda.line(at, what) for at, what in shown]
    mark: Span = (f"{'no start':<{_TIMELINE_WHEN + _AHEAD + 1}} · ", DIM)
    lines += [(mark, *agenda.name(job), (" ", DIM), *why(job, context)) for job in listed]
    return [tuple(heading), *lines]
