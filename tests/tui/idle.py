"""Waits of a `Pilot` that do not depend on the load of the machine, and draw nothing.

Textual 8 takes a process for idle that got little CPU time for some milliseconds: on a loaded machine that is one which
waits for a CPU, and tests look at the screen too early. These waits look at the event loop, at the other threads and
at the screen instead.

An app without a terminal shows its pictures to nobody, so nothing is drawn: a test that reads the text of the screen
renders it. Tests of pictures, and of how often and how much is drawn, ask for it.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import textual.app
import textual.pilot
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.screen import Screen

LONGEST = 60.0
"""Seconds after which a wait ends although something is still going on."""
_PRESS = Pilot.press
_DRAW = Screen._compositor_refresh  # noqa: SLF001 - nothing public
_SET_VARIABLES = Stylesheet.set_variables
_AT_WORK = (b"R", b"D")
_TASKS = "/proc/self/task"
_SOON = 0.005
"""Seconds within which a timer counts as current work."""
_ROUNDS = 2
"""Rounds of the event loop without work that prove it idle."""
_ROUND = 0.0002
"""Seconds of such a round: other threads get the interpreter meanwhile."""


def _other_threads_sleep() -> bool:
    """Return whether each other thread of this process waits for something other than a CPU or a disk."""
    own = str(threading.get_native_id())
    with os.scandir(_TASKS) as tasks:
        return not any(_state(task.path) in _AT_WORK for task in tasks if task.name != own)


def _state(task: str) -> bytes:
    """Return the state of a thread of this process, as proc(5) writes it; empty if it has ended."""
    try:
        file = os.open(f"{task}/stat", os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return os.read(file, 200).rpartition(b") ")[2][:1]
    except ProcessLookupError:
        return b""
    finally:
        os.close(file)


def _due(loop: Any) -> float:
    """Return the seconds until this loop has work: 0 if a callback is ready, infinite if none is due soon."""
    if loop._ready:  # noqa: SLF001 - nothing public
        return 0.0
    times = [timer.when() for timer in loop._scheduled if not timer.cancelled()]  # noqa: SLF001
    first = min(times, default=math.inf) - loop.time()
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
    rounds, wait = 0, _ROUND
    while rounds < _ROUNDS and time.monotonic() < until:
        if (due := _due(loop)) < math.inf:
            rounds = 0
            await asyncio.sleep(max(0.0, due))
            continue
        await asyncio.sleep(wait)
        if _due(loop) < math.inf:
            rounds = 0
        elif _other_threads_sleep():
            rounds, wait = rounds + 1, _ROUND
        else:
            rounds, wait = 0, min(2 * wait, _SOON)  # they need the CPU that looking takes


def _is_laid_out(screen: Screen[Any]) -> bool:
    """Return whether this screen has no layout, change or callback left to handle."""
    left = (
        screen._layout_required,  # noqa: SLF001 - nothing public, as below
        screen._scroll_required,  # noqa: SLF001
        screen._repaint_required,  # noqa: SLF001
        screen._recompose_required,  # noqa: SLF001
        screen._dirty_widgets,  # noqa: SLF001
        screen._callbacks,  # noqa: SLF001
    )
    return not any(left)


def _draw_later(screen: Screen[Any]) -> None:
    """Postpone the drawing of the topmost screen to the next wait. Stands in for `Screen._compositor_refresh`."""
    app = screen.app
    if screen is not app.screen or not app.is_headless:
        _DRAW(screen)
        return
    screen._dirty_widgets.clear()  # noqa: SLF001 - as in drawing: the compositor has their regions
    app._update_mouse_over(screen)  # noqa: SLF001


def _draw(screen: Screen[Any]) -> None:
    """Draw what has changed; an error ends the app, as it does where the screen draws by itself."""
    app = screen.app
    try:
        with app._context():  # noqa: SLF001 - nothing public
            _DRAW(screen)
    except Exception as error:  # noqa: BLE001 - whatever a widget raises
        app._handle_exception(error)  # noqa: SLF001


async def quiet(pilot: Pilot[Any], seconds: float = LONGEST, *, draws: bool = False) -> bool:
    """Wait until all messages are handled and all is laid out. Stands in for `Pilot._wait_for_screen`.

    Args:
        seconds: Seconds to wait at most.
        draws: Whether what has changed on a screen that has been laid out is to be drawn.

    Returns:
        False if the app has no screen any more.
    """
    app, until = pilot.app, time.monotonic() + seconds
    loop = asyncio.get_running_loop()
    while time.monotonic() < until:
        await idle(max_sleep=max(0.0, until - time.monotonic()))
        if not app.screen_stack:
            return False
        screen = app.screen
        if app._batch_count:  # noqa: SLF001 - nothing public
            return True
        if not _is_laid_out(screen):
            screen._on_timer_update()  # noqa: SLF001 - as Textual's own pilot does
            continue
        if draws and screen._compositor._dirty_regions:  # noqa: SLF001 - nothing public
            _draw(screen)
        if _is_laid_out(screen) and _due(loop) == math.inf:
            return True
    return True


async def pause(pilot: Pilot[Any], delay: float | None = None, *, draws: bool = False) -> None:
    """Wait until everything is laid out, and for `delay`. Replaces `Pilot.pause`."""
    await quiet(pilot, draws=draws)
    if delay is not None:
        await asyncio.sleep(delay)
    pilot.app.screen._on_timer_update()  # noqa: SLF001 - as Textual's own pilot does


async def press_each(pilot: Pilot[Any], *keys: str) -> None:
    """Press keys, each when the effects of the previous one are laid out. Stands in for `Pilot.press`."""
    for key in keys:
        await _PRESS(pilot, key)
        if pilot.app.animation_level != "none":
            await pilot.app.animator.wait_until_complete()
            await quiet(pilot)


async def _go_on(min_sleep: float = 0) -> None:
    """Wait for nothing: the sender of the key waits until everything is drawn."""


class _Rules(dict[Any, Any]):
    """Parsed style sheets of one set of variables, for all apps of this process; none is forgotten."""

    def clear(self) -> None:
        """Keep all: they belong to the variables that a style sheet had until now."""


_RULES: dict[frozenset[tuple[str, str]], _Rules] = {}


def _share_rules(sheet: Stylesheet, variables: dict[str, str]) -> None:
    """Give a style sheet what was parsed with these variables before. Stands in for `Stylesheet.set_variables`."""
    _SET_VARIABLES(sheet, variables)
    shared: Any = _RULES.setdefault(frozenset(variables.items()), _Rules())
    sheet._parse_cache = shared  # noqa: SLF001 - nothing public


def _begin_with_shared_rules(sheet: Stylesheet, *, variables: dict[str, str] | None = None) -> None:
    _INIT(sheet, variables=variables)
    _share_rules(sheet, variables or {})


_INIT = Stylesheet.__init__


def use_exact_waits(patch: Callable[[Any, str, Any], None]) -> None:
    """Replace the waits of every pilot by the functions of this module, with this way to set an attribute."""
    patch(textual.app, "wait_for_idle", _go_on)
    patch(textual.pilot, "wait_for_idle", idle)
    patch(Pilot, "_wait_for_screen", quiet)
    patch(Pilot, "pause", pause)
    patch(Pilot, "press", press_each)
    patch(Screen, "_compositor_refresh", _draw_later)
    share_style_sheets(patch)


def share_style_sheets(patch: Callable[[Any, str, Any], None]) -> None:
    """Parse the style sheets once for all apps of this process: a third of a second each."""
    patch(Stylesheet, "__init__", _begin_with_shared_rules)
    patch(Stylesheet, "set_variables", _share_rules)


def draw_each_wait(patch: Callable[[Any, str, Any], None]) -> None:
    """Draw all that has changed at the end of each wait: for pictures, and for logs, which go on when drawn."""
    patch(Pilot, "_wait_for_screen", partialmethod(quiet, draws=True))
    patch(Pilot, "pause", partialmethod(pause, draws=True))


def draw_at_once(patch: Callable[[Any, str, Any], None]) -> None:
    """Draw each change by itself, as an app with a terminal does: for tests of how often and how much is drawn."""
    patch(Screen, "_compositor_refresh", _DRAW)
