"""Dashboards as Grafana imports or provisions them."""

from __future__ import annotations

from typing import Any

from gputui.metrics.panels import Dashboard, Panel

SCHEMA = 39
"""Version of Grafana's model; newer Grafanas migrate it."""
COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHTS = {"stat": 4, "timeseries": 8, "table": 8}


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
