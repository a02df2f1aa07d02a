"""Parts of the job form: fields with errors below each row, and the forecast of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace
from rich.style import Style
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.message_pump import MessagePump
from textual.reactive import var
from textual.strip import Strip
from textual.suggester import Suggester
from textual.timer import Timer
from textual.widgets import Input, Static

from gputui.domain.arrays import Entries, new_entries, numbered
from gputui.domain.errors import GputuiError
from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec, Submission
from gputui.domain.policy.placement import suitable_gpus
from gputui.domain.policy.plan import plan
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.policy.whatif import Timeline, compared, replaced, submitted, timeline, why_never
from gputui.domain.settings import Settings
from gputui.domain.snapshot import EMPTY, Snapshot, kept_from
from gputui.domain.submit_action import Done
from gputui.domain.text import fit, format_duration, plain, plural
from gputui.request import draft as drafts
from gputui.request.draft import YES, Draft, join_lines
from gputui.tui.commands import MORE_FIELDS, Command
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import (
    AMBER,
    BLUE,
    DIM,
    GREEN,
    ON_RAISED,
    PLAIN,
    RED,
    Cell,
    Span,
    cell,
    clock,
    fitted,
    segments,
)
from gputui.tui.present.gpu_rows import Labels
from gputui.tui.present.status import wrapped
from gputui.tui.progress import ForecastBase, IsWanted, LatestWorker, Throttle, failure_words
from gputui.tui.screens.job_form import FLAGS, HINTS, MORE, USUAL, field_name, label
from gputui.tui.textual_internals import PasteInput
from gputui.tui.widgets.line_table import CellLines

SHOWN = 4


@dataclass(eq=False)
class ImagesFound(Message, bubble=False):
    names: Sequence[str]


class Images(Suggester):
    """Suggests the images of jobs in the queue, the latest first, then the engine's own."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        used = (job.spec.image for job in reversed(snapshot.jobs) if job.spec.image)
        self._names = dict.fromkeys(used)

    def add(self, names: Iterable[str]) -> None:
        self._names |= dict.fromkeys(name for name in names if plain(name) == name)

    def matching(self, typed: str) -> list[str]:
        """Return the names that begin with the text; of names within a registry, the last part may."""
        begin = [name for name in self._names if name.startswith(typed)]
        return begin + [name for name in self._names if name not in begin and f"/{typed}" in name]

    async def get_suggestion(self, value: str) -> str | None:
        return next((name for name in self._names if name.startswith(value) and name != value), None)

    def words(self, typed: str) -> str:
        found = [name for name in self.matching(typed) if name != typed] if typed.strip() else []
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return ("→ takes the first of: " if found else "") + ", ".join(found[:SHOWN]) + more


LABEL = 13
"""Cells of a field's label, with at least one blank after it."""
LEAST_ROOM = 74
"""Cells of a field on the smallest screen."""


class TextField(PasteInput):
    @dataclass(eq=False)
    class LinePasted(Message):
        """Message that a `docker run` or `gputui submit` line was pasted."""

        text: str

    def pasted(self, event: events.Paste) -> bool:
        """Pass on a pasted command line as a whole; join the lines of any other text."""
        if drafts.is_line(event.text):
            self.post_message(self.LinePasted(event.text))
            return True
        if len(event.text.strip().splitlines()) > 1:  # a command continued over several lines becomes one line here
            event.text = " ".join(join_lines(event.text).splitlines())
        return False


class FlagField(Static, can_focus=True):
    """Check box; Enter submits, as everywhere in the form."""

    BINDINGS: ClassVar = [("space,x", "tick", "tick"), ("enter", "screen.send", "submit")]
    value: var[bool] = var(False)

    @dataclass(eq=False)
    class Changed(Message):
        field: FlagField

    def __init__(self, words: str, *, id: str, classes: str | None) -> None:  # noqa: A002 - Textual's word
        super().__init__("", id=id, classes=classes, markup=False)
        self._words = words

    def watch_value(self) -> None:
        if self.is_attached:
            self._draw()
            self.post_message(self.Changed(self))

    @on(events.Mount)
    def _draw(self) -> None:
        self.update(f"[{'x' if self.value else ' '}] {self._words}")

    @on(events.Click)
    def action_tick(self) -> None:
        self.value = not self.value


