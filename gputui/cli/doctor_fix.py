"""`gputui doctor --fix`: registers NVIDIA's runtime with the Docker engine of this machine."""

from __future__ import annotations

import sys

import click

from gputui import bootstrap
from gputui.cli import engine_host, engine_settings
from gputui.cli.checks.engine import INSTALL, EngineHost
from gputui.config import Options
from gputui.domain.container import RuntimeStatus
from gputui.domain.errors import GputuiError
from gputui.domain.text import plain


def register(options: Options, *, ask: bool) -> int:
    """Show the change, ask, and write it; return the exit code."""
    host = _host(options)
    change = engine_settings.registration(host.settings_file)
    if change is None:
        click.echo(f"{host.settings_file}: runtime nvidia is registered already; nothing to change")
        _say_what_is_left(host)
        return 0
    for line in change.diff:
        click.echo(plain(line))
    if ask and not _agreed(host):
        click.echo("nothing was changed")
        return 1
    backup = engine_settings.write(change, bootstrap.clock().now())
    click.echo(f"wrote {change.path}" + (f"; the file as it was: {backup}" if backup else ""))
    _say_what_is_left(host)
    return 0


def _agreed(host: EngineHost) -> bool:
    if not sys.stdin.isatty():
        raise GputuiError("nobody can be asked: standard input is no terminal", hint="give --yes to write it unasked")
    return click.confirm(f"Write this to {host.settings_file}?")


def _host(options: Options) -> EngineHost:
    """Return the engine's machine; that of an engine that does not answer is taken to be this one."""
    status = _docker(options)
    if status.gpus is None:
        process = engine_host.process_behind("")
        toolkit = engine_host.toolkit_of(process)
        return EngineHost(toolkit, settings_file=process.settings_file, restart=process.restart)
    if status.gpus.is_podman:
        hint = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        raise GputuiError("Podman has no daemon.json", hint=hint)
    host = engine_host.look(status.gpus)
    if host is None:
        hint = "run gputui doctor --fix on that machine"
        raise GputuiError("the engine runs on another machine", where=status.gpus.address, hint=hint)
    return host


def _docker(options: Options) -> RuntimeStatus:
    for runtime in bootstrap.make_runtimes(options, "0" * 12):
        try:
            if runtime.name == "docker":
                return runtime.check()
        finally:
            runtime.close()
    raise GputuiError("--fix is for Docker engines", where="--runtime", hint="gputui --runtime docker doctor --fix")


def _say_what_is_left(host: EngineHost) -> None:
    if not any(path.endswith("/nvidia-container-runtime") for path in host.toolkit):
        click.echo(f"nvidia-container-runtime is not installed yet: {INSTALL}")
    click.echo(f"restart the engine to have it read its settings: {host.restart}")
    click.echo("(without live-restore this ends running containers; gputui runs their jobs again)")
