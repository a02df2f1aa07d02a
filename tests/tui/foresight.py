"""Helpers for tests of the what-if panel and of the timeline: a full node, and waiting for a forecast."""

from __future__ import annotations

import re

from textual.pilot import Pilot

from gputui.domain.snapshot import Snapshot
from gputui.tui.actions import ExitChoice
from gputui.tui.screens.timeline import TimelineScreen
from gputui.tui.screens.what_if import WhatIf
from tests.tui import plans
from tests.tui.console import Console, until


def watched(snapshot: Snapshot | None = None, *, what_if: str = "always") -> Console:
    """Return a console of a full node that shows the effect of an action first."""
    return Console(plans.contended() if snapshot is None else snapshot, what_if=what_if, policy=plans.KEPT)


async def judged(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Wait until the form shows when the job would start."""
    await until(pilot, lambda: re.search(r"Start\s+[^\s…–]|Can never start", console.screen_text) is not None)


async def edit(pilot: Pilot[ExitChoice]) -> None:
    """Open the form in the editor, and wait for its end."""
    await pilot.press("ctrl+o")
    await until(pilot, lambda: all(worker.group != "editor" for worker in pilot.app.workers))
    await pilot.pause()


async def opened(console: Console, pilot: Pilot[ExitChoice], *keys: str) -> WhatIf:
    """Return the panel after these keys, with its forecast."""
    await pilot.press(*keys)
    panel = console.app.screen
    assert isinstance(panel, WhatIf)
    await until(pilot, lambda: panel.comparison is not None)
    await pilot.pause()
    return panel


async def explained(console: Console, pilot: Pilot[ExitChoice]) -> str:
    """Return the page of the job under the cursor, with its score."""
    await pilot.press("enter")
    await until(pilot, lambda: "worked out" not in console.screen_text and "how sure" in console.screen_text)
    await pilot.pause()
    return console.screen_text


async def timeline_of(console: Console, pilot: Pilot[ExitChoice], *keys: str) -> TimelineScreen:
    """Open the timeline with its plan, then press these keys."""
    await pilot.press("T")
    screen = console.app.screen
    assert isinstance(screen, TimelineScreen)
    await until(pilot, lambda: screen.timeline is not None)
    await pilot.press(*keys)
    await pilot.pause()
    return screen
