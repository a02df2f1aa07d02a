"""Dashboards and alert rules: each panel's query against a real Prometheus, each rule firing and not firing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from gputui.cli.main import run as run_command
from gputui.cli.offered_files import DASHBOARDS, dashboard_text, files, rules_text
from gputui.domain.settings import MetricsSettings
from gputui.metrics.families import FAMILIES, Kind
from tests.cases import cases
from tests.metrics.prometheus import Prometheus
from tests.metrics.test_serve import PATIENCE, Served, served
from tests.metrics.test_server import HASH

MODELS = {key: json.loads(dashboard_text(key)) for key in DASHBOARDS}
QUERIES = {
    f"{key}: {panel['title']} {target['legendFormat'].removeprefix('__auto')}": target["expr"]
    for key, model in MODELS.items()
    for panel in model["panels"]
    for target in panel.get("targets", ())
}
"""Expressions of all panels, by dashboard, title and names of their series."""
ALERTS = {rule["alert"]: rule["expr"] for rule in yaml.safe_load(rules_text())["groups"][0]["rules"]}
COLUMNS = 24
LABELS = ("instance", "job", "le")
"""Labels that Prometheus adds, and those of histograms."""
_NAME = re.compile(r"\bgputui_[a-z0-9_]+")


def known_names() -> dict[str, set[str]]:
    """Return the labels of each series that can be scraped."""
    found = {}
    for family in FAMILIES:
        ends = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count"), Kind.SUMMARY: ("_sum", "_count")}.get(family.kind, ("",))
        found.update({family.name + end: {*family.labels, *LABELS} for end in ends})
    return found


def test_panels_and_alerts_name_existing_series_and_labels() -> None:
    known = known_names()
    for title, expression in (QUERIES | ALERTS).items():
        for name, selector in re.findall(r"\b(gputui_[a-z0-9_]+)(?:\{([^}]*)\})?", expression):
            assert name in known, f"{title}: {name}"
            labels = set(re.findall(r"(\w+)\s*[=!]~?\"", selector))
            assert labels <= known[name], f"{title}: {name}{{{selector}}}"
    for title, expression in QUERIES.items():
        shown = set(re.findall(r"\{\{(\w+)\}\}", title)) - set(LABELS)
        labels = set().union(*(known[name] for name in _NAME.findall(expression)))
        assert shown <= labels, title


def test_the_model_of_a_dashboard_fits_the_screen_and_its_variables_are_defined() -> None:
    for key, made in MODELS.items():
        places = [panel["gridPos"] for panel in made["panels"]]
        assert all(place["x"] + place["w"] <= COLUMNS for place in places)
        cells = [
            (place["x"] + x, place["y"] + y) for place in places for x in range(place["w"]) for y in range(place["h"])
        ]
        assert len(cells) == len(set(cells)), key
        variables = {each["name"] for each in made["templating"]["list"]}
        used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(made["panels"])))
        assert used - {"__rate_interval", "__range"} <= variables, key
        assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


def test_the_command_writes_every_file_and_says_where(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    out = tmp_path / "there"
    assert run_command(["metrics", "dashboards", "--out", str(out)]) == 0
    written = {Path(line) for line in capfd.readouterr().out.split()}
    assert written == {path for path in out.rglob("*") if path.is_file()}
    assert len(written) == len(DASHBOARDS) + 3
    assert str(out / "grafana" / "dashboards") in (out / "grafana/provisioning/dashboards/gputui.yml").read_text()
    assert json.loads((out / "grafana/dashboards/gputui-job.json").read_text())["uid"] == "gputui-job"
    (tmp_path / "file").write_text("")
    assert run_command(["metrics", "dashboards", "--out", str(tmp_path / "file")]) == 1
    assert "cannot be written" in capfd.readouterr().err


def test_the_scrape_configuration_matches_the_port(tmp_path: Path) -> None:
    settings = MetricsSettings(listen="[::1]:1234", certificate="c", key="k", users="u")
    text = files(tmp_path, settings)[Path("prometheus", "gputui-scrape.yml")]
    assert '"[::1]:1234"' in text
    assert "scheme: https" in text
    assert "basic_auth" in text
    assert "https" not in files(tmp_path, MetricsSettings())[Path("prometheus", "gputui-scrape.yml")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Served]:
    """A scheduler with a hook and tenants; its metrics are read by TLS and with a password."""
    directory = tmp_path_factory.mktemp("site")
    users = directory / "users"
    users.write_text(f"alice:{HASH}\n")
    users.chmod(0o600)
    config = directory / ".config" / "gputui" / "config.toml"
    config.parent.mkdir(parents=True)
    cert, key = certificate
    config.write_text(
        "[scheduler]\nfast_failing_jobs = 0\n"  # or jobs wait when five fail in a row, before the first scrape
        '[hooks]\non_job_end = ["true"]\n[[policy.tenants]]\nname = "bob"\ngpus = 3\n'
        f'[metrics]\nenabled = true\nlisten = "0"\ncertificate = "{cert}"\nkey = "{key}"\nusers = "{users}"\n'
    )
    with served(directory) as it:
        yield it


def filled(expression: str) -> str:
    """Return the expression with the variables of a dashboard that shows everything of the last seconds."""
    words: Mapping[str, str] = {
        "$instance": ".*",
        "$tenant": ".*",
        "$node": ".*",
        "$job_id": ".*",
        "$__rate_interval": "10s",
        "$__range": "1m",
    }
    for name, value in words.items():
        expression = expression.replace(name, value)
    return expression


@pytest.mark.prometheus
def test_every_panel_shows_data_of_a_real_run(site: Served, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    secured = {
        "scheme": "https",
        "tls_config": {"ca_file": str(certificate[0])},
        "basic_auth": {"username": "alice", "password": "secret"},
    }
    prometheus = Prometheus(tmp_path, site.port, secured)
    try:
        site.run("submit", "--host", "--gpus", "2", "--tenant", "bob", "--", "sleep", "600")
        site.run("submit", "--host", "--gpus", "4", "--time-limit", "1h", "--", "true")
        site.run("submit", "--host", "--hold", "--", "true")
        missing = {title: query for title, query in QUERIES.items() if not title.startswith("cluster:")}
        deadline = time.monotonic() + 2 * PATIENCE
        while missing and time.monotonic() < deadline:
            site.run("submit", "--host", "--retries", "1", "--backoff", "0s", "--", "false")
            missing = {title: query for title, query in missing.items() if not prometheus.ask(filled(query))}
            time.sleep(0.3)  # it is scraped once a second, and each command takes a tenth of one of processor time
        assert not missing, (list(missing), prometheus.log)
        assert prometheus.ask('up{job="gputui"} == 1')
    finally:
        prometheus.end()


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    """Return an input of `promtool test rules`, as one of the scraped server."""
    everywhere = {"instance": "gpu1", "job": "gputui", **labels}
    return {
        "series": f"{name}{{{', '.join(f'{key}={json.dumps(value)}' for key, value in everywhere.items())}}}",
        "values": values,
    }


GPU = {"gpu": "0", "UUID": "GPU-1", "model": "H100", "hostname": "gpu1"}
DISK = {"role": "state", "mount": "/"}
NODES = [series("gputui_node_up", "1x100", hostname=name) for name in ("gpu1", "n2")]
HELD = [
    series("gputui_gpu_job_info", "1x100", **GPU, job_id="3", tenant="bob"),
    series("gputui_jobs_eligible", "1x100", tenant="eve"),
]
_CASES = """
GpuIdleWhileJobsWait 45m fires: gpus{state=FREE} 2x60; gpus_fragmented 1x60; jobs_eligible{tenant=bob} 3x60
GpuIdleWhileJobsWait 45m silent: gpus{state=FREE} 2x60; gpus_fragmented 2x60; jobs_eligible{tenant=bob} 3x60
GpuIdleWhileJobsWait 45m silent: gpus{state=FREE} 2x60; gpus_fragmented 0x60; jobs_eligible{tenant=bob} 0x60
JobLeavesGpuIdle 40m fires: gpu_idle_since_timestamp_seconds{GPU} -1800x60; gpu_job_info{GPU,job_id=3,tenant=bob} 1x60
JobLeavesGpuIdle 40m silent: gpu_job_info{GPU,job_id=3,tenant=bob} 1x60
GpuSick 5m fires: gpu_healthy{GPU} 0x10; gpu_up{GPU} 1x10
GpuSick 5m fires: gpu_up{GPU} 0x10
GpuSick 5m silent: gpu_healthy{GPU} 1x10; gpu_up{GPU} 1x10
QueueStuck 20m fires: scheduler_halted 1x60
QueueStuck 40m fires: jobs_eligible{tenant=bob} 2x60; attempts_started_total{tenant=bob} 5x60
QueueStuck 40m silent: jobs_eligible{tenant=bob} 2x60; attempts_started_total{tenant=bob} 0+1x60
QueueStuck 40m silent: jobs_eligible{tenant=bob} 2x60; jobs{tenant=eve,state=RUNNING} 1x60
DiskFilling 20m fires: disk_free_bytes{DISK} 4x30; disk_size_bytes{DISK} 100x30
DiskFilling 30m fires: disk_free_bytes{DISK} 29-0.1x40; disk_size_bytes{DISK} 100x40
DiskFilling 30m silent: disk_free_bytes{DISK} 50x40; disk_size_bytes{DISK} 100x40
ProbeStale 5m fires: probe_age_seconds 0+60x10; nvml_up 1x10
ProbeStale 5m fires: nvml_up 0x10
ProbeStale 5m silent: probe_age_seconds 1x10; nvml_up 1x10
NobodySchedules 5m fires: .up 0x10
NobodySchedules 5m fires:
NobodySchedules 15m fires: .up 1x20; tick_last_success_timestamp_seconds 0+60x3 180x20
NobodySchedules 15m silent: .up 1x20; tick_last_success_timestamp_seconds 0+60x20
EngineDown 10m fires: runtime_up{runtime=docker} 0x10
EngineDown 10m silent: runtime_up{runtime=docker} 1x10
BackupFailing 10m fires: backup_up 0x20
BackupFailing 3d fires: backup_last_success_timestamp_seconds 0x440
BackupFailing 1d silent: backup_up 1x150; backup_last_success_timestamp_seconds 0x150
NodeDown 10m fires: node_up{hostname=n1} 0x20
NodeDown 10m silent: node_up{hostname=n1} 1x20; node_drained{hostname=n1} 1x20
NodeDrained 25h fires: node_drained{hostname=n1} 1x160
NodeDrained 25h silent: node_drained{hostname=n1} 1x60 0x100
NodeNotRead 15m fires: node_up{hostname=n1} 1x20; node_probe_up{hostname=n1} 0x20
NodeNotRead 30m fires: node_up{hostname=n1} 1x40; node_probe_age_seconds{hostname=n1} 0+60x40
NodeNotRead 15m silent: node_up{hostname=n1} 0x20; node_probe_up{hostname=n1} 0x20
ClusterGpusFreeWhileJobsWait 45m fires: NODES; gpus{state=FREE} 2x60; jobs_eligible{tenant=bob} 3x60
ClusterGpusFreeWhileJobsWait 45m silent: NODES; gpus{state=FREE} 2x60; jobs_eligible{tenant=bob} 0x60
ClusterGpusFreeWhileJobsWait 45m silent: gpus{state=FREE} 2x60; jobs_eligible{tenant=bob} 3x60
ClusterGpusWithoutLoad 90m fires: NODES; HELD; gpu_utilization_ratio{GPU} 0x100
ClusterGpusWithoutLoad 90m silent: NODES; HELD; gpu_utilization_ratio{GPU} 0x20 0.5x5 0x30 0.5x45
ClusterGpusWithoutLoad 90m silent: HELD; gpu_utilization_ratio{GPU} 0x100
HookFailing 20m fires: hook_up{hook=mail} 0x30
HookFailing 20m silent: hook_up{hook=mail} 0x5 1x30
"""
"""Cases of rules: the name, a time, whether it fires then, and series until then without what all names begin with."""
_GROUPS = {"NODES": NODES, "HELD": HELD}
_LABELS = {"GPU": GPU, "DISK": DISK}


def cases_of(text: str) -> Iterator[tuple[str, str, list[dict[str, str]], int]]:
    for line in text.strip().splitlines():
        head, _, rest = line.partition(":")
        name, at, word = head.split()
        found: list[dict[str, str]] = []
        for each in filter(None, map(str.strip, rest.split(";"))):
            if each in _GROUPS:
                found += _GROUPS[each]
                continue
            what, _, values = each.partition(" ")
            name_of, _, inner = what.rstrip("}").partition("{")
            labels: dict[str, str] = {}
            for label in filter(None, inner.split(",")):
                key, _, value = label.partition("=")
                labels |= {key: value} if value else _LABELS[key]
            whole = name_of[1:] if name_of.startswith(".") else f"gputui_{name_of}"
            found.append(series(whole, values, **labels))
        yield f"Gputui{name}", at, found, int(word == "fires")


CASES = list(cases_of(_CASES))
DAYS = ("1d", "3d", "25h")
"""Times of the long cases, whose series have a value each ten minutes instead of each minute."""


def test_every_rule_has_a_firing_and_a_silent_case() -> None:
    for alert in ALERTS:
        assert {bool(fires) for name, _, _, fires in CASES if name == alert} == {True, False}, alert


@pytest.mark.prometheus
@cases(("step", "is_long"), [("1m", False), ("10m", True)])
def test_rules_fire_exactly_in_their_cases(tmp_path: Path, step: str, is_long: bool) -> None:
    """promtool evaluates all rules at each step of each case, so cases of days take longer steps."""
    (tmp_path / "rules.yml").write_text(rules_text())
    subprocess.run(["promtool", "check", "rules", str(tmp_path / "rules.yml")], check=True, capture_output=True)
    tests = [
        {
            "interval": step,
            "input_series": given,
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                    "eval_time": at,
                    "exp_samples": [{"labels": "{}", "value": fires}],
                }
            ],
        }
        for name, at, given, fires in CASES
        if (at in DAYS) is is_long
    ]
    path = tmp_path / "tests.yml"
    path.write_text(json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": step, "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout + done.stderr
