"""Snapshot of a poll: jobs, nodes and GPUs of our domain. Jobs that have not changed stay the same objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.cluster.journal import Submissions, Submitted
from gputui.cluster.shared import LONG_AGO, gpu_view
from gputui.cluster.slurm import commands, listings
from gputui.cluster.slurm.batch_script import NICE_STEP
from gputui.cluster.slurm.listings import JobDetail, JobRow, NodeRow
from gputui.cluster.slurm.poll import Polled
from gputui.cluster.slurm.submission import key_of_comment, streams_of_comment
from gputui.domain.cluster import element_runs
from gputui.domain.errors import Cause, CauseCode, end_unknown
from gputui.domain.gpu import NO_PROBE, Drain, Gpu
from gputui.domain.job import BATCH_SCRIPT, OTHER_GPUTUI, ArrayRef, Attempt, Job
from gputui.domain.job_spec import MAX_PRIORITY, NORMAL_PRIORITY, GpuRequest, JobId, JobSpec
from gputui.domain.snapshot import Leader, Node, Snapshot
from gputui.domain.state import JobState, PendingReason

_NO_DETAIL = JobDetail("", "")
_HIDDEN = dict.fromkeys((*range(32), *range(127, 160)), " ")
_DOWN = frozenset(
    {"DOWN", "NOT_RESPONDING", "UNKNOWN", "FUTURE", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN"}
    | {"FAIL", "FAILING", "ERROR", "INVAL", "INVALID_REG"}
)
_SHUT = frozenset(
    {"DRAIN", "DRAINING", "DRAINED", "MAINT", "MAINTENANCE", "REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"}
)
_BLOCKED = frozenset({"BLOCKED", "POWER_DOWN"})
KIND = "slurm"
_Facts = tuple[JobRow, JobDetail | None, bool]


def gpu_name(node: str, index: int) -> str:
    """Return what stands for the UUID of a GPU that only Slurm's index names."""
    return f"{node}:{index}"


def priority_of(nice: str) -> int:
    value = int(nice) if nice.lstrip("-").isdigit() else 0
    return min(MAX_PRIORITY, max(0, NORMAL_PRIORITY - round(value / NICE_STEP)))


def job_of(
    row: JobRow,
    detail: JobDetail | None,
    submitted: Submitted | None,
    suspended: bool = False,
    *,
    runs_once: bool = True,
) -> Job:
    detail = detail or _NO_DETAIL
    spec = _spec(row, detail, submitted)
    is_waiting = row.life is JobState.PENDING
    is_stopped = row.life.is_active and (suspended or row.state in listings.SUSPENDED)
    attempt = None if is_waiting else _attempt(row, detail, spec.time_limit, is_stopped)
    held = is_waiting and listings.is_held(row.state, row.reason)
    indices, array = row.indices, int(row.array) if row.indices else 0
    cause = _cause(row, detail, spec.time_limit)
    lacked_memory = cause is not None and cause.code is CauseCode.OUT_OF_MEMORY  # Slurm knows nothing of containers
    job = Job(
        row.job_id,
        spec,
        commands.moment(row.submitted) or LONG_AGO,
        state=JobState.OUT_OF_MEMORY if lacked_memory else row.life,
        priority=priority_of(row.nice),
        held=held,
        hold_reason="held by an administrator" if held and row.reason == "JobHeldAdmin" else None,
        held_by=row.user if held and row.reason == "JobHeldUser" else "",
        started_at=attempt.started_at if attempt else None,
        ended_at=commands.moment(row.ended) if row.life.is_terminal else None,
        exit_code=attempt.exit_code if attempt else None,
        cause=cause,
        attempts=(attempt,) if attempt else (),
        submitted_by=_printable(row.user),
        submitted_via="" if submitted else OTHER_GPUTUI if key_of_comment(row.comment) else BATCH_SCRIPT,
        suspended=is_stopped,
        runs_once=runs_once,
        array=ArrayRef(array, indices[0], row.array_limit) if indices else None,
    )
    return job.with_runs(tuple(element_runs(array, indices))) if len(indices) > 1 else job


