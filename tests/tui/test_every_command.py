"""Commands: each is done by each of its keys, from the palette, and with the mouse, and has an effect."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest
from textual.css.query import NoMatches

from gputui.tui.commands import COMMANDS, places
from gputui.tui.screens.menu import find_commands, offers
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
from tests.tui.every.turns import in_turn, opened, scenarios
from tests.tui.every.world import Make, foreseen, world

RowStep = Callable[[Row, Hand], Awaitable[None]]


ROWS = (*rows_queue.ROWS, *rows_screens.ROWS, *rows_log.ROWS, *rows_dialogs.ROWS)
BY_KEY = [row for row in ROWS if row.has_key and row.command.keys]
NO_BINDING = {"quit-queue", "last-help_", "down-help_"}
"""Commands whose further keys are Textual's own, or reach a widget of the dialog."""
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
    "screen of a job": (stages_screens.detail, stages_screens.waiting_detail),
    "screen of a GPU": (gpu_page(0),),
    "screen of processes": (stages_screens.processes,),
    "process view": (stages_screens.process_view,),
    "page of a container": (stages_screens.container,),
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
_STAGES_OF_PLACES = {stage.__name__ for found in STAGES.values() for stage in found}


def _one_of_each_place(rows: Iterable[Row]) -> list[Row]:
    """Return one row for each stage by which a place is tested."""
    first = {row.stage.__name__: row for row in reversed(list(rows))}
    return [row for name, row in first.items() if name in _STAGES_OF_PLACES]


ONLY_BY_PALETTE = [row for row in BY_PALETTE if row not in BY_KEY]
CHOSEN_BY_PALETTE = [*ONLY_BY_PALETTE, *(row for row in _one_of_each_place(BY_PALETTE) if row not in ONLY_BY_PALETTE)]
_REASON = re.compile(r"Not here: it works (on the|in a) [a-z].*\.|Not now: it needs [a-z].*\.")
_ONLY_LOOKS = "Not here: this console is read-only."


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redirect all files, and provide an editor."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("EDITOR", "true")
    monkeypatch.delenv("VISUAL", raising=False)


async def _does(hand: Hand, row: Row, act: Step) -> None:
    """Acting like that where the row works has its effect."""
    await row.stage(hand)
    await _has_effect(hand, row, act)


async def _has_effect(hand: Hand, row: Row, act: Step) -> None:
    """Acting like that has the effect of the row, which was not there before."""
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


async def _each_does(rows: Sequence[Row], act: RowStep) -> None:
    """Check that every row has its effect when it is done like that."""

    def turn(row: Row) -> Step:
        return lambda hand: _does(hand, row, partial(act, row))

    await in_turn(rows[0].make, map(turn, rows))


async def _is_offered(row: Row, hand: Hand) -> None:
    """Check that the palette offers the row's command, and the key bar has its words, where they should."""
    if row in BY_PALETTE:
        offered = {offer.command.name: offer.why_not for offer in offers(hand.app.screen)}
        assert offered.get(row.name) == "", f"the palette offers {row.id}"
    if row in BY_FOOTER:
        await hand.until(lambda: hand.words_at(row.command) is not None, f"the key bar has {row.id}")


def _sees(row: Row, hand: Hand) -> object:
    """Return its present observation; nothing, while screens come and go."""
    try:
        return row.sees(hand)
    except (AssertionError, LookupError, NoMatches):
        return None


def test_every_command_has_a_row() -> None:
    assert {row.name for row in ROWS} == BY_NAME.keys()
    assert len({(row.id, row.sees) for row in ROWS}) == len(ROWS)


def _named(rows: Sequence[Row]) -> str:
    return f"{rows[0].id}..{rows[-1].id}"


@pytest.mark.parametrize("rows", scenarios(BY_KEY, 25), ids=_named)
async def test_every_command_works_by_key(rows: Sequence[Row]) -> None:
    """The palette offers every command where it works, the key bar has its words, and its key does it."""

    async def press(row: Row, hand: Hand) -> None:
        await _is_offered(row, hand)
        first, *others = row.command.keys
        for key in others if row.id not in NO_BINDING else ():
            assert _binding_of(hand, key) == row.name, f"{key} does something else here"
        await hand.press(first)

    await _each_does(rows, press)


async def test_every_default_key_of_textual_works() -> None:
    rows = iter(BY_OTHER_KEY)
    await _each_does([row for row, _ in BY_OTHER_KEY], lambda row, hand: hand.press(next(rows)[1]))


