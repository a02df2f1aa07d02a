"""Measurements of a console under torture: working time of its loop, memory, and live objects at rest."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import os
import re
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TypeVar
from weakref import WeakSet

from textual.dom import DOMNode
from textual.widget import Widget

from gputui.tui.actions import ActionFailed, ExitChoice
from gputui.tui.app import Gputui

T = TypeVar("T")
SLOW = 400
"""Milliseconds of the loop's own work above which its cause is recorded."""
_LOOK = 0.1
"""Seconds between two samples of the loop's position."""
_DEEP = 16
"""Depth of the recorded call stack."""


class Tortured(Gputui):
    """Console that cannot be closed; records errors at its borders, and its living widgets."""

    caught: list[str]
    born: WeakSet[Widget]

    def _leave(self, how: ExitChoice | None) -> None:
        del how

    def on_action_failed(self, message: ActionFailed) -> None:
        if message.error.where == "gputui":
            self.caught.append(str(message.error))
        super().on_action_failed(message)

    def _register_child(self, parent: DOMNode, child: Widget, before: int | None, after: int | None) -> None:
        self.born.add(child)
        super()._register_child(parent, child, before, after)


def resident() -> float:
    """Return the resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def in_use() -> float:
    """MB that Python and the C library have given out; what else is resident is code, and holes between these.

    An action on all of 10,000 jobs needs 40 MB for two seconds and leaves holes of 27 MB, in which all such actions
    after it find room: whether one came in the last third of a run is left to chance.
    """
    function = ctypes.CDLL(None).mallinfo2
    function.restype = _MallInfo
    malloc = function()
    found = re.search(r"# bytes in allocated blocks\s*=\s*([\d,]+)", _python_says())
    assert found is not None
    return float(int(found[1].replace(",", "")) + malloc.uordblks + malloc.hblkhd) / 1e6


def _python_says() -> str:
    """Return Python's own memory report, which it prints only to the descriptor of stderr."""
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            sys._debugmallocstats()  # noqa: SLF001 - documented, in spite of its name
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        file.seek(0)
        return file.read().decode()


POOLS = ("start-", "stop-", "exit-", "clean-", "look-", "pull-", "history", "host", "asyncio_")
"""Names of threads of bounded pools, which start one by one, so their number means nothing."""


ONCE = Counter({"gputui-forecast": 8, "gputui-actions": 1, "maintenance": 1, "tick": 1})
"""Threads that begin on first use, late in a run on a busy machine; the main screen has eight workers."""


def _threads() -> Counter[str]:
    """Return the threads that a console should not gain, by name."""
    names = Counter(each.name for each in threading.enumerate() if not each.name.startswith(POOLS))
    return names - ONCE


