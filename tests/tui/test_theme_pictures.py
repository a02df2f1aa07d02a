"""Pictures of gputui's themes, and of choosing one."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from gputui.tui.actions import ExitChoice
from gputui.tui.themes import Appearance
from tests.tui.console import Console
from tests.tui.test_pictures import LOG, Compare, show_history

LOOKS = {
    "light": Appearance("gputui-light"),
    "contrast": Appearance("gputui-contrast"),
    "sixteen": Appearance("gputui-16"),
    "nord": Appearance("nord"),
    "ascii": Appearance(ascii_only=True),
}


def matches(snap_compare: Compare, look: Appearance, size: tuple[int, int], *keys: str) -> bool:
    console = Console(look=look)
    console.logs.lines = {101: LOG}

    async def before(pilot: Pilot[ExitChoice]) -> None:
        if not keys:
            await show_history(console, pilot)
        await console.begin(pilot)
        await console.read_log(pilot, 101)
        await pilot.press(*keys)
        await console.settle(pilot)

    return snap_compare(console.app, terminal_size=size, run_before=before)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", LOOKS)
def test_every_theme_matches_its_picture(snap_compare: Compare, name: str) -> None:
    assert matches(snap_compare, LOOKS[name], (120, 36))


def test_a_dialog_in_sixteen_colours_matches_its_picture(snap_compare: Compare) -> None:
    assert matches(snap_compare, LOOKS["sixteen"], (80, 24), "c")


def test_a_console_without_colours_matches_its_picture(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert matches(snap_compare, Appearance(), (80, 24), "j")
