"""Facts that decide a plan, recomputed slowly from docs/scheduling.md, without a line of the policy's own code.

Nothing here is clever: sets of UUIDs, datetimes, and loops over everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from gputui.domain.gpu import Gpu, GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.availability import AWAITED
from gputui.domain.settings import PolicySettings, Settings, TenantSettings, Window
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, PendingReason

Uuids = frozenset[str]


@dataclass(frozen=True)
class Held:
    """A job on GPUs, and when it is planned to end."""

    job: Job
    uuids: Uuids
    ends_at: datetime


@dataclass(frozen=True)
class Facts:
    """Facts of one snapshot."""

    snapshot: Snapshot
    settings: Settings
    now: datetime
    windowed: Mapping[str, Uuids]
    """GPUs that the plan says it keeps, by window that is not released."""

    @property
    def policy(self) -> PolicySettings:
        return self.settings.policy

    @cached_property
    def jobs(self) -> dict[JobId, Job]:
        return {job.id: job for job in self.snapshot.jobs}

    @cached_property
    def pending(self) -> list[Job]:
        return [job for job in self.snapshot.jobs if job.state is JobState.PENDING]

    @cached_property
    def nodes(self) -> list[dict[str, GpuView]]:
        """Return the GPUs of each node by UUID, without those divided into instances."""
        return [{view.gpu.uuid: view for view in node.gpus if not view.gpu.mig_enabled} for node in self.snapshot.nodes]

    @cached_property
    def views(self) -> dict[str, GpuView]:
        return {uuid: view for node in self.nodes for uuid, view in node.items()}

    @cached_property
    def free(self) -> Uuids:
        return frozenset(uuid for uuid, view in self.views.items() if view.state is GpuState.FREE)

    @cached_property
    def awaited(self) -> Uuids:
        """Return the GPUs that were just released, and are free once they are read."""
        return frozenset(uuid for uuid, view in self.views.items() if view.why == AWAITED)

    @cached_property
    def running(self) -> list[Held]:
        return [
            Held(job, frozenset(job.attempts[-1].gpus), self._end(job))
            for job in self.snapshot.jobs
            if job.state in {JobState.CONFIGURING, JobState.RUNNING, JobState.COMPLETING}
            and job.attempts
            and job.attempts[-1].ended_at is None
        ]

    def _end(self, job: Job) -> datetime:
        """Return the planned end; once that is over, a minute from it at least, doubled until it lies ahead."""
        attempt = job.attempts[-1]
        began = attempt.started_at or attempt.claimed_at or self.now
        lasts = self.expected_by(job)[0]
        if began + lasts > self.now:
            return began + lasts
        lasts = max(lasts, timedelta(minutes=1))
        while began + lasts <= self.now:
            lasts *= 2
        return began + lasts

    def planned(self, job: Job) -> timedelta:
        """Return its limit, or the longest time that the site allows; where it sets none, that of 72 h and of any live
        job."""
        most, limit = self.policy.max_time, job.spec.time_limit
        if limit is not None:
            return min(limit, most or limit)
        stated = [one.spec.time_limit for one in self.snapshot.jobs if not one.state.is_terminal and not one.held]
        return most or max([timedelta(hours=72), *(each for each in stated if each is not None)])

    def expected_by(self, job: Job) -> tuple[timedelta, str]:
        """Return its expected run time once started, and the words for that."""
        lasts = self.planned(job)
        if job.spec.time_limit is not None:
            return lasts, "by its limit"
        runs = sorted((one.ended_at, one.started_at) for one in self._like(job) if one.ended_at and one.started_at)
        if self.policy.predict and len(runs) > 1:
            mean = max(timedelta(seconds=1), sum((end - start for end, start in runs[-2:]), timedelta(0)) / 2)
            if mean < lasts:
                return mean, "if it runs as long as the last ones did"
        return lasts, "by the longest time allowed"

    def _like(self, job: Job) -> Iterable[Job]:
        """Return the completed jobs of its tenant with its name, or without a name with its image."""
        called = job.spec.name or job.spec.image
        for other in self.snapshot.jobs:
            is_its = other.state is JobState.COMPLETED and other.spec.tenant == job.spec.tenant
            if is_its and called and (other.spec.name or other.spec.image) == called:
                yield other

    # order

    @cached_property
    def used(self) -> dict[str, float]:
        """Return U/S of every tenant that waits or has used GPUs."""
        life = self.policy.half_life.total_seconds()
        used: dict[str, float] = {}
        for tenant, seconds in self.snapshot.usage.gpu_seconds.items():
            used[tenant] = seconds * 2 ** (-self._ago(self.snapshot.usage.at) / life)
        for job in self.snapshot.jobs:
            for attempt in job.attempts:
                is_on = attempt.ended_at is None and job.state.is_active
                begun = attempt.started_at or (attempt.claimed_at or self.now if is_on else None)
                if begun is None or not (is_on or (attempt.ended_at and attempt.gpus)):
                    continue
                count = len(attempt.gpus)
                since = 2 ** (-self._ago(begun) / life)
                until = 2 ** (-self._ago(attempt.ended_at or self.now) / life)
                used[job.spec.tenant] = used.get(job.spec.tenant, 0.0) + count * life / math.log(2) * (until - since)
        weights = {tenant.name: tenant.weight for tenant in self.policy.tenants}
        everyone = {*used, *(job.spec.tenant for job in self.pending)}
        total, shares = sum(used.values()), sum(weights.get(name, 1.0) for name in everyone)
        return {
            name: (used.get(name, 0.0) / total if total else 0.0) / (weights.get(name, 1.0) / shares)
            for name in everyone
        }

    def _ago(self, at: datetime) -> float:
        return (self.now - at).total_seconds()

    def since(self, job: Job) -> datetime:
        """Return the start of an uninterrupted wait of the same length."""
        gates = [job.spec.begin_at, job.not_before, *(self._ended(other) for other in self._awaited(job))]
        began = max([job.waiting_since or job.submitted_at, *(at for at in gates if at is not None)])
        return self.now if job.held else min(self.now, began)

    def _awaited(self, job: Job) -> list[Job]:
        return [self.jobs[other] for other in (*job.spec.after, *job.spec.after_any) if other in self.jobs]

    def _ended(self, other: Job) -> datetime:
        return other.ended_at or self.now

    def level(self, job: Job) -> tuple[int, bool, int, int]:
        """Class and whether it was promoted in it come before the priority, and that before nice."""
        after = self.policy.promote_after
        promoted = bool(after) and self.now - self.since(job) >= after
        grade = 0 if job.priority <= 25 else 1 if job.priority < 75 else 2
        return (grade, promoted, 0 if promoted else job.priority, 0 if promoted else -max(0, job.spec.nice))

    def score(self, job: Job) -> float:
        """Return the expansion factor with what its tenant is credited, and the wait in units."""
        waited, planned = self.now - self.since(job), self.planned(job)
        credit = self.policy.newcomer_credit * max(0.0, 1 - self.used[job.spec.tenant]) - 12 * planned
        credit = max(credit, timedelta(0))
        return (waited + credit + planned) / planned + waited / self.policy.age_unit

    def alike(self, job: Job) -> tuple[str, timedelta]:
        """Return everything that its score depends on, except the wait."""
        return (job.spec.tenant, self.planned(job))

    def goes_before(self, one: Job, other: Job) -> bool | None:
        """Return whether the first goes before the second; None where their scores are too near to be told apart."""
        if one.topped_at != other.topped_at:
            return other.topped_at is None or (one.topped_at is not None and one.topped_at > other.topped_at)
        if self.level(one) != self.level(other):
            return self.level(one) > self.level(other)
        if not self.level(one)[1]:
            gap, size = self.score(one) - self.score(other), self.score(one) + self.score(other)
            if abs(gap) > 1e-7 * size:
                return gap > 0
            alike = self.alike(one) == self.alike(other)
            if not alike:
                return None
        return (self.since(one), one.id) < (self.since(other), other.id)

    # what may hinder a job

    def gate(self, job: Job) -> PendingReason | None:
        """Return the gate that keeps it from its turn."""
        up = {status.name: status.up for node in self.snapshot.nodes for status in node.runtimes}
        if job.held:
            return PendingReason.JOB_HELD_USER
        if self.waits_for(job):
            return PendingReason.DEPENDENCY
        if job.spec.begin_at is not None and job.spec.begin_at > self.now:
            return PendingReason.BEGIN_TIME
        if job.not_before is not None and job.not_before > self.now:
            return PendingReason.BACK_OFF
        if self.snapshot.controls.paused:
            return PendingReason.SCHEDULER_PAUSED
        return None if up.get("process" if job.spec.is_host else "docker") else PendingReason.NODE_UNKNOWN

    def waits_for(self, job: Job) -> list[Job]:
        """Return the dependencies that have not ended as required."""
        well = [self.jobs[other] for other in job.spec.after if other in self.jobs]
        anyhow = [self.jobs[other] for other in job.spec.after_any if other in self.jobs]
        open_ones = [other for other in well if other.state is not JobState.COMPLETED]
        return open_ones + [other for other in anyhow if not other.state.is_terminal]

    def caps(self, tenant: str) -> TenantSettings:
        return next((caps for caps in self.policy.tenants if caps.name == tenant), TenantSettings(tenant))

    # places

    def eligible(self, job: Job) -> Uuids:
        """Return the GPUs that it could ever use."""
        request = job.spec.gpus
        found = frozenset(self._suiting(job))
        left = found - frozenset(job.avoid_gpus)
        enough = any(len(left & node.keys()) >= max(1, request.minimum) for node in self.nodes)
        return left if enough and not request.everything else found

    def _suiting(self, job: Job) -> Iterator[str]:
        request = job.spec.gpus
        for uuid, view in self.views.items():
            gpu, used = view.gpu, view.sample.memory_used or 0 if view.sample else 0
            left = (gpu.memory_total or 0) - (0 if view.state is GpuState.ALLOCATED else used)
            names = request.devices
            if (
                (request.model or "").lower() in (gpu.model or "").lower()
                and (gpu.memory_total or 0) >= (request.memory or 0)
                and left >= (request.free_memory or 0)
                and (self.is_named(gpu, names) if names else not self.is_named(gpu, self.policy.left_free))
            ):
                yield uuid

    @staticmethod
    def is_named(gpu: Gpu, names: Iterable[str]) -> bool:
        return any(name in {gpu.uuid, str(gpu.index)} for name in names)

    def width(self, job: Job) -> tuple[int, int]:
        """Return the fewest and the most GPUs that it asks for; more than ever fit is not worth any patience."""
        request = job.spec.gpus
        if request.everything:
            whole = max(map(len, self.nodes), default=0) or 1
            return whole, whole
        return request.minimum, max(request.minimum, min(request.maximum, self.fitting(job)))

    def fitting(self, job: Job) -> int:
        """Return the most GPUs on one node that it could ever use."""
        return max((len(self.eligible(job) & node.keys()) for node in self.nodes), default=0)

    @property
    def windows(self) -> list[Window]:
        """Return the windows that are neither over nor released."""
        return [window for window in self.policy.reservations if window.name in self.windowed]

    def comers(self, window: Window) -> list[Job]:
        """Return the jobs that wait for GPUs and may still start in the window."""
        return [
            job
            for job in self.pending
            if not job.held and job.spec.gpus.maximum and (job.spec.begin_at is None or job.spec.begin_at < window.end)
        ]

    @staticmethod
    def is_for(window: Window, job: Job) -> bool:
        by_tenant = window.tenant is not None and job.spec.tenant == window.tenant
        return by_tenant or (window.priority is not None and job.priority >= window.priority)

    def against(self, job: Job, since: datetime) -> list[Window]:
        """Return the windows for others that overlap its run if it starts then."""
        until = since + self.planned(job)
        return [w for w in self.windows if w.start < until and since < w.end and not self.is_for(w, job)]

    def kept(self, job: Job, since: datetime) -> Uuids:
        """Return the GPUs that windows keep from it if it starts then."""
        return frozenset(uuid for window in self.against(job, since) for uuid in self.windowed[window.name])
