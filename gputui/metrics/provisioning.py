"""Files for Grafana and Prometheus: dashboards, their provisioning, alert rules and the scrape configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gputui.domain.settings import MetricsSettings
from gputui.metrics.collector import SERIES
from gputui.metrics.families import FAMILIES, GPU_LABELS, Family
from gputui.metrics.panels import DASHBOARDS, Dashboard, Panel

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
        "(time() - gputui_gpu_idle_since_timestamp_seconds) * on (instance, hostname, gpu, UUID) group_right () "
        "max by (instance, hostname, gpu, UUID, job_id, tenant) (gputui_gpu_job_info) > 1800",
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
        f"and on (instance, hostname, gpu, UUID) gputui_gpu_job_info) > 0 and {_SAME} "
        f"group by (instance, job) (gputui_node_up) and {_SAME} sum by (instance, job) (gputui_jobs_eligible) > 0",
        "30m",
        "info",
        "Jobs wait while {{ $value }} GPUs of the cluster are held without any load",
        "Their jobs have not used them for half an hour: the console and `gputui gpus` name them.",
    ),
)
"""All rules, in the order of the file."""


SCHEMA = 39
"""Version of Grafana's model; newer Grafanas migrate it."""
COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHTS = {"stat": 4, "timeseries": 8, "table": 8, "row": 1}


def model(dashboard: Dashboard) -> dict[str, Any]:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    named = (("instance", "label_values(gputui_scheduler_info, instance)"), *dashboard.variables)
    variables = [source, *(_variable(name, query) for name, query in named)]
    return {
        "uid": f"gputui-{dashboard.key}",
        "title": dashboard.title,
        "tags": ["gputui"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "links": [{"type": "dashboards", "tags": ["gputui"], "title": "gputui", "asDropdown": True, "keepTime": True}],
        "panels": _placed(dashboard.panels),
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """Return the panels in rows from the left, each row as high as its highest panel."""
    placed, x, y, height = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > COLUMNS:
            x, y, height = 0, y + height, 0
        place = {"x": x, "y": y, "w": panel.width, "h": _HEIGHTS[panel.kind]}
        placed.append({"id": number, "gridPos": place, **_panel(panel)})
        x, height = x + panel.width, max(height, _HEIGHTS[panel.kind])
    return placed


def _panel(panel: Panel) -> dict[str, Any]:
    if panel.kind == "row":
        row = {"type": "row", "title": panel.title, "collapsed": False, "panels": []}
        return {**row, "repeat": panel.repeats} if panel.repeats else row
    is_table = panel.kind == "table"
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": _SOURCE,
            "expr": query.expression,
            "legendFormat": query.legend or "__auto",
            **({"format": "table", "instant": True} if is_table else {}),
        }
        for number, query in enumerate(panel.queries)
    ]
    found: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }
    if is_table:
        hidden = {"Time": True, "Value": True}
        found["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return found


_PROVIDER = """\
# For /etc/grafana/provisioning/dashboards/; the directory of the dashboards may be moved.
apiVersion: 1
providers:
  - name: gputui
    folder: gputui
    type: file
    options:
      path: {path}
"""
_SCRAPE = """\
# A part of prometheus.yml. The job has this name so that GputuiNobodySchedules notices when it is gone.
rule_files:
  - {rules}
scrape_configs:
  - job_name: {job}
    scrape_interval: 15s{scheme}
    static_configs:
      - targets: [{target}]
"""
_TLS = "\n    scheme: https\n    tls_config: {ca_file: /etc/prometheus/gputui.pem}"
_AUTH = "\n    basic_auth: {username: prometheus, password_file: /etc/prometheus/gputui.password}"


def files(out: Path, settings: MetricsSettings) -> Mapping[Path, str]:
    """Return the contents of all files by their path below `out`."""
    dashboards = {
        Path("grafana", "dashboards", f"gputui-{each.key}.json"): json.dumps(model(each), indent=1) + "\n"
        for each in DASHBOARDS
    }
    path, rules = out / "grafana" / "dashboards", out / "prometheus" / "gputui-alerts.yml"
    from gputui.config import listen_address

    host, port = listen_address(settings.listen, "metrics.listen")
    target = json.dumps(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    scheme = (_TLS if settings.certificate else "") + (_AUTH if settings.users else "")
    scrape_text = _SCRAPE.format(rules=json.dumps(str(rules)), job=JOB, scheme=scheme, target=target)
    return {
        **dashboards,
        Path("grafana", "provisioning", "dashboards", "gputui.yml"): _PROVIDER.format(path=json.dumps(str(path))),
        Path("prometheus", "gputui-alerts.yml"): rules_text(),
        Path("prometheus", "gputui-scrape.yml"): scrape_text,
    }


def rules_text() -> str:
    """Return the alert rules in YAML; quoted JSON strings are valid YAML."""
    return "groups:\n  - name: gputui\n    rules:\n" + "".join(map(_rule_text, ALERTS))


def _rule_text(alert: Alert) -> str:
    rule = alert.rule
    return (
        f"      - alert: {rule['alert']}\n        expr: {json.dumps(rule['expr'])}\n        for: {rule['for']}\n"
        f"        labels: {json.dumps(rule['labels'])}\n        annotations:\n"
        + "".join(f"          {name}: {json.dumps(text)}\n" for name, text in rule["annotations"].items())
    )


END = "<!-- end -->"


def updated(text: str) -> str:
    """Return the document with its generated tables up to date."""
    for name, table in (("families", families), ("dcgm", dcgm), ("dashboards", dashboards), ("alerts", alerts)):
        begin = f"<!-- {name} -->"
        before, _, rest = text.partition(begin)
        after = rest.partition(END)[2]
        text = before + begin + "\n\n" + "\n".join(table()) + "\n\n" + END + after
    return text


def families() -> Iterator[str]:
    """Return a row for each family."""
    yield from ("| series | type | unit | labels | meaning |", "|---|---|---|---|---|")
    for family in FAMILIES:
        yield f"| `{family.name}` | {family.kind} | {family.unit} | {_labels(family)} | {family.help} |"


def _labels(family: Family) -> str:
    own = family.labels
    if own[: len(GPU_LABELS)] == GPU_LABELS:
        return ", ".join(("GPU", *(f"`{label}`" for label in own[len(GPU_LABELS) :])))
    return ", ".join(f"`{label}`" for label in own)


def dcgm() -> Iterator[str]:
    """Return a row for each series under dcgm-exporter's names."""
    yield from ("| series | meaning |", "|---|---|")
    for family, _ in SERIES:
        yield f"| `{family.name}` | {family.help} |"


def dashboards() -> Iterator[str]:
    """Return a row for each dashboard."""
    yield from ("| dashboard | panels |", "|---|---|")
    for dashboard in DASHBOARDS:
        yield f"| {dashboard.title} | {', '.join(panel.title for panel in dashboard.panels)} |"


def alerts() -> Iterator[str]:
    """Return a row for each alert rule."""
    yield from ("| alert | after | severity | when |", "|---|---|---|---|")
    for alert in ALERTS:
        expression = alert.expression.replace("|", "\\|")
        yield f"| `{alert.name}` | {alert.lasts} | {alert.severity} | `{expression}` |"