def _spec(row: JobRow, detail: JobDetail, submitted: Submitted | None) -> JobSpec:
    """Return the spec as it was submitted from here, else what Slurm knows of it."""
    after, after_any = dependencies(row.dependency)
    known, count = submitted.submission.spec if submitted else None, _gpu_count(row, detail)
    base = known or JobSpec(
        command=(_printable(row.command),) if commands.some(row.command) else (),
        name=_printable(row.name),
        gpus=GpuRequest(count, count),
        comment="" if key_of_comment(row.comment) else _printable(commands.some(row.comment)),
        interactive=streams_of_comment(commands.some(row.comment)),
    )
    return replace(
        base,
        tenant=_printable(commands.some(row.account)) or base.tenant or _printable(row.user),
        time_limit=commands.span(row.limit),
        priority=base.priority if known else priority_of(row.nice),
        after=after or base.after,
        after_any=after_any or base.after_any,
    )


def _attempt(row: JobRow, detail: JobDetail, limit: timedelta | None, is_stopped: bool) -> Attempt | None:
    nodes, started = detail.nodes or commands.hosts(row.nodes), commands.moment(row.started)
    if not nodes:
        return None
    has_ended = row.life.is_terminal
    return Attempt(
        detail.restarts + 1,
        tuple(gpu_name(node, index) for node, index in detail.gpus),
        started_at=started,
        ended_at=commands.moment(row.ended) if has_ended else None,
        exit_code=listings.exit_code_of(row.state, detail.exit_code, detail.signal) if has_ended else None,
        cause=_cause(row, detail, limit),
        node=",".join(nodes),
        suspended_at=started if is_stopped else None,
        gpu_share=detail.share,
        unnamed_gpus=0 if detail.gpus else _gpu_count(row, detail),
    )


def _cause(row: JobRow, detail: JobDetail, limit: timedelta | None) -> Cause | None:
    if row.state == listings.END_UNKNOWN:
        after = datetime.fromtimestamp(detail.alive, UTC)
        return end_unknown(after, max(after, commands.moment(row.ended) or after))
    nodes = detail.nodes or commands.hosts(row.nodes)
    reason, told = commands.some(row.reason), _printable(detail.told)
    return listings.cause_of(
        row.state, detail.exit_code, detail.signal, nodes=nodes, limit=limit, reason=reason, told=told
    )


def _gpu_count(row: JobRow, detail: JobDetail) -> int:
    if detail.gpus:
        return len(detail.gpus)
    if detail.requested:
        return detail.requested
    nodes = int(row.node_count) if row.node_count.isdigit() else 1
    return commands.gpu_count(row.gres) * max(1, nodes)


def dependencies(text: str) -> tuple[tuple[JobId, ...], tuple[JobId, ...]]:
    """Return the jobs that have to succeed and those that have to end, of `afterok:1(unfulfilled),afterany:3_4`."""
    after: list[JobId] = []
    after_any: list[JobId] = []
    for part in commands.some(text).replace("?", ",").split(","):
        kind, *named = part.split("(")[0].split(":")
        found = [
            job_id for each in named if (job_id := commands.of_words(each.split("+")[0].removesuffix("_*"))) is not None
        ]
        if kind in ("afterok", "aftercorr"):
            after += found
        elif kind.startswith("after"):
            after_any += found
    return tuple(after), tuple(after_any)


def _printable(text: str) -> str:
    return text.translate(_HIDDEN)


def nodes_of(rows: Iterable[NodeRow], jobs: Iterable[Job]) -> tuple[Node, ...]:
    holders: dict[str, list[Job]] = {}
    for job in jobs:
        for name in job.gpus:
            holders.setdefault(name, []).append(job)
    return tuple(_node(row, holders) for row in rows)


def drain_of(row: NodeRow) -> Drain | None:
    if not _SHUT.intersection(row.states):
        return None
    at = datetime.fromtimestamp(row.reason_at or 0, UTC)
    return Drain(row.reason or "no reason given", row.reason_by or "Slurm", at)


def why_down(row: NodeRow) -> str:
    state = next((state for state in row.states if state in _DOWN), None)
    return f"node {row.name} is {_words(state)}" + (f": {row.reason}" if row.reason else "") if state else ""


