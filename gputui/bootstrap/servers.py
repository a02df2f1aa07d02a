"""Construction of a console over several servers: which servers, the connections, and the ways through them."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gputui import bootstrap
from gputui.config.settings_file import check_server_name
from gputui.domain.errors import InputError
from gputui.domain.job_spec import MOST_SERVERS
from gputui.domain.settings import ServerSettings, Settings
from gputui.domain.ssh_address import parse_ssh_address

if TYPE_CHECKING:
    from gputui.engine.feed import Feed
    from gputui.servers.backend import RemoteBackend

LOCAL = "local"
"""Name of this machine after `--on`."""
ALL = "all"
"""All servers of the settings after `--on`."""
_OTHERS = re.compile(r"[^A-Za-z0-9._-]+")


def chosen_servers(wanted: Sequence[str], settings: Settings) -> tuple[ServerSettings, ...]:
    """Return the servers that `--on` names, by address or by their name in the settings; without any, all of those.

    Raises InputError.
    """
    has_all = any(server.name == ALL for server in settings.servers)
    found: list[ServerSettings] = []
    for text in wanted:
        if text != ALL or has_all:
            found.append(_server(text, settings))
        elif settings.servers:
            found += settings.servers
        else:
            raise InputError("there are none in the settings", where="--on all", hint="name them in [[servers]]")
    found = found or list(settings.servers)
    names = [server.name for server in found]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        hint = "give them different names by [[servers]] in the settings"
        raise InputError(f"two servers would be called {twice}", where="--on", hint=hint)
    if len(found) > MOST_SERVERS:
        raise InputError(f"at most {MOST_SERVERS} servers", where="--on")
    return tuple(found)


def _server(text: str, settings: Settings) -> ServerSettings:
    """Return the server of a name or an address."""
    for server in settings.servers:
        if text in {server.name, server.address}:
            return server
    if text == LOCAL:
        return ServerSettings(LOCAL)
    if not text.startswith("ssh://"):
        known = ", ".join(server.name for server in settings.servers) or "none"
        hint = f"write ssh://user@host:port; names in [[servers]]: {known}"
        raise InputError(f"{text[:60]!a} is neither an address nor the name of a server", where="--on", hint=hint)
    address = parse_ssh_address(text, "--on")
    name = _OTHERS.sub("-", address.host.partition(".")[0] if not address.host[0].isdigit() else address.host)[:24]
    if any(each.name == name for each in settings.servers):
        name = _OTHERS.sub("-", address.host)[:24]
    name = name.strip("-") or "server"  # of ::1, and of ::
    check_server_name(name, "--on")
    return ServerSettings(name, text)


def command_on(
    server: ServerSettings, words: Sequence[str], variables: Mapping[str, str], *, is_tty: bool
) -> list[str]:
    """Return the command that runs gputui with these words on a server, by the connection that all commands share.

    `variables` are set there; with `is_tty` it gets a terminal.
    """
    from gputui.cluster.ssh import SshConnection, runtime_directory
    from gputui.servers.connection import command_of

    if not server.address:
        return ["env", "--unset=GPUTUI_CLUSTER", *command_of(server, *words)]
    address = parse_ssh_address(server.address, f"servers.{server.name}")
    host = f"{address.user}@{address.host}" if address.user else address.host
    connection = SshConnection(host, address.port, runtime_directory(os.environ))
    set_there = shlex.join(["env", *(f"{name}={value}" for name, value in variables.items())]) if variables else ""
    # Ctrl-C reaches the shell there too, which has to outlive the command to return its exit code
    return connection.argv(f"trap : INT; {set_there} {server.command} {shlex.join(words)}", is_tty=is_tty)


def open_servers(settings: Sequence[ServerSettings]) -> RemoteBackend:
    """Return the queues of these servers, not connected yet."""
    from gputui.servers.backend import RemoteBackend

    return RemoteBackend(settings, bootstrap.clock().now, bootstrap.actor().user)


class ServersWatch:
    """Publishes the snapshots of several servers behind a console's screen; each server schedules itself."""

    leads = False

    def __init__(self, backend: RemoteBackend, feed: Feed) -> None:
        self._backend = backend
        self._feed = feed

    def want_pcie(self, uuid: str | None) -> None:
        """Do nothing: the servers read their GPUs themselves."""

    def stop(self) -> None:
        self._backend.stop()

    async def run(self) -> None:
        await asyncio.to_thread(self._backend.publish, self._feed.publish)
