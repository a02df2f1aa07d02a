"""The monitor of a scheduler in this process: an exporter of metrics and a tracer of jobs, if switched on."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gputui.config import Options
from gputui.domain.installing import install_line
from gputui.domain.snapshot import Notice, Snapshot
from gputui.ports.monitor import NoMonitor

if TYPE_CHECKING:
    from gputui.domain.entries import Entries
    from gputui.ports import Monitor

log = logging.getLogger(__name__)


def monitor_opener(
    options: Options, store_id: str, said: Callable[[str], object] = lambda _: None
) -> Callable[[Entries], Monitor] | None:
    """Return the factory of a term's monitor; None, without further imports, if none is switched on.

    `said` is called with sentences about the port.
    """
    settings = options.settings
    if not settings.metrics.enabled and not settings.traces.enabled:
        return None

    def open_exporter(jobs: Entries) -> Monitor:
        from gputui.metrics.exporter import Exporter

        return Exporter(settings, options.state, jobs.values(), store_id=store_id, said=said)

    def open_tracer(jobs: Entries) -> Monitor:
        try:
            from gputui.tracing.tracer import JobTracer
        except ImportError as error:
            log.error("no traces are sent: %s", error)
            said(f"no traces are sent: {_NEEDED}")
            return _Missing(_NEEDED)
        return JobTracer(settings.traces, jobs.values(), store_id, socket.gethostname())

    if not settings.traces.enabled:
        return open_exporter
    if not settings.metrics.enabled:
        return open_tracer
    return lambda jobs: Monitors((open_exporter(jobs), open_tracer(jobs)))


_HOW = install_line(["gputui[otel]"], sys.prefix, has_pip=find_spec("pip") is not None)
_NEEDED = f"OpenTelemetry is not installed: {_HOW}"


class _Missing(NoMonitor):
    """Monitor that reports a missing package."""

    def __init__(self, text: str) -> None:
        self._notices = (Notice("warning", f"no traces are sent: {text}", short="no traces"),)

    def notices(self) -> tuple[Notice, ...]:
        """Return a notice that names the missing package."""
        return self._notices


class Monitors:
    """Several monitors as one."""

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._monitors = monitors

    def published(self, snapshot: Snapshot) -> None:
        """Pass on the snapshot at the end of a tick."""
        for monitor in self._monitors:
            monitor.published(snapshot)

    def took(self, step: str, seconds: float) -> None:
        """Pass on the duration of a step."""
        for monitor in self._monitors:
            monitor.took(step, seconds)

    def failed(self, part: str) -> None:
        """Pass on a fault."""
        for monitor in self._monitors:
            monitor.failed(part)

    def wrote(self, seconds: float) -> None:
        """Pass on the duration of a write."""
        for monitor in self._monitors:
            monitor.wrote(seconds)

    def called(self, runtime: str, call: str, result: str, seconds: float) -> None:
        """Pass on a call to a runtime."""
        for monitor in self._monitors:
            monitor.called(runtime, call, result, seconds)

    def delivered(self, hook: str, result: str) -> None:
        """Pass on a delivery."""
        for monitor in self._monitors:
            monitor.delivered(hook, result)

    def notices(self) -> tuple[Notice, ...]:
        """Return the notices of all."""
        return tuple(notice for monitor in self._monitors for notice in monitor.notices())

    def close(self) -> None:
        """Close all."""
        for monitor in self._monitors:
            monitor.close()
