"""Limits how often the screen is drawn: usually once a second, less often over a slow line."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.snapshot import EMPTY, Snapshot


class Pace(Struct, frozen=True):
    """Seconds between drawings, and the parts that are left out."""

    pictures: float = 0.0
    """Minimum seconds between snapshots; 0: each is shown as it arrives."""
    tick: float = 1.0
    """Seconds until the clock on the screen advances."""
    log: float = 0.1
    has_graphs: bool = True
    clock: str = "%H:%M:%S"

    def grid(self, mode: str) -> str:
        """Return the layout of GPUs: rows if graphs are left out, since cards are mainly graphs."""
        return mode if self.has_graphs or mode != "auto" else "rows"


USUAL, SLOW = Pace(), Pace(pictures=5.0, tick=5.0, log=5.0, has_graphs=False, clock="%H:%M")


def log_pace(app: object) -> float:
    pace = getattr(getattr(app, "pacer", None), "pace", None)
    return pace.log if isinstance(pace, Pace) else USUAL.log


class Repaints:
    """Decides when the main screen is redrawn: usually once for each reading, never twice for the same."""

    FRESH = 0.9
    """Seconds after a repaint in which the clock needs no repaint of its own."""
    EXPECTED = 1.2
    """Number of ticks after a snapshot within which the next one is expected; it advances the clock too."""

    def __init__(self, tick: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._tick = tick
        self._clock = clock
        self._painted_at = self._snapshot_at = float("-inf")
        self._taken_at = EMPTY.taken_at
        """Time of the latest drawn snapshot."""
        self._size = (0, 0)

    def note(self) -> None:
        self._painted_at = self._clock()

    def wants(self, before: Snapshot, after: Snapshot) -> bool:
        """Return whether to draw a snapshot; one between two readings, in which only ages differ, is not worth it."""
        is_soon = abs(after.taken_at - self._taken_at).total_seconds() < self._tick
        if is_soon and after is not before and _lasting(before) == _lasting(after):
            return False
        self._taken_at, self._snapshot_at = after.taken_at, self._clock()
        return True

    def wants_size(self, size: tuple[int, int]) -> bool:
        before, self._size = self._size, size
        return size != before

    def wants_tick(self) -> bool:
        now = self._clock()
        return now - self._painted_at >= self.FRESH and now - self._snapshot_at >= self.EXPECTED * self._tick


def _lasting(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without its time, the resulting ages of readings, and the reasons.

    Reasons follow from the rest, or are drawn with the next reading. Comparing those of 10,000 jobs would make each of
    them.
    """
    nodes = (replace(node, gpus=tuple(replace(view, age=None) for view in node.gpus)) for node in snapshot.nodes)
    return replace(snapshot, taken_at=EMPTY.taken_at, nodes=tuple(nodes), reasons=EMPTY.reasons)
