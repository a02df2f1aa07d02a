"""Services that run container engines: where each keeps its settings, and the commands that control it.

The only place that knows. An address tells which service listens there, as far as addresses are standard;
`gputui.cli.engine_checks` looks at the engine's own process as well.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

_SYSTEM_SETTINGS = "/etc/docker/daemon.json"
_SYSTEM_SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")
_OF_USER = re.compile(r"(?:/var)?/run/user/(\d+)/")


class EngineService(Struct, frozen=True):
    """Where an engine keeps its settings, and the commands that control it, as they are told to users."""

    start: str
    restart: str
    reload: str
    """Makes it read its settings again, without ending a container."""
    status: str
    settings: str = ""
    """Path of its settings file; `~` is the home directory of `uid`. Empty: it has none, or it is not known."""
    uid: int = 0
    """User to whom the settings belong, on the engine's machine."""
    machine: str = ""
    """Name of the engine's machine; empty for this one."""

    @property
    def place(self) -> str:
        """Settings file for messages, with its machine."""
        file = self.settings or "the engine's daemon.json"
        return f"{file} on {self.machine}" if self.machine else file


def service_at(address: str, uid: int) -> EngineService:
    url = address.removeprefix("http+")
    if url.startswith("ssh://"):
        parts = urlsplit(url)
        host, path = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")  # the path is that of the socket there
        account = int(found[1]) if (found := _OF_USER.match(path)) else uid
        there = service_at(f"unix://{path or _SYSTEM_SOCKETS[0]}", account)
        words = {name: f"on {host}: {getattr(there, name)}" for name in ("start", "restart", "reload", "status")}
        return replace(there, **words, machine=host)
    path = url.removeprefix("unix://")
    if path in {"", *_SYSTEM_SOCKETS}:
        return SYSTEM
    owner = int(found[1]) if (found := _OF_USER.match(path)) else 0
    if path.endswith("/podman.sock"):
        return systemd("podman.socket", owner, uid)
    if owner and path.endswith("/docker.sock"):
        return systemd("docker.service", owner, uid, "~/.config/docker/daemon.json")
    return by_hand(address)


def systemd(unit: str, owner: int = 0, uid: int = 0, settings: str = "") -> EngineService:
    """Return a unit of systemd, or of the service manager of the user `owner`, controlled by the user `uid`."""
    name, before, look = unit.removesuffix(".service"), "sudo systemctl", "systemctl"
    if owner:
        before = look = "systemctl --user"
    if owner and owner != uid:
        before = look = f"sudo -u '#{owner}' XDG_RUNTIME_DIR=/run/user/{owner} systemctl --user"
    return EngineService(
        start=f"{before} enable --now {name}",
        restart=f"{before} restart {name}",
        reload=f"{before} reload {name}",
        status=f"{look} status {name}",
        settings=settings,
        uid=owner,
    )


def by_hand(address: str, pid: int | None = None, settings: str = "", uid: int = 0) -> EngineService:
    """Return an engine that no known service runs, for example one started in a terminal."""
    which = f"the engine at {address}" + (f", process {pid}" if pid else "")
    sudo = "" if uid else "sudo "
    return EngineService(
        start=f"start the engine at {address}, or correct the address: DOCKER_HOST, `docker context ls`",
        restart=f"restart {which}",
        reload=f"{sudo}kill -HUP {pid}" if pid else f"send dockerd the signal HUP: {which}",
        status=f"does {which} run?",
        settings=settings,
        uid=uid,
    )


SYSTEM = systemd("docker.service", settings=_SYSTEM_SETTINGS)
"""The engine at Docker's default address."""
