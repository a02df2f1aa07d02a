"""A job as a row of cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gputui.domain.arrays import indices_word
from gputui.domain.job import GpuRequest, Job, JobId
from gputui.domain.state import JobState, Reason
from gputui.domain.text import plain
from gputui.domain.units import format_duration, plural
from gputui.tui.present.cells import UNKNOWN, Cell, cell
from gputui.tui.present.job_more import MORE_CELLS
from gputui.tui.present.meter import progress
from gputui.tui.present.style import AMBER, BLUE, DIM, JOB_STYLES, PLAIN, RED, STRONG


@dataclass(frozen=True)
class JobContext:
    """What the cells of jobs need besides the job."""

    now: datetime
    reasons: Mapping[JobId, Reason] = field(default_factory=dict)
    expected_starts: Mapping[JobId, datetime] = field(default_factory=dict)
    progress: Mapping[JobId, str] = field(default_factory=dict)
    gpu_names: Mapping[str, str] = field(default_factory=dict)
    """The index of each GPU, by UUID."""
    beside: Mapping[JobId, tuple[JobId, ...]] = field(default_factory=dict)
    """The jobs that share GPUs with each, of those that do."""
    scores: Mapping[JobId, float] = field(default_factory=dict)
    """By which waiting jobs are put in order; only while somebody looks at them."""


def job_cells(job: Job, key: str, context: JobContext) -> Cell:
    """The cell of that column."""
    return _CELLS[key](job, context)


def group_cells(jobs: Sequence[Job], key: str, context: JobContext, active: int = 0) -> Cell:
    """The cell of that column, of waiting elements of an array that share a row; so many others run."""
    first = jobs[0]
    if key == "id" and first.array:
        return cell(str(first.array.id), BLUE)
    if key == "name" and first.array:
        limit = f"%{first.array.limit}" if first.array.limit else ""
        indices = indices_word(job.array.index for job in jobs if job.array)
        return ((plain(first.spec.name, 120), PLAIN), (f"[{indices}{limit}]", DIM))
    if key == "why":
        counts = f"{len(jobs)} PD" + (f", {active} R" if active else "")
        reason = why(first, context)
        return ((counts, PLAIN), (" · ", DIM), *reason) if any(text for text, _ in reason) else cell(counts)
    return job_cells(first, key, context)


def gpus_wanted(request: GpuRequest) -> str:
    """`2`, `2-4`, `all`, `=0,3`, or a dash for none."""
    if request.everything:
        return "all"
    if request.devices:
        return f"={len(request.devices)}"
    if request.maximum == 0:
        return "-"
    low, high = request.minimum, request.maximum
    return str(low) if low == high else f"{low}-{high}"


def elapsed(job: Job, now: datetime) -> timedelta | None:
    """How long the latest attempt has run, or ran."""
    if job.started_at is None or job.state is JobState.PENDING:
        return None
    end = job.ended_at if job.state.is_terminal else now
    return max(timedelta(0), (end or now) - job.started_at)


def gpu_list(job: Job, names: Mapping[str, str]) -> str:
    """`GPU 0,1,4` of the GPUs it holds; how many, where an index is not known."""
    held = [names[uuid] for uuid in job.gpus if uuid in names]
    if len(held) < len(job.gpus):
        return plural(len(job.gpus), "GPU")
    return f"GPU {','.join(held)}" if held else ""


def why(job: Job, context: JobContext) -> Cell:
    """Why it waits, where it runs, or how it ended."""
    if job.cancel_requested and not job.state.is_terminal:
        return cell("being cancelled", AMBER)
    if job.requeue_requested:
        return cell("to be requeued", AMBER)
    if job.state is JobState.PENDING:
        return _why_waiting(job, context)
    if job.state.is_terminal or job.state is JobState.PREEMPTED:
        return _how_ended(job)
    where = gpu_list(job, context.gpu_names)
    if job.state is JobState.COMPLETING and job.stopping is not None:
        return ((f"{where} · " if where else "", DIM), (plain(job.stopping.cause.text, 200), AMBER))
    if words := context.progress.get(job.id):
        image = plain(job.spec.image, 120) if job.spec.image else ""
        told = words if image in words else f"{words} {image}"
        return ((f"{where} · " if where else "", DIM), *progress(plain(told, 200), context.now))
    if others := context.beside.get(job.id):
        where += f" beside {' '.join(f'#{other}' for other in others)}"
    return cell(where or ("no GPU" if job.state is JobState.RUNNING else ""), DIM)


def _why_waiting(job: Job, context: JobContext) -> Cell:
    reason = context.reasons.get(job.id)
    if job.held:
        return cell(f"held: {plain(job.hold_reason, 200)}" if job.hold_reason else "held", AMBER)
    return cell(plain(reason.local(context.now), 300), DIM) if reason else cell("", DIM)


def _how_ended(job: Job) -> Cell:
    if job.cause is not None:
        return cell(plain(job.cause.text, 300), RED if JOB_STYLES[job.state] is RED else DIM)
    return cell(f"exit code {job.exit_code}" if job.exit_code is not None else "", DIM)


def _is_over(job: Job) -> bool:
    return job.state.is_terminal


def _id(job: Job, context: JobContext) -> Cell:
    return cell(job.shown_id, DIM if _is_over(job) else BLUE)


def _state(job: Job, context: JobContext) -> Cell:
    """The short word squeue has; a held one is marked."""
    held = job.held and job.state is JobState.PENDING
    return cell("PDh" if held else job.state.short, AMBER if held else JOB_STYLES[job.state])


def _priority(job: Job, context: JobContext) -> Cell:
    topped = job.topped_at is not None and job.state is JobState.PENDING
    return cell("top" if topped else str(job.priority), STRONG if topped or job.priority > 50 else DIM)


def _name(job: Job, context: JobContext) -> Cell:
    shown = plain(job.spec.name, 120) or plain(job.spec.image or " ".join(job.spec.command[:3]), 120)
    return cell(shown, DIM if _is_over(job) else PLAIN)


def _tenant(job: Job, context: JobContext) -> Cell:
    return cell(plain(job.spec.tenant, 40), DIM)


def _gpus(job: Job, context: JobContext) -> Cell:
    return cell(str(len(job.gpus)) if job.gpus else gpus_wanted(job.spec.gpus), DIM if _is_over(job) else PLAIN)


def _time(job: Job, context: JobContext) -> Cell:
    taken = elapsed(job, context.now)
    return cell("" if taken is None else format_duration(taken), DIM if _is_over(job) else PLAIN)


def _limit(job: Job, context: JobContext) -> Cell:
    return cell("" if job.spec.time_limit is None else format_duration(job.spec.time_limit), DIM)


def _age(job: Job, context: JobContext) -> Cell:
    return cell(format_duration(context.now - job.submitted_at), DIM)


def _start(job: Job, context: JobContext) -> Cell:
    """When it is expected to start; unknown is a dash, and only a waiting job has one."""
    if job.state is not JobState.PENDING:
        return cell("")
    expected = context.expected_starts.get(job.id)
    if expected is None:
        return cell(UNKNOWN, DIM)
    return cell(f"~{format_duration(expected - context.now)}" if expected > context.now else "now", PLAIN)


_CELLS: dict[str, Callable[[Job, JobContext], Cell]] = {
    "id": _id,
    "state": _state,
    "priority": _priority,
    "name": _name,
    "tenant": _tenant,
    "gpus": _gpus,
    "time": _time,
    "limit": _limit,
    "age": _age,
    "start": _start,
    "why": why,
    **MORE_CELLS,
}
