"""Series about GPUs, jobs and tenants, in base units."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import Struct, field

from gputui.domain.event import Update
from gputui.domain.gpu import GpuSample, GpuState, GpuView, HealthCode, ProbeCode
from gputui.domain.job import Job, JobState, Reason
from gputui.domain.job_spec import JobId
from gputui.domain.policy.cluster_state import UsageLedger, fair_share_factor, usage_ratios
from gputui.domain.policy.planning_context import LONGEST
from gputui.domain.policy.reasons import gated_jobs
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Node, Snapshot, effective_policy
from gputui.domain.text import plain
from gputui.metrics import families
from gputui.metrics.families import OTHER, SeriesPage, TenantLabels

_LONGEST_NAME = 80
"""Maximum number of characters of a job's name in a label."""
_MHZ = 1_000_000
_UUIDS = ("GPU-", "MIG-")
"""Beginnings of what drivers give as UUIDs; where nobody reads a GPU of a cluster, only a name stands for it."""


class Holders(NamedTuple):
    """Jobs that hold GPUs, and the data for their labels."""

    jobs: Mapping[JobId, Job]
    tenants: TenantLabels
    store_id: str
    """Id of the store, which is part of containers' names; empty in a cluster."""

    def labels(self, job: Job) -> dict[str, str]:
        attempt = job.attempt
        return {
            "job_id": job.shown_id,
            "job_name": plain(job.name, _LONGEST_NAME),
            "tenant": self.tenants.label(job.spec.tenant),
            "container": f"gputui-{self.store_id}-{job.id}-{attempt.number}" if attempt and self.store_id else "",
            "container_id": (attempt.container_id if attempt else None) or "",
        }


def gpu_labels(view: GpuView, host: str) -> dict[str, str]:
    """Return the labels of a GPU; a MIG instance has its profile and number too, by dcgm-exporter's names."""
    gpu, uuid = view.gpu, view.gpu.shown_uuid
    uuid = uuid if uuid.startswith(_UUIDS) else ""
    labels = {"gpu": str(gpu.index), "UUID": uuid, "model": plain(gpu.model or ""), "hostname": host}
    if gpu.mig_parent is not None:
        labels |= {"GPU_I_PROFILE": gpu.mig_profile or "", "GPU_I_ID": str(gpu.mig_index or 0)}
    return labels


def add_gpu_counts(page: SeriesPage, views: Iterable[GpuView]) -> None:
    """Add how many GPUs are in each state, and the share of allocated ones."""
    usable = [view for view in views if not view.gpu.mig_enabled]
    states = Counter(view.state for view in usable)
    for state in GpuState:
        page.add(families.GPUS, states[state], {"state": state})
    if usable:
        page.add(families.ALLOCATION, states[GpuState.ALLOCATED] / len(usable))


def add_gpus(page: SeriesPage, node: Node, holders: Holders) -> None:
    for view in node.gpus:
        labels = gpu_labels(view, node.name)
        info = {"pci_bus_id": view.gpu.pci_bus_id or "", "driver_version": node.driver_version or ""}
        page.add(families.GPU_INFO, 1, labels | info)
        code = view.health.code
        is_known = view.current is not None or code not in {HealthCode.OK, HealthCode.UNKNOWN}
        page.add(families.GPU_UP, None if node.probe.code is ProbeCode.NO_PROBE else view.current is not None, labels)
        page.add(families.GPU_HEALTHY, view.health.is_schedulable if is_known else None, labels)
        page.add(families.GPU_HEALTH, 1 if is_known or code is HealthCode.UNKNOWN else None, labels | {"code": code})
        page.add(families.GPU_IDLE, view.idle_since, labels)
        page.add(families.GPU_STATE, 1, labels | {"state": view.state})
        for job_id in view.job_ids:
            if (job := holders.jobs.get(job_id)) is not None:
                page.add(families.GPU_JOB, 1, labels | holders.labels(job))
        if view.current is not None:
            _add_readings(page, view.current, labels)


def _add_readings(page: SeriesPage, sample: GpuSample, labels: dict[str, str]) -> None:
    page.add(families.UTILIZATION, sample.utilization, labels)
    page.add(families.MEMORY_UTILIZATION, sample.memory_utilization, labels)
    page.add(families.SM_ACTIVE, sample.sm_activity, labels)
    page.add(families.MEMORY_ACTIVE, sample.memory_activity, labels)
    page.add(families.MEMORY_USED, sample.memory_used, labels)
    page.add(families.MEMORY_SIZE, sample.memory_total, labels)
    page.add(families.TEMPERATURE, sample.temperature, labels)
    page.add(families.POWER, sample.power, labels)
    page.add(families.POWER_LIMIT, sample.power_limit, labels)
    page.add(families.SM_CLOCK, None if sample.sm_clock is None else sample.sm_clock * _MHZ, labels)
    page.add(families.MEMORY_CLOCK, None if sample.memory_clock is None else sample.memory_clock * _MHZ, labels)
    page.add(families.FAN, sample.fan, labels)
    for reason in sample.throttle:
        page.add(families.THROTTLED, 1, labels | {"reason": reason})
    page.add(families.PROCESSES, None if sample.processes is None else len(sample.processes), labels)
    page.add(families.ECC, sample.ecc_corrected, labels | {"type": "corrected"})
    page.add(families.ECC, sample.ecc_uncorrected, labels | {"type": "uncorrected"})
    page.add(families.LAST_XID, sample.xid, labels)
    page.add(families.PCIE_SENT, sample.pcie_tx, labels)
    page.add(families.PCIE_RECEIVED, sample.pcie_rx, labels)
    page.add(families.NVLINK_SENT, sample.nvlink_tx, labels)
    page.add(families.NVLINK_RECEIVED, sample.nvlink_rx, labels)