def why_shut(row: NodeRow) -> str:
    if (drain := drain_of(row)) is not None:
        return f"node {row.name} is drained: {drain.reason}"
    held = _BLOCKED.intersection(row.states)
    return f"node {row.name} is {_words(min(held))}" if held else ""


def _node(row: NodeRow, holders: Mapping[str, list[Job]]) -> Node:
    named = {index for index in range(len(row.gpus)) if gpu_name(row.name, index) in holders}
    taken = set(row.used) | named
    unnamed = max(0, row.used_count - len(taken))  # allocated, but Slurm does not tell which
    for index in range(len(row.gpus)):
        if unnamed and index not in taken:
            taken.add(index)
            unnamed -= 1
    down, shut, drain = why_down(row), why_shut(row), drain_of(row)
    gpus = []
    for index, model in enumerate(row.gpus):
        gpu = Gpu(gpu_name(row.name, index), index, model.upper() or None)
        use = "allocated by Slurm" if index in taken else None
        gpus.append(gpu_view(gpu, holders.get(gpu.uuid, []), use, down=down, shut=shut, drain=drain))
    return Node(row.name, tuple(gpus), NO_PROBE, down=down, drain=drain)


def _words(state: str) -> str:
    return "down" if state == "NOT_RESPONDING" else state.lower().replace("_", " ")


class Pictures(Struct, eq=False):
    _submissions: Submissions
    runs_once: bool = True
    """False if jobs are submitted so that Slurm runs them again when it is asked to."""
    _made: dict[JobId, tuple[_Facts, Job]] = field(default_factory=dict)

    def snapshot(self, polled: Polled, suspended: frozenset[JobId] = frozenset()) -> Snapshot:
        """Return the snapshot of a poll; `suspended` are jobs whose containers were paused."""
        now, site = datetime.fromtimestamp(polled.at, UTC), polled.site
        found, made = list[tuple[JobRow, Job]](), {}
        for row in polled.rows:
            detail, is_stopped = polled.details.get(row.run_key), row.job_id in suspended
            facts, known = (row, detail, is_stopped), self._made.get(row.job_id)
            if known is None or known[0] != facts:
                known = facts, self.job_of(row, detail, site.user, is_stopped)
            made[row.job_id] = known
            found.append((row, known[1]))
        self._made = made
        waiting = sorted((pair for pair in found if pair[1].state is JobState.PENDING), key=_rank)
        reasons, starts = {}, {}
        for row, job in waiting:
            detail, start = polled.details.get(row.run_key), commands.moment(row.started)
            word = "JobHeldUser" if row.state == "REQUEUE_HOLD" else row.reason
            reason = listings.reason_of(word, commands.some(row.dependency), start, now)
            has_run = detail is not None and detail.restarts
            reasons[job.id] = replace(reason, text=f"requeued: {reason.text}") if has_run else reason
            if start is not None and start >= now and not job.held and reason.code is not PendingReason.DEPENDENCY:
                starts[job.id] = start
        jobs = tuple(sorted((job for _, job in found), key=lambda job: job.id))
        return Snapshot(
            taken_at=now,
            nodes=nodes_of(polled.nodes, jobs),
            jobs=jobs,
            leader=Leader(0, site.controller or site.cluster, site.slurm_user, KIND, site.started_at or now),
            order=tuple(job.id for _, job in waiting),
            reasons=reasons,
            expected_starts=starts,
        )

    def submitted(self, row: JobRow, user: str) -> Submitted | None:
        """Return the submission from here that became this job; others may write any comment into theirs."""
        if row.user != user or not key_of_comment(row.comment):
            return None
        found = self._submissions.of_key(key_of_comment(row.comment))
        return found if found is not None and found.number in (None, row.owner) else None

    def job_of(self, row: JobRow, detail: JobDetail | None, user: str, is_stopped: bool = False) -> Job:
        return job_of(row, detail, self.submitted(row, user), is_stopped, runs_once=self.runs_once)


def _rank(pair: tuple[JobRow, Job]) -> tuple[bool, int, datetime, JobId]:
    row, job = pair
    return job.held, -int(row.priority) if row.priority.isdigit() else 0, job.submitted_at, job.id
