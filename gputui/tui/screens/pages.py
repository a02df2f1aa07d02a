"""Makes the pages of a job for `Services.pages`: the screens that open them are their base classes."""

from __future__ import annotations

from collections.abc import Callable

from textual.screen import Screen

from gputui.domain.job import JobId
from gputui.domain.snapshot import Snapshot
from gputui.tui.services import Pages, Services


def _detail(services: Services, snapshot: Snapshot, job_id: JobId, follow: Callable[[JobId], None]) -> Screen[None]:
    from gputui.tui.screens.detail import Detail

    return Detail(services, snapshot, job_id, follow)


def _processes(services: Services, snapshot: Snapshot, job_id: JobId) -> Screen[None]:
    from gputui.tui.screens.processes import ProcessesScreen

    return ProcessesScreen(services, snapshot, job_id)


PAGES = Pages(_detail, _processes)
