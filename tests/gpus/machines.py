"""Machines of engines for tests of the probe elsewhere: this one, taken for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from typing import NoReturn

from gputui.domain.errors import RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker.endpoint import Endpoint
from gputui.runtime.docker.engine_machine import EngineMachine


class ByShell:
    """Machine whose commands a shell of this one runs; None: it has none."""

    name = "gpu1"

    def __init__(self, *shell: str) -> None:
        self.words = shell or ("sh", "-c")

    def is_here(self) -> bool:
        return False

    def shell(self, command: str) -> Sequence[str] | None:
        return (*self.words, command)

    def container(self, command: Sequence[str], tell: Callable[[str], None], closed: Event) -> NoReturn:
        raise RuntimeUnavailableError("it has no engine")


class Elsewhere(EngineMachine):
    """Machine of an engine, which is taken for another although it is this one."""

    def __init__(self, url: str, settings: RuntimeSettings | None = None) -> None:
        super().__init__(Endpoint(url), settings or RuntimeSettings(docker_host=url))

    def is_here(self) -> bool:
        super().is_here()
        return False
