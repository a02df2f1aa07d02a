"""Files for Grafana and Prometheus: dashboards, their provisioning, alert rules and the scrape configuration.

Dashboards (in `grafana/`) and alert rules are data of the package; only paths and the port are filled in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files as data
from pathlib import Path

from gputui.config import listen_address
from gputui.domain.settings import MetricsSettings

DASHBOARDS = ("server", "queue", "tenant", "job", "gpu-health", "cluster")
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
  - job_name: gputui
    scrape_interval: 15s{scheme}
    static_configs:
      - targets: [{target}]
"""
_TLS = "\n    scheme: https\n    tls_config: {ca_file: /etc/prometheus/gputui.pem}"
_AUTH = "\n    basic_auth: {username: prometheus, password_file: /etc/prometheus/gputui.password}"


def dashboard_text(key: str) -> str:
    return data("gputui.metrics").joinpath("grafana", f"gputui-{key}.json").read_text(encoding="utf-8")


def rules_text() -> str:
    return data("gputui.metrics").joinpath("gputui-alerts.yml").read_text(encoding="utf-8")


def files(out: Path, settings: MetricsSettings) -> Mapping[Path, str]:
    """Return the contents of all files by their path below `out`."""
    dashboards, rules = out / "grafana" / "dashboards", out / "prometheus" / "gputui-alerts.yml"
    host, port = listen_address(settings.listen, "metrics.listen")
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    scheme = (_TLS if settings.certificate else "") + (_AUTH if settings.users else "")
    return {
        **{Path("grafana", "dashboards", f"gputui-{key}.json"): dashboard_text(key) for key in DASHBOARDS},
        Path("grafana", "provisioning", "dashboards", "gputui.yml"): _PROVIDER.format(path=json.dumps(str(dashboards))),
        Path("prometheus", "gputui-alerts.yml"): rules_text(),
        Path("prometheus", "gputui-scrape.yml"): _SCRAPE.format(
            rules=json.dumps(str(rules)), scheme=scheme, target=json.dumps(target)
        ),
    }