def _binding_of(hand: Hand, key: str) -> str | None:
    """Return the id of the binding that a key reaches; `down` and `enter` may reach a widget's own."""
    return next((binding.id for binding in hand.bindings() if binding.key == key), None)


@pytest.mark.parametrize("rows", scenarios(CHOSEN_BY_PALETTE, 25), ids=_named)
async def test_every_command_works_by_palette(rows: Sequence[Row]) -> None:
    """Choosing a command in the palette does it: one at each place, and those that no key reaches."""

    async def choose(row: Row, hand: Hand) -> None:
        await _is_offered(row, hand)
        await hand.choose(row.command)

    await _each_does(rows, choose)


@pytest.mark.parametrize("rows", scenarios(_one_of_each_place(BY_FOOTER), 25), ids=_named)
async def test_every_command_works_by_a_click_in_the_key_bar(rows: Sequence[Row]) -> None:
    """A click on a command's words does it: one at each place."""
    await _each_does(rows, lambda row, hand: hand.click_words(row.command))


@pytest.mark.parametrize("rows", scenarios(BY_MOUSE, 25), ids=_named)
async def test_every_mouse_action_works(rows: Sequence[Row]) -> None:
    async def act(row: Row, hand: Hand) -> None:
        assert row.mouse is not None
        await row.mouse(hand)

    await _each_does(rows, act)


def test_names_in_the_palette_are_unique() -> None:
    names = [f"{command.group}: {command.title}" for command in COMMANDS if command.in_palette]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("make", [world, foreseen])
async def test_a_name_finds_its_command_even_if_unavailable(make: Make) -> None:
    def at(stage: Step) -> Step:
        async def look(hand: Hand) -> None:
            await stage(hand)
            offered = offers(hand.app.screen)
            assert {offer.command.name for offer in offered} == {each.name for each in COMMANDS if each.in_palette}
            for offer in offered:
                assert find_commands(offered, offer.label)[0].offer is offer
                assert find_commands(offered, offer.command.title)[0].offer.command.title == offer.command.title
                assert offer.why_not == "" or _REASON.fullmatch(offer.why_not), offer

        return look

    made = {stage: next(row for row in ROWS if row.stage is stage).make for stage in PLACES}
    await in_turn(make, [at(stage) for stage in PLACES if made[stage] is make])


@pytest.mark.parametrize("make", [world, foreseen])
async def test_keys_are_unambiguous_in_each_place(make: Make) -> None:
    """The keymap takes for the commands of a place exactly those that have a binding there."""
    bound: dict[str, set[str]] = defaultdict(set)

    def at(place: str, stage: Step) -> Step:
        async def look(hand: Hand) -> None:
            await stage(hand)
            bound[place] |= hand.bound()

        return look

    places_here = {place for place in STAGES if (place == "what-if panel") == (make is foreseen)}
    await in_turn(make, [at(place, stage) for place in places_here for stage in STAGES[place]])
    for place, found in bound.items():
        found -= {"give_up_work"}  # before all others, and only while a bar is shown, so it clashes with none
        if place == "main screen":
            found -= {"pause_recurring", "resume_recurring", "remove"}  # in their tab alone, in place of others
    assert bound == {place: {command.name for command in places()[place]} for place in places_here}


async def test_a_read_only_console_reaches_no_command_that_changes_anything() -> None:
    changing = [row for row in ROWS if row.command.changes and row.stage not in (stages_screens.form, stages.held)]
    changing.append(Row("undo", stages.queue, eyes.is_held, then=False))
    assert {row.name for row in changing} | {"send"} == {command.name for command in COMMANDS if command.changes}
    async with opened(lambda: world(read_only=True)) as hand:
        for row in changing:
            await row.stage(hand)
            audited, above = hand.console.audited(), hand.app.screen
            assert hand.words_at(row.command) is None, f"{row.id} is in the key bar"
            offered = {offer.command: offer.why_not for offer in offers(above, only_looks=True)}
            assert offered.get(row.command, _ONLY_LOOKS).startswith("Not here: "), (
                f"{row.id} can be done by the palette"
            )
            await hand.pilot.press(*row.command.keys)
            assert hand.app.screen is above, f"{row.id} opens {hand.app.screen}"
            assert hand.console.audited() == audited, f"{row.id} is done by key"
            while len(hand.app.screen_stack) > 1:
                await hand.app.pop_screen()
