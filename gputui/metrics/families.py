"""Table of all metric families: name, type, labels and help. Collectors and docs/observe.md use it.

Unknown values are omitted from a page, never written as 0. Tenants are labels of a bounded number of names, so that no
user can flood Prometheus with series.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct, field
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from gputui.domain.text import plain


class Kind(StrEnum):
    """Types of Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Family(Struct, frozen=True):
    """A metric family."""

    name: str
    """Scraped name; a histogram appends `_bucket`, `_sum` and `_count`."""
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def unit(self) -> str:
        """Return the unit at the end of the name; empty for counts and booleans."""
        name = self.name.removesuffix("_total").removesuffix("_timestamp_seconds")
        is_time = self.name.endswith(("_timestamp_seconds", "_start_time_seconds"))
        return "seconds since 1970" if is_time else next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")


_UNITS = ("bytes_per_second", "gpu_seconds", "seconds", "bytes", "ratio", "celsius", "watts", "hertz")
GPU_LABELS = ("gpu", "UUID", "model", "hostname")
"""Labels of a GPU; all but `model` with dcgm-exporter's names. `gpu` is the index, which can shift."""


def _gauge(name: str, labels: str, words: str) -> Family:
    return Family(f"gputui_{name}", Kind.GAUGE, tuple(labels.split()), words)


def _counter(name: str, labels: str, words: str) -> Family:
    return Family(f"gputui_{name}_total", Kind.COUNTER, tuple(labels.split()), words)


def _histogram(name: str, words: str) -> Family:
    return Family(f"gputui_{name}", Kind.HISTOGRAM, (), words)


def _gpu(name: str, words: str, kind: Kind = Kind.GAUGE, more: tuple[str, ...] = ()) -> Family:
    return Family(f"gputui_gpu_{name}", kind, (*GPU_LABELS, *more), words)


BUILD_INFO = _gauge("build_info", "version python", "Version of gputui and of Python; always 1.")
SCHEDULER_INFO = _gauge("scheduler_info", "kind host", "The process that schedules: a console, or serve; always 1.")
SCHEDULER_START = _gauge("scheduler_start_time_seconds", "", "Start of the process that schedules.")
PAUSED = _gauge("scheduler_paused", "", "Whether an operator has paused the scheduler.")
HALTED = _gauge("scheduler_halted", "", "Whether a problem keeps every job from starting.")
NOTICES = _gauge(
    "notices",
    "severity",
    "Problems and unusual states that the console lists now; each job that failed in the last hour is one.",
)
LAST_TICK = _gauge("tick_last_success_timestamp_seconds", "", "End of the last pass of the scheduler.")
TICK = _histogram("tick_duration_seconds", "Duration of a pass of the scheduler.")
PLAN = _histogram("plan_duration_seconds", "Duration of a plan: which jobs start now, and why others wait.")
FAILURES = _counter("scheduler_failures", "part", "Errors in parts of the scheduler that did not stop it.")

JOBS = _gauge("jobs", "tenant state", "Jobs in the queue file; ended ones until they move to the history.")
ELIGIBLE = _gauge("jobs_eligible", "tenant", "Waiting jobs that only need their turn and free GPUs to start.")
GATED = _gauge(
    "jobs_gated", "reason", "Waiting jobs that cannot start even on free GPUs: held, back-off, dependency, cap."
)
OLDEST = _gauge("jobs_oldest_eligible_wait_seconds", "", "Time since the submission of the oldest eligible job.")
BACKLOG = _gauge(
    "backlog_gpu_seconds", "tenant", "GPU time that eligible jobs ask for: GPUs times the time they are planned to run."
)
SUBMITTED = _counter("jobs_submitted", "tenant", "Jobs that entered the queue.")
STARTED = _counter("attempts_started", "tenant", "Attempts that started to run.")
ENDED_ATTEMPTS = _counter("attempts_ended", "cause", "Attempts that ended, by cause; Completed is exit code 0.")
ENDED = _counter("jobs_ended", "tenant state", "Jobs that ended and will not be retried.")
RETRIES = _counter("job_retries", "cause", "Failed attempts whose job is retried, by cause.")
PREEMPTIONS = _counter("job_preemptions", "tenant", "Attempts that were preempted.")
WAIT = _histogram("job_wait_seconds", "Time from submission, or from --begin, to the first start.")
TENANT_WAIT = Family(
    "gputui_tenant_wait_seconds", Kind.SUMMARY, ("tenant",), "Sum and number of the waits of a tenant's jobs."
)
RUN = _histogram("job_run_seconds", "Duration of an attempt, however it ended.")

