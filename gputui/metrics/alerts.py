"""Alert rules for Prometheus."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

JOB = "gputui"
"""Name of the job in the scrape configuration, by which a missing scheduler is detected."""
_SAME = "on (instance, job)"


class Alert(Struct, frozen=True):
    """An alert rule."""

    name: str
    expression: str
    lasts: str
    """Time for which the expression must hold."""
    severity: str
    summary: str
    """Sentence; `{{ $labels.… }}` is replaced by labels of the series."""
    advice: str

    @property
    def rule(self) -> dict[str, Any]:
        """Return the rule in Prometheus' format."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.advice},
        }


ALERTS = (
    Alert(
        "GputuiGpuIdleWhileJobsWait",
        f'gputui_gpus{{state="FREE"}} - {_SAME} gputui_gpus_fragmented > 0 and {_SAME} '
        "sum by (instance, job) (gputui_jobs_eligible) > 0",
        "30m",
        "warning",
        "{{ $value }} GPUs of {{ $labels.instance }} are free although jobs wait that could use them",
        "`gputui explain ID` of the first waiting job says why. GPUs kept for a wide job or a reservation count too.",
    ),
    Alert(
        "GputuiJobLeavesGpuIdle",
        "(time() - gputui_gpu_idle_since_timestamp_seconds) * on (instance, UUID) group_right () "
        "max by (instance, hostname, UUID, job_id, tenant) (gputui_gpu_job_info) > 1800",
        "30m",
        "info",
        "Job {{ $labels.job_id }} of {{ $labels.tenant }} leaves a GPU of {{ $labels.hostname }} idle",
        "It holds the GPU {{ $labels.UUID }} and has not used it for {{ $value | humanizeDuration }}.",
    ),
    Alert(
        "GputuiGpuSick",
        "gputui_gpu_healthy == 0 or gputui_gpu_up == 0",
        "2m",
        "critical",
        "GPU {{ $labels.gpu }} of {{ $labels.hostname }} is lost, silent or unfit for jobs",
        "`gputui gpus` and `gputui doctor` say what is wrong with {{ $labels.UUID }}, and what helps.",
    ),
    Alert(
        "GputuiQueueStuck",
        "gputui_scheduler_halted == 1 or (sum by (instance, job) (gputui_jobs_eligible) > 0 "
        f'unless {_SAME} sum by (instance, job) (gputui_jobs{{state=~"CONFIGURING|RUNNING|COMPLETING"}}) > 0 '
        f"unless {_SAME} sum by (instance, job) (increase(gputui_attempts_started_total[15m])) > 0)",
        "15m",
        "critical",
        "No job starts on {{ $labels.instance }}",
        "Jobs wait, none runs, and none has started. `gputui doctor` checks the machine.",
    ),
    Alert(
        "GputuiDiskFilling",
        "gputui_disk_free_bytes / gputui_disk_size_bytes < 0.05 or "
        "(predict_linear(gputui_disk_free_bytes[6h], 86400) < 0 "
        "and gputui_disk_free_bytes / gputui_disk_size_bytes < 0.3)",
        "15m",
        "warning",
        "The disk {{ $labels.mount }} of {{ $labels.instance }} ({{ $labels.role }}) fills up",
        "Less than 5 % is free, or it is full within a day. Without space neither the queue nor logs can be written.",
    ),
    Alert(
        "GputuiProbeStale",
        "gputui_probe_age_seconds > 60 or gputui_nvml_up == 0",
        "1m",
        "critical",
        "The GPUs of {{ $labels.instance }} cannot be read",
        "No job starts on GPUs with old readings. `gputui doctor` checks the driver.",
    ),
    Alert(
        "GputuiNobodySchedules",
        f'up{{job="{JOB}"}} == 0 or absent(up{{job="{JOB}"}}) '
        "or time() - gputui_tick_last_success_timestamp_seconds > 120",
        "2m",
        "critical",
        "No scheduler runs on {{ $labels.instance }}",
        "Running jobs continue, but no job starts. `systemctl status gputui` and gputui.log say why.",
    ),
    Alert(
        "GputuiEngineDown",
        "gputui_runtime_up == 0",
        "5m",
        "critical",
        "The engine {{ $labels.runtime }} of {{ $labels.instance }} does not answer",
        "Its jobs neither start nor end. `gputui doctor` says what helps.",
    ),
    Alert(
        "GputuiBackupFailing",
        "gputui_backup_up == 0 or time() - gputui_backup_last_success_timestamp_seconds > 172800",
        "5m",
        "critical",
        "There is no new good backup of the queue of {{ $labels.instance }}",
        "`systemctl status gputui-backup` and `gputui state verify` say why. Older good backups are kept meanwhile.",
    ),
    Alert(
        "GputuiHookFailing",
        "gputui_hook_up == 0",
        "15m",
        "warning",
        "The hook {{ $labels.hook }} of {{ $labels.instance }} does not work",
        "Deliveries are retried, and dropped after a while. gputui.log names the error.",
    ),
    Alert(
        "GputuiNodeDown",
        "gputui_node_up == 0",
        "5m",
        "critical",
        "The node {{ $labels.hostname }} of the cluster is down",
        "The engine starts no jobs there, and lost those that ran there. `gputui gpus` gives its reason.",
    ),
    Alert(
        "GputuiNodeDrained",
        "gputui_node_drained == 1",
        "1d",
        "warning",
        "The node {{ $labels.hostname }} of the cluster has been drained for a day",
        "`gputui gpus` says by whom and why; `gputui resume {{ $labels.hostname }}` lets jobs start there again.",
    ),
    Alert(
        "GputuiNodeNotRead",
        "(gputui_node_probe_up == 0 or gputui_node_probe_age_seconds > 120) and on (instance, hostname) "
        "gputui_node_up == 1",
        "10m",
        "warning",
        "The GPUs of the node {{ $labels.hostname }} cannot be read",
        "The engine can use the node, but its probe does not answer. `gputui doctor` says why.",
    ),
    Alert(
        "GputuiClusterGpusFreeWhileJobsWait",
        f'(gputui_gpus{{state="FREE"}} and {_SAME} group by (instance, job) (gputui_node_up)) > 0 and {_SAME} '
        "sum by (instance, job) (gputui_jobs_eligible) > 0",
        "30m",
        "warning",
        "{{ $value }} GPUs of the cluster are free although jobs wait that only need GPUs",
        "`gputui explain ID` of the first waiting job gives the engine's reason: a partition, a limit, or a wide job "
        "for which GPUs are kept.",
    ),
    Alert(
        "GputuiClusterGpusWithoutLoad",
        "count by (instance, job) (max_over_time(gputui_gpu_utilization_ratio[30m]) < 0.01 "
        f"and on (instance, UUID) gputui_gpu_job_info) > 0 and {_SAME} group by (instance, job) (gputui_node_up) "
        f"and {_SAME} sum by (instance, job) (gputui_jobs_eligible) > 0",
        "30m",
        "info",
        "Jobs wait while {{ $value }} GPUs of the cluster are held without any load",
        "Their jobs have not used them for half an hour: the console and `gputui gpus` name them.",
    ),
)
"""All rules, in the order of the file."""
