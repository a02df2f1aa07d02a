"""Connections to an engine that comes and goes."""

from __future__ import annotations

from gputui.domain.errors import RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker.connection import Connection


class Recovering(Connection):
    """Connection that another thread restores between a failure and its report."""

    def forget(self) -> None:
        super().forget()
        self._last_error = None


def test_a_failure_is_reported_despite_a_new_connection_of_another_thread() -> None:
    error = Recovering(RuntimeSettings(docker_host="unix:///nowhere")).lost(ConnectionResetError("reset"))
    assert isinstance(error, RuntimeUnavailableError)
