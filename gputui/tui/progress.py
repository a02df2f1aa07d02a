"""Work on other threads, of which only the latest request counts; progress of long tasks; how often is drawn."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace
from textual.message import Message
from textual.timer import Timer

from gputui.domain.errors import GputuiError
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.text import fit, plain, width
from gputui.threads import Watcher, fault_words
from gputui.tui.present.cells import AMBER, BLUE, DIM, PLAIN, Cell, bar, moving

if TYPE_CHECKING:
    from textual.app import App

    from gputui.domain.policy.whatif import Timeline


IsWanted: TypeAlias = Callable[[], bool]
Computation: TypeAlias = Callable[[IsWanted], Message]


class Throttle(Struct, eq=False):
    """Limits how often a computation is repeated, so that it does not occupy a core."""

    rest: float
    """Multiple of the last computation's time for which it is not repeated."""
    waits: bool = False
    _begun: float = 0.0
    _ended: float = 0.0

    def begin(self) -> None:
        self.waits, self._begun = True, time.monotonic()

    def end(self) -> None:
        self.waits, self._ended = False, time.monotonic()

    @property
    def may_begin(self) -> bool:
        return not self.waits and time.monotonic() - self._ended >= self.rest * (self._ended - self._begun)


def failure_words(error: Exception) -> str:
    return str(error) if isinstance(error, GputuiError) else fault_words(error)


class LatestWorker(Struct, eq=False):
    """Runs only the newest request; older ones are cancelled. Never blocks its caller.

    The thread is a daemon: closing a screen or the console waits for no forecast.
    """

    tell: Callable[[Message], object]
    failed: Callable[[Exception], Message]
    _asked: queue.SimpleQueue[tuple[int, Computation] | None] = field(default_factory=queue.SimpleQueue)
    _number: int = 0
    _thread: threading.Thread | None = None

    def ask(self, work: Computation) -> None:
        self._number += 1
        if self._thread is None:
            self._thread = Watcher("gputui-forecast", self._run)
            self._thread.start()
        self._asked.put((self._number, work))

    def close(self) -> None:
        self._number += 1
        self._thread = None
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            number, work = asked
            if number == self._number:
                self._carry_out(number, work)
            del asked, work  # or its queue would be kept until the next request

    def _carry_out(self, number: int, work: Computation) -> None:
        try:
            message = work(lambda: number == self._number)
        except Exception as error:  # noqa: BLE001 - a border: what went wrong is told where the answer would stand
            message = self.failed(error)
        if number == self._number:
            self.tell(message)


_AGED = timedelta(seconds=10)
"""Age from which a forecast is renewed even without changes, since starts and scores move with time."""


class ForecastBase(Struct, eq=False):
    """Snapshot and time as the base of forecasts; the same for every change until the next snapshot."""

    snapshot: Snapshot
    now: datetime
    before: Timeline | None = None
    """The forecast without any change, once computed."""

    def is_old(self, snapshot: Snapshot, now: datetime) -> bool:
        return now - self.now >= _AGED or not are_alike(self.snapshot, snapshot)


def are_alike(before: Snapshot, after: Snapshot) -> bool:
    """Return whether both lead to the same plan: the same jobs, controls and states of GPUs."""
    if before is after:
        return True
    return before.jobs == after.jobs and before.controls == after.controls and _gpus(before) == _gpus(after)


def _gpus(snapshot: Snapshot) -> list[object]:
    return [(view.gpu.uuid, view.state, view.drain, view.health.code, view.job_id) for view in snapshot.gpus]


class TaskCancelledError(GputuiError):
    """Raised in a task that was cancelled; its work was not done."""


class LongTask(Struct, eq=False):
    """Task whose progress is counted by its thread, and which another thread may cancel."""

    words: str
    unit: str
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    total: int | None = None
    is_over: bool = False
    is_given_up: bool = False
    _begun_at: float | None = None

    def begin(self) -> None:
        self._begun_at = self.clock()

    @property
    def took(self) -> float:
        return 0.0 if self._begun_at is None else self.clock() - self._begun_at

    def step(self, done: int, total: int | None = None) -> None:
        """Record progress; raises TaskCancelledError if the task was cancelled."""
        self.done, self.total = done, total
        if self.is_given_up:
            raise TaskCancelledError("Cancelled; nothing was changed")

    def give_up(self) -> None:
        """Cancel the task at its next step; after the last one it completes all the same."""
        self.is_given_up = True

    def end(self) -> None:
        self.is_over = True


