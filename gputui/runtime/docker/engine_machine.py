"""Machine of an engine, as the probe that reads its GPUs needs it: which one it is, and ways to run a command there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from gputui.domain.errors import RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.domain.text import plain
from gputui.runtime.docker.connection import Connection
from gputui.runtime.docker.endpoint import Endpoint, tunnel_to
from gputui.runtime.docker.engine import forwards_elsewhere, runs_here

if TYPE_CHECKING:
    from gputui.runtime.docker.engine import EngineJson


def is_elsewhere_maybe(endpoint: Endpoint) -> bool:
    """Return whether the engine may be on another machine, without asking it."""
    return not endpoint.socket_path or forwards_elsewhere(endpoint.socket_path)


class EngineMachine:
    """Machine of the engine at an address. Methods block; they raise RuntimeFault and RuntimeUnavailableError."""

    def __init__(self, endpoint: Endpoint, settings: RuntimeSettings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._connection = Connection(settings)
        self._info: EngineJson | None = None
        self.name = urlsplit(endpoint.url).hostname or "the engine"

    def is_here(self) -> bool:
        if self._endpoint.is_ssh:
            tunnel = tunnel_to(self._endpoint.url)
            tunnel.socket_path()
            self.name = tunnel.machine()
            return tunnel.is_here()
        info = self._connection.call(lambda client: client.info())
        self.name = plain(str(info.get("Name") or ""), 60) or self.name
        return runs_here(info, self._endpoint)

    def container(self, command: Sequence[str]) -> NoReturn:
        raise RuntimeUnavailableError(f"nothing reads the GPUs of {self.name}")

    def shell(self, command: str) -> Sequence[str] | None:
        return tunnel_to(self._endpoint.url).shell(command) if self._endpoint.is_ssh else None
