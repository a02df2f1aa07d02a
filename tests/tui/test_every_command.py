"""Each command is done by each of its keys, from the palette, and with the mouse, and something comes of it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from textual.css.query import NoMatches

from gputui.tui.commands import COMMANDS
from gputui.tui.commands.finding import find
from gputui.tui.commands.offers import offers
from gputui.tui.commands.places import places
from tests.tui.every import (
    eyes,
    rows_dialogs,
    rows_log,
    rows_queue,
    rows_screens,
    stages,
    stages_dialogs,
    stages_log,
    stages_screens,
)
from tests.tui.every.hand import Hand
from tests.tui.every.row import BY_NAME, Row, Step
from tests.tui.every.stages import at_gpu
from tests.tui.every.stages_screens import gpu_page
from tests.tui.every.world import SIZE, foreseen, world

ROWS = (*rows_queue.ROWS, *rows_screens.ROWS, *rows_log.ROWS, *rows_dialogs.ROWS)
BY_KEY = [row for row in ROWS if row.has_key and row.command.keys]
NO_BINDING = {"quit-queue", "last-help_", "down-help_"}
"""Their further keys are Textual's own, or reach a widget of the dialog."""
BY_OTHER_KEY = [(row, key) for row in BY_KEY if row.id in NO_BINDING for key in row.command.keys[1:]]
BY_PALETTE = [row for row in ROWS if row.command.in_palette and row not in rows_dialogs.ROWS]
BY_FOOTER = [row for row in ROWS if row.command.in_footer and row.footer]
BY_MOUSE = [row for row in ROWS if row.mouse is not None]
PLACES = (
    stages.queue,
    stages_log.log,
    stages_screens.detail,
    stages_screens.logs,
    stages_screens.timeline,
    stages_screens.form,
    stages_screens.processes,
)
STAGES = {
    "main screen": (stages.queue, stages_log.log, at_gpu(0)),
    "columns": (stages_screens.columns,),
    "logs": (stages_screens.logs,),
    "screen of a job": (stages_screens.detail,),
    "screen of a GPU": (gpu_page(0),),
    "screen of processes": (stages_screens.processes,),
    "timeline": (stages_screens.timeline,),
    "submit form": (stages_screens.form,),
    "questions": (stages_dialogs.question,),
    "question at the end": (stages_dialogs.leaving,),
    "lists to choose from": (stages_dialogs.submissions,),
    "list of themes": (stages_dialogs.themes,),
    "dialog that copies": (stages_dialogs.copying,),
    "help": (stages_dialogs.help_,),
    "notices": (stages_dialogs.notices,),
    "lines to type": (stages_dialogs.reason, stages_dialogs.log_search),
    "form of a reservation": (stages_dialogs.reservation,),
    "what-if panel": (stages_screens.proposed,),
}
_REASON = re.compile(r"Not here: it works (on the|in a) [a-z].*\.|Not now: it needs [a-z].*\.")
_ONLY_LOOKS = "Not here: this console only looks on."


def _by_stage(rows: Iterable[Row]) -> list[list[Row]]:
    """Group rows that begin at the same stage of the same console: one console serves them all."""
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault((row.stage, row.make), []).append(row)
    return list(groups.values())


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written goes nowhere that matters, and an editor is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("EDITOR", "true")
    monkeypatch.delenv("VISUAL", raising=False)


@asynccontextmanager
async def _staged(row: Row) -> AsyncIterator[Hand]:
    """A console where the row's command works."""
    console = row.make()
    async with console.app.run_test(size=SIZE) as pilot:
        hand = Hand(console, pilot)
        console.feed.publish(console.snapshot)
        await hand.until(lambda: len(hand.main.queue.keys) > 0, "the picture is shown")
        await hand.until(lambda: hand.app.focused is hand.queue, "the queue has the focus")
        await row.stage(hand)
        yield hand


async def _does(row: Row, act: Step) -> None:
    """Acting like that has the effect of the row, which was not there before."""
    async with _staged(row) as hand:
        was, above = row.sees(hand), hand.app.screen
        wanted = row.then(was) if callable(row.then) else row.then
        assert was != wanted, f"{row.id} is so already"
        await act(hand)
        if row.further:
            await hand.until(lambda: hand.app.screen is not above, f"{row.id} opens a dialog")
            await hand.press(*row.further)
        try:
            await hand.until(lambda: _sees(row, hand) == wanted, f"{row.id} becomes {wanted!r}")
        except AssertionError as error:
            raise AssertionError(f"it is {_sees(row, hand)!r}, {error}") from None
        await hand.until(lambda: hand.app.screen.is_mounted, "the screen is there")
        await hand.breathe()


def _sees(row: Row, hand: Hand) -> object:
    """What it shows now; nothing, while screens come and go."""
    try:
        return row.sees(hand)
    except (AssertionError, LookupError, NoMatches):
        return None