Field = TextField | FlagField


class FieldRow(Horizontal):
    """Row of one field or two, with lines below for errors or notes while there are any.

    It draws labels and lines itself: a widget for each would make the form slow to open.
    """

    DEFAULT_CSS = """
    FieldRow {
        height: 1;
        TextField, FlagField { width: 1fr; height: 1; margin: 0 0 0 13; background: $background; }
        .second { margin-left: 14; }
        TextField:focus, FlagField:focus { background: $background-lighten-2; }
        FlagField { color: $foreground 80%; }
    }
    """

    def __init__(
        self, names: tuple[str, ...], suggesters: Mapping[str, Suggester], hints: Mapping[str, str] = HINTS
    ) -> None:
        super().__init__()
        self.names = names
        self.fields: dict[str, Field] = {}
        for place, name in enumerate(names):
            classes = "second" if place else None
            if name in FLAGS:
                self.fields[name] = FlagField(hints[name], id=name, classes=classes)
            else:
                self.fields[name] = TextField(
                    placeholder=hints[name], id=name, compact=True, suggester=suggesters.get(name), classes=classes
                )
        self._wrong: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._changed: frozenset[str] = frozenset()
        self._notes: list[str] = []
        """Lines below the fields."""
        self._was_wrong = False

    def compose(self) -> ComposeResult:
        yield from self.fields.values()

    def set_wrong(self, name: str, words: str) -> None:
        self._wrong[name] = words
        self._show()

    def set_known(self, name: str, words: str) -> None:
        self._known[name] = words
        self._show()

    def set_changed(self, names: frozenset[str]) -> None:
        """Mark exactly those of its fields that are in `names`."""
        changed = names.intersection(self.names)
        if changed != self._changed:
            self._changed = changed
            self.refresh()

    def show_only(self, names: frozenset[str]) -> None:
        """Hide its fields that are not in `names`; if none is left, hide the row."""
        for name, field in self.fields.items():
            field.display = name in names
        self.display = not names.isdisjoint(self.names)

    @property
    def is_wrong(self) -> bool:
        return any(self._wrong.values())

    @on(events.Resize)
    def _show(self) -> None:
        lines = self._wrong if self.is_wrong else self._known
        named = len(self.names) > 1
        told = [f"{label(name)}: {words}" if named else words for name, words in lines.items() if words]
        room = (self.size.width or LEAST_ROOM) - LABEL
        notes = [part for words in told for part in wrapped(words, room)]
        if notes != self._notes or self._was_wrong != self.is_wrong:
            self._notes, self._was_wrong = notes, self.is_wrong
            self.styles.height = 1 + len(notes)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        spans: list[Span] = []
        if y == 0:
            for child, name in zip(self.children, self.names, strict=False):
                if not child.display:
                    continue
                at = child.region.x - self.region.x - LABEL
                spans += [
                    (" " * (at - sum(len(text) for text, _ in spans)), DIM),
                    (fit(label(name), LABEL), BLUE if name in self._changed else DIM),
                ]
        elif y <= len(self._notes):
            spans = [(" " * LABEL, DIM), (self._notes[y - 1], RED if self.is_wrong else DIM)]
        width = self.size.width
        return Strip(segments(fitted(tuple(spans), width), ON_RAISED)).adjust_cell_length(width, ON_RAISED)


class Fold(Static, can_focus=True):
    """Shows or hides the less common fields."""

    BINDINGS: ClassVar = [("space,enter", "screen.more", "more fields")]
    DEFAULT_CSS = """
    Fold { height: 1; width: 100%; color: $primary; }
    Fold:focus { background: $background-lighten-2; }
    """

    def __init__(self, count: int) -> None:
        super().__init__("", markup=False)
        self.count = count
        self.is_open = False

    @on(events.Mount)
    def draw(self) -> None:
        if self.is_attached:  # only the console knows the command's key
            key = keymap_of(self).told(MORE_FIELDS).first_key or "the command more_fields"
            self.update(f"▾ fewer fields ({key})" if self.is_open else f"▸ {self.count} more fields ({key})")

    async def on_click(self) -> None:
        await self.run_action("screen.more")


