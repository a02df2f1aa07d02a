"""`gputui metrics`: files for Prometheus and Grafana."""

from __future__ import annotations

import click

from gputui.cli.lazy import CommandGroup
from gputui.cli.session import Session, pass_session
from gputui.config.options import typed_path
from gputui.domain.errors import GputuiError
from gputui.domain.text import plain


@click.group("metrics", cls=CommandGroup)
def command() -> None:
    """Write files for Prometheus and Grafana. `gputui serve --metrics` serves the metrics."""


@command.command("dashboards")
@click.option("--out", required=True, metavar="DIR", help="Directory for the files; made if it is missing.")
@pass_session
def dashboards(session: Session, out: str) -> int:
    """Write dashboards for Grafana, alert rules for Prometheus, and the lines that make both read them.

    Files of the same names are replaced.
    """
    from gputui.metrics.provisioning import files

    directory = typed_path(out, "--out")
    for name, content in files(directory, session.options.settings.metrics).items():
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise GputuiError(f"cannot be written: {error.strerror}", where=plain(str(path))) from error
        click.echo(plain(str(path)))
    return 0
