"""Files for Grafana and Prometheus: dashboards, their provisioning, alert rules and the scrape configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gputui.domain.settings import MetricsSettings
from gputui.metrics.alerts import ALERTS, JOB, Alert
from gputui.metrics.grafana import model
from gputui.metrics.panels import DASHBOARDS

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
    """Return the alert rules in YAML; quoted strings of JSON are YAML too."""
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