AROUND = 7
"""Rows of the form other than fields."""


class FormBody(VerticalScroll, can_focus=False):
    """Rows of fields, as many as there is room for."""

    DEFAULT_CSS = """
    FormBody { height: auto; scrollbar-size-vertical: 1; }
    FormBody #more { height: auto; }
    """

    class Unfolded(Message):
        """The less common fields are shown, or hidden."""

    def __init__(self, suggesters: Mapping[str, Suggester], hints: Mapping[str, str] = HINTS) -> None:
        super().__init__()
        self._fields: dict[str, Field] = {}
        self._rows: dict[str, FieldRow] = {}
        self._kept: dict[str, str] = {}
        """Reasons why fields cannot be changed; folded fields are created later."""
        self._absent: frozenset[str] = frozenset()
        """Fields of what the cluster lacks."""
        self._usual = [FieldRow(names, suggesters, hints) for names in USUAL]
        self._fold = Fold(len([name for row in MORE for name in row]))
        self._more = Vertical(id="more")
        self._adopt(self._usual)

    def compose(self) -> ComposeResult:
        """Yield the usual fields; the others are created when they are first shown."""
        yield from self._usual
        yield self._fold
        yield self._more

    def _adopt(self, rows: Iterable[FieldRow]) -> None:
        for row in rows:
            self._fields |= row.fields
            self._rows |= dict.fromkeys(row.names, row)
            row.show_only(frozenset(row.names) - self._absent)

    def leave_out(self, names: Iterable[str]) -> None:
        """Hide these fields of what the cluster lacks, and show the others."""
        self._absent = frozenset(names)
        self._fold.count = len([name for row in MORE for name in row if name not in self._absent])
        self._fold.draw()
        for row in self._rows.values():
            row.show_only(frozenset(row.names) - self._absent)

    def on_mount(self) -> None:
        self.keep_within(self.app.size.height - 1)

    def keep_within(self, rows: int) -> None:
        self.styles.max_height = max(3, rows - AROUND)

    @property
    def is_open(self) -> bool:
        return bool(self._more.children) and self._more.display

    def unfold(self, is_open: bool = True) -> None:
        """Show the less common fields, or hide them with their values."""
        if is_open and not self._more.children:
            rows = [FieldRow(names, {}) for names in MORE]
            self._adopt(rows)
            self._more.mount(*rows)
            self.call_after_refresh(self._keep, [name for row in rows for name in row.names])
        is_open = is_open or not self._fold.display
        self._more.display = is_open
        self._fold.is_open = is_open
        self._fold.draw()
        self.post_message(self.Unfolded())

    def told(self, command: Command) -> Command:
        """Return the command with its present name: `more fields` becomes `fewer fields`."""
        return replace(command, title="fewer") if command == MORE_FIELDS and self.is_open else command

    def draft(self) -> dict[str, str]:
        fields = self._fields.items()
        flags = {name: YES if field.value else "" for name, field in fields if isinstance(field, FlagField)}
        return drafts.of_form({name: flags.get(name, str(field.value)) for name, field in fields})

    def put(self, draft: Draft) -> None:
        folded = (*drafts.FURTHER_NAMES, *(name for row in MORE for name in row))
        self.unfold(any(drafts.text_of(draft, name) for name in folded))
        draft = {drafts.FURTHER: drafts.further_text(draft), **draft}
        with self.prevent(Input.Changed, FlagField.Changed):
            for name, field in self._fields.items():
                text = draft.get(name, "")
                if isinstance(field, FlagField):
                    field.value = text == YES
                else:
                    field.value = text

    def go_to(self, name: str) -> None:
        """Give that field the focus at once: keys that were typed meanwhile come next."""
        if any(name in row for row in MORE):
            self.unfold()
        field = self._fields[name]
        self.screen.set_focus(field, scroll_visible=False)
        self.call_after_refresh(field.scroll_visible, animate=False)  # where it is, the layout says

    def set_known(self, name: str, words: str) -> None:
        self._rows[name].set_known(name, words)

    def set_wrong(self, found: Mapping[str, str], typed_in: str | None = None) -> None:
        """Show errors in one field, or in all for None, and remove those that have been corrected."""
        for name, row in self._rows.items():
            if typed_in is None or name == typed_in or name not in found:
                row.set_wrong(name, found.get(name, ""))

    def set_changed(self, names: Iterable[str]) -> None:
        changed = frozenset(map(field_name, names))
        for row in self._rows.values():
            row.set_changed(changed)

    def keep_as_is(self, reasons: Mapping[str, str]) -> None:
        self._kept = dict(reasons)
        self._keep(self._fields)

    def show_only(self, names: Iterable[str]) -> None:
        """Hide all fields except these, including the folded ones."""
        self._fold.display = False
        self.unfold()
        for row in self._rows.values():
            row.show_only(frozenset(names))

    def _keep(self, names: Iterable[str]) -> None:
        for name in [each for each in names if each in self._kept]:
            self._fields[name].disabled = True
            self.set_known(name, self._kept[name])


