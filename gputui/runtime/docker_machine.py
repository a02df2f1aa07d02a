"""Tells whether an engine runs on this machine: an address alone does not, since any may be forwarded."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gputui.runtime.docker_connection import Connection
from gputui.runtime.docker_endpoint import Endpoint
from gputui.runtime.ssh_tunnel import Tunnel

BOOT_ID = "/proc/sys/kernel/random/boot_id"
_FORWARDERS = {"ssh", "sshd", "autossh", "socat", "kubectl"}
"""Commands that listen at a socket here for an engine elsewhere."""


@dataclass(frozen=True)
class Machine:
    """Facts that differ between machines. None: not known."""

    name: str | None = None
    kernel: str | None = None
    memory: int | None = None
    """Bytes."""

    @classmethod
    def of_engine(cls, info: Mapping[str, Any]) -> Machine:
        """Return the facts in an engine's `/info`."""
        return cls(info.get("Name") or None, info.get("KernelVersion") or None, info.get("MemTotal") or None)

    @classmethod
    def here(cls) -> Machine:
        """Return the facts of this machine, read as the engine reads its own."""
        system = os.uname()
        return cls(system.nodename, system.release, _memory())

    def contradicts(self, other: Machine) -> bool:
        """Whether kernel or memory differ. Names may: one of the two may be in a container."""
        pairs = ((self.kernel, other.kernel), (self.memory, other.memory))
        return any(one is not None and two is not None and one != two for one, two in pairs)

    @property
    def is_complete(self) -> bool:
        """Whether every fact is known."""
        return None not in (self.name, self.kernel, self.memory)


def is_here(connection: Connection, info: Mapping[str, Any]) -> bool:
    """Return whether the engine of a connection, whose `/info` this is, runs on this machine."""
    return connection.endpoint is not None and runs_here(info, connection.endpoint, connection.tunnel)


def runs_here(info: Mapping[str, Any], endpoint: Endpoint, tunnel: Tunnel | None) -> bool:
    """Return whether the engine with that `/info` runs on this machine; False where that is not certain."""
    if tunnel is not None:
        return _has_our_boot_id(tunnel)
    engine, here = Machine.of_engine(info), Machine.here()
    if engine.contradicts(here):
        return False
    if endpoint.socket_path:
        return engine == here or _listener(endpoint.socket_path) not in _FORWARDERS
    return engine.is_complete and engine == here and _is_own_address(endpoint)


def _has_our_boot_id(tunnel: Tunnel) -> bool:
    told = tunnel.run("cat", BOOT_ID)
    with suppress(OSError):
        return bool(told) and (told or "").strip() == Path(BOOT_ID).read_text().strip()
    return False


def _memory() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/meminfo").read_text().partition("MemTotal:")[2].split()[0]) * 1024
    return None


def _listener(path: str) -> str | None:
    """Return the command of the process that listens at the socket; None when it is not to be seen from here."""
    with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        probe.connect(path)
        pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return None


def _is_own_address(endpoint: Endpoint) -> bool:
    """Whether a TCP address is one of this machine's: nobody can bind to another's."""
    host = urlsplit(endpoint.url).hostname or "127.0.0.1"
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind((address[0], 0))
                return True
    return False
