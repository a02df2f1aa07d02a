"""Screens close once: a late second request does not close the screen below."""

from __future__ import annotations

from textual.widgets import Input

from gputui.tui.screens.dialogs import Prompt
from gputui.tui.screens.main import Main
from gputui.tui.screens.timeline import TimelineScreen
from tests.tui.console import Console, on_screen


async def test_a_line_sent_twice_is_accepted_once() -> None:
    async with on_screen(Console(), (100, 30)) as (console, pilot):
        await pilot.press("P", "x")
        prompt = console.app.screen
        assert isinstance(prompt, Prompt)
        field = prompt.query_one(Input)
        for _ in range(2):
            field.post_message(Input.Submitted(field, field.value))
        await console.settle(pilot)
        assert isinstance(console.app.screen, Main)
        assert console.audited() == [("pause", "scheduler")]


async def test_a_second_dismissal_leaves_the_screen_below() -> None:
    async with on_screen(Console(), (100, 30)) as (console, pilot):
        await pilot.press("T")
        below = console.app.screen
        assert isinstance(below, TimelineScreen)
        answers: list[str | None] = []
        dialog = Prompt("Why", "Reason", "")
        await console.app.push_screen(dialog, answers.append)
        dialog.dismiss("because")
        dialog.dismiss("because")
        await pilot.pause()
        assert (console.app.screen, answers) == (below, ["because"])
