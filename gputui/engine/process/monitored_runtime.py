"""Runtime whose calls a monitor records."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from gputui.domain.errors import RuntimeUnavailableError
from gputui.ports import Monitor, Runtime

RECORDED = frozenset(
    {
        "pull",
        "create",
        "start",
        "terminate",
        "signal",
        "suspend",
        "unsuspend",
        "kill",
        "containers",
        "save_log",
        "remove",
    }
)
"""Calls that act on attempts, and the listing, which shows that a runtime answers."""


class MonitoredRuntime:
    """Passes all calls on to a runtime; calls among `RECORDED` are timed and their results recorded."""

    def __init__(self, runtime: Runtime, monitor: Monitor) -> None:
        self._runtime = runtime
        self._monitor = monitor

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._runtime, name)
        return self._recorded(name, attribute) if name in RECORDED else attribute

    def _recorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*arguments: Any, **named: Any) -> Any:
            begun, result = time.perf_counter(), "error"
            try:
                answer = call(*arguments, **named)
                result = "ok"
            except RuntimeUnavailableError:
                result = "unavailable"
                raise
            finally:
                self._monitor.called(self._runtime.name, name, result, time.perf_counter() - begun)
            return answer

        return recorded


def monitored(runtime: Runtime, monitor: Monitor) -> Runtime:
    """Return the runtime with its calls recorded."""
    return cast("Runtime", MonitoredRuntime(runtime, monitor))