@dataclass(eq=False)
class TaskStarted(Message):
    """Message that a task has started which may take long."""

    work: LongTask


_BAR = 20
_NAMED = 40


def work_cell(work: LongTask, second: int) -> Cell:
    """Return the progress line: `saving job-12.log ━━━━╸────  4,210 of 10,000 jobs   Esc cancels`."""
    meter = moving(second, _BAR) if work.total is None else bar(work.done / max(1, work.total), _BAR, AMBER)
    count = f"{work.done:,}" + (f" of {work.total:,}" if work.total is not None else "")
    end: Cell = (("cancelling …", AMBER),) if work.is_given_up else (("Esc", BLUE), (" cancels", DIM))
    return (
        (f"{fit(plain(work.words), min(_NAMED, width(work.words)))} ", PLAIN),
        *meter,
        (f" {count} {work.unit}   ", PLAIN),
        *end,
    )


LONG = 1.0
"""Seconds after which a task's progress is shown."""


class ProgressDisplay(Struct, eq=False):
    """Display of long tasks: one at a time, the one that began first."""

    app: App[Any]
    draw: Callable[[Cell], None]
    """Gets the progress, each time that it may have changed; empty once there is none."""
    every: float
    shown: LongTask | None = None
    timer: Timer | None = None
    _works: list[LongTask] = []

    def watch(self, work: LongTask) -> None:
        self._works.append(work)
        if self.timer is None:
            self.timer = self.app.set_interval(self.every, self.look)

    def look(self) -> None:
        self._works = [work for work in self._works if not work.is_over]
        if not self._works and self.timer is not None:
            self.timer.stop()
            self.timer = None
        self._show(next((work for work in self._works if work.took >= LONG), None))

    def give_up(self) -> None:
        if self.shown is not None:
            self.shown.give_up()
            self._show(self.shown)

    def _show(self, work: LongTask | None) -> None:
        self.shown = work
        self.draw(() if work is None else work_cell(work, int(time.monotonic())))


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


class Repaints(Struct, eq=False):
    """Decides when the main screen is redrawn: usually once for each reading, never twice for the same."""

    FRESH = 0.9
    """Seconds after a repaint in which the clock needs no repaint of its own."""
    EXPECTED = 1.2
    """Number of ticks after a snapshot within which the next one is expected; it advances the clock too."""

    tick: float
    clock: Callable[[], float] = time.monotonic
    _painted_at: float = float("-inf")
    _snapshot_at: float = float("-inf")
    _taken_at: datetime = EMPTY.taken_at
    _size: tuple[int, int] = (0, 0)

    def note(self) -> None:
        self._painted_at = self.clock()

    def wants(self, before: Snapshot, after: Snapshot) -> bool:
        """Return whether to draw a snapshot; one between two readings, in which only ages differ, is not worth it."""
        is_soon = abs(after.taken_at - self._taken_at).total_seconds() < self.tick
        if is_soon and after is not before and _lasting(before) == _lasting(after):
            return False
        self._taken_at, self._snapshot_at = after.taken_at, self.clock()
        return True

    def wants_size(self, size: tuple[int, int]) -> bool:
        before, self._size = self._size, size
        return size != before

    def wants_tick(self) -> bool:
        now = self.clock()
        return now - self._painted_at >= self.FRESH and now - self._snapshot_at >= self.EXPECTED * self.tick


def _lasting(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without its time, the resulting ages of readings, and the reasons.

    Reasons follow from the rest, or are drawn with the next reading. Comparing those of 10,000 jobs would make each of
    them.
    """
    nodes = (replace(node, gpus=tuple(replace(view, age=None) for view in node.gpus)) for node in snapshot.nodes)
    return replace(snapshot, taken_at=EMPTY.taken_at, nodes=tuple(nodes), reasons=EMPTY.reasons)