@dataclass(frozen=True)
class Rest:
    """State of the console at rest: only its main screen, after garbage collection."""

    memory: float
    """Resident MB."""
    used: float
    """Allocated MB."""
    objects: int
    """Memory blocks allocated by Python, in thousands; constant if memory grows only by fragmentation."""
    counts: Counter[str]
    """Counts of live objects, which no allocator blurs."""
    threads: Counter[str]
    """The threads among them, by name."""

    @classmethod
    async def of(cls, app: Tortured) -> Rest:
        """Measure after a collection in a thread, whose time does not count for the loop."""
        await asyncio.to_thread(gc.collect)
        alive = {
            "widgets": len(app.born),
            "on the screen": sum(each.is_attached for each in app.born),
            "threads": (threads := _threads()).total(),
            "tasks": len(asyncio.all_tasks()),
        }
        return cls(resident(), in_use(), sys.getallocatedblocks() // 1000, Counter(alive), threads)


@dataclass
class Measured:
    """Measurements of a run."""

    gaps: Counter[int] = field(default_factory=Counter)
    """Number of rounds by lateness of the event loop in milliseconds."""
    busy: Counter[int] = field(default_factory=Counter)
    """Number of rounds by the milliseconds that the loop itself worked: other programs do not count."""
    rests: list[Rest] = field(default_factory=list)
    keys: Counter[str] = field(default_factory=Counter)
    screens: Counter[str] = field(default_factory=Counter)
    lately: deque[str] = field(default_factory=lambda: deque(maxlen=12))
    """Latest requests to the console."""
    slow: list[str] = field(default_factory=list)
    """Requests before which the loop worked long, and the time of garbage collection meanwhile."""
    _collected: float = 0.0
    _collecting: float = 0.0
    _came_round: float = field(default_factory=time.monotonic)
    _seen_at: list[str] = field(default_factory=list)

    async def watch(self, step: float = 0.01) -> None:
        """Measure the rounds of the event loop, until cancelled."""
        loops_own = threading.get_ident()

        def collect(phase: str, info: dict[str, int]) -> None:
            del info
            if threading.get_ident() == loops_own and phase == "start":
                self._collecting = time.thread_time()
            elif threading.get_ident() == loops_own:
                self._collected += time.thread_time() - self._collecting

        gc.callbacks.append(collect)
        looked = threading.Thread(target=self._look_at, args=(loops_own, done := threading.Event()), daemon=True)
        looked.start()
        try:
            while True:
                self._came_round = time.monotonic()
                before, worked, self._collected = time.monotonic(), time.thread_time(), 0.0
                await asyncio.sleep(step)
                self.gaps[round(1000 * (time.monotonic() - before - step))] += 1
                self._count(round(1000 * (time.thread_time() - worked)))
        finally:
            done.set()
            gc.callbacks.remove(collect)

    def _look_at(self, loops_own: int, done: threading.Event) -> None:
        """Record from another thread the place of the loop, whenever it has not come round for long."""
        while not done.wait(_LOOK):
            if time.monotonic() - self._came_round > SLOW / 2000:
                frames = traceback.walk_stack(
                    sys._current_frames()[loops_own]  # noqa: SLF001 - documented, in spite of its name
                )  # `extract_stack` would keep all sources
                self._seen_at.append(" < ".join(_place(*found) for found in itertools.islice(frames, _DEEP)))

    def _count(self, worked: int) -> None:
        self.busy[worked] += 1
        if worked >= SLOW:
            garbage = round(1000 * self._collected)
            at = " | ".join(self._seen_at)
            self.slow.append(f"{worked} ms, {garbage} of them for garbage, after {' '.join(self.lately)}, in {at}")
        self._seen_at.clear()

    @property
    def growth(self) -> float:
        """MB of resident memory between the means of the second third and of the last."""
        return self._growth([rest.memory for rest in self.rests])

    @property
    def growth_used(self) -> float:
        """MB of memory in use, likewise."""
        return self._growth([rest.used for rest in self.rests])

    def _growth(self, values: list[float]) -> float:
        _, middle, last = _thirds(values)
        return sum(last) / len(last) - sum(middle) / len(middle)

    @property
    def grown(self) -> Counter[str]:
        """Return the kinds of objects whose minimum in the last third exceeds the maximum in the first."""
        first, _, last = _thirds(self.rests)
        names = first[0].counts.keys()
        most = Counter({name: max(rest.counts[name] for rest in first) for name in names})
        return Counter({name: min(rest.counts[name] for rest in last) for name in names}) - most

    def __str__(self) -> str:
        alive = {name: [rest.counts[name] for rest in self.rests] for name in self.rests[0].counts}
        return (
            f"{self.keys.total()} keys on {dict(self.screens)}; "
            f"gap p50 {within(self.gaps, 0.5)} ms, p99 {within(self.gaps, 0.99)} ms, max {max(self.gaps)} ms; "
            f"own work p50 {within(self.busy, 0.5)} ms, p99 {within(self.busy, 0.99)} ms, max {max(self.busy)} ms; "
            f"slow {self.slow}; "
            f"memory {[round(rest.memory) for rest in self.rests]} MB, growth {self.growth:.1f} MB; "
            f"in use {[round(rest.used) for rest in self.rests]} MB, growth {self.growth_used:.1f} MB; "
            f"thousands of objects {[rest.objects for rest in self.rests]}; alive {alive}; "
            f"threads at last {dict(self.rests[-1].threads)}"
        )


def _thirds(values: list[T]) -> tuple[list[T], list[T], list[T]]:
    third = max(1, len(values) // 3)
    return values[:third], values[third:-third], values[-third:]


def _place(frame: FrameType, line: int) -> str:
    """Return `module.function:line`."""
    code = frame.f_code
    return f"{Path(code.co_filename).stem}.{code.co_name}:{line}"


def within(times: Counter[int], share: float) -> int:
    """Return the milliseconds within which that share of rounds is."""
    left = share * times.total()
    for each in sorted(times):
        left -= times[each]
        if left <= 0:
            return each
    return max(times)
