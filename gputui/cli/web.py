"""`gputui web`: the console in a browser."""

from __future__ import annotations

import asyncio
import socket
import sys
from importlib.metadata import requires
from importlib.util import find_spec

import click

from gputui.cli.session import Session, pass_session
from gputui.config import Options
from gputui.domain.errors import GputuiError
from gputui.domain.installing import install_line

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
def command(session: Session, port: int, host: str, read_only: bool) -> int:
    """Show the console in a browser, by a link that works once. It never schedules: run `gputui serve` for that.

    Needs the extra `web`. Each tab is a console of its own, and ends with its tab.
    """
    if not all(find_spec(name) for name in ("aiohttp", "textual_serve")):
        raise GputuiError("textual-serve is not installed", hint=_advice())
    return serve(session.options, host, port, read_only=read_only)


def _advice() -> str:
    """Return the command that installs the requirements of the extra `web`: gputui itself may come from anywhere."""
    named = (requirement.partition(";") for requirement in requires("gputui") or ())
    wanted = [what.strip() for what, _, extra in named if "'web'" in extra.replace('"', "'")]
    return install_line(wanted, sys.prefix, has_pip=find_spec("pip") is not None)


def serve(options: Options, host: str, port: int, *, read_only: bool) -> int:
    """Serve until interrupted."""
    from gputui.web.auth import is_loopback
    from gputui.web.server import ConsoleServer

    if not is_loopback(host):
        click.echo(_WARNING.format(host=host, port=port), err=True)
    server = ConsoleServer(viewer_command(options, read_only=read_only), host, port, f"gputui {socket.gethostname()}")
    asyncio.run(server.run(_tell))
    return 0


def viewer_command(options: Options, *, read_only: bool) -> list[str]:
    """Return the command of the console behind a tab, which never becomes the scheduler."""
    flags = ["--view-only", *(["--read-only"] if read_only else [])]
    return [sys.executable, "-P", "-m", "gputui", *options.arguments(), *flags]


def _tell(link: str) -> None:
    """Print the link for the next browser: the previous link has been used."""
    click.echo(f"{link}   (works once; Ctrl-C ends all)")
    sys.stdout.flush()
