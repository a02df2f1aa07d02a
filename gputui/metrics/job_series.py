"""Series about jobs and tenants."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from gputui.domain.job import Job, JobId
from gputui.domain.policy.effective_settings import effective_policy
from gputui.domain.policy.fairshare import fair_share_factor, usage_ratios
from gputui.domain.policy.reasons import gated_jobs
from gputui.domain.settings import Settings, TenantSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, Reason
from gputui.metrics import families
from gputui.metrics.job_changes import Update
from gputui.metrics.job_sums import JobSums
from gputui.metrics.page import SeriesPage
from gputui.metrics.tenant_labels import OTHER, TenantLabels


class JobSeries:
    """Adds the series about jobs and tenants to a page. Scrapes and ticks may call it at the same time."""

    def __init__(self, settings: Settings, tenants: TenantLabels, now: datetime) -> None:
        self._settings = settings
        self._tenants = tenants
        self._sums = JobSums(settings, now)
        self._lock = threading.Lock()

    def update(self, update: Update) -> None:
        """Take changed jobs into account."""
        with self._lock:
            self._sums.update(update.gone, update.came)

    def add(self, page: SeriesPage, snapshot: Snapshot, now: datetime) -> None:
        """Add everything about jobs and tenants."""
        gated = gated_jobs(snapshot.reasons)
        waiting = _gated_waiting(snapshot, gated)
        with self._lock:
            states, eligible, backlog, held = self._by_label(waiting, _gpus_of(snapshot))
            used = self._sums.used(now)
            names = set(self._sums.tenants)
        for (tenant, state), count in states.items():
            page.add(families.JOBS, count, {"tenant": tenant, "state": state})
        for label, number in eligible.items():
            page.add(families.ELIGIBLE, number, {"tenant": label})
            page.add(families.BACKLOG, backlog[label], {"tenant": label})
            page.add(families.HELD, held[label], {"tenant": label})
        page.add(families.OLDEST, _oldest_wait(snapshot, gated, now))
        for code, number in _by_reason(waiting, gated).items():
            page.add(families.GATED, number, {"reason": code})
        self._add_use(page, snapshot, used, names, now)

    def _by_label(
        self, gated: list[Job], gpus: int
    ) -> tuple[Counter[tuple[str, JobState]], dict[str, int], dict[str, float], Counter[str]]:
        """Return the sums by label: jobs by state, eligible jobs and what they ask for, and GPUs held."""
        states: Counter[tuple[str, JobState]] = Counter()
        eligible: dict[str, int] = {}
        backlog: dict[str, float] = {}
        held: Counter[str] = Counter()
        for name, sums in self._sums.tenants.items():
            label = self._tenants.label(name)
            for state, count in sums.states.items():
                states[label, state] += count
            eligible[label] = eligible.get(label, 0) + sums.waiting
            backlog[label] = backlog.get(label, 0.0) + sums.backlog + sums.whole * gpus
            held[label] += sums.held
        for job in gated:
            if not job.held:
                label = self._tenants.label(job.spec.tenant)
                eligible[label] -= job.count if job.runs else 1
                wanted = job.spec.gpus
                backlog[label] -= (gpus if wanted.everything else wanted.minimum) * self._sums.seconds(job)
        return states, eligible, {label: max(0.0, seconds) for label, seconds in backlog.items()}, held

    def _add_use(
        self, page: SeriesPage, snapshot: Snapshot, used: dict[str, float], names: set[str], now: datetime
    ) -> None:
        """Add the use of tenants, their fair share and their caps."""
        past, half_life = snapshot.usage, self._settings.policy.half_life
        faded = 2.0 ** -((now - past.at) / half_life) if past.gpu_seconds else 0.0
        for name, seconds in past.gpu_seconds.items():
            used[name] = used.get(name, 0.0) + seconds * faded
        tenants = {tenant.name: tenant for tenant in effective_policy(self._settings.policy, snapshot.controls).tenants}
        weights = {name: tenant.weight for name, tenant in tenants.items()}
        by_label: dict[str, float] = {}
        for name, seconds in used.items():
            label = self._tenants.label(name)
            by_label[label] = by_label.get(label, 0.0) + seconds
        for label, seconds in by_label.items():
            page.add(families.USAGE, seconds, {"tenant": label})
        for name, ratio in usage_ratios(used, weights, names | tenants.keys()).items():
            if (label := self._tenants.label(name)) != OTHER:  # shares of several do not add up
                page.add(families.FAIR_SHARE, fair_share_factor(ratio), {"tenant": label})
        for tenant in tenants.values():
            self._add_caps(page, tenant)

    def _add_caps(self, page: SeriesPage, tenant: TenantSettings) -> None:
        labels = {"tenant": self._tenants.label(tenant.name)}
        if labels["tenant"] != OTHER:
            page.add(families.WEIGHT, tenant.weight, labels)
            page.add(families.GPU_CAP, tenant.gpus, labels)
            page.add(families.RUNNING_CAP, tenant.running, labels)
            page.add(families.PENDING_CAP, tenant.pending, labels)
            page.add(families.PRIORITY_CAP, tenant.max_priority, labels)


def _gpus_of(snapshot: Snapshot) -> int:
    """Return the number of GPUs, without MIG instances."""
    return sum(view.gpu.mig_parent is None for view in snapshot.gpus)


def _gated_waiting(snapshot: Snapshot, gated: Mapping[JobId, Reason]) -> list[Job]:
    """Return the jobs and entries that cannot start whatever is free."""
    return [job for job in snapshot.jobs if job.id in gated] if gated else []


def _by_reason(waiting: list[Job], gated: Mapping[JobId, Reason]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for job in waiting:
        counts[gated[job.id].code] += job.count if job.runs else 1
    return counts


def _oldest_wait(snapshot: Snapshot, gated: Mapping[JobId, Reason], now: datetime) -> float:
    """Return the seconds since the submission of the first eligible job: they are in the order of their ids."""
    pending = (job for job in snapshot.jobs if job.state is JobState.PENDING)
    first = next((job for job in pending if not job.held and job.id not in gated), None)
    return max(0.0, (now - first.submitted_at).total_seconds()) if first else 0.0
