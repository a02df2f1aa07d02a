"""Collector of the latest snapshot. A scrape reads only memory: neither driver, engine nor disk."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gputui import __version__
from gputui.domain.conditions import Condition, ConditionTracker
from gputui.domain.event import Update
from gputui.domain.gpu import ProbeCode
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.kept_data import BackupRecord
from gputui.domain.settings import Settings
from gputui.domain.snapshot import EMPTY, Node, Snapshot
from gputui.domain.text import plain
from gputui.metrics import families
from gputui.metrics.dcgm import add_dcgm
from gputui.metrics.families import SeriesPage, TenantLabels
from gputui.metrics.series import Holders, JobSeries, add_gpu_counts, add_gpus

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
        self._latest = snapshot, _holders(snapshot, jobs)
        self._conditions.look(snapshot, self._now())

    def describe(self) -> Iterable[Metric]:
        """Return nothing: a test checks the names, instead of each registration."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all families with their samples."""
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
        _add_conditions(page, self._conditions.shown)
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
            page.add(families.NODE_PROBE_AGE, _age(node, now), labels)


def _holders(snapshot: Snapshot, jobs: Mapping[JobId, Job]) -> dict[JobId, Job]:
    wanted = (job_id for view in snapshot.gpus for job_id in view.job_ids)
    return {job_id: jobs[job_id] for job_id in wanted if job_id in jobs}


def _add_conditions(page: SeriesPage, found: Iterable[Condition]) -> None:
    """Add how many conditions the console lists now; a condition of many jobs counts once for each."""
    counts = Counter(dict.fromkeys(_SEVERITIES, 0))
    for condition in found:
        counts[condition.severity] += condition.count
    for severity, count in counts.items():
        page.add(families.NOTICES, count, {"severity": severity})


def _read_at(node: Node) -> datetime | None:
    """Return the time of the latest reading of the node's GPUs."""
    return max((view.sample.sampled_at for view in node.gpus if view.sample), default=None)


def _age(node: Node, now: datetime) -> timedelta | None:
    read_at = _read_at(node)
    return None if read_at is None else max(now - read_at, timedelta())


def _add_node(page: SeriesPage, node: Node, now: datetime) -> None:
    """Add the probe, the runtimes and the host."""
    if node.probe.code is not ProbeCode.STARTING:
        page.add(families.NVML_UP, node.probe.code is ProbeCode.OK)
    page.add(families.PROBE_LAST, _read_at(node))
    page.add(families.PROBE_AGE, _age(node, now))
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
