"""Commands that serve others: `serve` schedules; `web`, `api-stdio`, `mcp` and `probe` answer others."""

from __future__ import annotations

import json
import socket
import sys
from datetime import timedelta
from importlib.util import find_spec

import click
from msgspec.structs import replace

from gputui import __version__, bootstrap
from gputui.cli import terminal
from gputui.cli.main import owned_commands
from gputui.cli.output import FiniteRange
from gputui.cli.session import Session, pass_session
from gputui.config import Options
from gputui.config.settings_file import listen_address
from gputui.domain.errors import CapabilityError, GputuiError, InputError, install_line
from gputui.request.job_values import duration

_NO_PROTOCOL = 3
"""Version of messages on lines that no gputui speaks; up to 0.2 they were 1 and 2."""
_AS_SET = "as set"
"""Value of `--metrics` without an address."""


@click.command("serve")
@click.option("--wait", default="0", metavar="DURATION", help="Wait this long for another scheduler to end.")
@click.option(
    "--metrics",
    is_flag=False,
    flag_value=_AS_SET,
    metavar="[ADDR:PORT]",
    help="Serve metrics for Prometheus; without an address at metrics.listen, 127.0.0.1:9877.",
)
@click.option(
    "--hpc-job-mapping-dir",
    metavar="DIR",
    help="With --metrics: write files there that tell dcgm-exporter which jobs run on which GPU.",
)
@click.option("--stand-in", is_flag=True, hidden=True, help="Take over from a console, as `console.serving` does.")
@click.option("--listener", hidden=True, default="", help="Socket of the console that it takes over from.")
@pass_session
def command(
    session: Session, wait: str, metrics: str | None, hpc_job_mapping_dir: str | None, stand_in: bool, listener: str
) -> int:
    """Schedule without a screen until stopped. Containers keep running when it ends.

    In cluster mode the engine schedules: then it only serves metrics of the cluster, and runs hooks.
    """
    options = _with_metrics(session.options, metrics, hpc_job_mapping_dir)
    if not bootstrap.may_schedule(options):
        from gputui.console.serving import serve_cluster, served

        if not any(served(options)):
            hint = "gputui serve --metrics serves metrics of the cluster, and with [hooks] in the settings it runs them"
            raise CapabilityError("the engine schedules; there is nothing else to serve", hint=hint)
        if options.settings.metrics.hpc_job_mapping_dir:
            hint = "Slurm writes such files by its own prolog"
            raise CapabilityError("metrics.hpc_job_mapping_dir is for the GPUs of this machine", hint=hint)
        return serve_cluster(options)
    if not options.sockets.in_process:
        hint = "a queue of your own: gputui --state DIRECTORY serve; it would take GPUs that the service thinks free"
        raise GputuiError("the service of this machine schedules", where=options.sockets.paths[0], hint=hint)
    from gputui.console.serving import serve

    return serve(
        options, duration(wait, "--wait").total_seconds(), stands_in=stand_in, passed=listener, commands=owned_commands
    )


def _with_metrics(options: Options, listen: str | None, mapping: str | None) -> Options:
    metrics, further = options.settings.metrics, []
    if listen is not None:
        metrics = replace(metrics, enabled=True)
        further.append("--metrics" if listen == _AS_SET else f"--metrics={listen}")
    if listen not in {None, _AS_SET}:
        listen_address(str(listen), "--metrics")
        metrics = replace(metrics, listen=str(listen))
    if mapping is not None:
        if not metrics.enabled:
            raise InputError("it is for metrics", where="--hpc-job-mapping-dir", hint="add --metrics")
        metrics = replace(metrics, hpc_job_mapping_dir=mapping)
        further.append(f"--hpc-job-mapping-dir={mapping}")
    settings = replace(options.settings, metrics=metrics)
    return replace(options, settings=settings, serve_arguments=tuple(further))


LOOPBACK = "127.0.0.1"
PORT = 8642
_WARNING = (
    "gputui: warning: other machines can connect to {host}, and the connection is not encrypted; safer is "
    "127.0.0.1 and `ssh -L {port}:127.0.0.1:{port}` from where you sit"
)


