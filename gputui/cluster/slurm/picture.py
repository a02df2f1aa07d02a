"""Snapshot of a poll: jobs, nodes and GPUs of our domain. Jobs that have not changed stay the same objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from gputui.cluster.journal import Submissions, Submitted
from gputui.cluster.slurm import commands, listings
from gputui.cluster.slurm.batch_script import NICE_STEP
from gputui.cluster.slurm.listings import JobDetail, JobRow, NodeRow
from gputui.cluster.slurm.poll import Polled
from gputui.cluster.slurm.submission import key_of_comment, streams_of_comment
from gputui.domain.cluster import element_runs
from gputui.domain.errors import Cause, CauseCode, end_unknown
from gputui.domain.gpu import NO_PROBE, Drain, Gpu, GpuState, GpuView, Health, HealthCode, Holder
from gputui.domain.job import BATCH_SCRIPT, OTHER_GPUTUI, ArrayRef, Attempt, Job
from gputui.domain.job_spec import MAX_PRIORITY, NORMAL_PRIORITY, GpuRequest, JobId, JobSpec
from gputui.domain.snapshot import Leader, Node, Snapshot
from gputui.domain.state import JobState, PendingReason, Reason

_NO_DETAIL = JobDetail("", "")
_HIDDEN = dict.fromkeys((*range(32), *range(127, 160)), " ")
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_DOWN = frozenset(
    {"DOWN", "NOT_RESPONDING", "UNKNOWN", "FUTURE", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN"}
    | {"FAIL", "FAILING", "ERROR", "INVAL", "INVALID_REG"}
)
_SHUT = frozenset(
    {"DRAIN", "DRAINING", "DRAINED", "MAINT", "MAINTENANCE", "REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"}
)
_BLOCKED = frozenset({"BLOCKED", "POWER_DOWN"})
KIND = "slurm"
_Made = tuple[JobRow, JobDetail | None, bool, Job]


def gpu_name(node: str, index: int) -> str:
    """Return what stands for the UUID of a GPU that only Slurm's index names."""
    return f"{node}:{index}"


def priority_of(nice: str) -> int:
    """Return our priority for a nice value: 50 is nice 0, each point lower is 1000 more."""
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
    after, after_any = dependencies(row.dependency)
    known = submitted.submission.spec if submitted else None
    count = _gpu_count(row, detail)
    base = known or JobSpec(
        command=(_printable(row.command),) if commands.some(row.command) else (),
        name=_printable(row.name),
        gpus=GpuRequest(count, count),
        comment="" if key_of_comment(row.comment) else _printable(commands.some(row.comment)),
        interactive=streams_of_comment(commands.some(row.comment)),
    )
    spec = replace(
        base,
        tenant=_printable(commands.some(row.account)) or base.tenant or _printable(row.user),
        time_limit=commands.span(row.limit),
        priority=base.priority if known else priority_of(row.nice),
        after=after or base.after,
        after_any=after_any or base.after_any,
    )
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
        commands.moment(row.submitted) or _LONG_AGO,
        state=JobState.OUT_OF_MEMORY if lacked_memory else row.life,
        priority=priority_of(row.nice),
        held=held,
        hold_reason="held by an administrator" if held and listings.is_admin_hold(row.reason) else None,
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
    at = datetime.fromtimestamp(row.reason_at, UTC) if row.reason_at else datetime.fromtimestamp(0, UTC)
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
    unnamed = max(0, row.used_count - len(set(row.used) | named))  # allocated, but Slurm does not tell which
    taken = set(row.used) | named
    for index in range(len(row.gpus)):
        if unnamed and index not in taken:
            taken.add(index)
            unnamed -= 1
    gpus = tuple(_view(row, index, index in taken, holders) for index in range(len(row.gpus)))
    return Node(row.name, gpus, NO_PROBE, down=why_down(row), drain=drain_of(row))


