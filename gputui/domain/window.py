"""A reservation as it stands now: what every face shows of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gputui.domain.settings import Window


class WindowState(StrEnum):
    """How far a reservation is."""

    UPCOMING = "UPCOMING"
    ACTIVE = "ACTIVE"
    """Its time has come; nobody may have claimed it yet."""
    RELEASED = "RELEASED"
    """Nobody claimed it in time: its GPUs are anybody's."""


@dataclass(frozen=True)
class WindowView:
    """A reservation that is not over."""

    window: Window
    state: WindowState
    source: str = "file"
    """`file`: the settings file's; `command`: that of `gputui reserve`."""
    claimed_at: datetime | None = None
    """Since when a job it is kept for has run in it."""
    released_at: datetime | None = None
    lapses_at: datetime | None = None
    """When it is given up, if nobody claims it by then; None: it is claimed, given up or kept for nobody."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs kept, as it looks now; none of one that is released, nor where no GPU is known."""
