"""Connections to an engine that comes and goes."""

from __future__ import annotations

from gputui.domain.errors import RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker.connection import Connection


class Recovering(Connection):
    """A connection that another thread restores between the failure and its report."""

    def forget(self) -> None:
        super().forget()
        self._last_error = None


def test_a_failure_is_reported_although_another_thread_has_connected_meanwhile() -> None:
    error = Recovering(RuntimeSettings(docker_host="unix:///nowhere")).lost(ConnectionResetError("reset"))
    assert isinstance(error, RuntimeUnavailableError)
