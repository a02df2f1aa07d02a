"""The palette, when its list has no room yet."""

from __future__ import annotations

from textual.command import CommandList

from gputui.tui.palette import Palette
from tests.tui.console import Console


async def test_a_page_key_before_the_list_is_laid_out_is_no_error() -> None:
    console = Console()
    async with console.app.run_test(size=(80, 24)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "colon")
        palette = console.app.screen
        assert isinstance(palette, Palette)
        found = palette.query_one(CommandList)
        found._index_to_line.clear()  # as it is until the lines are made
        palette._action_command_list("page_up")
        palette._action_command_list("page_down")
        await console.press(pilot, "escape")
        assert not isinstance(console.app.screen, Palette)


async def test_a_second_choice_after_the_list_is_closed_changes_nothing() -> None:
    console = Console()
    async with console.app.run_test(size=(80, 24)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "colon")
        palette = console.app.screen
        assert isinstance(palette, Palette)
        palette.dismiss()
        await pilot.pause()
        stack = list(console.app.screen_stack)
        palette.dismiss()
        await pilot.pause()
        assert list(console.app.screen_stack) == stack
