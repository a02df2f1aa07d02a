"""A picture may come between the key that opens a screen and its widgets."""

from __future__ import annotations

import pytest

from tests.tui.console import Console

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
    "wish('cancel')",
    "wish('raise')",
)


@pytest.mark.parametrize("what_if", ["always", "off"])
@pytest.mark.parametrize("action", OPENING)
async def test_a_screen_that_is_not_there_yet_takes_a_picture(action: str, what_if: str) -> None:
    console = Console(what_if=what_if)
    async with console.app.run_test(size=(120, 36)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "home")
        main = console.app.screen
        await console.app.run_action(action, main)
        console.app.watch_snapshot(console.snapshot)
        await pilot.pause()
        console.app.watch_snapshot(console.snapshot)
        await pilot.pause()
    assert console.app._exception is None