GPUS = _gauge("gpus", "state", "GPUs by state; MIG instances count, GPUs that are cut into them do not.")
FRAGMENTED = _gauge("gpus_fragmented", "", "GPUs that stay free while jobs wait, because none of these can use them.")
ALLOCATION = _gauge("gpu_allocation_ratio", "", "Share of all GPUs that jobs hold.")
GPU_TIME = _counter("gpu_allocated_seconds", "tenant", "GPU time of attempts from start to end, idle time included.")

USAGE = _gauge("tenant_usage_gpu_seconds", "tenant", "GPU time that fair share counts: older use counts less.")
FAIR_SHARE = _gauge("tenant_fair_share_ratio", "tenant", "1: used nothing lately, 0.5: exactly its share, 0: far more.")
WEIGHT = _gauge("tenant_weight", "tenant", "Weight of a configured tenant.")
HELD = _gauge("tenant_gpus", "tenant", "GPUs that the tenant's jobs hold.")
GPU_CAP = _gauge("tenant_gpus_limit", "tenant", "Maximum number of GPUs that the tenant may hold.")
RUNNING_CAP = _gauge("tenant_running_jobs_limit", "tenant", "Maximum number of running jobs of the tenant.")
PENDING_CAP = _gauge("tenant_pending_jobs_limit", "tenant", "Maximum number of waiting jobs of the tenant.")
PRIORITY_CAP = _gauge("tenant_priority_limit", "tenant", "Highest priority of the tenant's jobs.")

STORE_SIZE = _gauge("store_size_bytes", "file", "Size of the queue's files: queue, journal, history, audit.")
WRITE = _histogram("store_write_duration_seconds", "Duration of a write to the journal, until it is on disk.")
DISK_SIZE = _gauge("disk_size_bytes", "role mount", "Size of the disk with the state directory, or with Docker's data.")
DISK_FREE = _gauge("disk_free_bytes", "role mount", "Free space there for ordinary users.")
BACKUP_UP = _gauge("backup_up", "", "Whether the last backup into a directory was made, and can be read.")
BACKUP_LAST = _gauge("backup_last_success_timestamp_seconds", "", "Last backup that can be read.")

RUNTIME_UP = _gauge("runtime_up", "runtime", "Whether the engine answers: docker, or process for host jobs.")
RUNTIME_LAST = _gauge("runtime_last_success_timestamp_seconds", "runtime", "Last call that the runtime answered.")
CALLS = _counter("runtime_calls", "runtime call result", "Commands to runtimes: pull, create, start, kill and others.")
CALL_TIME = Family(
    "gputui_runtime_call_duration_seconds", Kind.SUMMARY, ("runtime", "call"), "Duration of commands to runtimes."
)
DELIVERIES = _counter("hook_deliveries", "hook result", "Attempts to deliver an event to a hook, and dropped events.")
HOOK_UP = _gauge("hook_up", "hook", "Whether the last delivery to the hook worked.")
HOOK_LAST = _gauge("hook_last_success_timestamp_seconds", "hook", "Last delivery that worked.")

NVML_UP = _gauge("nvml_up", "", "Whether the driver can be read.")
PROBE_LAST = _gauge("probe_last_success_timestamp_seconds", "", "Time of the latest GPU reading.")
PROBE_AGE = _gauge("probe_age_seconds", "", "Age of the latest GPU reading.")
NODE_UP = _gauge("node_up", "hostname", "Whether the engine of a cluster can use the node.")
NODE_DRAINED = _gauge("node_drained", "hostname", "Whether the node of a cluster is drained.")
NODE_PROBE_UP = _gauge(
    "node_probe_up", "hostname", "Whether the GPUs of a node of a cluster are read; left out where nodes are not read."
)
NODE_PROBE_AGE = _gauge("node_probe_age_seconds", "hostname", "Age of the latest reading of a node of a cluster.")
HOST_CPU = _gauge("host_cpu_ratio", "", "Busy share of all processors.")
HOST_CORES = _gauge("host_cpus", "", "Processors that are online.")
HOST_LOAD = _gauge("host_load1", "", "Load average of one minute.")
HOST_MEMORY = _gauge("host_memory_size_bytes", "", "Memory of the host.")
HOST_MEMORY_USED = _gauge("host_memory_used_bytes", "", "Memory that is not available to new programs.")
HOST_RECEIVED = _gauge("host_network_receive_bytes_per_second", "", "Bytes received over all physical interfaces.")
HOST_SENT = _gauge("host_network_transmit_bytes_per_second", "", "Bytes sent over all physical interfaces.")