def test_every_command_has_a_row() -> None:
    assert {row.name for row in ROWS} == BY_NAME.keys()
    assert len({(row.id, row.sees) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", BY_KEY, ids=lambda row: row.id)
async def test_by_key(row: Row) -> None:
    first, *others = row.command.keys

    async def press(hand: Hand) -> None:
        for key in others if row.id not in NO_BINDING else ():
            assert _binding_of(hand, key) == row.name, f"{key} does something else here"
        await hand.press(first)

    await _does(row, press)


@pytest.mark.parametrize(("row", "key"), BY_OTHER_KEY, ids=[f"{row.id}-{key}" for row, key in BY_OTHER_KEY])
async def test_by_a_key_without_a_binding_of_its_own(row: Row, key: str) -> None:
    await _does(row, lambda hand: hand.press(key))


def _binding_of(hand: Hand, key: str) -> str | None:
    """Return the id of the binding that a key reaches; `down` and `enter` may reach a widget's own."""
    for _, found in hand.app.screen._modal_binding_chain:
        for binding in found.key_to_bindings.get(key, ()):
            return binding.id
    return None


@pytest.mark.parametrize("rows", _by_stage(BY_PALETTE), ids=lambda rows: rows[0].id)
async def test_by_palette(rows: list[Row]) -> None:
    """Every command of the stage is offered there; choosing one of them does it."""

    async def choose(hand: Hand) -> None:
        offered = {offer.command.name: offer.why_not for offer in offers(hand.app.screen)}
        assert {row.name: offered.get(row.name) for row in rows} == {row.name: "" for row in rows}
        await hand.choose(rows[0].command)

    await _does(rows[0], choose)


@pytest.mark.parametrize("rows", _by_stage(BY_FOOTER), ids=lambda rows: rows[0].id)
async def test_by_its_words_in_the_key_bar(rows: list[Row]) -> None:
    """The words of every command of the stage are in the key bar; a click on one of them does it."""

    async def click(hand: Hand) -> None:
        await hand.until(lambda: all(hand.words_at(row.command) for row in rows), "the key bar has all of them")
        await hand.click_words(rows[0].command)

    await _does(rows[0], click)


@pytest.mark.parametrize("row", BY_MOUSE, ids=lambda row: row.id)
async def test_by_mouse(row: Row) -> None:
    assert row.mouse is not None
    await _does(row, row.mouse)


def test_the_palette_has_no_two_of_one_name() -> None:
    names = [f"{command.group}: {command.title}" for command in COMMANDS if command.in_palette]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("stage", PLACES, ids=lambda stage: str(stage.__name__))
async def test_a_name_finds_what_is_called_so_whether_or_not_it_can_be_done_there(stage: Step) -> None:
    async with _staged(next(row for row in ROWS if row.stage is stage)) as hand:
        offered = offers(hand.app.screen)
        assert {offer.command.name for offer in offered} == {each.name for each in COMMANDS if each.in_palette}
        for offer in offered:
            assert find(offered, offer.label)[0].offer is offer
            assert find(offered, offer.command.title)[0].offer.command.title == offer.command.title
            assert offer.why_not == "" or _REASON.fullmatch(offer.why_not), offer


@pytest.mark.parametrize("place", STAGES, ids=str)
async def test_keys_are_kept_apart_where_they_are_pressed(place: str) -> None:
    """What the keymap takes for the commands of a place are those that have a binding there."""
    bound: set[str] = set()
    for stage in STAGES[place]:
        make = foreseen if place == "what-if panel" else world
        async with _staged(Row("help", stage, eyes.screen, "", make=make)) as hand:
            chain = hand.app.screen._modal_binding_chain
            bound |= {binding.id for _, found in chain for _, binding in found if binding.id}
    bound -= {"give_up_work"}  # before all others, and only while a bar is shown, so it clashes with none
    known = {command.name for command in places()[place]}
    if place == "main screen":
        bound -= {"pause_recurring", "resume_recurring", "remove"}  # in their tab alone, in place of others
    assert known == bound


async def test_who_only_looks_on_reaches_nothing_that_changes_anything() -> None:
    changing = [row for row in ROWS if row.command.changes and row.stage not in (stages_screens.form, stages.held)]
    changing.append(Row("undo", stages.queue, eyes.is_held, then=False))
    assert {row.name for row in changing} | {"send"} == {command.name for command in COMMANDS if command.changes}
    async with _staged(replace(changing[0], make=lambda: world(read_only=True))) as hand:
        for row in changing:
            await row.stage(hand)
            wished, above = hand.console.audited(), hand.app.screen
            assert hand.words_at(row.command) is None, f"{row.id} is in the key bar"
            offered = {offer.command: offer.why_not for offer in offers(above, only_looks=True)}
            assert offered.get(row.command, _ONLY_LOOKS).startswith("Not here: "), (
                f"{row.id} can be done by the palette"
            )
            await hand.pilot.press(*row.command.keys)
            assert hand.app.screen is above, f"{row.id} opens {hand.app.screen}"
            assert hand.console.audited() == wished, f"{row.id} is done by key"
            while len(hand.app.screen_stack) > 1:
                await hand.app.pop_screen()
