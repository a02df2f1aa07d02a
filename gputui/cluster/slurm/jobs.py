"""Jobs of our domain from Slurm's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from gputui.cluster.slurm import ids, reasons, states, texts
from gputui.cluster.slurm.details import JobDetail
from gputui.cluster.slurm.directives import NICE_STEP
from gputui.cluster.slurm.job_rows import JobRow
from gputui.cluster.slurm.notes import Submitted, streams_of_comment
from gputui.domain.attempt import Attempt
from gputui.domain.cause import Cause
from gputui.domain.cluster import element_runs
from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import MAX_PRIORITY, NORMAL_PRIORITY, GpuRequest, JobId, JobSpec
from gputui.domain.state import JobState

_NO_DETAIL = JobDetail("", "")
_HIDDEN = dict.fromkeys((*range(32), *range(127, 160)), " ")
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def gpu_name(node: str, index: int) -> str:
    """Return what stands for the UUID of a GPU that only Slurm's index names."""
    return f"{node}:{index}"


def priority_of(nice: str) -> int:
    """Return our priority for a nice value: 50 is nice 0, each point lower is 1000 more."""
    value = int(nice) if nice.lstrip("-").isdigit() else 0
    return min(MAX_PRIORITY, max(0, NORMAL_PRIORITY - round(value / NICE_STEP)))


def nice_of(priority: int) -> int:
    """Return the nice value for our priority."""
    return (NORMAL_PRIORITY - priority) * NICE_STEP


def job_of(row: JobRow, detail: JobDetail | None, submitted: Submitted | None, suspended: bool = False) -> Job:
    """Return the job, or the entry of an array's waiting elements."""
    detail = detail or _NO_DETAIL
    spec = _spec(row, detail, submitted)
    is_waiting = row.life is JobState.PENDING
    is_stopped = row.life.is_active and (suspended or row.state in states.SUSPENDED)
    attempt = None if is_waiting else _attempt(row, detail, spec.time_limit, is_stopped)
    held = is_waiting and (reasons.is_hold(row.reason) or row.state in states.HELD)
    job = Job(
        row.job_id,
        spec,
        texts.moment(row.submitted) or _LONG_AGO,
        state=row.life,
        priority=priority_of(row.nice),
        held=held,
        hold_reason="held by an administrator" if held and reasons.is_admin_hold(row.reason) else None,
        held_by=row.user if held and row.reason == "JobHeldUser" else "",
        started_at=attempt.started_at if attempt else None,
        ended_at=texts.moment(row.ended) if row.life.is_terminal else None,
        exit_code=attempt.exit_code if attempt else None,
        cause=_cause(row, detail, spec.time_limit),
        attempts=(attempt,) if attempt else (),
        submitted_by=_printable(row.user),
        suspended=is_stopped,
    )
    return _placed(job, row)


def _attempt(row: JobRow, detail: JobDetail, limit: timedelta | None, is_stopped: bool) -> Attempt | None:
    """Return the present run, or the last one; None if the job never ran."""
    nodes, started = detail.nodes or texts.hosts(row.nodes), texts.moment(row.started)
    if not nodes:
        return None
    has_ended = row.life.is_terminal
    return Attempt(
        detail.restarts + 1,
        tuple(gpu_name(node, index) for node, index in detail.gpus),
        started_at=started,
        ended_at=texts.moment(row.ended) if has_ended else None,
        exit_code=states.exit_code_of(row.state, detail.exit_code, detail.signal) if has_ended else None,
        cause=_cause(row, detail, limit),
        node=",".join(nodes),
        suspended_at=started if is_stopped else None,
        gpu_share=detail.share,
        unnamed_gpus=0 if detail.gpus else _gpu_count(row, detail),
    )


def _cause(row: JobRow, detail: JobDetail, limit: timedelta | None) -> Cause | None:
    nodes = detail.nodes or texts.hosts(row.nodes)
    return states.cause_of(
        row.state, detail.exit_code, detail.signal, nodes=nodes, limit=limit, reason=texts.some(row.reason)
    )


def _placed(job: Job, row: JobRow) -> Job:
    """Return the job with its place in its array."""
    indices = row.indices
    if not indices:
        return job
    array = int(row.array)
    placed = replace(job, array=ArrayRef(array, indices[0], row.array_limit))
    return placed.with_runs(tuple(element_runs(array, indices))) if len(indices) > 1 else placed


def _spec(row: JobRow, detail: JobDetail, submitted: Submitted | None) -> JobSpec:
    """Return the spec as it was submitted from here, else what Slurm knows of it."""
    after, after_any = dependencies(row.dependency)
    known = submitted.submission.spec if submitted else None
    count = _gpu_count(row, detail)
    base = known or JobSpec(
        command=(_printable(row.command),) if texts.some(row.command) else (),
        name=_printable(row.name),
        gpus=GpuRequest(count, count),
        comment=_printable(texts.some(row.comment)),
        interactive=streams_of_comment(texts.some(row.comment)),
    )
    return replace(
        base,
        tenant=_printable(texts.some(row.account)) or base.tenant or _printable(row.user),
        time_limit=texts.span(row.limit),
        priority=base.priority if known else priority_of(row.nice),
        after=after or base.after,
        after_any=after_any or base.after_any,
    )


def _gpu_count(row: JobRow, detail: JobDetail) -> int:
    if detail.gpus:
        return len(detail.gpus)
    if detail.requested:
        return detail.requested
    nodes = int(row.node_count) if row.node_count.isdigit() else 1
    return texts.gpu_count(row.gres) * max(1, nodes)


def dependencies(text: str) -> tuple[tuple[JobId, ...], tuple[JobId, ...]]:
    """Return the jobs that have to succeed and those that have to end, of `afterok:1(unfulfilled),afterany:3_4`."""
    after: list[JobId] = []
    after_any: list[JobId] = []
    for part in texts.some(text).replace("?", ",").split(","):
        kind, *named = part.split("(")[0].split(":")
        found = [
            job_id for each in named if (job_id := ids.of_words(each.split("+")[0].removesuffix("_*"))) is not None
        ]
        if kind in ("afterok", "aftercorr"):
            after += found
        elif kind.startswith("after"):
            after_any += found
    return tuple(after), tuple(after_any)


def _printable(text: str) -> str:
    """Return a text that others wrote, without control characters."""
    return text.translate(_HIDDEN)


def limit_words(limit: timedelta) -> str:
    """Return a time limit as Slurm reads it: in minutes, at least one."""
    return str(max(1, -(-limit // timedelta(minutes=1))))
