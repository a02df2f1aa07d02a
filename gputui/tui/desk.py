"""What the screens are handed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from gputui.domain.gpu_history import History, TakenStep
from gputui.domain.job import Job
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.ports import Clock
from gputui.tui.interiors import Closed, Interiors
from gputui.tui.log.follower import LogOpener
from gputui.tui.log.pinned import Pinned
from gputui.tui.pace import Pace, pace_of
from gputui.tui.remembered import Remembered
from gputui.tui.submission.sources import FormSources


@dataclass(frozen=True)
class Desk:
    """Everything a screen may need of the world. Wishes go up as messages."""

    logs: LogOpener
    settings: Settings
    clock: Clock
    host: str = ""
    user: str = ""
    """The tenant of jobs submitted here."""
    remembered: Remembered = field(default_factory=Remembered)
    """How this person left the console."""
    forms: FormSources = field(default_factory=FormSources)
    """What the submit form is offered."""
    inside: Interiors = field(default_factory=Closed)
    """The way into jobs that run."""
    pinned: Pinned = field(default_factory=Pinned)
    """Logs that are shown together."""
    want_pcie: Callable[[str | None], None] = lambda uuid: None
    """Have PCIe throughput of this GPU alone read from now on. Never blocks; vain where others read the GPUs."""
    gpu_history: History = field(default_factory=History)
    """What each GPU's readings were."""
    gpu_past: Callable[[], Iterable[TakenStep]] = lambda: ()
    """And before the console was opened. May block."""
    past: Callable[[datetime | None], Iterable[Job]] = lambda since: ()
    """Finished jobs that left the queue file since then. May block."""

    @property
    def pace(self) -> Pace:
        """How often the screen is drawn anew."""
        return pace_of(self.settings.console)

    @property
    def is_read_only(self) -> bool:
        """Whether nothing may be wished here."""
        return self.settings.console.read_only


class ShowsSnapshot(Protocol):
    """A screen that shows what is going on."""

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show this picture, at the time it is now."""
        ...
