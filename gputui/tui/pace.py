"""Limits how often the screen is drawn: usually once a second, less often over a slow line."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace
from textual.message import Message
from textual.timer import Timer

from gputui.domain.settings import ConsoleSettings
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui.present.gpu_rows import GpuPicture


class Pace(Struct, frozen=True):
    """Seconds between drawings, and the parts that are left out."""

    pictures: float = 0.0
    """Minimum seconds between snapshots; 0: each is shown as it arrives."""
    tick: float = 1.0
    """Seconds until the clock on the screen advances."""
    log: float = 0.1
    has_graphs: bool = True
    clock: str = "%H:%M:%S"

    def drawn(self, picture: GpuPicture) -> GpuPicture:
        return picture if self.has_graphs else replace(picture, left_out=frozenset({"history"}))

    def grid(self, mode: str) -> str:
        """Return the layout of GPUs: rows if graphs are left out, since cards are mainly graphs."""
        return mode if self.has_graphs or mode != "auto" else "rows"


USUAL, SLOW = Pace(), Pace(pictures=5.0, tick=5.0, log=5.0, has_graphs=False, clock="%H:%M")


def pace_of(settings: ConsoleSettings) -> Pace:
    return SLOW if settings.slow else USUAL


def log_pace(app: object) -> float:
    """Return the minimum seconds between two reads of a log."""
    pacer = getattr(app, "pacer", None)
    return pacer.pace.log if isinstance(pacer, Pacer) else USUAL.log


class Pacer:
    """Passes on snapshots no more often than the pace allows; never drops the last one, or a requested one."""

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
        """Show a snapshot, now or when it is due."""
        self._waiting = snapshot
        wait = self._shown_at + self.pace.pictures - time.monotonic()
        if wait <= 0:
            self._let_through()
        elif self._timer is None:
            self._timer = self._later(wait, self._let_through)

    def hurry(self) -> None:
        self._shown_at = float("-inf")

    def _let_through(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if (snapshot := self._waiting) is not None:
            self._waiting, self._shown_at = None, time.monotonic()
            self._show(snapshot)


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
        """Return whether a size (columns, lines) is new: a start tells it three times."""
        before, self._size = self._size, size
        return size != before

    def wants_tick(self) -> bool:
        """Return whether to draw because time has passed."""
        now = self._clock()
        return now - self._painted_at >= self.FRESH and now - self._snapshot_at >= self.EXPECTED * self._tick


def _lasting(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without its time, the resulting ages of readings, and the reasons.

    Reasons follow from the rest, or are drawn with the next reading. Comparing those of 10,000 jobs would make each of
    them.
    """
    nodes = (replace(node, gpus=tuple(replace(view, age=None) for view in node.gpus)) for node in snapshot.nodes)
    return replace(snapshot, taken_at=EMPTY.taken_at, nodes=tuple(nodes), reasons=EMPTY.reasons)


class SnapshotTaken(Message, bubble=False):
    """Message that there is a new snapshot. Of several pending ones only the newest is shown."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """Return whether the other message is a snapshot too, which the newer one replaces."""
        return isinstance(message, SnapshotTaken)
