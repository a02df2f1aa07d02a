"""Snapshots that arrive between the key that opens a screen and its widgets."""

from __future__ import annotations

from tests.tui.console import Console, on_screen

OPENING = (
    "detail",
    "gpu",
    "pin_log",
    "logs",
    "timeline",
    "processes",
    "submit",
    "edit",
    "clone",
    "recur",
    "reserve",
    "pause",
    "verb('cancel')",
    "verb('raise')",
)


async def test_a_screen_accepts_a_snapshot_before_it_is_mounted() -> None:
    async with on_screen(Console(what_if="always"), (120, 36)) as (console, pilot):
        for action in OPENING:
            await console.press(pilot, "home")
            await console.app.run_action(action, console.app.screen)
            console.app.watch_snapshot(console.snapshot)
            await pilot.pause()
            console.app.watch_snapshot(console.snapshot)
            await pilot.pause()
            while len(console.app.screen_stack) > 1:
                await console.app.pop_screen()
