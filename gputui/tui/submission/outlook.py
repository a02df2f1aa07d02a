"""What would become of the job that the form describes, were it submitted now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import ArrayRef, Job, JobId, JobSpec, Submission
from gputui.domain.policy.fitting import suitable
from gputui.domain.policy.hopeless import never
from gputui.domain.policy.look import Look
from gputui.domain.policy.plan import plan
from gputui.domain.policy.timeline import Timeline, timeline
from gputui.domain.policy.whatif import Comparison, Shift, compared, replaced, submitted
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.domain.units import format_duration, plural
from gputui.tui.present.cells import Cell, cell
from gputui.tui.present.gpu import index_of
from gputui.tui.present.style import AMBER, BLUE, DIM, GREEN, PLAIN, RED
from gputui.tui.present.times import clock

AT_ONCE = timedelta(seconds=2)
MOST_ELEMENTS = 200
"""Of so many elements of an array the start is foreseen."""
_NAMED = 12
"""GPUs named at most."""


@dataclass(frozen=True)
class Prospect:
    """When it would start, and whom it would put back."""

    at: datetime
    start: datetime | None = None
    gpus: tuple[str, ...] = ()
    """UUIDs."""
    reason: str = ""
    """Why no start is foreseen."""
    is_never: bool = False
    elements: int = 1
    last_start: datetime | None = None
    """Of an array's last element that is foreseen."""
    delayed: int = 0
    """Waiting jobs that would start later, or not at all."""
    stopped: int = 0
    """Running jobs that would make way."""
    failure: str = ""


def prospect(
    base: Snapshot,
    settings: Settings,
    now: datetime,
    asked: Submission,
    before: Timeline | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
    instead: Job | None = None,
) -> Prospect:
    """What the plan makes of it. Takes as long as two forecasts; `before` saves one.

    `instead` is the waiting job that would ask for this from now on, where it is no new one.
    """
    if instead is None:
        jobs = elements(asked, 1 + max((job.id for job in base.jobs), default=0), now)
    else:
        jobs = [instead.evolve(spec=asked.spec, priority=asked.spec.priority, held=asked.held)]
    if asked.held:
        return Prospect(now, elements=len(asked.array) or 1)
    before = before or timeline(base, settings, now, is_wanted=is_wanted)
    change = submitted(*jobs) if instead is None else replaced(jobs[0])
    found = compared(base, change, settings, now, before, is_wanted)
    ids = {job.id for job in jobs}
    bars = sorted((bar for bar in found.after.bars if bar.job_id in ids), key=lambda bar: bar.start)
    delayed, stopped = _put_back(found, ids)
    count = len(asked.array) or 1
    if not bars:
        words, is_never = _why(change(base), jobs[0], settings, now)
        return Prospect(now, reason=words, is_never=is_never, elements=count, delayed=delayed, stopped=stopped)
    return Prospect(now, bars[0].start, bars[0].gpus, "", False, count, bars[-1].start, delayed, stopped)


def elements(asked: Submission, first: JobId, now: datetime) -> list[Job]:
    """The jobs that it would make, or as many of them as are looked at."""
    spec = asked.spec
    job = Job(first, spec, now, priority=spec.priority, held=asked.held)
    if not asked.array:
        return [job]
    return [
        job.evolve(id=first + place, array=ArrayRef(first, index, asked.array_limit))
        for place, index in enumerate(asked.array[:MOST_ELEMENTS])
    ]


def _put_back(found: Comparison, ids: set[JobId]) -> tuple[int, int]:
    others = [shift for shift in found.shifts if shift.job_id not in ids]
    stopped = sum(shift.is_stopped for shift in others)
    return sum(not shift.is_stopped and _is_later(shift) for shift in others), stopped


def _is_later(shift: Shift) -> bool:
    return shift.after is None or (shift.before is not None and shift.after > shift.before)


def _why(changed: Snapshot, job: Job, settings: Settings, now: datetime) -> tuple[str, bool]:
    if ever := never(Look.at(changed, settings, now), job):
        return ever, True
    reason = plan(changed, settings, now).reasons.get(job.id)
    return (reason.local(now) if reason else ""), False


def gpu_line(spec: JobSpec | None, snapshot: Snapshot) -> Cell:
    """Which GPUs there are for it: `6 of 8 GPUs fit, 3 of them free: 0,2,5`."""
    if spec is None:
        return cell("GPUs  –", DIM)
    if not spec.gpus.minimum:
        return cell("GPUs  it asks for none", DIM)
    views = [view for view in snapshot.gpus if not view.gpu.mig_enabled]
    if not views:
        return (("GPUs  ", DIM), ("there is none here", RED))
    fitting = {gpu.uuid for gpu in suitable(spec.gpus, (view.gpu for view in views))}
    able = [view for view in views if view.gpu.uuid in fitting]
    free = [view for view in able if view.state is GpuState.FREE]
    words = f"{len(able)} of {plural(len(views), 'GPU')} fit, {len(free)} free" + (": " if free else "")
    enough = len(free) >= (len(views) if spec.gpus.everything else spec.gpus.minimum)
    style = GREEN if enough else AMBER if len(able) >= spec.gpus.minimum else RED
    return (("GPUs  ", DIM), (words, style), (_named(free), PLAIN), (_sharing(spec, able), DIM))


def _sharing(spec: JobSpec, able: Sequence[GpuView]) -> str:
    shared = sum(bool(view.sharers) for view in able) if spec.gpus.promised else 0
    return f", {shared} shared by others" if shared else ""


def _named(views: Iterable[GpuView]) -> str:
    names = [index_of(view) for view in views]
    return ",".join(names[:_NAMED]) + (",…" if len(names) > _NAMED else "")


def start_line(found: Prospect | None, snapshot: Snapshot, *, is_held: bool = False) -> Cell:
    """When it would start, and who would wait longer."""
    if is_held:
        return (("Start ", DIM), ("held: it waits until it is released", AMBER))
    if found is None:
        return cell("Start  …", DIM)
    if found.failure:
        return (("Start ", DIM), (f"the forecast failed: {plain(found.failure, 120)}", RED))
    if found.start is None:
        words = f"never: {plain(found.reason, 200)}" if found.is_never else f"not foreseen: {plain(found.reason, 200)}"
        return (("Start ", DIM), (words.rstrip(".: "), RED if found.is_never else AMBER))
    return (("Start ", DIM), *_when(found, snapshot), *_others(found), *_doubt(snapshot))


def _when(found: Prospect, snapshot: Snapshot) -> Cell:
    assert found.start is not None
    wait = found.start - found.at
    names = _named(view for view in snapshot.gpus if view.gpu.uuid in found.gpus)
    where = f" on {names}" if names else ""
    if wait <= AT_ONCE:
        first: Cell = ((f"now{where}", GREEN),)
    else:
        first = ((f"~{clock(found.start, found.at)}", BLUE), (f", in {format_duration(wait)}{where}", PLAIN))
    if found.elements > 1 and found.last_start is not None:
        return (*first, (f", the last of {found.elements} ~{clock(found.last_start, found.at)}", DIM))
    return first


def _others(found: Prospect) -> Cell:
    words = [f"{plural(found.delayed, 'other')} would wait longer"] if found.delayed else []
    words += [f"{plural(found.stopped, 'job')} would make way"] if found.stopped else []
    return ((" · " + ", ".join(words), AMBER),) if words else ((" · nobody waits longer", DIM),)


def _doubt(snapshot: Snapshot) -> Cell:
    return ((" · once a scheduler runs", AMBER),) if snapshot.leader is None else ()
