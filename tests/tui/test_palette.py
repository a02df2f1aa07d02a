"""The palette runs the shown command, by typing or by click, and nothing that has left its list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace
from textual import events
from textual.widgets import Input

from gputui.tui.commands import COMMANDS
from gputui.tui.screens.main import Main
from gputui.tui.screens.menu import CommandFinder, Offer, find_commands
from tests.cases import cases
from tests.tui.every.hand import Hand, at_work
from tests.tui.every.world import world
from tests.tui.test_turns import burst

LINES = "#lines"
HELD = ("hold", "job 107")
RUNNING = 101
HOLD = next(command for command in COMMANDS if command.name == "hold")
OFFERS = [Offer(command) for command in COMMANDS if command.in_palette]


@asynccontextmanager
async def opened(size: tuple[int, int] = (120, 36)) -> AsyncIterator[tuple[Hand, CommandFinder]]:
    """Open the palette over the main screen, where job 107 waits and is selected."""
    async with at_work(world(), size) as hand:
        hand.console.select(107)
        await hand.press("colon")
        yield hand, await hand.opened(CommandFinder)


def done(hand: Hand) -> list[tuple[str, str]]:
    """Return the actions since the console was opened."""
    return [each for each in hand.console.audited() if each[0] != "add"]


def names(wanted: str) -> list[str]:
    """Return the hits, the best first."""
    return [found.offer.label for found in find_commands(OFFERS, wanted)]


@cases(
    ("wanted", "best"),
    [
        ("hold", "Jobs: hold"),
        ("HOLD ", "Jobs: hold"),
        ("jobs: hold", "Jobs: hold"),
        ("timel", "View: timeline"),
        ("starting waiting", "Jobs: hold"),
    ],
)
def test_the_best_match_is_first(wanted: str, best: str) -> None:
    assert names(wanted)[0] == best


@cases(
    ("wanted", "best"),
    [
        *((word, "Jobs: cancel") for word in ("kill", "KIL", "stop", "end", "delete", "terminate", "scancel")),
        *((word, "Jobs: requeue") for word in ("restart", "rerun", "retry", "rest")),
        *((word, "Jobs: shell") for word in ("exec", "docker exec", "attach", "bash")),
        *((word, "View: theme") for word in ("color", "colour", "colours", "dark")),
        *((word, "Jobs: submit") for word in ("sbatch", "srun", "new")),
        *((word, "GPUs: drain") for word in ("disable", "maintenance")),
        *((word, "Jobs: prio") for word in ("nice", "boost")),
        ("env", "Jobs: detail"),
        ("squeue", "Queue: queue"),
        ("sacct", "Queue: finished"),
        ("docker logs", "Jobs: log"),
        ("htop", "Jobs: processes"),
        ("nvitop", "GPUs: GPU"),
        ("gantt", "View: timeline"),
        ("undrain", "GPUs: resume"),
        ("exit", "View: quit"),
        ("remove", "Queue: remove"),
        ("relea", "Jobs: release"),
    ],
)
def test_a_synonym_finds_a_command_but_titles_come_first(wanted: str, best: str) -> None:
    assert names(wanted)[0] == best


def test_a_whole_name_comes_before_all_that_have_its_letters() -> None:
    for offer in OFFERS:
        assert names(offer.label)[0] == offer.label


def test_words_of_the_description_find_it_too_after_matching_names() -> None:
    found = names("timeline")
    assert found[0] == "View: timeline"
    assert "What-if: timeline" not in found[:1]
    assert names("xyzzy") == []
    assert len(names("  ")) == len(OFFERS)


def test_unavailable_commands_are_found_by_name_and_omitted_from_an_empty_search() -> None:
    refused = [replace(offer, why_not="No.") if offer.label == "Jobs: hold" else offer for offer in OFFERS]
    assert find_commands(refused, "hold")[0].offer == Offer(HOLD, "No.")
    assert find_commands(refused, "ho")[0].offer.label != "Jobs: undo"
    assert len(find_commands(refused, "")) == len(OFFERS) - 1


def test_of_two_commands_of_one_name_the_available_one_is_first() -> None:
    both = [Offer(replace(HOLD, group="Queue"), "No."), Offer(HOLD)]
    assert [found.offer.why_not for found in find_commands(both, "hold")] == ["", "No."]
    assert [found.offer.why_not for found in find_commands(both, "starting waiting")] == ["", "No."]


@cases("clicks", [False, True])
async def test_unavailable_commands_say_why_and_do_nothing(clicks: bool) -> None:
    async with opened() as (hand, palette):
        await hand.press("escape", "plus")
        await hand.until(lambda: len(done(hand)) == 1)
        hand.queue.move_to(list(hand.queue.keys).index(RUNNING))
        await hand.press("colon")
        palette = await hand.opened(CommandFinder)
        await hand.press(*"hold")
        assert hand.console.screen_text.count("Not now: it needs a waiting job that is not held.") == 2
        await (hand.click(palette.query_one(LINES), 5, 0) if clicks else hand.press("enter"))
        await hand.breathe()
        assert hand.app.screen is palette
        assert len(done(hand)) == 1


async def test_text_and_enter_in_one_go_run_the_command() -> None:
    async with opened() as (hand, _):
        burst(hand.console, *"release", *["backspace"] * 7, *"hold", "enter")
        await hand.until(lambda: HELD in hand.console.audited())
        assert isinstance(hand.app.screen, Main)


async def test_a_click_runs_the_line_under_the_pointer() -> None:
    async with opened() as (hand, palette):
        await hand.press(*"hold")
        lines = palette.query_one(LINES)
        assert "▌ Jobs: hold" in hand.console.screen_text
        await hand.click(lines, 5, 0)
        await hand.until(lambda: HELD in hand.console.audited())


async def test_a_click_where_a_line_was_before_the_last_letter_does_nothing() -> None:
    async with opened() as (hand, palette):
        lines = palette.query_one(LINES)
        x, y = lines.region.x + 5, lines.region.bottom - 1
        burst(hand.console, *"hold")
        for kind in (events.MouseDown, events.MouseUp):
            event = kind(None, x, y, 0, 0, 1, False, False, False, x, y)
            event.set_sender(hand.app)
            hand.app.post_message(event)
        await hand.until(lambda: palette.query_one(Input).value == "hold" and not hand.app.input_queue.is_busy)
        assert hand.app.screen is palette
        assert done(hand) == []


async def test_enter_without_a_match_does_nothing_and_a_click_outside_closes() -> None:
    async with opened() as (hand, palette):
        await hand.press(*"zzz", "enter")
        assert "No matching command" in hand.console.screen_text
        assert hand.app.screen is palette
        await hand.click_at(0, 0)
        await hand.until(lambda: isinstance(hand.app.screen, Main))
        assert done(hand) == []


async def test_the_wheel_and_the_pages_move_the_cursor_and_lines_stay_where_they_are() -> None:
    async with opened((80, 24)) as (hand, palette):
        lines = palette.query_one(LINES)
        shown = lines.size.height
        await hand.press("pagedown")
        assert palette.cursor == shown - 1
        assert palette.first == 0
        await hand.wheel(lines)
        assert palette.cursor == shown
        assert palette.first == 1
        await hand.point_at(lines.region.x + 3, lines.region.y)
        assert palette.cursor == palette.first == 1
        await hand.press("pageup", "up", "up")
        assert palette.cursor == palette.first == 0


async def test_the_description_under_the_cursor_is_complete_on_a_narrow_screen() -> None:
    async with opened((60, 24)) as (hand, _):
        told = " ".join(hand.console.screen_text.split())
        assert "│ Show everything about the job. │" in told
        await hand.press(*"undo")
        told = " ".join(hand.console.screen_text.split())
        assert "Undo this console's last change," in told.replace(" │ │ ", " ")


async def test_a_second_choice_after_the_list_is_closed_changes_nothing() -> None:
    async with opened() as (hand, palette):
        palette.dismiss()
        await hand.breathe()
        stack = list(hand.app.screen_stack)
        palette.dismiss()
        palette.action_take_line()
        await hand.breathe()
        assert list(hand.app.screen_stack) == stack


@cases("size", [(40, 10), (20, 5), (300, 80)])
async def test_the_palette_follows_the_size_of_the_screen(size: tuple[int, int]) -> None:
    async with opened() as (hand, palette):
        await hand.console.resize(hand.pilot, *size)
        await hand.press("pagedown", "pagedown")
        lines = palette.query_one(LINES)
        await hand.until(lambda: lines.size.height == palette.rows, "the list is as high as the screen allows")
        assert palette.first <= palette.cursor < palette.first + palette.rows
        assert size[1] < 10 or lines.region.bottom < size[1]