GPU_INFO = _gpu("info", "A GPU and its driver; always 1.", more=("pci_bus_id", "driver_version"))
GPU_UP = _gpu("up", "Whether the latest reading of the GPU is fresh and the GPU is not lost.")
GPU_HEALTHY = _gpu("healthy", "Whether its health allows jobs to start on it; left out while nobody reads it.")
GPU_HEALTH = _gpu("health", "The GPU's health, as a label; always 1; left out while nobody reads it.", more=("code",))
GPU_STATE = _gpu("state", "The GPU's state for the scheduler, as a label; always 1.", more=("state",))
GPU_IDLE = _gpu(
    "idle_since_timestamp_seconds",
    "Time since which its jobs or foreign processes have left it idle, after `console.idle_after`.",
)
GPU_JOB = _gpu(
    "job_info",
    "A job on the GPU; always 1. Join it by hostname, gpu and UUID.",
    more=("job_id", "job_name", "tenant", "container", "container_id"),
)
UTILIZATION = _gpu("utilization_ratio", "Share of the last interval in which a kernel ran.")
MEMORY_UTILIZATION = _gpu("memory_utilization_ratio", "Share of time in which memory was read or written.")
SM_ACTIVE = _gpu("sm_active_ratio", "Share of the multiprocessors' time in which they had work; from Hopper on.")
MEMORY_ACTIVE = _gpu("memory_active_ratio", "Share of the memory's bandwidth that was used; from Hopper on.")
MEMORY_USED = _gpu("memory_used_bytes", "Memory in use.")
MEMORY_SIZE = _gpu("memory_size_bytes", "Memory of the GPU.")
TEMPERATURE = _gpu("temperature_celsius", "Temperature of the GPU.")
POWER = _gpu("power_watts", "Power draw.")
POWER_LIMIT = _gpu("power_limit_watts", "Power limit.")
SM_CLOCK = _gpu("sm_clock_hertz", "Clock of the multiprocessors.")
MEMORY_CLOCK = _gpu("memory_clock_hertz", "Clock of the memory.")
FAN = _gpu("fan_speed_ratio", "Fan speed.")
THROTTLED = _gpu(
    "throttled",
    "A reason why the clocks are slowed down now, a power limit only if it is below the default; always 1.",
    more=("reason",),
)
PROCESSES = _gpu("processes", "Processes on the GPU.")
ECC = _gpu("ecc_errors_total", "ECC errors since the driver was loaded.", Kind.COUNTER, ("type",))
LAST_XID = _gpu("last_xid", "Number of the last Xid error since the probe began.")
PCIE_SENT = _gpu("pcie_transmit_bytes_per_second", "PCIe throughput; only of the GPU whose page is open.")
PCIE_RECEIVED = _gpu("pcie_receive_bytes_per_second", "PCIe throughput; only of the GPU whose page is open.")
NVLINK_SENT = _gpu("nvlink_transmit_bytes_per_second", "NVLink throughput; only of the GPU whose page is open.")
NVLINK_RECEIVED = _gpu("nvlink_receive_bytes_per_second", "NVLink throughput; only of the GPU whose page is open.")

FAMILIES = tuple(value for value in list(globals().values()) if isinstance(value, Family))
"""All families, in the order of the table above."""


SeriesValue: TypeAlias = float | int | bool | datetime | timedelta | None
NO_LABELS: Mapping[str, str] = {}


class SeriesPage(Struct, eq=False):
    """Samples by family, in the order in which the families are first named."""

    _metrics: dict[str, Metric] = field(default_factory=dict)

    def add(self, family: Family, value: SeriesValue, labels: Mapping[str, str] = NO_LABELS) -> None:
        """Add a sample; None adds nothing. Times become seconds since 1970, durations seconds."""
        if value is None:
            return
        if isinstance(value, datetime):
            value = value.timestamp()
        elif isinstance(value, timedelta):
            value = value.total_seconds()
        metric = self._metrics.get(family.name)
        if metric is None:
            name = family.name.removesuffix("_total")
            metric = self._metrics[family.name] = Metric(name, family.help, family.kind)
        metric.samples.append(Sample(family.name, dict(labels), float(value)))

    def metrics(self) -> Iterable[Metric]:
        return self._metrics.values()


OTHER = "other"
"""Label of all tenants beyond the limit."""
LONGEST = 64
"""Maximum number of characters of a name."""


class TenantLabels:
    """Assigns a label each to the first tenants; a label never changes."""

    def __init__(self, most: int, configured: Iterable[str] = ()) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        for name in configured:
            self.label(name)

    def label(self, tenant: str) -> str:
        found = self._known.get(tenant)
        if found is not None:
            return found
        with self._lock:
            if len(self._known) >= self._most:
                return self._known.get(tenant, OTHER)
            return self._known.setdefault(tenant, plain(tenant, LONGEST))

    @property
    def given(self) -> list[str]:
        with self._lock:
            return list(dict.fromkeys(self._known.values()))
