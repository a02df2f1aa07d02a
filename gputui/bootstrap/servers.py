"""Construction of a console over several servers: which servers, the connections, and the ways through them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from gputui import __version__, bootstrap
from gputui.config.settings_file import check_server_name
from gputui.domain.errors import InputError
from gputui.domain.frames import CommandMarks
from gputui.domain.job_spec import MOST_SERVERS
from gputui.domain.settings import ServerSettings, Settings, parse_ssh_address
from gputui.domain.text import plain

if TYPE_CHECKING:
    from gputui.api.wire import Dial
    from gputui.cluster.ssh import SshConnection
    from gputui.engine.feed import Feed
    from gputui.servers import RemoteBackend

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
    server: ServerSettings, words: Sequence[str], variables: Mapping[str, str], marks: CommandMarks, *, is_tty: bool
) -> list[str]:
    """Return the command that runs gputui with these words on a server, by the connection that all commands share.

    `variables` are set there; with `is_tty` it gets a terminal. Its output is between `marks`,
    on this machine without any.
    """
    if not server.address:
        marks.has_begun = True
        return _here(words)
    set_there = shlex.join(["env", *(f"{name}={value}" for name, value in variables.items())]) if variables else ""
    script = f"{set_there} {server.command} {shlex.join(words)}"
    return _connection(server).argv(marks.around(script), is_tty=is_tty)


def _here(words: Sequence[str]) -> list[str]:
    return ["env", "--unset=GPUTUI_CLUSTER", sys.executable, "-P", "-m", "gputui", *words]


def _connection(server: ServerSettings, name: str = "", *, is_compressed: bool = False) -> SshConnection:
    from gputui.cluster.ssh import SshConnection, runtime_directory

    address = parse_ssh_address(server.address, f"servers.{server.name}")
    host = f"{address.user}@{address.host}" if address.user else address.host
    return SshConnection(host, address.port, runtime_directory(os.environ), name, is_compressed=is_compressed)


def dial_of(server: ServerSettings) -> Dial:
    """Return the way to the owner of a server's queue: `gputui api-stdio` there, by an ssh connection that they share.

    Commands share another one: ssh limits the number of those that use one at a time.
    """
    from gputui.api.wire import to_command

    if not server.address:
        return to_command(_here(["api-stdio"]), partial(_why_ended, server))
    connection = _connection(server, "-api", is_compressed=True)

    def words(marks: CommandMarks) -> list[str]:
        return connection.argv(marks.before(f"{server.command} api-stdio"))

    return to_command(words, partial(_why_ended, server))


def _why_ended(server: ServerSettings, code: int, errors: Sequence[bytes]) -> str:
    """Return why `gputui api-stdio` ended on a server, in words; empty if its owner ended the connection."""
    last = plain(errors[-1].decode(errors="replace"), 200) if errors else ""
    if code == 127:
        program = server.command.split()[0] if server.address else "gputui"
        return f"{program} is not found there; set the server's `command` ({last or 'exit code 127'})"
    if code == 2 and "api-stdio" in last:
        return f"gputui there is too old for this console ({__version__}): it has no command `api-stdio`; update it"
    if code == 255 and server.address:
        command = parse_ssh_address(server.address, server.name).command
        return f"{last or 'ssh cannot connect'} (`{command}` must work without a question)"
    return (last.removeprefix("gputui: error: ") or f"exit code {code}") if code else ""


def open_servers(settings: Sequence[ServerSettings]) -> RemoteBackend:
    from gputui.servers import RemoteBackend

    return RemoteBackend(settings, bootstrap.clock().now, bootstrap.actor().user, dial_of)


class ServersWatch(Struct, eq=False):
    """Publishes the snapshots of several servers behind a console's screen; each server schedules itself."""

    leads = False
    _backend: RemoteBackend
    _feed: Feed

    def want_pcie(self, uuid: str | None) -> None:
        """Do nothing: the servers read their GPUs themselves."""

    def stop(self) -> None:
        self._backend.stop()

    async def run(self) -> None:
        import asyncio  # commands on servers do without

        await asyncio.to_thread(self._backend.publish, self._feed.publish)
