"""Waits of a `Pilot` that do not depend on the load of the machine.

Textual 8 takes a process for idle that got little CPU time for some milliseconds: on a loaded machine that is one which
waits for a CPU, and tests look at the screen too early. These waits look at the event loop, at the other threads and
at the screen instead.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.screen import Screen

LONGEST = 10.0
"""Seconds after which a wait ends although something is still going on."""
_SOON = 0.005
"""Seconds within which a timer counts as work under way."""
_ROUNDS = 2
"""Rounds of the event loop without work that prove it idle."""


def _other_threads_sleep() -> bool:
    """Return whether each other thread of this process waits for something other than a CPU or a disk."""
    own = str(threading.get_native_id())
    for task in os.listdir("/proc/self/task"):
        if task == own:
            continue
        try:
            line = Path("/proc/self/task", task, "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if line.rpartition(")")[2].split()[0] in {"R", "D"}:
            return False
    return True


def _loop_sleeps(loop: Any) -> bool:
    """Return whether no callback of this loop is ready, nor due soon."""
    if loop._ready:  # noqa: SLF001 - nothing public
        return False
    soon = loop.time() + _SOON
    return not any(not timer.cancelled() and timer.when() <= soon for timer in loop._scheduled)  # noqa: SLF001


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
        if not _loop_sleeps(loop):
            rounds = 0
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(0.0002)  # other threads get the interpreter meanwhile
            rounds = rounds + 1 if _loop_sleeps(loop) and _other_threads_sleep() else 0


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


async def quiet(pilot: Pilot[Any], timeout: float = LONGEST) -> bool:
    """Wait until all messages are handled and all is drawn. Stands in for `Pilot._wait_for_screen`.

    Returns:
        False if the app has no screen any more.
    """
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        await idle(max_sleep=max(0.0, until - time.monotonic()))
        if not pilot.app.screen_stack:
            return False
        screen = pilot.app.screen
        if _is_drawn(screen) or pilot.app._batch_count:  # noqa: SLF001 - nothing public
            return True
        screen._on_timer_update()  # noqa: SLF001 - as Textual's own pilot does
    return True
