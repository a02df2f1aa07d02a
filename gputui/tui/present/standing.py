"""Standing of a waiting job: the jobs that it waits for, and those before and behind it in the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.queue_columns import gpus_wanted
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import fit, plain
from gputui.domain.units import format_duration
from gputui.tui.present.cells import Cell, Span, cell
from gputui.tui.present.detail import ExplanationState, Line
from gputui.tui.present.job import JobContext, gpu_list, job_title, why
from gputui.tui.present.style import AMBER, BLUE, DIM, PLAIN, STRONG
from gputui.tui.present.times import clock

LEAST = 3
"""Lines from which it is shown."""
_TITLE, _TENANT, _GPUS, _WHEN = 24, 9, 9, 12
"""Cells of the columns."""


def standing_lines(
    job: Job, snapshot: Snapshot, context: JobContext, told: ExplanationState, most: int
) -> Sequence[Line]:
    """Return the running jobs that it waits for and its neighbours in the queue, in at most so many lines."""
    found = told.explanation
    if most < LEAST or (found is None and not snapshot.is_of_cluster):  # an engine tells only its order
        return ()
    awaited = [each for each in found.waits_for if each != job.id] if found is not None else []
    order = snapshot.order
    place = order.index(job.id) if job.id in order else None
    others = 0 if place is None else min(len(order), most // 2)
    awaited = awaited[: max(1, most - 1 - others)]
    rest = most - 1 - len(awaited)
    near = () if place is None or rest < LEAST else _around(order, place, rest - 1)
    jobs = _found(snapshot, {*awaited, *near})
    running = sorted((jobs[each] for each in awaited if each in jobs), key=_end)
    lines: list[Line] = [("", ())]
    lines += [("" if n else "waits for", _running(each, context)) for n, each in enumerate(running)]
    lines += [("", ())] if near else []
    lines += [
        ("" if n else "queue", _waiting(jobs[each], job, order.index(each) + 1, context))
        for n, each in enumerate(each for each in near if each in jobs)
    ]
    return lines if len(lines) > 1 else ()


def _around(order: Sequence[JobId], place: int, most: int) -> Sequence[JobId]:
    """Return so many jobs of the queue with this one among them: most of them are before it."""
    first = max(0, min(place - most * 3 // 4, len(order) - most))
    return order[first : first + most]


def _found(snapshot: Snapshot, wanted: Iterable[JobId]) -> Mapping[JobId, Job]:
    """Return these jobs by id, in one pass through the queue."""
    ids = frozenset(wanted)
    return {each.id: each for each in snapshot.jobs if each.id in ids}


def _end(job: Job) -> tuple[bool, float, JobId]:
    return (job.limit_at is None, job.limit_at.timestamp() if job.limit_at else 0.0, job.id)


def _head(job: Job, gpus: str, lead: tuple[Span, ...] = ()) -> Cell:
    number, space, name = fit(job_title(job), _TITLE).partition(" ")
    shown = ((number, BLUE), (space + name, PLAIN))
    return (*lead, *shown, (f" {fit(plain(job.spec.tenant, 40), _TENANT)} ", DIM), (fit(gpus, _GPUS) + " ", PLAIN))


def _running(job: Job, context: JobContext) -> Cell:
    """Return `#101 llama  alice  GPU 0,1  until 17:46:00 (in 5h46m), by its limit`."""
    if job.limit_at is None:
        return (*_head(job, gpu_list(job, context.gpu_names)), ("no time limit", AMBER))
    until = f"until {clock(job.limit_at, context.now)}"
    left = f" (in {format_duration(job.limit_at - context.now)})" if job.limit_at > context.now else ""
    return (*_head(job, gpu_list(job, context.gpu_names)), (until + left, PLAIN), (" by its limit", DIM))


def _waiting(job: Job, subject: Job, place: int, context: JobContext) -> Cell:
    """Return `▸ 3 #107 whisper  carol  2-4 GPUs  ~12:38  job 106 is before it`."""
    is_it = job.id == subject.id
    mark: Span = (f"{'▸' if is_it else ' '}{place:>3} ", STRONG if is_it else DIM)
    start = context.expected_starts.get(job.id)
    when = cell(fit(f"~{clock(start, context.now)}" if start else "", _WHEN) + " ", PLAIN)
    return (*_head(job, _wanted(job), (mark,)), *when, *why(job, context))


def _wanted(job: Job) -> str:
    """Return `2-4 GPUs`, `1 GPU` or `no GPU`."""
    words = gpus_wanted(job.spec.gpus)
    return "no GPU" if words == "-" else f"{words} GPU{'' if words == '1' else 's'}"
