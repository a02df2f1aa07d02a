"""Waits of a `Pilot` that do not depend on the load of the machine.

Textual 8 takes a process for idle that got little CPU time for some milliseconds: on a loaded machine that is one which
waits for a CPU, and tests look at the screen too early. These waits look at the event loop, at the other threads and
at the screen instead.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import textual.app
import textual.pilot
from textual.pilot import Pilot
from textual.screen import Screen

LONGEST = 10.0
"""Seconds after which a wait ends although something is still going on."""
_PRESS = Pilot.press
_AT_WORK = (b"R", b"D")
_SOON = 0.005
"""Seconds within which a timer counts as work under way."""
_ROUNDS = 2
"""Rounds of the event loop without work that prove it idle."""


def _other_threads_sleep() -> bool:
    """Return whether each other thread of this process waits for something other than a CPU or a disk."""
    own = str(threading.get_native_id())
    return not any(_state(task) in _AT_WORK for task in Path("/proc/self/task").iterdir() if task.name != own)


def _state(task: Path) -> bytes:
    """Return the state of a thread of this process, as proc(5) writes it; empty if it has ended."""
    try:
        return (task / "stat").read_bytes().rpartition(b") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _due(loop: Any) -> float:
    """Return the seconds until this loop has work: 0 if a callback is ready, infinite if none is due soon."""
    if loop._ready:  # noqa: SLF001 - nothing public
        return 0.0
    times = [timer.when() - loop.time() for timer in loop._scheduled if not timer.cancelled()]  # noqa: SLF001
    first = min(times, default=math.inf)
    return first if first <= _SOON else math.inf


async def idle(min_sleep: float = 0, max_sleep: float = LONGEST) -> None:
    """Wait until the event loop has nothing to do, nor has any other thread. Stands in for Textual's `wait_for_idle`.

    Args:
        min_sleep: Seconds to wait at least.
        max_sleep: Seconds to wait at most.
    """
    loop = asyncio.get_running_loop()
    await asyncio.sleep(min_sleep)
    until = time.monotonic() + max_sleep
    rounds = 0
    while rounds < _ROUNDS and time.monotonic() < until:
        if (due := _due(loop)) < math.inf:
            rounds = 0
            await asyncio.sleep(max(0.0, due))
        else:
            await asyncio.sleep(0.0002)  # other threads get the interpreter meanwhile
            rounds = rounds + 1 if _due(loop) == math.inf and _other_threads_sleep() else 0


def _is_drawn(screen: Screen[Any]) -> bool:
    """Return whether this screen has no layout, drawing or callback left to do."""
    left = (
        screen._layout_required,  # noqa: SLF001 - nothing public, as below
        screen._scroll_required,  # noqa: SLF001
        screen._repaint_required,  # noqa: SLF001
        screen._recompose_required,  # noqa: SLF001
        screen._dirty_widgets,  # noqa: SLF001
        screen._callbacks,  # noqa: SLF001
    )
    return not any(left)


async def quiet(pilot: Pilot[Any], seconds: float = LONGEST) -> bool:
    """Wait until all messages are handled and all is drawn. Stands in for `Pilot._wait_for_screen`.

    Args:
        seconds: Seconds to wait at most.

    Returns:
        False if the app has no screen any more.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await idle(max_sleep=max(0.0, until - time.monotonic()))
        if not pilot.app.screen_stack:
            return False
        screen = pilot.app.screen
        if _is_drawn(screen) or pilot.app._batch_count:  # noqa: SLF001 - nothing public
            return True
        screen._on_timer_update()  # noqa: SLF001 - as Textual's own pilot does
    return True


async def press_each(pilot: Pilot[Any], *keys: str) -> None:
    """Press keys, each when all that the one before it did is drawn. Stands in for `Pilot.press`."""
    for key in keys:
        await _PRESS(pilot, key)


def use_exact_waits(patch: Callable[[Any, str, Any], None]) -> None:
    """Make each pilot wait with the functions of this module, by this way to set an attribute."""
    for module in (textual.app, textual.pilot):
        patch(module, "wait_for_idle", idle)
    patch(Pilot, "_wait_for_screen", quiet)
    patch(Pilot, "press", press_each)
