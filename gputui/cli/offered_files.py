"""Files that commands offer: shown, asked for and written; dashboards, and schemas of settings and job files."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from importlib.resources import files as data
from pathlib import Path

import click

from gputui.cli import terminal
from gputui.cli.main import CommandGroup
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.config import typed_path
from gputui.config.settings_file import listen_address
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.settings import MetricsSettings
from gputui.domain.text import plain


def changes(wanted: Mapping[Path, str]) -> dict[Path, str]:
    return {path: text for path, text in wanted.items() if _content(path) != text}


def agreed(changed: Mapping[Path, str], command: str, *, yes: bool) -> bool:
    """Show what would change, and ask unless `yes`; return whether to write it."""
    for path, text in changed.items():
        before = (_content(path) or "").splitlines()
        for line in difflib.unified_diff(before, text.splitlines(), str(path), str(path), n=1, lineterm=""):
            terminal.echo(plain(line))
    if yes or agrees(command, "Write this?"):
        return True
    terminal.echo("nothing was changed", err=True)
    return False


def write(changed: Mapping[Path, str], *, option: str, mode: int = 0o644) -> None:
    for path, text in changed.items():
        # replace the file atomically, because others may read it at any time
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.chmod(mode)
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            hint = f"run it as root, or name another directory by {option}"
            raise GputuiError(f"cannot be written: {error.strerror}", where=str(path), hint=hint) from error
        terminal.echo(f"wrote {plain(str(path))}")


def listing(wanted: Mapping[Path, str]) -> str:
    return "\n".join(f"# {path}\n{content}" for path, content in wanted.items())


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise GputuiError(f"cannot be read: {error}", where=str(path)) from error


def agrees(command: str, question: str) -> bool:
    """Ask; raises InputError where there is no terminal to ask on."""
    if not terminal.is_tty(terminal.IN):
        raise InputError("there is no terminal to ask on", where=command, hint="look at this, then add --yes")
    return click.confirm(question, default=False)


@click.command("schema")
@click.argument("name", type=click.Choice(["settings", "job"]), metavar="settings|job")
def schema(name: str) -> int:
    """Print the JSON schema of the settings file, or of job files as `gputui submit -f` takes them.

    Editors check and complete TOML files by it.
    """
    from gputui.request.job_file import SCHEMAS

    print_json(SCHEMAS[name]())
    return 0


@click.group("metrics", cls=CommandGroup)
def metrics() -> None:
    """Write files for Prometheus and Grafana. `gputui serve --metrics` serves the metrics."""


@metrics.command("dashboards")
@click.option("--out", required=True, metavar="DIR", help="Directory for the files; made if it is missing.")
@pass_session
def dashboards(session: Session, out: str) -> int:
    """Write dashboards for Grafana, alert rules for Prometheus, and the lines that make both read them.

    Files of the same names are replaced.
    """

    directory = typed_path(out, "--out")
    for name, content in files(directory, session.options.settings.metrics).items():
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise GputuiError(f"cannot be written: {error.strerror}", where=plain(str(path))) from error
        terminal.echo(plain(str(path)))
    return 0


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
