"""The dashboards: panels with their queries, as a table. `provisioning.py` converts them into Grafana's JSON."""

from __future__ import annotations

from msgspec import Struct

_FILTERS = {
    "%tenant": 'instance=~"$instance",tenant=~"$tenant"',
    "%node": 'instance=~"$instance",hostname=~"$node"',
    "%here": 'instance=~"$instance"',
    "%rate": "$__rate_interval",
}
"""Short forms in the queries below for the selection in a dashboard's variables."""


class Query(Struct, frozen=True):
    """A query of Prometheus, and the names of its series."""

    expression: str
    legend: str = ""


class Panel(Struct, frozen=True):
    """A panel of a dashboard."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    """Unit by Grafana's name."""
    kind: str = "timeseries"
    """`timeseries`, `stat`, `table`, or `row`: the title of the panels below it."""
    width: int = 8
    """Columns of 24."""
    about: str = ""
    repeats: str = ""
    """Variable for each of whose values a row is repeated, with its panels."""


class Dashboard(Struct, frozen=True):
    key: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str], ...] = ()
    """Names of variables besides `instance`, and the queries for their values."""


def _panel(
    title: str, *queries: str, unit: str = "short", kind: str = "timeseries", width: int = 8, about: str = ""
) -> Panel:
    """Return a panel; each query is written as `LEGEND = EXPRESSION`."""
    parted = (query.partition(" = ") for query in queries)
    return Panel(title, tuple(Query(_filled(each), legend) for legend, _, each in parted), unit, kind, width, about)


def _stat(title: str, expression: str, unit: str = "short") -> Panel:
    return _panel(title, f"{{{{instance}}}} = {expression}", unit=unit, kind="stat", width=4)


def _filled(query: str) -> str:
    for short, whole in _FILTERS.items():
        query = query.replace(short, whole)
    return query


def _quantile(share: str, family: str, window: str = "%rate") -> str:
    return f"histogram_quantile({share}, sum by (le, instance) (rate({family}_bucket{{%here}}[{window}])))"


def _of_jobs(family: str) -> str:
    """Return the reading of GPUs that jobs hold, with the job's labels."""
    about = "instance, hostname, gpu, UUID, job_id, job_name, tenant"
    return f"{family}{{%node}} * on (instance, hostname, gpu, UUID) group_right () max by ({about}) ({_JOB})"


_JOB = 'gputui_gpu_job_info{%tenant,hostname=~"$node",job_id=~"$job_id"}'
_GPU = "{{hostname}} GPU {{gpu}}"
_NODES = ("node", "label_values(gputui_gpu_info, hostname)")
"""Variable of the machines with GPUs: the nodes of a cluster, or the server."""
_BY_JOB = "{{job_id}} {{job_name}} ({{tenant}}), {{UUID}}"