class TenantSums(Struct):
    states: Counter[JobState] = field(default_factory=Counter)
    waiting: int = 0
    """Number of waiting jobs that are not held."""
    backlog: float = 0.0
    """GPU-seconds that these ask for, except those that ask for all GPUs."""
    whole: float = 0.0
    """Seconds for which jobs ask for all GPUs."""
    held: int = 0
    """GPUs that its jobs hold."""


class JobSums:
    """Sums by tenant. Called by one thread at a time."""

    def __init__(self, settings: Settings, now: datetime) -> None:
        longest = settings.policy.max_time or settings.scheduler.max_time or LONGEST
        self._longest = longest.total_seconds()
        self._ledger = UsageLedger(settings.policy.half_life.total_seconds(), now.timestamp())
        self.tenants: defaultdict[str, TenantSums] = defaultdict(TenantSums)

    def update(self, gone: Iterable[Job], came: Iterable[Job]) -> None:
        """Remove jobs, and add others."""
        for job in gone:
            self._add(job, -1)
        for job in came:
            self._add(job, 1)

    def used(self, now: datetime) -> dict[str, float]:
        """Return the GPU-seconds of each tenant in these jobs, older ones decayed."""
        return self._ledger.used(now.timestamp())

    def seconds(self, job: Job) -> float:
        """Return the planned seconds of a job; of an entry, the sum over its elements."""
        limit = job.spec.time_limit
        return (self._longest if limit is None else limit / _SECOND) * (job.count if job.runs else 1)

    def _add(self, job: Job, sign: int) -> None:
        sums = self.tenants[job.spec.tenant]
        count = sign * (job.count if job.runs else 1)
        sums.states[job.state] += count
        if job.state is JobState.PENDING and not job.held:
            sums.waiting += count
            wanted = job.spec.gpus
            if wanted.everything:
                sums.whole += sign * self.seconds(job)
            elif wanted.minimum:
                sums.backlog += sign * wanted.minimum * self.seconds(job)
            if not sums.waiting:
                sums.backlog = sums.whole = 0.0  # no job is left, so remove rounding errors
        if job.attempts:
            sums.held += sign * len(job.gpus)
            for attempt in job.attempts:
                gpus = sign * attempt.gpu_count * attempt.gpu_share
                if gpus and attempt.started_at:
                    self._ledger.begin(job.spec.tenant, gpus, attempt.started_at.timestamp())
                    if attempt.ended_at:
                        self._ledger.end(job.spec.tenant, gpus, attempt.ended_at.timestamp())


_SECOND = timedelta(seconds=1)


class JobSeries:
    """Adds the series about jobs and tenants to a page. Scrapes and ticks may call it at the same time."""

    def __init__(self, settings: Settings, tenants: TenantLabels, now: datetime) -> None:
        self._settings = settings
        self._tenants = tenants
        self._sums = JobSums(settings, now)
        self._lock = threading.Lock()

    def update(self, update: Update) -> None:
        """Apply the changed jobs."""
        with self._lock:
            self._sums.update(update.gone, update.came)

    def add(self, page: SeriesPage, snapshot: Snapshot, now: datetime) -> None:
        """Add all series about jobs and tenants. Those about fair shares and caps are left out of a cluster's."""
        gated = gated_jobs(snapshot.reasons)
        waiting = [job for job in snapshot.jobs if job.id in gated] if gated else []
        gpus = sum(view.gpu.mig_parent is None for view in snapshot.gpus)
        with self._lock:
            states, eligible, backlog, held = self._by_label(waiting, gpus)
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
        if not snapshot.engine_decides:
            self._add_use(page, snapshot, used, names, now)

    def _by_label(
        self, gated: list[Job], gpus: int
    ) -> tuple[Counter[tuple[str, JobState]], dict[str, int], dict[str, float], Counter[str]]:
        """Return the sums by label: jobs by state, eligible jobs and their requests, and GPUs held."""
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
            if (label := self._tenants.label(name)) != OTHER:  # shares of several tenants do not add up
                page.add(families.FAIR_SHARE, fair_share_factor(ratio), {"tenant": label})
        for tenant in tenants.values():
            labels = {"tenant": self._tenants.label(tenant.name)}
            if labels["tenant"] != OTHER:
                page.add(families.WEIGHT, tenant.weight, labels)
                page.add(families.GPU_CAP, tenant.gpus, labels)
                page.add(families.RUNNING_CAP, tenant.running, labels)
                page.add(families.PENDING_CAP, tenant.pending, labels)
                page.add(families.PRIORITY_CAP, tenant.max_priority, labels)


def _by_reason(waiting: list[Job], gated: Mapping[JobId, Reason]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for job in waiting:
        counts[gated[job.id].code] += job.count if job.runs else 1
    return counts


def _oldest_wait(snapshot: Snapshot, gated: Mapping[JobId, Reason], now: datetime) -> float:
    """Return the seconds since the submission of the first eligible job; jobs are in the order of their ids."""
    pending = (job for job in snapshot.jobs if job.state is JobState.PENDING)
    first = next((job for job in pending if not job.held and job.id not in gated), None)
    return max(0.0, (now - first.submitted_at).total_seconds()) if first else 0.0
