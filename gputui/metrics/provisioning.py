"""Files for Grafana and Prometheus: dashboards, their provisioning, alert rules and the scrape configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gputui.domain.settings import MetricsSettings
from gputui.metrics.alerts import ALERTS, JOB, Alert
from gputui.metrics.panels import DASHBOARDS, Dashboard, Panel

SCHEMA = 39
"""Version of Grafana's model; newer Grafanas migrate it."""
COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHTS = {"stat": 4, "timeseries": 8, "table": 8, "row": 1}


def model(dashboard: Dashboard) -> dict[str, Any]:
    """Return the JSON model of a dashboard."""
    return {
        "uid": f"gputui-{dashboard.key}",
        "title": dashboard.title,
        "tags": ["gputui"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables(dashboard)},
        "links": [{"type": "dashboards", "tags": ["gputui"], "title": "gputui", "asDropdown": True, "keepTime": True}],
        "panels": _placed(dashboard.panels),
    }


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    named = (("instance", "label_values(gputui_scheduler_info, instance)"), *dashboard.variables)
    return [source, *(_variable(name, query) for name, query in named)]


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
    return {
        **dashboards,
        Path("grafana", "provisioning", "dashboards", "gputui.yml"): _PROVIDER.format(path=json.dumps(str(path))),
        Path("prometheus", "gputui-alerts.yml"): rules_text(),
        Path("prometheus", "gputui-scrape.yml"): _scrape_text(rules, settings),
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


def _scrape_text(rules: Path, settings: MetricsSettings) -> str:
    from gputui.config import listen_address

    host, port = listen_address(settings.listen, "metrics.listen")
    target = json.dumps(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    scheme = (_TLS if settings.certificate else "") + (_AUTH if settings.users else "")
    return _SCRAPE.format(rules=json.dumps(str(rules)), job=JOB, scheme=scheme, target=target)
