"""Series of the latest snapshot, in base units. A scrape reads only memory: neither driver, engine nor disk.

GPU readings under dcgm-exporter's names and units are off by default: beside a real one every sum would be doubled.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gputui import __version__
from gputui.domain.conditions import ConditionTracker
from gputui.domain.event import Update
from gputui.domain.gpu import GpuSample, GpuState, GpuView, HealthCode, ProbeCode
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.kept_data import BackupRecord
from gputui.domain.policy.cluster_state import UsageLedger, fair_share_factor, usage_ratios
from gputui.domain.policy.planning_context import LONGEST
from gputui.domain.policy.reasons import gated_jobs
from gputui.domain.settings import Settings
from gputui.domain.snapshot import EMPTY, Node, Snapshot, effective_policy
from gputui.domain.state import JobState
from gputui.domain.text import plain
from gputui.metrics import families
from gputui.metrics.families import OTHER, Family, Kind, SeriesPage, TenantLabels

log = logging.getLogger(__name__)

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
        # jobs are in the order of their ids
        pending = (job for job in snapshot.jobs if job.state is JobState.PENDING and not job.held)
        oldest = next((job for job in pending if job.id not in gated), None)
        page.add(families.OLDEST, max(0.0, (now - oldest.submitted_at).total_seconds()) if oldest else 0.0)
        by_reason: Counter[str] = Counter()
        for job in waiting:
            by_reason[gated[job.id].code] += job.count if job.runs else 1
        for code, number in by_reason.items():
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


_SEVERITIES = ("error", "warning", "information")


class SnapshotCollector(Collector):
    """Converts the latest snapshot into samples."""

    def __init__(
        self, settings: Settings, tenants: TenantLabels, now: Callable[[], datetime], store_id: str = ""
    ) -> None:
        self._settings = settings
        self._tenants = tenants
        self._now = now
        self._store_id = store_id
        self._jobs = JobSeries(settings, tenants, now())
        self._latest: tuple[Snapshot, Mapping[JobId, Job]] = (EMPTY, {})
        self._conditions = ConditionTracker()
        self.sizes: Mapping[str, int] = {}
        """Bytes of the store's files by kind, as last measured."""
        self.backup: BackupRecord | None = None
        """Result of the last backup into a directory, as last read."""

    @property
    def snapshot(self) -> Snapshot:
        return self._latest[0]

    def begin(self, jobs: Iterable[Job]) -> None:
        """Take the jobs of the queue before the first snapshot."""
        self._jobs.update(Update(came=tuple(jobs)))

    def update(self, snapshot: Snapshot, update: Update, jobs: Mapping[JobId, Job]) -> None:
        """Take the newest snapshot, with its difference to the last, and its jobs by id."""
        self._jobs.update(update)
        held = (job_id for view in snapshot.gpus for job_id in view.job_ids)
        self._latest = snapshot, {job_id: jobs[job_id] for job_id in held if job_id in jobs}
        self._conditions.look(snapshot, self._now())

    def describe(self) -> Iterable[Metric]:
        """Return nothing: a test checks the names, instead of each registration."""
        return ()

    def collect(self) -> Iterable[Metric]:
        page, now = SeriesPage(), self._now()
        snapshot, jobs = self._latest
        page.add(families.BUILD_INFO, 1, {"version": __version__, "python": platform.python_version()})
        if snapshot is EMPTY:
            return page.metrics()
        leader = snapshot.leader
        if leader is not None:
            page.add(families.SCHEDULER_INFO, 1, {"kind": leader.kind, "host": plain(leader.host)})
            page.add(families.SCHEDULER_START, leader.started_at)
        page.add(families.HALTED, any(notice.halts for notice in snapshot.notices))
        severities = Counter(dict.fromkeys(_SEVERITIES, 0))
        for condition in self._conditions.shown:  # one of many jobs counts once for each
            severities[condition.severity] += condition.count
        for severity, count in severities.items():
            page.add(families.NOTICES, count, {"severity": severity})
        if snapshot.engine_decides:
            self._add_cluster(page, snapshot, jobs, now)
            return page.metrics()
        self._jobs.add(page, snapshot, now)
        page.add(families.PAUSED, snapshot.controls.paused)
        page.add(families.FRAGMENTED, snapshot.fragmentation)
        if snapshot.nodes:
            add_gpu_counts(page, snapshot.gpus)
        for node in snapshot.nodes:
            self._add_gpus(page, node, Holders(jobs, self._tenants, self._store_id))
            _add_node(page, node, now)
        for kind, size in self.sizes.items():
            page.add(families.STORE_SIZE, size, {"file": kind})
        if (backup := self.backup) is not None:
            page.add(families.BACKUP_UP, not backup.problem)
            page.add(families.BACKUP_LAST, backup.good_at)
        return page.metrics()

    def _add_gpus(self, page: SeriesPage, node: Node, holders: Holders) -> None:
        add_gpus(page, node, holders)
        if self._settings.metrics.dcgm:
            add_dcgm(page, node, holders.jobs)

    def _add_cluster(self, page: SeriesPage, snapshot: Snapshot, jobs: Mapping[JobId, Job], now: datetime) -> None:
        """Add the jobs and GPUs of a cluster; while its engine does not answer, only that."""
        leader = snapshot.leader
        is_up = leader is not None and not leader.silent_for
        page.add(families.RUNTIME_UP, is_up, {"runtime": leader.kind if leader is not None else ""})
        if not is_up:
            return
        self._jobs.add(page, snapshot, now)
        add_gpu_counts(page, snapshot.gpus)
        for node in snapshot.nodes:
            self._add_gpus(page, node, Holders(jobs, self._tenants, ""))
            labels = {"hostname": node.name}
            page.add(families.NODE_UP, not node.down, labels)
            page.add(families.NODE_DRAINED, node.drain is not None, labels)
            if node.probe.code not in {ProbeCode.NO_PROBE, ProbeCode.STARTING}:
                is_read = node.probe.code is ProbeCode.OK and any(view.current is not None for view in node.gpus)
                page.add(families.NODE_PROBE_UP, is_read, labels)
            page.add(families.NODE_PROBE_AGE, _read_at(node, now)[1], labels)