SERVER = Dashboard(
    "server",
    "gputui: server",
    (
        _stat("GPUs held", "gputui_gpu_allocation_ratio{%here}", "percentunit"),
        _stat("Jobs running", 'sum by (instance) (gputui_jobs{%here,state="RUNNING"})'),
        _stat("Jobs eligible", "sum by (instance) (gputui_jobs_eligible{%here})"),
        _stat("Age of readings", "gputui_probe_age_seconds{%here}", "s"),
        _stat("Problems", 'sum by (instance) (gputui_notices{%here,severity=~"error|warning"})'),
        _stat("Paused", "gputui_scheduler_paused{%here}"),
        _panel("GPUs by state", "{{state}} = sum by (state) (gputui_gpus{%here})"),
        _panel(
            "Utilization",
            "mean = avg(gputui_gpu_utilization_ratio{%here})",
            "held by jobs = avg(gputui_gpu_allocation_ratio{%here})",
            unit="percentunit",
        ),
        _panel("Power", "{{instance}} = sum by (instance) (gputui_gpu_power_watts{%here})", unit="watt"),
        _panel(
            "GPU memory",
            "used = sum(gputui_gpu_memory_used_bytes{%here})",
            "size = sum(gputui_gpu_memory_size_bytes{%here})",
            unit="bytes",
        ),
        _panel("Processors", "{{instance}} = gputui_host_cpu_ratio{%here}", unit="percentunit"),
        _panel(
            "Memory",
            "used = gputui_host_memory_used_bytes{%here}",
            "size = gputui_host_memory_size_bytes{%here}",
            unit="bytes",
        ),
        _panel(
            "Disks: free",
            "{{role}} {{mount}} = gputui_disk_free_bytes{%here} / gputui_disk_size_bytes{%here}",
            unit="percentunit",
        ),
        _panel("Files of the queue", "{{file}} = gputui_store_size_bytes{%here}", unit="bytes"),
        _panel(
            "Network",
            "received = gputui_host_network_receive_bytes_per_second{%here}",
            "sent = gputui_host_network_transmit_bytes_per_second{%here}",
            unit="Bps",
        ),
        _panel(
            "Scheduler: 95th percentile",
            f"tick = {_quantile('0.95', 'gputui_tick_duration_seconds')}",
            f"plan = {_quantile('0.95', 'gputui_plan_duration_seconds')}",
            f"write = {_quantile('0.95', 'gputui_store_write_duration_seconds')}",
            unit="s",
        ),
        _panel(
            "Commands to engines",
            "{{runtime}} {{call}} {{result}} = "
            "sum by (runtime, call, result) (rate(gputui_runtime_calls_total{%here}[%rate])) > 0",
            unit="ops",
        ),
        _panel(
            "Engines and driver",
            "{{runtime}} = gputui_runtime_up{%here}",
            "driver = gputui_nvml_up{%here}",
        ),
        _panel(
            "Hooks",
            "{{hook}} {{result}} = sum by (hook, result) (increase(gputui_hook_deliveries_total{%here}[%rate]))",
            about="Empty until an event was delivered.",
        ),
    ),
)
QUEUE = Dashboard(
    "queue",
    "gputui: queue",
    (
        _stat("Longest wait", "gputui_jobs_oldest_eligible_wait_seconds{%here}", "s"),
        _stat("Backlog", "sum by (instance) (gputui_backlog_gpu_seconds{%here}) / 3600", "h"),
        _stat("Stranded GPUs", "gputui_gpus_fragmented{%here}"),
        _stat("Halted", "gputui_scheduler_halted{%here}"),
        _stat("Jobs in the queue", "sum by (instance) (gputui_jobs{%here})"),
        _stat("Free GPUs", 'gputui_gpus{%here,state="FREE"}'),
        _panel("Eligible jobs", "{{tenant}} = sum by (tenant) (gputui_jobs_eligible{%here})"),
        _panel("Waiting for something else", "{{reason}} = sum by (reason) (gputui_jobs_gated{%here})"),
        _panel(
            "Backlog in GPU-hours",
            "{{tenant}} = sum by (tenant) (gputui_backlog_gpu_seconds{%here}) / 3600",
            unit="h",
        ),
        _panel(
            "Jobs",
            "submitted = sum(increase(gputui_jobs_submitted_total{%here}[%rate]))",
            "started = sum(increase(gputui_attempts_started_total{%here}[%rate]))",
            "ended = sum(increase(gputui_jobs_ended_total{%here}[%rate]))",
        ),
        _panel("Ends", "{{state}} = sum by (state) (increase(gputui_jobs_ended_total{%here}[%rate]))"),
        _panel(
            "Why attempts end",
            "{{cause}} = sum by (cause) (increase(gputui_attempts_ended_total{%here}[%rate]))",
        ),
        _panel(
            "Retries and preemptions",
            "{{cause}} = sum by (cause) (increase(gputui_job_retries_total{%here}[%rate]))",
            "preempted = sum(increase(gputui_job_preemptions_total{%here}[%rate]))",
        ),
        _panel(
            "Wait until the first start",
            f"median = {_quantile('0.5', 'gputui_job_wait_seconds', window='1h')}",
            f"95th percentile = {_quantile('0.95', 'gputui_job_wait_seconds', window='1h')}",
            unit="s",
        ),
        _panel(
            "Duration of attempts",
            f"median = {_quantile('0.5', 'gputui_job_run_seconds', window='1h')}",
            f"95th percentile = {_quantile('0.95', 'gputui_job_run_seconds', window='1h')}",
            unit="s",
        ),
    ),
)
TENANT = Dashboard(
    "tenant",
    "gputui: tenants",
    (
        _panel(
            "GPU-hours held",
            "{{tenant}} = sum by (tenant) (increase(gputui_gpu_allocated_seconds_total{%tenant}[$__range])) / 3600",
            unit="h",
            kind="stat",
            width=24,
        ),
        _panel(
            "GPUs held",
            "{{tenant}} = sum by (tenant) (gputui_tenant_gpus{%tenant})",
            "{{tenant}} cap = max by (tenant) (gputui_tenant_gpus_limit{%here})",
        ),
        _panel("Jobs", "{{tenant}} {{state}} = sum by (tenant, state) (gputui_jobs{%tenant})"),
        _panel(
            "Backlog in GPU-hours",
            "{{tenant}} = sum by (tenant) (gputui_backlog_gpu_seconds{%tenant}) / 3600",
            unit="h",
        ),
        _panel(
            "Use that fair share counts",
            "{{tenant}} = sum by (tenant) (gputui_tenant_usage_gpu_seconds{%tenant}) / 3600",
            unit="h",
        ),
        _panel(
            "Fair share",
            "{{tenant}} = gputui_tenant_fair_share_ratio{%tenant}",
            about="1: used nothing lately; 0.5: exactly its share.",
        ),
        _panel(
            "Mean wait",
            "{{tenant}} = sum by (tenant) (rate(gputui_tenant_wait_seconds_sum{%tenant}[1h])) "
            "/ sum by (tenant) (rate(gputui_tenant_wait_seconds_count{%tenant}[1h]))",
            unit="s",
        ),
        _panel(
            "Ends",
            "{{tenant}} {{state}} = sum by (tenant, state) (increase(gputui_jobs_ended_total{%tenant}[%rate]))",
        ),
        _panel(
            "Utilization of the GPUs held",
            "{{tenant}} = avg by (tenant) ("
            "gputui_gpu_utilization_ratio{%here} * on (instance, hostname, gpu, UUID) group_right () "
            "max by (instance, hostname, gpu, UUID, tenant) (gputui_gpu_job_info{%tenant}))",
            unit="percentunit",
        ),
    ),
    (("tenant", "label_values(gputui_jobs_eligible, tenant)"),),
)
JOB = Dashboard(
    "job",
    "gputui: jobs on GPUs",
    (
        Panel(
            "Jobs on GPUs",
            (Query(_filled(f"max by (instance, hostname, gpu, UUID, job_id, job_name, tenant, container) ({_JOB})")),),
            kind="table",
            width=24,
        ),
        _panel("Utilization", f"{_BY_JOB} = {_of_jobs('gputui_gpu_utilization_ratio')}", unit="percentunit", width=12),
        _panel("Memory", f"{_BY_JOB} = {_of_jobs('gputui_gpu_memory_used_bytes')}", unit="bytes", width=12),
        _panel("Power", f"{_BY_JOB} = {_of_jobs('gputui_gpu_power_watts')}", unit="watt"),
        _panel("Temperature", f"{_BY_JOB} = {_of_jobs('gputui_gpu_temperature_celsius')}", unit="celsius"),
        _panel("Clock", f"{_BY_JOB} = {_of_jobs('gputui_gpu_sm_clock_hertz')}", unit="hertz"),
    ),
    (
        _NODES,
        ("tenant", "label_values(gputui_gpu_job_info, tenant)"),
        ("job_id", 'label_values(gputui_gpu_job_info{tenant=~"$tenant"}, job_id)'),
    ),
)
GPU_HEALTH = Dashboard(
    "gpu-health",
    "gputui: GPU health",
    (
        _panel("GPUs up", f"{_GPU} = gputui_gpu_up{{%node}}", kind="stat", width=12),
        _panel("GPUs fit for jobs", f"{_GPU} = gputui_gpu_healthy{{%node}}", kind="stat", width=12),
        _panel("Health", "{{code}} = count by (code) (gputui_gpu_health{%node})"),
        _panel("Temperature", f"{_GPU} = gputui_gpu_temperature_celsius{{%node}}", unit="celsius"),
        _panel(
            "Power of its limit",
            f"{_GPU} = gputui_gpu_power_watts{{%node}} / gputui_gpu_power_limit_watts{{%node}}",
            unit="percentunit",
        ),
        _panel("Clock", f"{_GPU} = gputui_gpu_sm_clock_hertz{{%node}}", unit="hertz"),
        _panel(
            "Slowed down",
            "GPUs = count(gputui_gpu_up{%node}) - count(gputui_gpu_up{%node} unless on (instance, hostname, gpu, UUID) "
            "gputui_gpu_throttled{%node})",
        ),
        _panel(
            "ECC errors",
            f"{_GPU} {{{{type}}}} = increase(gputui_gpu_ecc_errors_total{{%node}}[%rate])",
        ),
        _panel(
            "Work of the multiprocessors",
            f"{_GPU} = gputui_gpu_sm_active_ratio{{%node}}",
            unit="percentunit",
            about="From Hopper on.",
        ),
        Panel(
            "GPUs",
            (
                Query(
                    _filled(
                        "max by (instance, hostname, gpu, UUID, model, pci_bus_id, driver_version) "
                        "(gputui_gpu_info{%node})"
                    )
                ),
            ),
            kind="table",
            width=16,
        ),
    ),
    (_NODES,),
)
CLUSTER = Dashboard(
    "cluster",
    "gputui: cluster",
    (
        _stat("Engine answers", "gputui_runtime_up{%here}"),
        _stat("Nodes up", "sum by (instance) (gputui_node_up{%here})"),
        _stat("Nodes drained", "sum by (instance) (gputui_node_drained{%here})"),
        _stat("GPUs held", "gputui_gpu_allocation_ratio{%here}", "percentunit"),
        _stat("Jobs running", 'sum by (instance) (gputui_jobs{%here,state="RUNNING"})'),
        _stat("Jobs eligible", "sum by (instance) (gputui_jobs_eligible{%here})"),
        _panel("GPUs by state", "{{state}} = sum by (state) (gputui_gpus{%here})"),
        _panel(
            "Utilization by node",
            "{{hostname}} = avg by (hostname) (gputui_gpu_utilization_ratio{%node})",
            unit="percentunit",
            about="Empty where nodes are not read.",
        ),
        _panel("Power by node", "{{hostname}} = sum by (hostname) (gputui_gpu_power_watts{%node})", unit="watt"),
        _panel(
            "Nodes",
            "{{hostname}} up = gputui_node_up{%node}",
            "{{hostname}} drained = gputui_node_drained{%node}",
        ),
        _panel(
            "GPUs held by node",
            '{{hostname}} = count by (hostname) (gputui_gpu_state{%node,state="ALLOCATED"})',
        ),
        _panel("Age of readings", "{{hostname}} = gputui_node_probe_age_seconds{%node}", unit="s"),
        Panel("$node", (), kind="row", width=24, repeats="node"),
        _panel("Utilization", "GPU {{gpu}} = gputui_gpu_utilization_ratio{%node}", unit="percentunit", width=6),
        _panel("Memory", "GPU {{gpu}} = gputui_gpu_memory_used_bytes{%node}", unit="bytes", width=6),
        _panel("Temperature", "GPU {{gpu}} = gputui_gpu_temperature_celsius{%node}", unit="celsius", width=6),
        Panel(
            "Jobs",
            (Query(_filled("max by (gpu, job_id, job_name, tenant) (gputui_gpu_job_info{%node})")),),
            kind="table",
            width=6,
        ),
    ),
    (("node", "label_values(gputui_node_up, hostname)"),),
)
DASHBOARDS = (SERVER, QUEUE, TENANT, JOB, GPU_HEALTH, CLUSTER)