AT_ONCE = timedelta(seconds=2)
_NAMED = 12
"""GPUs named at most."""


class Prospect(Struct, frozen=True):
    """Forecast of a job that is not submitted yet: its start, and the jobs that it would delay."""

    at: datetime
    start: datetime | None = None
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs."""
    reason: str = ""
    """Reason why no start is forecast."""
    is_never: bool = False
    elements: int = 1
    last_start: datetime | None = None
    """Last forecast start of an array's elements."""
    foreseen: int = 1
    """Number of elements with a forecast start."""
    delayed: int = 0
    """Number of waiting jobs that would start later, or not at all."""
    stopped: int = 0
    """Number of running jobs that would be preempted."""
    failure: str = ""
    has_others: bool = True
    """True if the effect on other jobs is known."""
    note: str = ""
    """Decision of an engine about the job."""


def prospect(
    base: Snapshot,
    settings: Settings,
    now: datetime,
    asked: Submission,
    before: Timeline | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
    instead: Job | None = None,
) -> Prospect:
    """Return the forecast of a submission. Takes as long as two forecasts; `before` saves one.

    `instead` is the waiting job that an edit would replace, if any.
    """
    if instead is None:
        jobs = submitted_jobs(asked, 1 + max((job.last_id for job in base.jobs), default=0), now)
    else:
        jobs = [instead.evolve(spec=asked.spec, priority=asked.spec.priority, held=asked.held)]
    if asked.held:
        return Prospect(now, elements=len(asked.array) or 1)
    before = before or timeline(base, settings, now, is_wanted=is_wanted)
    change = submitted(*jobs) if instead is None else replaced(jobs[0])
    found = compared(base, change, settings, now, before, is_wanted)
    own = Entries({job.id: job for job in jobs})
    bars = sorted((bar for bar in found.after.bars if bar.job_id in own), key=lambda bar: bar.start)
    others = [shift for shift in found.shifts if shift.job_id not in own]
    kept = [shift for shift in others if not shift.is_stopped]
    delayed = sum(each.after is None or (each.before is not None and each.after > each.before) for each in kept)
    stopped = len(others) - len(kept)
    count = len(asked.array) or 1
    if not bars:
        changed = change(base)
        never = why_never(PlanningContext.at(changed, settings, now), jobs[0])
        reason = None if never else plan(changed, settings, now).reasons.get(jobs[0].id)
        words = never or (reason.local(now) if reason else "")
        return Prospect(now, reason=words, is_never=bool(never), elements=count, delayed=delayed, stopped=stopped)
    return Prospect(now, bars[0].start, bars[0].gpus, "", False, count, bars[-1].start, len(bars), delayed, stopped)