def _read_at(node: Node, now: datetime) -> tuple[datetime | None, timedelta | None]:
    """Return the time and the age of the latest reading of the node's GPUs."""
    at = max((view.sample.sampled_at for view in node.gpus if view.sample), default=None)
    return at, None if at is None else max(now - at, timedelta())


def _add_node(page: SeriesPage, node: Node, now: datetime) -> None:
    if node.probe.code is not ProbeCode.STARTING:
        page.add(families.NVML_UP, node.probe.code is ProbeCode.OK)
    read_at, age = _read_at(node, now)
    page.add(families.PROBE_LAST, read_at)
    page.add(families.PROBE_AGE, age)
    for runtime in node.runtimes:
        page.add(families.RUNTIME_UP, runtime.up if runtime.asked else None, {"runtime": runtime.name})
    host = node.host
    if host is None:
        return
    page.add(families.HOST_CPU, host.cpu)
    page.add(families.HOST_CORES, host.cores)
    page.add(families.HOST_LOAD, host.load)
    page.add(families.HOST_MEMORY, host.memory_total)
    page.add(families.HOST_MEMORY_USED, host.memory_used)
    page.add(families.HOST_RECEIVED, host.received)
    page.add(families.HOST_SENT, host.sent)
    for disk in host.disks:
        for role in disk.roles:
            labels = {"role": role, "mount": disk.mount}
            page.add(families.DISK_SIZE, disk.total, labels)
            page.add(families.DISK_FREE, disk.free, labels)


LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "DCGM_FI_DRIVER_VERSION", "hpc_job")
_MIB = 1024**2


def _of(name: str, words: str) -> Family:
    return Family(f"DCGM_FI_DEV_{name}", Kind.GAUGE, LABELS, words)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


SERIES: tuple[tuple[Family, Callable[[GpuSample], float | None]], ...] = (
    (_of("GPU_UTIL", "GPU utilization (in %)."), lambda it: _scaled(it.utilization, 100)),
    (_of("MEM_COPY_UTIL", "Memory utilization (in %)."), lambda it: _scaled(it.memory_utilization, 100)),
    (_of("FB_USED", "Framebuffer memory used (in MiB)."), lambda it: _scaled(it.memory_used, 1 / _MIB)),
    (
        _of("FB_FREE", "Framebuffer memory free (in MiB)."),
        lambda it: (
            None if it.memory_total is None or it.memory_used is None else (it.memory_total - it.memory_used) / _MIB
        ),
    ),
    (_of("GPU_TEMP", "GPU temperature (in C)."), lambda it: it.temperature),
    (_of("POWER_USAGE", "Power draw (in W)."), lambda it: it.power),
    (_of("SM_CLOCK", "SM clock frequency (in MHz)."), lambda it: it.sm_clock),
    (_of("MEM_CLOCK", "Memory clock frequency (in MHz)."), lambda it: it.memory_clock),
    (_of("XID_ERRORS", "Value of the last XID error encountered."), lambda it: it.xid),
)
"""Each series, and its value in dcgm-exporter's unit; None: unknown."""


def add_dcgm(page: SeriesPage, node: Node, jobs: Mapping[JobId, Job]) -> None:
    """Add the series of a node; as dcgm-exporter does, once for each job on a GPU."""
    for view in node.gpus:
        sample = view.current
        if sample is None:
            continue
        labels = gpu_labels(view, node.name)
        labels |= {
            "modelName": labels.pop("model"),
            "pci_bus_id": view.gpu.pci_bus_id or "",
            "device": "" if view.gpu.minor is None else f"nvidia{view.gpu.minor}",
            "DCGM_FI_DRIVER_VERSION": node.driver_version or "",
        }
        own = [{"hpc_job": jobs[job_id].shown_id} for job_id in view.job_ids if job_id in jobs]
        for one in own or [{}]:
            for family, value in SERIES:
                page.add(family, value(sample), labels | one)


class JobMapping(Struct, eq=False):
    """Keeps the files of a directory up to date. `write` blocks on the disk."""

    _directory: Path
    _written: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    """Sentence about the last error; empty when all is well."""

    def write(self, snapshot: Snapshot) -> None:
        """Write the files whose contents have changed."""
        if not snapshot.gpus:
            return
        shown = {job.id: job.shown_id for job in snapshot.jobs if job.state.is_active}
        whole = (view for view in snapshot.gpus if view.gpu.mig_parent is None)
        wanted = {
            str(view.gpu.index): "".join(f"{shown[job_id]}\n" for job_id in view.job_ids if job_id in shown)
            for view in whole
        }
        try:
            with suppress(FileExistsError):
                self._directory.mkdir(parents=True)
                self._directory.chmod(0o755)  # dcgm-exporter reads it as another user, whatever the umask here
            for name, content in wanted.items():
                if self._written.get(name) != content:
                    _replace(self._directory / name, content)
                    self._written[name] = content
            self.fault = ""
        except OSError as error:
            self._written.clear()
            self.fault = f"{error.filename or self._directory}: {error.strerror}"
            log.warning("job files for dcgm-exporter cannot be written: %s", self.fault)


def _replace(path: Path, content: str) -> None:
    """Replace the file atomically; dcgm-exporter ignores names that are not numbers."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "w") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(content)
        partial.replace(path)
    except FileExistsError:
        partial.unlink()
        raise
    finally:
        with suppress(OSError):
            partial.unlink()
