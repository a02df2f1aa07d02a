"""Helpers for tests of pictures: sizes, and waits until the screen stops changing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from gputui.domain.snapshot import Snapshot
from gputui.tui.actions import ExitChoice
from gputui.tui.screens.process_view import ContainerScreen
from gputui.tui.screens.timeline import TimelineScreen
from gputui.tui.screens.what_if import WhatIf
from gputui.tui.widgets.log_view import LogView
from tests.tui import sample
from tests.tui.console import Console, until
from tests.tui.test_pictures import LOG, Compare

SMALL, MIDDLING, WIDE = "80x24", "120x36", "200x50"
SIZES = {SMALL: (80, 24), MIDDLING: (120, 36), WIDE: (200, 50)}
Size = tuple[int, int]


async def _nothing(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Look:
    """Definition of a picture: its snapshot, the pressed keys, and the expected screen."""

    shows: type[Screen[Any]]
    keys: tuple[str, ...] = ()
    day: Callable[[], Snapshot] = sample.rich_snapshot
    make: Callable[[Snapshot], Console] = Console
    then: Callable[[Console, Pilot[ExitChoice]], Awaitable[None]] = field(default=_nothing)
    sizes: tuple[str, ...] = (SMALL,)
    """Names of terminal sizes: the main screen has three, other screens the narrowest."""
    has_message: bool = False
    """True if notifications are visible; else they would hide the subject of the picture."""


def sizes_of(looks: Mapping[str, Look]) -> pytest.MarkDecorator:
    """Return the parameters of each picture at each of its sizes."""
    pairs = [(name, size) for name, look in looks.items() for size in look.sizes]
    return pytest.mark.parametrize(("name", "size"), pairs, ids=[f"{name}-{size}" for name, size in pairs])


def looks_as_it_did(snap_compare: Compare, look: Look, size: Size) -> bool:
    """Return whether the picture equals the stored one."""
    console = _console_of(look)

    async def before(pilot: Pilot[ExitChoice]) -> None:
        await _arrive(console, look, pilot)

    return snap_compare(console.app, terminal_size=size, run_before=before)  # type: ignore[arg-type]


async def text_of(look: Look, size: Size = SIZES[SMALL]) -> str:
    """Return the text of the picture, without drawing it: for those that differ from others by a line."""
    console = _console_of(look)
    async with console.app.run_test(size=size, notifications=True) as pilot:
        await _arrive(console, look, pilot)
        return console.screen_text


def _console_of(look: Look) -> Console:
    console = look.make(look.day())
    console.logs.lines = {101: LOG, 50: LOG, **console.logs.lines}
    console.app.messages.stays = {}  # even a slow machine draws them
    return console


async def _arrive(console: Console, look: Look, pilot: Pilot[ExitChoice]) -> None:
    await console.begin(pilot)
    await quiet(console, pilot)
    for key in look.keys:
        await pilot.press(key)
        await quiet(console, pilot)
    await look.then(console, pilot)
    await quiet(console, pilot)
    assert isinstance(console.app.screen, look.shows)
    if not look.has_message:
        console.app.clear_notifications()
        await pilot.pause()


async def quiet(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Wait for actions, forecasts, logs, the history and requests to the engine."""
    await console.settle(pilot)
    await until(pilot, lambda: all(_is_quiet(console, screen) for screen in console.app.screen_stack))
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()
    await until(pilot, lambda: not _is_unfinished(console.screen_text))


UNFINISHED = ("being computed …", "Start  …", "Reading the history …")
"""Texts in place of content that is still to come."""


def _is_unfinished(text: str) -> bool:
    return any(words in text for words in UNFINISHED)


def _is_quiet(console: Console, screen: Screen[Any]) -> bool:
    if isinstance(screen, WhatIf):
        return screen.comparison is not None
    if isinstance(screen, TimelineScreen):
        return screen.timeline is not None
    if isinstance(screen, ContainerScreen):
        return "kernel busy" in console.screen_text  # its output never ends
    return all(_is_read(console, pane) for pane in screen.query(LogView))


def _is_read(console: Console, pane: LogView) -> bool:
    """Return whether all of its log is on the screen."""
    follower = pane.follower
    if follower is None:
        return True
    if not follower.is_over and not console.logs.is_read(follower.job_id, follower.attempt):
        return False
    pane.tick()
    return pane.reading.search.is_done and not pane.paints_soon
