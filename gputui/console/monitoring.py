"""The monitor of a scheduler in this process: an exporter of metrics, where the site wants one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gputui.config import Options

if TYPE_CHECKING:
    from gputui.domain.entries import Entries
    from gputui.ports import Monitor


def monitor_opener(
    options: Options, store_id: str, said: Callable[[str], object] = lambda _: None
) -> Callable[[Entries], Monitor] | None:
    """Return what opens the monitor of a term as scheduler; None where metrics are off: nothing is imported then.

    `said` is called with sentences about the port.
    """
    if not options.settings.metrics.enabled:
        return None

    def open_monitor(jobs: Entries) -> Monitor:
        from gputui.metrics.exporter import Exporter

        return Exporter(options.settings, options.state, jobs.values(), store_id=store_id, said=said)

    return open_monitor
