"""Messages have a row of their own on every screen: they cover and move nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.screen import Screen

from gputui.domain.snapshot import Snapshot
from gputui.tui.screens.help import Help
from gputui.tui.widgets.status_bars import MessageLine
from tests.cases import cases
from tests.factories import NOW
from tests.lane import in_its_lane
from tests.tui import sample
from tests.tui.console import Console, on_screen, steady, text_of, until
from tests.tui.every import stages_screens
from tests.tui.every.hand import Hand
from tests.tui.every.turns import Stored, tidy
from tests.tui.every.world import world
from tests.tui.test_behind_dialogs import DIALOGS, PAGES, show_logs, shown

SIZES = ((80, 24), (200, 50))
LONG = "job 107 llama of alice is FAILED after 3h12m: exit code 1, " + "x" * 400
SEVERITIES: tuple[Literal["information", "warning", "error"], ...] = ("information", "warning", "error")


def row_of(screen: Screen[Any]) -> int:
    """Return the row of the screen's line."""
    line = screen.query_one(MessageLine)
    assert line.region.size == (screen.size.width, 1)
    return line.region.y


def changed_rows(before: str, after: str) -> list[int]:
    """Return the rows in which two texts of a screen differ."""
    both = zip(before.splitlines(), after.splitlines(), strict=True)
    return [y for y, (one, other) in enumerate(both) if one != other]


@pytest.mark.parametrize("size", [SIZES[0], in_its_lane(SIZES[1], is_long=True)], ids=str)
async def test_a_message_changes_the_row_of_messages_and_nothing_else(size: tuple[int, int]) -> None:
    async with shown(size) as hand:
        app, pilot, stored = hand.app, hand.pilot, Stored.read(hand.console.store)
        for place in (*DIALOGS, *PAGES):
            await tidy(hand, stored)
            await place(hand)
            await show_logs(hand)
            await steady(pilot, 5)
            app.clear_notifications()
            await steady(pilot)
            before = text_of(app)
            for severity in SEVERITIES:
                app.notify(LONG, severity=severity)
                await pilot.pause()
                assert changed_rows(before, text_of(app)) == [row_of(app.screen)]
            assert "job 107 llama of alice is FAILED" in text_of(app)
            app.clear_notifications()
            await steady(pilot)
            assert text_of(app) == before


@cases("size", SIZES)
async def test_a_notice_that_comes_and_goes_moves_nothing(size: tuple[int, int]) -> None:
    console = Console()

    async def rows(pilot: Pilot[Any], snapshot: Snapshot) -> list[tuple[int, int]]:
        await console.show(pilot, snapshot)
        await steady(pilot)
        panes = (console.app.screen.query_one(f"#{name}") for name in ("gpus", "queue", "log"))
        return [(pane.region.y, pane.region.height) for pane in panes]

    async with console.app.run_test(size=size) as pilot:
        await console.begin(pilot)
        usual = await rows(pilot, sample.rich_snapshot())
        assert await rows(pilot, sample.no_docker()) == usual
        assert "no permission to speak to Docker" in console.screen_text.splitlines()[-2]
        await pilot.press("exclamation_mark")
        assert "log in again" in console.screen_text
        await pilot.press("escape")
        assert await rows(pilot, sample.rich_snapshot()) == usual
        assert "no permission to speak to Docker" not in console.screen_text.splitlines()[-2]


@cases("gesture", ["key", "click"])
async def test_an_error_stays_until_a_key_or_click_once_it_could_be_read(gesture: str) -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):

        async def act() -> None:
            if gesture == "key":
                await pilot.press("j")
            else:
                await pilot.click("#queue", offset=(5, 2))
            await pilot.pause()

        console.app.notify("the disk is full", severity="error")
        await act()
        assert "✗ the disk is full" in console.screen_text, "a key that was on its way takes nothing away"
        console.clock.advance(1)
        await act()
        assert "the disk is full" not in console.screen_text
        await pilot.press("exclamation_mark")
        await steady(pilot)
        assert "the disk is full" in console.screen_text


async def test_other_messages_stay_for_their_time_whatever_is_pressed() -> None:
    async with on_screen(Console(), (80, 24)) as (console, pilot):
        console.app.messages.stays = {"information": 3600.0, "warning": 0.05}
        console.app.notify("copied")
        console.clock.advance(10)
        await pilot.press("j", "k")
        assert "· copied" in console.screen_text
        console.app.notify("a job failed", severity="warning")
        await until(pilot, lambda: "! a job failed" in console.screen_text)
        await until(pilot, lambda: "a job failed" not in console.screen_text)
        assert "copied" not in console.screen_text, "the newest one wins, and none comes back"


async def test_the_newest_wins_and_problems_that_it_replaces_are_counted() -> None:
    async with on_screen(Console(), (80, 24)) as (console, pilot):
        for text, severity in (("one", "information"), ("two", "warning"), ("three", "error"), ("four", "warning")):
            console.app.notify(text, severity=severity)
        await steady(pilot)
        assert console.screen_text.splitlines()[-2].strip() == "! four  +2, ! shows all"


@cases("width", [80, 120, 200])
async def test_a_long_message_is_cut_and_says_where_the_whole_is(width: int) -> None:
    async with on_screen(Console(), (width, 24)) as (console, pilot):
        console.app.notify(LONG)
        await steady(pilot)
        line = console.screen_text.splitlines()[-2]
        assert len(line) == width
        assert line.rstrip().endswith("…  ! shows all" if width > 80 else "…  !: all")


async def test_a_message_follows_the_screen_in_front() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        console.app.notify("the disk is full", severity="error")
        console.app.action_help()
        await until(pilot, lambda: isinstance(console.app.screen, Help))
        await steady(pilot)
        lines = console.screen_text.splitlines()
        assert ("the disk is full" in lines[-1], "the disk is full" in lines[-2]) == (True, False)
        await pilot.press("escape")
        await steady(pilot)
        assert "the disk is full" in console.screen_text.splitlines()[-2]


async def test_a_repeated_message_is_listed_once() -> None:
    async with on_screen(Console(), (80, 24)) as (console, _):
        for _ in range(3):
            console.app.notify("already first", severity="warning")
        assert [each.text for each in console.app.notifier.log] == ["already first"]
        assert console.app.messages.missed == 0


async def test_no_screen_has_a_toast() -> None:
    console = world()
    async with console.app.run_test(size=(120, 36), notifications=True) as pilot:
        hand = Hand(console, pilot)
        await console.begin(pilot)
        await stages_screens.detail(hand)
        console.app.notify("the disk is full", severity="error")
        console.snapshot = replace(console.snapshot, taken_at=NOW + timedelta(seconds=1))
        await console.show(pilot, console.snapshot)
        await steady(pilot)
        for screen in console.app.screen_stack:
            assert not [widget for widget in screen.query("*") if "Toast" in type(widget).__name__]
