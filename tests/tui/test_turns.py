"""Keys that come together, as over a slow line, do what they do one by one."""

from __future__ import annotations

from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from gputui.domain.state import JobState
from gputui.tui.messages import ExitChoice
from gputui.tui.screens.main import Main
from gputui.tui.screens.submit import Submit
from tests.tui.console import Console

CHARACTERS = {"slash": "/", "space": " ", "enter": "\r", "escape": None, "tab": "\t", "backspace": "\x7f"}


def burst(console: Console, *keys: str) -> None:
    """Send all of them in one go, as one packet brings them."""
    for key in keys:
        event = events.Key(key, CHARACTERS.get(key, key))
        event.set_sender(console.app)
        console.app.post_message(event)


async def done(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Wait until all keys had their turn."""
    await pilot.pause()
    while console.app.input_queue.is_busy:
        await pilot.pause(0.01)
    await console.settle(pilot)


async def test_a_filter_typed_in_one_go_is_a_filter() -> None:
    console = Console()
    async with console.app.run_test(size=(120, 36)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "end")
        burst(console, "slash", *"hcsw", "enter")
        await done(console, pilot)
        assert isinstance(console.app.screen, Main)
        assert console.app.screen.query_one("#filter", Input).value == "hcsw"
    assert console.audited() == []
    assert JobState.PENDING in {job.state for job in console.snapshot.jobs}


async def test_text_typed_right_after_a_form_opened_is_in_it() -> None:
    console = Console()
    async with console.app.run_test(size=(120, 36)) as pilot:
        await console.begin(pilot)
        burst(console, "s", *"ch")
        await done(console, pilot)
        assert isinstance(console.app.screen, Submit)
        assert isinstance(console.app.focused, Input)
        assert console.app.focused.value == "ch"
        burst(console, "escape", "j", "k")
        await done(console, pilot)


async def test_keys_work_after_their_target_is_gone() -> None:
    console = Console()
    async with console.app.run_test(size=(120, 36)) as pilot:
        await console.begin(pilot)
        burst(console, "question_mark", "escape", "question_mark", "escape", "slash", *"ab", "escape", "slash", "c")
        await done(console, pilot)
        assert console.app.screen.query_one("#filter", Input).value.endswith("c")
