"""Keys that arrive together, as over a slow line, act as if pressed one by one."""

from __future__ import annotations

import asyncio

from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from gputui.domain.settings import ConsoleSettings
from gputui.domain.state import JobState
from gputui.tui.actions import ExitChoice
from gputui.tui.input_queue import FRAME, KeyAfterEscape
from gputui.tui.screens.forms import Submit
from gputui.tui.screens.main import Main
from tests.cases import cases
from tests.tui import plans
from tests.tui.console import Console, on_screen
from tests.tui.foresight import watched

CHARACTERS = {"slash": "/", "space": " ", "enter": "\r", "escape": None, "tab": "\t", "plus": "+", "backspace": "\x7f"}


def burst(console: Console, *keys: str) -> None:
    """Send all keys at once, as one packet does."""
    for key in keys:
        event = events.Key(key, CHARACTERS.get(key, key))
        event.set_sender(console.app)
        console.app.post_message(event)


def after_escape(console: Console, together: str, alone: str) -> None:
    """Send a key that came with an Escape before it."""
    character = CHARACTERS.get(alone, alone)
    event = KeyAfterEscape(events.Key(together, character), events.Key(alone, character))
    event.set_sender(console.app)
    console.app.post_message(event)


async def done(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Wait until all keys were handled."""
    await pilot.pause()
    while console.app.input_queue.is_busy:
        await pilot.pause(0.01)
    await console.settle(pilot)


@cases("pause", [0, 0.003])
async def test_a_filter_typed_at_once_is_complete(pause: float) -> None:
    console = Console()
    console.app.input_queue.delay = FRAME
    async with on_screen(console, (120, 36)) as (_, pilot):
        await console.press(pilot, "end")
        for key in ("slash", *"hcsw", "enter"):
            burst(console, key)
            if pause:
                await asyncio.sleep(pause)
        await done(console, pilot)
        assert isinstance(console.app.screen, Main)
        assert console.app.screen.query_one("#filter", Input).value == "hcsw"
    assert console.audited() == []
    assert JobState.PENDING in {job.state for job in console.snapshot.jobs}


async def test_text_typed_right_after_a_form_opened_reaches_it() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        burst(console, "s", *"ch")
        await done(console, pilot)
        assert isinstance(console.app.screen, Submit)
        assert isinstance(console.app.focused, Input)
        assert console.app.focused.value == "ch"
        burst(console, "escape", "j", "k")
        await done(console, pilot)


async def test_keys_work_after_their_target_is_gone() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        burst(console, "question_mark", "escape", "question_mark", "escape", "slash", *"ab", "escape", "slash", "c")
        await done(console, pilot)
        assert console.app.screen.query_one("#filter", Input).value.endswith("c")


@cases("job_id", [101, 108])
async def test_text_typed_right_after_an_edit_form_opened_reaches_its_time_limit(job_id: int) -> None:
    async with on_screen(watched(plans.contended()), (80, 24)) as (console, pilot):
        console.select(job_id)
        await pilot.pause()
        burst(console, "e", "plus", "1", "h")
        await done(console, pilot)
        assert isinstance(console.app.screen, Submit)
        assert console.app.screen.draft()["time_limit"] == "+1h"


@cases("size", [(80, 24), (80, 16)])
async def test_keys_after_a_focus_change_go_to_the_new_pane(size: tuple[int, int]) -> None:
    async with on_screen(Console(), size) as (console, pilot):
        burst(console, "tab", "slash", *"ab", "enter")
        await done(console, pilot)
        assert console.app.screen.query_one("#filter", Input).value == ""
        burst(console, "z", "tab", "tab", "tab", "tab")
        await done(console, pilot)
        assert isinstance(main := console.app.screen, Main)
        assert (main.panes.focused, main.panes.is_zoomed) == ("gpus", True)


async def test_a_key_after_enter_is_not_part_of_the_line() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        burst(console, "slash", *"host", "enter", "s")
        await done(console, pilot)
        assert isinstance(console.app.screen, Submit)
        assert console.app.screen_stack[0].query_one("#filter", Input).value == "host"
        burst(console, "escape")
        await done(console, pilot)
        burst(console, "P", *"dust", "enter", "s")
        await done(console, pilot)
        assert isinstance(console.app.screen, Submit)
    assert console.audited()[-1][0] == "pause"


async def test_escape_and_a_key_in_one_read_are_two_keys() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        burst(console, "question_mark")
        after_escape(console, "alt+s", "s")
        burst(console, *"ch")
        await done(console, pilot)
        assert isinstance(console.app.screen, Submit)
        assert isinstance(console.app.focused, Input)
        assert console.app.focused.value == "ch", "keys after it keep their order"


async def test_escape_and_enter_in_one_read_leave_a_question_instead_of_committing_it() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        await console.press(pilot, "c")
        assert not isinstance(console.app.screen, Main)
        after_escape(console, "enter", "enter")
        await done(console, pilot)
    assert console.audited() == []


async def test_keys_with_alt_still_edit_text_fields() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        burst(console, "slash", *"ab", "space", *"cd")
        after_escape(console, "ctrl+w", "backspace")
        await done(console, pilot)
        assert console.app.screen.query_one("#filter", Input).value == "ab "


async def test_escape_and_enter_in_one_read_leave_a_form_instead_of_submitting_it() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        burst(console, "s", *"busybox")
        await done(console, pilot)
        assert isinstance(console.app.screen, Submit)
        after_escape(console, "enter", "enter")  # Enter answers whether to leave it
        await done(console, pilot)
        assert isinstance(console.app.screen, Main)
    assert console.audited() == []


async def test_a_key_with_alt_of_the_settings_stays_one_key() -> None:
    async with on_screen(Console(console=ConsoleSettings("off", keys={"submit": ("alt+s",)})), (120, 36)) as (
        console,
        pilot,
    ):
        after_escape(console, "alt+s", "s")
        await done(console, pilot)
        assert isinstance(console.app.screen, Submit)
