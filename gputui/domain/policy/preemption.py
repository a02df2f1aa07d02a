"""Preemption: which running jobs make way for the head of the queue, if any.

Criteria for a set of victims, in this order: it suffices; least work is lost, in GPU-seconds since the attempts began;
fewest jobs; youngest jobs. So no victim is superfluous. No job is preempted for one that would not start anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import RUNTIMES, JobId, whole_class
from gputui.domain.policy.cluster_state import ClusterState, release_gpus
from gputui.domain.policy.decide import BackfillReservation, QueueHead, decide, gpus_kept_for_others
from gputui.domain.policy.placement import SETTLING, SOON, GpuIndex, choose, gpu_masks
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, utc_moment


class Candidate(NamedTuple):
    """Running job that may be preempted. Sorts the youngest first."""

    young: int
    """Negated id: the youngest job sorts first."""
    grade: int
    """Class of its priority, 0 to 2."""
    lost: int
    """GPU-seconds that preempting it would lose."""

    @property
    def id(self) -> JobId:
        return -self.young


Choice: TypeAlias = tuple[int, int, tuple[int, ...]]
"""Lost GPU-seconds, number of jobs, and the jobs (by `Candidate.young`); the least is the best."""


class Victims(Struct, frozen=True):
    """Running jobs that may be preempted now, and the limits on preemption."""

    grace: float
    """Seconds from the stop signal to SIGKILL."""
    allowed: int
    """Number of jobs that may still be preempted within this hour."""
    candidates: tuple[Candidate, ...]
    sound: tuple[int, ...]
    """GPUs by node that will be free once the job that holds them has ended."""
    served: frozenset[JobId]
    """Jobs that others are being preempted for, or were a moment ago."""

    def promise(
        self, planned: BackfillReservation | None, cluster: ClusterState, head: QueueHead, now: float
    ) -> BackfillReservation | None:
        """Return the head's reservation: `planned`, unless GPUs become free sooner, by themselves or by preemption."""
        hold = self._promise(planned, cluster, head, now)
        if hold is not None:
            hold.is_firm = bool(hold.preempts) or head.item.id in self.served
        return hold

    def _promise(
        self, planned: BackfillReservation | None, cluster: ClusterState, head: QueueHead, now: float
    ) -> BackfillReservation | None:
        soon = now + self.grace
        ask = head.key.ask
        if head.need > ask.minimum or ask.whole_nodes or ask.share:
            return planned
        # the GPUs that are free or will be without stopping another job, by node
        coming = [free | settling for free, settling in zip(cluster.free, cluster.freed, strict=True)]
        shares = cluster.shares.copy()
        for run in cluster.runs.values():
            if run.leaving is not None:
                release_gpus(run, coming, shares)
        at = max((run.ends(now) for run in cluster.runs.values() if run.leaving is not None), default=now + SOON)
        hold = _hold(cluster, head, coming, at)
        if hold is not None and (planned is None or hold.at < planned.at or head.item.id in self.served):
            return hold  # the head waits for the GPUs of its victims, even if others are now expected to end sooner
        if hold is not None or (planned is not None and planned.at <= max(soon, now + SOON)):
            return planned
        at = max(at, soon)
        found = self._choose(cluster, head, coming, at)
        return planned if found is None or (planned is not None and planned.at <= at) else found

    def _choose(
        self, cluster: ClusterState, head: QueueHead, coming: list[int], at: float
    ) -> BackfillReservation | None:
        """Return the reservation with the best victims; None if the head would not start once they have ended."""
        key, item, need = head
        grade = whole_class(key.priority)
        below = [found for found in self.candidates if found.grade < grade and found.id in cluster.runs]
        if not below:
            return None
        others = gpus_kept_for_others(cluster, key, at, at + key.duration) or [0] * len(coming)
        best: Choice | None = None
        for node, mask in enumerate(coming):
            able = key.ask.eligible[node] & ~others[node]
            wanted = self.sound[node] & able & ~mask
            gains = [(one, dict(cluster.runs[one.id].grant).get(node, 0) & wanted) for one in below]
            useful = [(one, gain.bit_count()) for one, gain in gains if gain]
            choice = cheapest_victims(useful, need - (mask & able).bit_count(), self.allowed)
            if choice is not None and (best is None or choice < best):
                best = choice
        if best is None:
            return None
        ids = tuple(sorted(-young for young in best[2]))
        for job_id in ids:
            for node, mask in cluster.runs[job_id].grant:
                coming[node] |= mask & self.sound[node]
        hold = _hold(cluster, head, coming, at)
        if hold is None or not _would_start(cluster, item.id, ids, coming, at):
            return None
        hold.preempts = ids
        return hold


def cheapest_victims(gains: Sequence[tuple[Candidate, int]], wanted: int, most: int) -> Choice | None:
    """Return the best set of at most `most` candidates whose gains add up to `wanted`; None if there is none.

    Dynamic programming over the number of jobs taken and their gain, as for a knapsack of minimum cost.
    """
    best: dict[tuple[int, int], Choice] = {(0, 0): (0, 0, ())}
    for one, gain in sorted(gains):
        for (count, covered), (lost, _, ids) in list(best.items()):
            if covered < wanted and count < most:
                state = (count + 1, min(wanted, covered + gain))
                choice = (lost + one.lost, count + 1, (*ids, one.young))
                if state not in best or choice < best[state]:
                    best[state] = choice
    return min((choice for (_, covered), choice in best.items() if covered >= wanted > 0), default=None)


