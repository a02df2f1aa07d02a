"""What a console that runs for weeks leaves behind: nothing."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from textual._styles_cache import StylesCache
from textual.pilot import Pilot
from textual.screen import Screen
from textual.scrollbar import ScrollBar
from textual.widget import Widget

from gputui.tui.leave import Leave
from gputui.tui.styles_cache import OwnStylesCache
from tests.tui.console import Console

SCREENS = {
    "help": "question_mark",
    "detail": "enter",
    "timeline": "T",
    "logs": "L",
    "form": "s",
    "columns": "c",
    "palette": "colon",
    "notices": "exclamation_mark",
    "themes": "ctrl+t",
    "what if": "plus",
}
"""By their keys on the main screen."""


async def opened(console: Console, pilot: Pilot[Leave], key: str) -> weakref.ref[Screen[object]]:
    """Open a screen and close it again."""
    await console.press(pilot, key)
    screen = console.app.screen
    assert screen is not console.app.screen_stack[0]
    found = weakref.ref(screen)
    while console.app.screen is screen:
        await console.press(pilot, "escape")
    return found


async def test_what_widgets_drew_is_held_by_nothing_else() -> None:
    console = Console(what_if="always")
    async with console.app.run_test(size=(120, 36)) as pilot:
        await console.begin(pilot)
        before = StylesCache.get_inner_outer.cache_info()
        for key in SCREENS.values():
            await opened(console, pilot, key)
        assert StylesCache.get_inner_outer.cache_info() == before
        await console.press(pilot, "question_mark")
        drawn = [node for node in console.app._registry if isinstance(node, Widget)]
        assert any(isinstance(widget, ScrollBar) for widget in drawn)
        assert all(isinstance(widget._styles_cache, OwnStylesCache) for widget in drawn)


@pytest.mark.parametrize("key", SCREENS.values(), ids=SCREENS)
async def test_a_closed_screen_is_gone(key: str) -> None:
    console = Console(what_if="always")
    async with console.app.run_test(size=(120, 36)) as pilot:
        await console.begin(pilot)
        await opened(console, pilot, key)
        threads, widgets = threading.active_count(), len(console.app._registry)
        closed = await opened(console, pilot, key)
        await console.press(pilot, "j", "k", "tab", "shift+tab")
        await console.show(pilot, console.snapshot)
        gc.collect()
        assert closed() is None
        assert threading.active_count() <= threads
        assert len(console.app._registry) == widgets
