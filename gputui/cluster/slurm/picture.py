"""Snapshot of a poll. Jobs that have not changed are the same objects as in the snapshot before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from gputui.cluster.slurm import jobs as translation
from gputui.cluster.slurm import reasons, texts, views
from gputui.cluster.slurm.details import JobDetail
from gputui.cluster.slurm.job_rows import JobRow
from gputui.cluster.slurm.notes import Submissions, Submitted, key_of_comment
from gputui.cluster.slurm.poll import Polled
from gputui.cluster.slurm.site import SlurmSite
from gputui.domain.gpu import Drain
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Controls, Leader, Snapshot
from gputui.domain.state import JobState, PendingReason, Reason

KIND = "slurm"
_Made = tuple[JobRow, JobDetail | None, bool, Job]


class Pictures:
    """Makes snapshots of polls."""

    def __init__(self, submissions: Submissions) -> None:
        self._submissions = submissions
        self._made: dict[JobId, _Made] = {}

    def snapshot(self, polled: Polled, suspended: frozenset[JobId] = frozenset()) -> Snapshot:
        """Return the snapshot of a poll; `suspended` are jobs whose containers were paused."""
        now = datetime.fromtimestamp(polled.at, UTC)
        found = [(row, self._job(row, polled, suspended)) for row in polled.rows]
        self._made = {job.id: self._made[job.id] for _, job in found}
        waiting = sorted((pair for pair in found if pair[1].state is JobState.PENDING), key=_rank)
        jobs = tuple(sorted((job for _, job in found), key=lambda job: job.id))
        return Snapshot(
            taken_at=now,
            nodes=views.nodes_of(polled.nodes, jobs),
            jobs=jobs,
            controls=Controls(drains=_drains(polled)),
            leader=leader_of(polled.site, now),
            order=tuple(job.id for _, job in waiting),
            reasons={job.id: _reason(row, polled.details.get(row.run_key), now) for row, job in waiting},
            expected_starts=dict(_starts(waiting, now)),
        )

    def job(self, row: JobRow, polled: Polled) -> Job:
        """Return one job of a poll."""
        return self._job(row, polled, frozenset())

    def submitted(self, row: JobRow, user: str) -> Submitted | None:
        """Return the submission from here that became this job; others may write any comment into theirs."""
        if row.user != user or not key_of_comment(row.comment):
            return None
        found = self._submissions.of_key(key_of_comment(row.comment))
        return found if found is not None and found.number in (None, row.owner) else None

    def _job(self, row: JobRow, polled: Polled, suspended: frozenset[JobId]) -> Job:
        job_id, detail = row.job_id, polled.details.get(row.run_key)
        is_stopped = job_id in suspended
        made = self._made.get(job_id)
        if made is not None and made[:3] == (row, detail, is_stopped):
            return made[3]
        job = translation.job_of(row, detail, self.submitted(row, polled.site.user), is_stopped)
        self._made[job_id] = (row, detail, is_stopped, job)
        return job


def leader_of(site: SlurmSite, now: datetime) -> Leader:
    """Return Slurm's controller as the process that schedules."""
    return Leader(0, site.controller or site.cluster, site.slurm_user, KIND, site.started_at or now)


def _rank(pair: tuple[JobRow, Job]) -> tuple[bool, int, datetime, JobId]:
    """Return the place in Slurm's order: jobs that may start first, then by Slurm's own priority."""
    row, job = pair
    return job.held, -int(row.priority) if row.priority.isdigit() else 0, job.submitted_at, job.id


def _reason(row: JobRow, detail: JobDetail | None, now: datetime) -> Reason:
    word = "JobHeldUser" if row.state == "REQUEUE_HOLD" else row.reason
    reason = reasons.reason_of(word, texts.some(row.dependency), texts.moment(row.started), now)
    return replace(reason, text=f"requeued: {reason.text}") if detail and detail.restarts else reason


def _starts(waiting: Iterable[tuple[JobRow, Job]], now: datetime) -> Iterable[tuple[JobId, datetime]]:
    for row, job in waiting:
        start = texts.moment(row.started)
        if start is None or start < now or job.held:
            continue
        if reasons.reason_of(row.reason, "", None, now).code is not PendingReason.DEPENDENCY:
            yield job.id, start


def _drains(polled: Polled) -> Mapping[str, Drain]:
    return {
        translation.gpu_name(row.name, index): drain
        for row in polled.nodes
        if (drain := views.drain_of(row)) is not None
        for index in range(len(row.gpus))
    }
