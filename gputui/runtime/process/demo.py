"""Runtime of the demo: host processes, beside containers that somebody else has started."""

from __future__ import annotations

from pathlib import Path

from gputui.domain.container import ForeignContainer
from gputui.domain.settings import RuntimeSettings
from gputui.ports import Clock
from gputui.runtime.process.runtime import ProcessRuntime


class DemoRuntime(ProcessRuntime):
    """Host processes, and foreign containers that are only said to be there."""

    def __init__(
        self,
        store_id: str,
        directory: Path,
        settings: RuntimeSettings,
        clock: Clock,
        others: tuple[ForeignContainer, ...] = (),
    ) -> None:
        super().__init__(store_id, directory, settings, clock)
        self._others = others

    def foreign(self) -> tuple[ForeignContainer, ...]:
        """Return the containers that are said to be there."""
        return self._others
