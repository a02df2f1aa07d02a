"""Reservations that an operator is about to make or give up, before it is written down."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from gputui.domain.gpu import Gpu
from gputui.domain.job import JobId
from gputui.domain.policy import standing
from gputui.domain.policy.occupants import warnings
from gputui.domain.policy.whatif import Change
from gputui.domain.settings import Window
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.domain.units import format_duration, plural
from gputui.engine.reservations import whom
from gputui.tui.present.labels import Labels
from gputui.tui.present.times import clock
from gputui.tui.queue import tabs
from gputui.tui.queue.tabs import Call

_SOON = timedelta(seconds=30)
"""What begins so soon begins now: the picture is a little older than what is typed."""


@dataclass(frozen=True)
class WindowProposal:
    """A wish about one reservation, as it is asked for or as it stands."""

    window: Window
    gpus: tuple[Gpu, ...] = ()
    """Those there are, where it is a new one."""
    is_new: bool = True
    job_ids: tuple[JobId, ...] = ()

    def further(self, verb: str, snapshot: Snapshot) -> WindowProposal:
        """No key adds to it."""
        del verb, snapshot
        return self

    def words(self, snapshot: Snapshot) -> str:
        """The change, in words."""
        told = in_words(self.window, snapshot)
        return f"Keep {told}" if self.is_new else f"Give up reservation {self.window.name}: {told}"

    def cost(self, snapshot: Snapshot, now: datetime) -> str:
        """Nothing is lost for good."""
        del snapshot, now
        return ""

    def doubt(self, snapshot: Snapshot) -> str:
        """Return why it makes no sense any more, or what keeps it from being of use."""
        if self.is_new:
            return "; ".join(warnings(self.window, snapshot, Labels.of(snapshot).by_uuid))
        is_there = any(view.window.key == self.window.key for view in snapshot.windows)
        return f"There is no reservation {self.window.name} any more." if not is_there else ""

    def change(self, now: datetime) -> Change:
        """What the plan is asked."""
        del now
        return standing.reserved(self.window) if self.is_new else standing.given_up(self.window)

    def fate(self) -> str:
        """What becomes of a start that there is none of afterwards."""
        return "not foreseen"

    def call(self, reason: str = "") -> Call:
        """What writes it down."""
        del reason
        return tabs.reserve(self.window, self.gpus) if self.is_new else tabs.give_up(self.window.name)


def in_words(window: Window, snapshot: Snapshot) -> str:
    """`4 GPUs from 14:00 for 8h00m, for alice`."""
    now = snapshot.taken_at
    what = Labels.of(snapshot).of_all(window.gpus) if window.gpus else plural(window.count, "GPU")
    start = "now" if window.start - now < _SOON else clock(window.start, now)
    lasting = format_duration(window.end - max(window.start, now))
    return plain(f"{what} from {start} for {lasting}, for {whom(window)}", 200)
