"""GPU readings under the names, units and labels of NVIDIA's dcgm-exporter, for dashboards that were made for it.

Off unless a site wants them: beside a real dcgm-exporter every sum over these series would be doubled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gputui.domain.gpu import GpuSample, GpuView, HealthCode
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import Node
from gputui.metrics.families import Family, Kind
from gputui.metrics.gpu_series import gpu_labels
from gputui.metrics.page import SeriesPage

LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "DCGM_FI_DRIVER_VERSION", "hpc_job")
_MIB = 1024**2


def _of(name: str, words: str) -> Family:
    return Family(f"DCGM_FI_DEV_{name}", Kind.GAUGE, LABELS, words)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _free(sample: GpuSample) -> float | None:
    if sample.memory_total is None or sample.memory_used is None:
        return None
    return (sample.memory_total - sample.memory_used) / _MIB


SERIES: tuple[tuple[Family, Callable[[GpuSample], float | None]], ...] = (
    (_of("GPU_UTIL", "GPU utilization (in %)."), lambda it: _scaled(it.utilization, 100)),
    (_of("MEM_COPY_UTIL", "Memory utilization (in %)."), lambda it: _scaled(it.memory_utilization, 100)),
    (_of("FB_USED", "Framebuffer memory used (in MiB)."), lambda it: _scaled(it.memory_used, 1 / _MIB)),
    (_of("FB_FREE", "Framebuffer memory free (in MiB)."), _free),
    (_of("GPU_TEMP", "GPU temperature (in C)."), lambda it: it.temperature),
    (_of("POWER_USAGE", "Power draw (in W)."), lambda it: it.power),
    (_of("SM_CLOCK", "SM clock frequency (in MHz)."), lambda it: it.sm_clock),
    (_of("MEM_CLOCK", "Memory clock frequency (in MHz)."), lambda it: it.memory_clock),
    (_of("XID_ERRORS", "Value of the last XID error encountered."), lambda it: it.xid),
)
"""Each series, and its value in dcgm-exporter's unit; None: not known."""


def add_dcgm(page: SeriesPage, node: Node, jobs: Mapping[JobId, Job]) -> None:
    """Add the series of a node; as dcgm-exporter does, once for each job on a GPU."""
    for view in node.gpus:
        sample = view.sample
        if sample is None or view.stale or view.health.code is HealthCode.LOST:
            continue
        for labels in _labels(view, node, jobs):
            for family, value in SERIES:
                page.add(family, value(sample), labels)


def _labels(view: GpuView, node: Node, jobs: Mapping[JobId, Job]) -> Iterable[dict[str, str]]:
    gpu = view.gpu
    labels = gpu_labels(view, node.name) | {
        "pci_bus_id": gpu.pci_bus_id or "",
        "device": "" if gpu.minor is None else f"nvidia{gpu.minor}",
        "DCGM_FI_DRIVER_VERSION": node.driver_version or "",
    }
    found = [jobs[job_id].shown_id for job_id in view.job_ids if job_id in jobs]
    return [labels | {"hpc_job": shown} for shown in found] or [labels]
