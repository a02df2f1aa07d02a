"""Series about GPUs, in base units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from gputui.domain.gpu import GpuSample, GpuState, GpuView, HealthCode
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import Node
from gputui.domain.text import plain
from gputui.metrics import families
from gputui.metrics.page import SeriesPage
from gputui.metrics.tenant_labels import TenantLabels

LONGEST = 80
"""Characters of a job's name as a label."""
_MHZ = 1_000_000


class Holders(NamedTuple):
    """Jobs that hold GPUs, and what their labels are made from."""

    jobs: Mapping[JobId, Job]
    tenants: TenantLabels
    store_id: str

    def labels(self, job: Job) -> dict[str, str]:
        """Return the labels of a job on a GPU."""
        attempt = job.attempt
        return {
            "job_id": job.shown_id,
            "job_name": plain(job.name, LONGEST),
            "tenant": self.tenants.label(job.spec.tenant),
            "container": f"gputui-{self.store_id}-{job.id}-{attempt.number}" if attempt else "",
            "container_id": (attempt.container_id if attempt else None) or "",
        }


def gpu_labels(view: GpuView, host: str) -> dict[str, str]:
    """Return the labels of a GPU; a MIG instance has its profile and number too, by dcgm-exporter's names."""
    gpu = view.gpu
    labels = {"gpu": str(gpu.index), "UUID": gpu.uuid, "modelName": plain(gpu.model or ""), "hostname": host}
    if gpu.mig_parent is not None:
        labels |= {"GPU_I_PROFILE": gpu.mig_profile or "", "GPU_I_ID": str(gpu.mig_index or 0)}
    return labels


def add_gpus(page: SeriesPage, node: Node, holders: Holders) -> None:
    """Add all series about the GPUs of a node."""
    usable = [view for view in node.gpus if not view.gpu.mig_enabled]
    states = Counter(view.state for view in usable)
    for state in GpuState:
        page.add(families.GPUS, states[state], {"state": state})
    if usable:
        page.add(families.ALLOCATION, states[GpuState.ALLOCATED] / len(usable))
    for view in node.gpus:
        labels = gpu_labels(view, node.name)
        _add_state(page, view, labels, node.driver_version)
        for job_id in view.job_ids:
            if (job := holders.jobs.get(job_id)) is not None:
                page.add(families.GPU_JOB, 1, labels | holders.labels(job))
        if view.sample is not None and not view.stale and view.health.code is not HealthCode.LOST:
            _add_readings(page, view.sample, labels)


def _add_state(page: SeriesPage, view: GpuView, labels: dict[str, str], driver: str | None) -> None:
    info = {"pci_bus_id": view.gpu.pci_bus_id or "", "driver_version": driver or ""}
    page.add(families.GPU_INFO, 1, labels | info)
    code = view.health.code
    page.add(families.GPU_UP, view.sample is not None and not view.stale and code is not HealthCode.LOST, labels)
    page.add(families.GPU_HEALTHY, None if code is HealthCode.UNKNOWN else view.health.is_schedulable, labels)
    page.add(families.GPU_HEALTH, 1, labels | {"code": code})
    page.add(families.GPU_IDLE, view.idle_since, labels)
    page.add(families.GPU_STATE, 1, labels | {"state": view.state})


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
