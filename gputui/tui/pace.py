"""How often the screen is drawn anew: every second as a rule, less often where every byte takes its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from textual.timer import Timer

from gputui.domain.settings import ConsoleSettings
from gputui.domain.snapshot import Snapshot
from gputui.tui.present.gpu_row import GpuPicture


@dataclass(frozen=True)
class Pace:
    """Seconds from one time to the next, and what is left out."""

    pictures: float = 0.0
    """Between pictures, at least; 0: each is shown as it comes."""
    tick: float = 1.0
    """Until the time goes on by itself."""
    log: float = 0.1
    has_graphs: bool = True
    clock: str = "%H:%M:%S"

    def drawn(self, picture: GpuPicture) -> GpuPicture:
        """The GPUs without their graphs, where these are left out."""
        return picture if self.has_graphs else replace(picture, left_out=frozenset({"history"}))

    def grid(self, mode: str) -> str:
        """How GPUs are drawn: cards are graphs above all."""
        return mode if self.has_graphs or mode != "auto" else "rows"


USUAL, SLOW = Pace(), Pace(pictures=5.0, tick=5.0, log=5.0, has_graphs=False, clock="%H:%M")


def pace_of(settings: ConsoleSettings) -> Pace:
    """The pace that is set."""
    return SLOW if settings.slow else USUAL


def log_pace(app: object) -> float:
    """Seconds between two looks at what a log has got, at least."""
    pacer = getattr(app, "pacer", None)
    return pacer.pace.log if isinstance(pacer, Pacer) else USUAL.log


class Pacer:
    """Lets pictures through no more often than the pace has them; the last one always, and one that was asked for."""

    def __init__(
        self, pace: Pace, show: Callable[[Snapshot], None], later: Callable[[float, Callable[[], None]], Timer]
    ):
        self.pace = pace
        self._show = show
        self._later = later
        self._shown_at = float("-inf")
        self._waiting: Snapshot | None = None
        self._timer: Timer | None = None

    def take(self, snapshot: Snapshot) -> None:
        """Show it, now or when its time has come."""
        self._waiting = snapshot
        wait = self._shown_at + self.pace.pictures - time.monotonic()
        if wait <= 0:
            self._let_through()
        elif self._timer is None:
            self._timer = self._later(wait, self._let_through)

    def hurry(self) -> None:
        """Something was done here: the next picture shows it."""
        self._shown_at = float("-inf")

    def _let_through(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if (snapshot := self._waiting) is not None:
            self._waiting, self._shown_at = None, time.monotonic()
            self._show(snapshot)