def _view(row: NodeRow, index: int, is_taken: bool, holders: Mapping[str, list[Job]]) -> GpuView:
    name = gpu_name(row.name, index)
    jobs, drain = holders.get(name, []), drain_of(row)
    state, why, health = GpuState.FREE, "", Health()
    if down := why_down(row):
        state, why, health = GpuState.UNKNOWN, down, Health(HealthCode.UNKNOWN, down)
    elif is_taken:
        state, why = GpuState.ALLOCATED, "" if jobs else "allocated by Slurm"
    elif shut := why_shut(row):
        state, why = GpuState.DRAINED if drain is not None else GpuState.UNKNOWN, shut
    return GpuView(
        Gpu(name, index, row.gpus[index].upper() or None),
        state,
        health,
        why=why,
        job_id=jobs[0].id if jobs else None,
        job_ids=tuple(job.id for job in jobs),
        holders=tuple(Holder("job", job.name, job.submitted_by) for job in jobs),
        drain=drain,
    )


def _words(state: str) -> str:
    return "down" if state == "NOT_RESPONDING" else state.lower().replace("_", " ")


class Pictures:
    def __init__(self, submissions: Submissions, *, runs_once: bool = True) -> None:
        """`runs_once` is False if jobs are submitted so that Slurm runs them again when it is asked to."""
        self._submissions = submissions
        self._runs_once = runs_once
        self._made: dict[JobId, _Made] = {}

    def snapshot(self, polled: Polled, suspended: frozenset[JobId] = frozenset()) -> Snapshot:
        """Return the snapshot of a poll; `suspended` are jobs whose containers were paused."""
        now, site = datetime.fromtimestamp(polled.at, UTC), polled.site
        found = [(row, self._job(row, polled, suspended)) for row in polled.rows]
        self._made = {job.id: self._made[job.id] for _, job in found}
        waiting = sorted((pair for pair in found if pair[1].state is JobState.PENDING), key=_rank)
        jobs = tuple(sorted((job for _, job in found), key=lambda job: job.id))
        return Snapshot(
            taken_at=now,
            nodes=nodes_of(polled.nodes, jobs),
            jobs=jobs,
            leader=Leader(0, site.controller or site.cluster, site.slurm_user, KIND, site.started_at or now),
            order=tuple(job.id for _, job in waiting),
            reasons={job.id: _reason(row, polled.details.get(row.run_key), now) for row, job in waiting},
            expected_starts=dict(_starts(waiting, now)),
        )

    def submitted(self, row: JobRow, user: str) -> Submitted | None:
        """Return the submission from here that became this job; others may write any comment into theirs."""
        if row.user != user or not key_of_comment(row.comment):
            return None
        found = self._submissions.of_key(key_of_comment(row.comment))
        return found if found is not None and found.number in (None, row.owner) else None

    def job_of(self, row: JobRow, detail: JobDetail | None, user: str, is_stopped: bool = False) -> Job:
        return job_of(row, detail, self.submitted(row, user), is_stopped, runs_once=self._runs_once)

    def _job(self, row: JobRow, polled: Polled, suspended: frozenset[JobId]) -> Job:
        job_id, detail = row.job_id, polled.details.get(row.run_key)
        is_stopped = job_id in suspended
        made = self._made.get(job_id)
        if made is not None and made[:3] == (row, detail, is_stopped):
            return made[3]
        job = self.job_of(row, detail, polled.site.user, is_stopped)
        self._made[job_id] = (row, detail, is_stopped, job)
        return job


def _rank(pair: tuple[JobRow, Job]) -> tuple[bool, int, datetime, JobId]:
    """Return the place in Slurm's order: jobs that may start first, then by Slurm's own priority."""
    row, job = pair
    return job.held, -int(row.priority) if row.priority.isdigit() else 0, job.submitted_at, job.id


def _reason(row: JobRow, detail: JobDetail | None, now: datetime) -> Reason:
    word = "JobHeldUser" if row.state == "REQUEUE_HOLD" else row.reason
    reason = listings.reason_of(word, commands.some(row.dependency), commands.moment(row.started), now)
    return replace(reason, text=f"requeued: {reason.text}") if detail and detail.restarts else reason


def _starts(waiting: Iterable[tuple[JobRow, Job]], now: datetime) -> Iterable[tuple[JobId, datetime]]:
    for row, job in waiting:
        start = commands.moment(row.started)
        if start is None or start < now or job.held:
            continue
        if listings.reason_of(row.reason, "", None, now).code is not PendingReason.DEPENDENCY:
            yield job.id, start
