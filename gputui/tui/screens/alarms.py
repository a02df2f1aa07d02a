"""From an alarm to what it is about: one key opens the page of the job, the process or the GPU, the worst first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from gputui.domain.conditions import Condition
from gputui.domain.job_spec import JobId
from gputui.domain.severity import FAILED, INFORMATION
from gputui.domain.snapshot import Snapshot
from gputui.tui.services import Services

if TYPE_CHECKING:
    from textual.app import App

Place = tuple[str, str]


def place_of(condition: Condition, snapshot: Snapshot) -> Place | None:
    """Return the kind and id of what it is about; None for a condition that is no alarm, or about no page."""
    if condition.severity == INFORMATION:
        return None
    if condition.place[0]:
        return condition.place
    if condition.kind == FAILED and condition.subject.isdigit():
        return "job", condition.subject
    return ("gpu", condition.subject) if any(v.gpu.uuid == condition.subject for v in snapshot.gpus) else None


class AlarmPages:
    """The pages of the alarms, one after the other."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._page: Screen[None] | None = None
        self._last: Place | None = None

    def open_next(
        self, app: App[Any], snapshot: Snapshot, found: Sequence[Condition], follow: Callable[[JobId], None]
    ) -> bool:
        """Open the page of the worst alarm; on such a page, that of the next one. Return whether there is any."""
        known = (place_of(condition, snapshot) for condition in found)
        places = list(dict.fromkeys(place for place in known if place is not None))
        if not places:
            return False
        is_on_page = self._page is not None and app.screen is self._page
        after = places.index(self._last) + 1 if is_on_page and self._last in places else 0
        self._last = places[after % len(places)]
        page = self._page_of(self._last, snapshot, follow)
        if is_on_page:
            app.switch_screen(page)
        else:
            app.push_screen(page)
        self._page = page
        return True

    def _page_of(self, place: Place, snapshot: Snapshot, follow: Callable[[JobId], None]) -> Screen[None]:
        kind, name = place
        if kind == "job":
            from gputui.tui.screens.detail import Detail

            return Detail(self._services, snapshot, int(name), follow)
        if kind == "gpu":
            from gputui.tui.screens.gpu import GpuDetailScreen

            return GpuDetailScreen(self._services, snapshot, name, follow)
        from gputui.tui.screens.gpu_processes import GpuProcessesScreen

        return GpuProcessesScreen(self._services, snapshot, follow, at=name)