def prospect_by_engine(
    foresee: Callable[[Submission], Done], asked: Submission, now: datetime, *, is_edit: bool
) -> Prospect:
    """Return the forecast of a cluster's engine, which does not say which jobs wait for it."""
    try:
        done = Done() if is_edit or asked.held else foresee(asked)
    except GputuiError as error:
        return Prospect(now, reason=str(error), has_others=False)
    start, note = next(iter(done.starts), None), next(iter(done.notes), "")
    return Prospect(now, start, reason="the cluster does not tell", has_others=False, note=note)


def submitted_jobs(asked: Submission, first: JobId, now: datetime) -> list[Job]:
    """Return the resulting jobs, an array's elements as entries, with ids from `first`."""
    spec = asked.spec
    job = Job(first, spec, now, priority=spec.priority, held=asked.held)
    return numbered(new_entries(job, asked, 0), first)


def gpu_line(spec: JobSpec | None, snapshot: Snapshot) -> Cell:
    """Return the line on suitable GPUs: `3 of 6 suitable GPUs free: 0,2,5, 1 reserved for others`."""
    if spec is None:
        return cell("GPUs  –", DIM)
    if not spec.gpus.minimum:
        return cell("GPUs  none requested", DIM)
    views = [view for view in snapshot.gpus if not view.gpu.mig_enabled]
    if not views:
        return (("GPUs  ", DIM), ("this server has none", RED))
    fitting = {gpu.uuid for gpu in suitable_gpus(spec.gpus, (view.gpu for view in views))}
    able = [view for view in views if view.gpu.uuid in fitting]
    kept = kept_from(snapshot, spec.tenant, spec.priority)
    unused = [view for view in able if view.state is GpuState.FREE]
    free = [view for view in unused if view.gpu.uuid not in kept]
    words = f"{len(free)} of {plural(len(able), 'suitable GPU')} free" + (": " if free else "")
    enough = len(free) >= (len(views) if spec.gpus.everything else spec.gpus.minimum)
    style = GREEN if enough else AMBER if len(able) >= spec.gpus.minimum else RED
    unknown = sum(view.state is GpuState.UNKNOWN for view in able)
    reserved, shared = len(unused) - len(free), sum(bool(view.sharers) for view in able) if spec.gpus.promised else 0
    counts = ((unknown, "unknown"), (reserved, "reserved for others"), (shared, "shared by others"))
    why = "".join(f", {count} {what}" for count, what in counts if count)
    return (("GPUs  ", DIM), (words, style), (_named(free, snapshot), PLAIN), (why, DIM))


def _named(views: Iterable[GpuView], snapshot: Snapshot) -> str:
    labels = Labels.of(snapshot).by_uuid
    names = [labels[view.gpu.uuid] for view in views]
    return ",".join(names[:_NAMED]) + (",…" if len(names) > _NAMED else "")


def start_line(found: Prospect | None, snapshot: Snapshot, *, is_held: bool = False) -> Cell:
    if is_held:
        return (("Start ", DIM), ("held: it waits until it is released", AMBER))
    if found is None:
        return cell("Start  …", DIM)
    if found.failure:
        return (("Start ", DIM), (f"the forecast failed: {plain(found.failure, 120)}", RED))
    if found.start is None:
        reason = plain(found.reason, 200)
        if found.is_never:
            return cell(f"Can never start: {reason}", RED)
        return (("Start ", DIM), (f"no forecast: {reason}".rstrip(".: "), AMBER))
    note: Cell = ((f" · {plain(found.note, 120)}", DIM),) if found.note else ()
    doubt: Cell = ((" · once a scheduler runs", AMBER),) if snapshot.leader is None else ()
    others: Cell = ()
    if found.has_others:
        words = [f"delays {plural(found.delayed, 'other job')}"] if found.delayed else []
        words += [f"{plural(found.stopped, 'job')} would make way"] if found.stopped else []
        others = ((" · " + ", ".join(words), AMBER),) if words else ((" · delays no one", DIM),)
    return (("Start ", DIM), *_when(found, found.start, snapshot), *others, *doubt, *note)