def _hold(cluster: ClusterState, head: QueueHead, free: Sequence[int], at: float) -> BackfillReservation | None:
    """Return the reservation for a job if these GPUs were free at that time; None if they do not suffice."""
    key, item, need = head
    usable = [mask & able for mask, able in zip(free, key.ask.eligible, strict=True)]
    if others := gpus_kept_for_others(cluster, key, at, at + key.duration):
        usable = [mask & ~other for mask, other in zip(usable, others, strict=True)]
    grant = choose(usable, key.ask, need, need, cluster.layouts)
    if grant is None:
        return None
    available = {node: usable[node] for node, _ in grant}
    return BackfillReservation(
        item.id, at, None, available, {node: mask.bit_count() - need for node, mask in available.items()}, grant
    )


def _would_start(
    cluster: ClusterState, job_id: JobId, victims: Sequence[JobId], free: Sequence[int], at: float
) -> bool:
    """Return whether the job would start once they have ended, so that no job ahead of it takes its GPUs."""
    then = cluster.copy()
    for run in cluster.runs.values():
        if run.leaving is not None or run.id in victims:
            then.end(run.id, at)
    then.free = list(free)
    return any(run.id == job_id for run in decide(then, at).starts)


HOUR = timedelta(hours=1)


def find_victims(snapshot: Snapshot, settings: PolicySettings, gpus: GpuIndex, now: datetime) -> Victims:
    """Return the jobs that may be preempted now, at a site that has preemption on."""
    up = {RUNTIMES.get(status.name) for node in snapshot.nodes for status in node.runtimes if status.up}
    candidates: list[Candidate] = []
    lately = 0
    holders: Counter[str] = Counter()
    for job in snapshot.jobs:
        if not job.attempts:
            continue
        holders.update(job.gpus)
        attempt = job.attempts[-1]
        lately += sum(each.preempted_at is not None and each.preempted_at > now - HOUR for each in job.attempts)
        if job.spec.is_host in up and is_candidate(job, settings, now):
            candidates.append(Candidate(-job.id, whole_class(job.priority), lost_work(attempt, now)))
    last = (job.attempts[-1] for job in snapshot.jobs if job.attempts)
    # jobs that others are being preempted for, or were a moment ago
    recent = (each for each in last if each.ended_at is None or now - each.ended_at < SETTLING)
    served = (each.preempted_by for each in recent if each.preempted_by is not None)
    return Victims(
        grace=settings.preemption_grace.total_seconds(),
        allowed=max(0, settings.preemptions_per_hour - lately),
        candidates=tuple(candidates),
        sound=gpu_masks(gpus, lambda row: _is_sound(row) and holders[row.gpu.uuid] == 1),
        served=frozenset(served),
    )


def is_candidate(job: Job, settings: PolicySettings, now: datetime) -> bool:
    attempt = job.attempt
    if job.state is not JobState.RUNNING or not job.spec.preemptible or attempt is None or attempt.started_at is None:
        return False
    if job.cancel_requested or job.requeue_requested or now - attempt.started_at < settings.preemption_min_run:
        return False
    return sum(each.preempted_at is not None for each in job.attempts) < settings.preemptions_per_job


def lost_work(attempt: Attempt, now: datetime) -> int:
    began = attempt.started_at or attempt.claimed_at or now
    return max(0, int(len(attempt.gpus) * attempt.gpu_share * (now - began).total_seconds()))


def _is_sound(row: GpuView) -> bool:
    """Return whether it will be free once the job that holds it has ended."""
    if row.state is not GpuState.ALLOCATED or row.drain is not None or row.stale:
        return False
    return row.health.is_schedulable and all(holder.kind == "job" for holder in row.holders)


def grace_of(job: Job, cause: Cause, settings: Settings) -> timedelta:
    """Return the grace period of an attempt that is stopped for that cause; its own --stop-timeout takes precedence."""
    if cause.code is CauseCode.PREEMPTED:
        return settings.policy.preemption_grace
    own = job.spec.options.stop_timeout
    return settings.scheduler.stop_grace if own is None else timedelta(seconds=own)


def leaves_at(job: Job, settings: Settings) -> float | None:
    """Return the second by which a stopping attempt will have ended; None if it is not stopping."""
    stopping = job.stopping
    return (stopping.at + grace_of(job, stopping.cause, settings)).timestamp() if stopping else None


def is_making_way(job: Job) -> bool:
    return job.state.is_active and job.stopping is not None and job.stopping.cause.code is CauseCode.PREEMPTED


def was_preempted(job: Job) -> bool:
    """Return whether it waits because its last attempt was preempted."""
    over = job.attempt if job.attempt is not None and job.attempt.is_over else None
    return over is not None and over.cause is not None and over.cause.code is CauseCode.PREEMPTED


def describe_preemption(job: Job, now: datetime) -> tuple[str, datetime]:
    """Return `preempted at 12:00 UTC for job 12` and that time, for a job whose last attempt was preempted."""
    attempt = job.attempts[-1]
    at = attempt.preempted_at or attempt.ended_at or now
    return f"preempted at {utc_moment(at, now)} for job {attempt.preempted_by}", at
