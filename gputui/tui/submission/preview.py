"""Previews the job of the form: suitable GPUs, its start, and the jobs it would delay."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import Struct
from rich.style import Style
from textual.message import Message
from textual.message_pump import MessagePump
from textual.timer import Timer

from gputui.domain.action import Done
from gputui.domain.arrays import Entries, new_entries, numbered
from gputui.domain.errors import GputuiError
from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec, Submission
from gputui.domain.policy.placement import suitable_gpus
from gputui.domain.policy.plan import plan
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.policy.whatif import Comparison, Timeline, compared, replaced, submitted, timeline, why_never
from gputui.domain.settings import Settings
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.text import format_duration, plain, plural
from gputui.tui.present.cells import Cell, cell, clock
from gputui.tui.present.gpu_rows import Labels
from gputui.tui.present.reserved import kept_from
from gputui.tui.present.status import wrapped
from gputui.tui.present.style import AMBER, BLUE, DIM, GREEN, PLAIN, RED
from gputui.tui.progress import ForecastBase, IsWanted, LatestWorker, Throttle, are_alike, failure_words
from gputui.tui.widgets.line_table import CellLines

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
    """What an engine decides for the job."""


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
    delayed, stopped = _put_back(found, own)
    count = len(asked.array) or 1
    if not bars:
        words, is_never = _why(change(base), jobs[0], settings, now)
        return Prospect(now, reason=words, is_never=is_never, elements=count, delayed=delayed, stopped=stopped)
    return Prospect(now, bars[0].start, bars[0].gpus, "", False, count, bars[-1].start, len(bars), delayed, stopped)


def told(foresee: Callable[[Submission], Done], asked: Submission, now: datetime, *, is_edit: bool) -> Prospect:
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


def _put_back(found: Comparison, own: Container[JobId]) -> tuple[int, int]:
    others = [shift for shift in found.shifts if shift.job_id not in own]
    kept = [shift for shift in others if not shift.is_stopped]
    later = sum(each.after is None or (each.before is not None and each.after > each.before) for each in kept)
    return later, len(others) - len(kept)


def _why(changed: Snapshot, job: Job, settings: Settings, now: datetime) -> tuple[str, bool]:
    if ever := why_never(PlanningContext.at(changed, settings, now), job):
        return ever, True
    reason = plan(changed, settings, now).reasons.get(job.id)
    return (reason.local(now) if reason else ""), False


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
    reserved, shared = len(unused) - len(free), sum(bool(view.sharers) for view in able) if spec.gpus.promised else 0
    why = (f", {reserved} reserved for others" if reserved else "") + (f", {shared} shared by others" if shared else "")
    return (("GPUs  ", DIM), (words, style), (_named(free, snapshot), PLAIN), (why, DIM))


def _named(views: Iterable[GpuView], snapshot: Snapshot) -> str:
    labels = Labels.of(snapshot).by_uuid
    names = [labels[view.gpu.uuid] for view in views]
    return ",".join(names[:_NAMED]) + (",…" if len(names) > _NAMED else "")


def start_line(found: Prospect | None, snapshot: Snapshot, *, is_held: bool = False) -> Cell:
    """Return the line on the job's start and the jobs that it would delay."""
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
    return (("Start ", DIM), *_when(found, snapshot), *_others(found), *doubt, *note)


def end_line(job: Job, limit: timedelta | None, now: datetime) -> Cell:
    """Return when a running job ends by its present limit, and by this one; None: it would have no limit."""
    began = job.attempt.started_at if job.attempt else None
    then = began + limit if began is not None and limit is not None else None
    parts = [clock(at, now) if at is not None else "no limit" for at in (job.limit_at, then)]
    if limit == job.spec.time_limit:
        return (("Ends  ", DIM), (f"{parts[0]} by its time limit" if job.limit_at else parts[0], PLAIN))
    left = f", in {format_duration(then - now)}" if then is not None and then > now else ""
    style = RED if then is not None and then <= now else BLUE
    return (("Ends  ", DIM), (parts[1], style), (f"{left} · before: {parts[0]}", PLAIN))


def _when(found: Prospect, snapshot: Snapshot) -> Cell:
    assert found.start is not None
    wait = found.start - found.at
    names = _named((view for view in snapshot.gpus if view.gpu.uuid in found.gpus), snapshot)
    where = f" on GPU {names}" if names else ""
    if wait <= AT_ONCE:
        first: Cell = ((f"now{where}", GREEN),)
    else:
        first = ((f"~{clock(found.start, found.at)}", BLUE), (f", in {format_duration(wait)}{where}", PLAIN))
    if found.elements > 1 and found.last_start is not None:
        which = "the last" if found.foreseen >= found.elements else f"number {found.foreseen}"
        return (*first, (f", {which} of {found.elements} ~{clock(found.last_start, found.at)}", DIM))
    return first


def _others(found: Prospect) -> Cell:
    if not found.has_others:
        return ()
    words = [f"delays {plural(found.delayed, 'other job')}"] if found.delayed else []
    words += [f"{plural(found.stopped, 'job')} would make way"] if found.stopped else []
    return ((" · " + ", ".join(words), AMBER),) if words else ((" · delays no one", DIM),)


_MOST_SAID = 4
"""Maximum rows of a message."""


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
        told = wrapped(plain(self.said, 600), self.size.width or room)[:_MOST_SAID] or [""]
        self.fill([*(cell(text, self._style) for text in told), *outlook])
        return len(told) + len(outlook)


_PAUSE = 0.25
"""Seconds without a key press before a forecast is computed."""
_AGED = timedelta(seconds=10)


@dataclass(eq=False)
class ProspectSeen(Message, bubble=False):
    """Message with the forecast of the form's job."""

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
        """Forecast of the present job; None while it is being computed."""
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
        is_old = now - self._base.now >= _AGED or not are_alike(self._base.snapshot, snapshot)
        if is_old and self._pace.may_begin:
            self._base = ForecastBase(snapshot, now)
            self._ask()

    def take(self, message: ProspectSeen) -> None:
        self._pace.end()
        self._answer = message

    def close(self) -> None:
        """Stop forecasting, and release the snapshot."""
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
                return ProspectSeen(asked, told(foresee, asked, base.now, is_edit=instead is not None))
            if base.before is None:  # it serves every job based on this snapshot
                base.before = timeline(base.snapshot, settings, base.now, is_wanted=lambda: base is self._base)
            found = prospect(base.snapshot, settings, base.now, asked, base.before, is_wanted, instead)
            return ProspectSeen(asked, found)

        self._newest.ask(work)