def _when(found: Prospect, start: datetime, snapshot: Snapshot) -> Cell:
    wait = start - found.at
    names = _named((view for view in snapshot.gpus if view.gpu.uuid in found.gpus), snapshot)
    where = f" on GPU {names}" if names else ""
    if wait <= AT_ONCE:
        first: Cell = ((f"now{where}", GREEN),)
    else:
        first = ((f"~{clock(start, found.at)}", BLUE), (f", in {format_duration(wait)}{where}", PLAIN))
    if found.elements > 1 and found.last_start is not None:
        which = "the last" if found.foreseen >= found.elements else f"number {found.foreseen}"
        return (*first, (f", {which} of {found.elements} ~{clock(found.last_start, found.at)}", DIM))
    return first


class Below(CellLines):
    """Area below the fields; grows with its message, and keeps a row free if there is none."""

    DEFAULT_CSS = "Below { height: 3; }"

    def __init__(self) -> None:
        super().__init__(id="outlook")
        self.said = ""
        self._style = DIM

    def say(self, words: str, style: Style = DIM) -> None:
        self.said, self._style = words, style

    def lay_out(self, outlook: tuple[Cell, ...], room: int) -> int:
        """Show the message above these lines, in `room` cells; return the number of rows."""
        message = wrapped(plain(self.said, 600), self.size.width or room)[:4] or [""]
        self.fill([*(cell(text, self._style) for text in message), *outlook])
        return len(message) + len(outlook)


_PAUSE = 0.25
"""Seconds without a key press before a forecast is computed."""


@dataclass(eq=False)
class ProspectSeen(Message, bubble=False):
    asked: Submission | None
    found: Prospect


class Forecaster:
    """Latest forecast of the form's job, or None while it is being computed."""

    def __init__(
        self,
        screen: MessagePump,
        settings: Settings,
        snapshot: Snapshot,
        now: datetime,
        instead: Job | None = None,
        foresee: Callable[[Submission], Done] | None = None,
    ) -> None:
        """`foresee` asks a cluster, in place of a forecast made here."""
        self._foresee = foresee
        self._screen = screen
        self._instead = instead
        """The waiting job that the form edits; None: a new job."""
        self._settings = settings
        self._base = ForecastBase(snapshot, now)
        self.asked: Submission | None = None
        """The present job; None while it has errors."""
        self._answer: ProspectSeen | None = None
        self._timer: Timer | None = None
        self._pace = Throttle(rest=4)
        self._newest = LatestWorker(
            screen.post_message,
            lambda error: ProspectSeen(self.asked, Prospect(self._base.now, failure=failure_words(error))),
        )

    @property
    def found(self) -> Prospect | None:
        return self._answer.found if self._answer and self._answer.asked == self.asked else None

    def look_at(self, asked: Submission | None) -> None:
        """Forecast this job, once no other has been requested for a moment."""
        if asked == self.asked:
            return
        self.asked = asked
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._screen.set_timer(_PAUSE, self._ask) if asked else None

    def show_snapshot(self, snapshot: Snapshot, now: datetime) -> None:
        if self._base.is_old(snapshot, now) and self._pace.may_begin:
            self._base = ForecastBase(snapshot, now)
            self._ask()

    def take(self, message: ProspectSeen) -> None:
        self._pace.end()
        self._answer = message

    def close(self) -> None:
        self._base, self._answer = ForecastBase(EMPTY, self._base.now), None
        self._newest.close()

    def _ask(self) -> None:
        base, asked, settings, instead = self._base, self.asked, self._settings, self._instead
        foresee = self._foresee
        if asked is None:
            return
        self._pace.begin()

        def work(is_wanted: IsWanted) -> Message:
            if foresee is not None:
                return ProspectSeen(asked, prospect_by_engine(foresee, asked, base.now, is_edit=instead is not None))
            if base.before is None:  # it serves every job based on this snapshot
                base.before = timeline(base.snapshot, settings, base.now, is_wanted=lambda: base is self._base)
            found = prospect(base.snapshot, settings, base.now, asked, base.before, is_wanted, instead)
            return ProspectSeen(asked, found)

        self._newest.ask(work)
