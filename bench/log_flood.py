"""Cost of a job that prints 100,000 lines a second, on the screen: processor, memory, delays of the event loop.

`python -m bench.log_flood [SECONDS]`. The console runs without a terminal, so what is measured is everything but the
bytes sent. The share of a core counts the thread that makes the lines too: the line `nobody looks` says how much.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from gputui.tui.screens.log_pane import LogPane
from gputui.tui.widgets.log_pattern import pattern_of
from tests.tui.console import Console

RATE = 100_000
_STEP = 0.01
Prepare = Callable[[LogPane], None]


def flood(stopped: threading.Event) -> Iterator[bytes]:
    """Yield lines at that rate, many at a time, as from a pipe."""
    began, count = time.monotonic(), 0
    while not stopped.is_set():
        due = int((time.monotonic() - began) * RATE)
        for number in range(count, due):
            yield b"epoch 12 step %d  loss \x1b[32m2.3412\x1b[0m  lr 2.0e-05  grad_norm 0.81  tokens/s 18423" % number
        count = due
        stopped.wait(_STEP)


def narrowed(pane: LogPane) -> None:
    """Filter the lines."""
    pane.reading.search.narrow(pattern_of("step .*77 "))


def searched(pane: LogPane) -> None:
    """Search for a text that does not occur."""
    pane.reading.search.look_for(pattern_of("loss.*nan"))


def wrapped(pane: LogPane) -> None:
    """Wrap the lines."""
    pane.action_toggle_wrap()


def errors(pane: LogPane) -> None:
    """Search for errors."""
    pane.reading.search.go_to_error(1)


async def measure(name: str, seconds: float, prepare: Prepare | None) -> None:
    """Measure and print the cost."""
    stopped = threading.Event()
    console = Console()
    console.logs.lines[101] = flood(stopped)
    async with console.app.run_test(size=(200, 50)) as pilot:
        pane = console.app.screen.query_one(LogPane)
        if prepare is None:
            pane.follower = None
            pane.tick = lambda: None  # type: ignore[method-assign]
        await console.begin(pilot)
        if prepare is not None:
            await asyncio.sleep(0.5)
            prepare(pane)
        await _watch(name, seconds, pane, pilot.pause)
        stopped.set()


async def _watch(name: str, seconds: float, pane: LogPane, pause: Callable[[], Awaitable[object]]) -> None:
    before, cpu, painted = time.monotonic(), time.process_time(), _counted(pane)
    lags, busy = [], 0.0
    while (now := time.monotonic()) < before + seconds:
        worked = time.thread_time()
        await asyncio.sleep(_STEP)
        busy = max(busy, time.thread_time() - worked)
        lags.append(time.monotonic() - now - _STEP)
    spent, took = time.process_time() - cpu, time.monotonic() - before
    await pause()
    lags.sort()
    read = pane.follower.read if pane.follower else 0
    late = [1000 * lags[len(lags) * part // 100] for part in (50, 99)]
    print(
        f"{name:14} {read / took:9,.0f} lines/s  {100 * spent / took:4.0f} % of a core  {_resident():4.0f} MB resident"
        f"  {painted[0] / took:4.1f} paints/s  loop late by {late[0]:.1f} ms, p99 {late[1]:.1f} ms;"
        f" worked at once for {1000 * busy:.1f} ms at most  kept {len(pane.reading.lines.kept):,} lines"
    )


def _counted(pane: LogPane) -> list[int]:
    """Return a list with one number, which counts the repaints of the pane from now on."""
    count, repaint = [0], pane.repaint

    def counted(*, is_same: bool = False) -> None:
        count[0] += 1
        repaint(is_same=is_same)

    pane.repaint = counted  # type: ignore[method-assign]
    return count


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096 / 1e6


async def main(seconds: float) -> None:
    """Measure the flood with each kind of view."""
    ways: dict[str, Prepare | None] = {
        "nobody looks": None,
        "followed": lambda pane: None,
        "wrapped": wrapped,
        "filtered": narrowed,
        "searched": searched,
        "errors": errors,
    }
    for name, prepare in ways.items():
        await measure(name, seconds, prepare)


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0))
