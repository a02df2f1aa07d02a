"""Custom keys in dialogs: labels, effects, and Escape, which always closes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from gputui.domain.errors import InputError
from gputui.tui.actions import ExitChoice
from gputui.tui.keymap import Keymap
from gputui.tui.screens.main import Main
from tests.tui.every import stages_dialogs, stages_screens
from tests.tui.every.hand import Hand, at_work
from tests.tui.every.row import Step
from tests.tui.every.rows_dialogs import on
from tests.tui.every.turns import in_turn
from tests.tui.every.world import foreseen, world

KEYS: dict[str, tuple[str, ...]] = {
    "yes": ("f2",),
    "no": ("f3", "ctrl+b"),
    "hand_over": ("f2",),
    "stop": ("f4",),
    "stay": ("f3",),
    "take_line": ("f5",),
    "save_template": ("f6",),
    "copy_id": ("f7", "f8"),
    "copy_name": (),
    "back": ("f9",),
    "down": ("f10",),
    "search_help": ("f11",),
    "give_up": ("f12",),
    "close": ("c",),
}


@contextlib.asynccontextmanager
async def opened(stage: Step, keys: dict[str, tuple[str, ...]] | None = None) -> AsyncIterator[Hand]:
    async with at_work(world(keys=KEYS if keys is None else keys)) as hand:
        await stage(hand)
        yield hand


NAMED: tuple[tuple[Step, tuple[str, ...]], ...] = (
    (stages_dialogs.question, ("F2  yes     F3  no",)),
    (stages_dialogs.leaving, ("F2  hand over to a", "F4  stop scheduling", "F3  stay here")),
    (stages_dialogs.templates, ("F5  OK     F6  save the form as a template     F9  cancel",)),
    (stages_dialogs.copying, ("F7  id", "    name", "c   command", "F8  the id     F9  nothing")),
    (stages_dialogs.help_, ("F11 search   F10 k scroll   F9 close",)),
    (stages_dialogs.notices, ("F10 k scroll   F9 close",)),
    (stages_dialogs.themes, ("F5 keep   F9 back",)),
    (stages_dialogs.reason, ("Enter  OK     F12  cancel",)),
    (stages_dialogs.log_search, ("Enter ok  F12 cancel",)),
    (stages_dialogs.reservation, ("F12  leave",)),
)


async def test_dialogs_name_the_configured_keys() -> None:
    def at(stage: Step, words: tuple[str, ...]) -> Step:
        async def look(hand: Hand) -> None:
            await stage(hand)
            for each in words:
                assert each in hand.console.screen_text, hand.console.screen_text

        return look

    await in_turn(lambda: world(keys=KEYS), [at(*each) for each in NAMED])


async def test_a_question_is_answered_only_by_its_keys() -> None:
    async with opened(stages_dialogs.question) as hand:
        above = hand.app.screen
        await hand.press("y", "n", "enter")
        assert hand.app.screen is above
        await hand.press("ctrl+b")
        await hand.until(lambda: hand.app.screen is hand.main)
        await stages_dialogs.question(hand)
        await hand.press("f2")
        await hand.until(lambda: ("cancel", "job 101") in hand.console.audited())


async def test_a_click_on_the_words_still_answers() -> None:
    async with opened(stages_dialogs.leaving) as hand:
        await on("stop scheduling")(hand)
        await hand.until(lambda: hand.app.return_value is ExitChoice.STOP)


async def test_a_proposal_is_answered_like_a_question() -> None:
    console = foreseen()
    console.app.keymap = Keymap.of(KEYS)
    async with at_work(console) as hand:
        await stages_screens.proposed(hand)
        above = hand.app.screen
        await hand.press("n", "y")
        assert hand.app.screen is above
        await hand.press("f3")
        await hand.until(lambda: hand.app.screen is hand.main)


DIALOGS = (
    stages_dialogs.question,
    stages_dialogs.leaving,
    stages_dialogs.copying,
    stages_dialogs.help_,
    stages_dialogs.notices,
    stages_dialogs.themes,
    stages_dialogs.reason,
    stages_dialogs.log_search,
    stages_dialogs.reservation,
    stages_screens.columns,
)


async def test_escape_always_closes() -> None:
    keys: dict[str, tuple[str, ...]] = {"no": (), "stay": (), "back": (), "give_up": ("f12",)}

    def out_of(stage: Step) -> Step:
        async def escape(hand: Hand) -> None:
            await stage(hand)
            before = hand.console.audited()
            await hand.press("escape")
            await hand.until(lambda: isinstance(hand.app.screen, Main), f"{stage.__name__} is left")
            assert hand.console.audited() == before

        return escape

    await in_turn(lambda: world(keys=keys), [out_of(stage) for stage in DIALOGS])


def test_two_answers_cannot_have_one_key() -> None:
    with pytest.raises(InputError, match="Y would be yes and no on the"):
        Keymap.of({"yes": ("Y",), "no": ("Y",)})
    Keymap.of({"yes": ("j",), "copy_id": ("j",)})  # a dialog stands over all others
