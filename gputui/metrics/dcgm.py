"""Help for dashboards made for dcgm-exporter: its names, units and labels for GPU readings, and its files of jobs.

The readings are off by default: beside a real dcgm-exporter every sum over these series would be doubled.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from gputui.domain.gpu import GpuSample, GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Node, Snapshot
from gputui.metrics.families import Family, Kind, SeriesPage
from gputui.metrics.series import gpu_labels

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
"""Each series, and its value in dcgm-exporter's unit; None: unknown."""


def add_dcgm(page: SeriesPage, node: Node, jobs: Mapping[JobId, Job]) -> None:
    """Add the series of a node; as dcgm-exporter does, once for each job on a GPU."""
    for view in node.gpus:
        sample = view.current
        if sample is None:
            continue
        for labels in _labels(view, node, jobs):
            for family, value in SERIES:
                page.add(family, value(sample), labels)


def _labels(view: GpuView, node: Node, jobs: Mapping[JobId, Job]) -> Iterable[dict[str, str]]:
    gpu = view.gpu
    labels = gpu_labels(view, node.name)
    labels |= {
        "modelName": labels.pop("model"),
        "pci_bus_id": gpu.pci_bus_id or "",
        "device": "" if gpu.minor is None else f"nvidia{gpu.minor}",
        "DCGM_FI_DRIVER_VERSION": node.driver_version or "",
    }
    found = [jobs[job_id].shown_id for job_id in view.job_ids if job_id in jobs]
    return [labels | {"hpc_job": shown} for shown in found] or [labels]


log = logging.getLogger(__name__)


class JobMapping:
    """Keeps the files of a directory up to date. `write` blocks on the disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: dict[str, str] = {}
        self.fault = ""
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