@click.command("web")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Port; 0: any free one.")
@click.option("--host", default=LOOPBACK, show_default=True, help="Address to listen on; it should be loopback.")
@click.option("--read-only", is_flag=True, help="Read-only consoles: they change nothing.")
@pass_session
def web(session: Session, port: int, host: str, read_only: bool) -> int:
    """Show the console in a browser, by a link that works once. It never schedules: run `gputui serve` for that.

    Needs the extra `web`. Each tab is a console of its own, and ends with its tab.
    """
    _need_extra("web", "textual-serve", "aiohttp", "textual_serve")
    import asyncio

    from gputui.web import ConsoleServer, is_loopback

    if not is_loopback(host):
        terminal.echo(_WARNING.format(host=host, port=port), err=True)
    server = ConsoleServer(
        viewer_command(session.options, read_only=read_only), host, port, f"gputui {socket.gethostname()}"
    )

    def tell(link: str) -> None:
        terminal.echo(f"{link}   (works once; Ctrl-C ends all)")
        terminal.flush()

    asyncio.run(server.run(tell))
    return 0


def _need_extra(extra: str, what: str, *modules: str) -> None:
    """Raise GputuiError if one of the modules of an extra is missing; `what` is the package that is then named."""
    if all(find_spec(name) for name in modules):
        return
    from importlib.metadata import requires

    # the requirements of the extra: gputui itself may come from anywhere
    named = (requirement.partition(";") for requirement in requires("gputui") or ())
    wanted = [package.strip() for package, _, marker in named if f"'{extra}'" in marker.replace('"', "'")]
    hint = install_line(wanted, sys.prefix, has_pip=find_spec("pip") is not None)
    raise GputuiError(f"{what} is not installed", hint=hint)


@click.command("mcp")
@pass_session
def mcp(session: Session) -> None:
    """Serve tools for a coding agent on stdin and stdout, by the Model Context Protocol; agents start it themselves.

    They list, explain, submit, cancel, hold and release jobs, and read logs, GPUs and events, with your rights. Needs
    the extra `mcp`. See docs/agents.md.
    """
    _need_extra("mcp", "mcp", "mcp")
    from gputui.bootstrap.owner import agents_client

    client = agents_client(session.options)
    from gputui.mcp import Tools, serve

    serve(Tools(client, session.user))


def viewer_command(options: Options, *, read_only: bool) -> list[str]:
    """Return the command of the console behind a tab, which never becomes the scheduler."""
    flags = ["--view-only", *(["--read-only"] if read_only else [])]
    return [*options.program(), *flags]


@click.command("probe")
@click.option("--every", type=FiniteRange(0.2, 3600), default=2.0, show_default=True, help="Seconds between readings.")
def probe(every: float) -> None:
    """Write readings of the GPUs to stdout; a console over a cluster starts it on each node.

    They are JSON objects, one on each line. It needs neither root nor a state directory, and ends with stdin, or if it
    reads nothing there for 90 seconds: a reader writes a line now and then.
    """
    from gputui.bootstrap.clusters import become_probe

    become_probe(timedelta(seconds=every))


@click.command("remote")
def remote() -> int:
    """Tell a console of an older gputui, by its protocol and in words, that it has to be updated."""
    hello = {"gputui": __version__, "protocol": _NO_PROTOCOL, "oldest": _NO_PROTOCOL}
    terminal.echo(json.dumps({"hello": hello}))
    raise GputuiError(f"this is gputui {__version__}: update gputui where the console runs")


@click.command("api-stdio")
@pass_session
def api_stdio(session: Session) -> None:
    """Pass stdin and stdout on to the process that owns the queue, for a program that runs this over ssh.

    It speaks HTTP there, as at the owner's socket, with the rights of this account. The command ends with either side.
    If nobody owns the queue, it answers itself, until somebody does.
    """
    from gputui.bootstrap.stream import serve_stdio

    serve_stdio(session.options)
