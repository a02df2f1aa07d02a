"""Read-only consoles: no key and no other way changes anything."""

from __future__ import annotations

from gputui.domain.action import Hold
from gputui.domain.settings import ConsoleSettings
from gputui.tui.actions import ActionRequested
from gputui.tui.commands import COMMANDS, bindings, places
from tests.tui.console import Console, on_screen
from tests.tui.sample import viewer


def _looker() -> Console:
    return Console(console=ConsoleSettings("off", read_only=True))


async def test_read_only_consoles_offer_no_key_that_changes_anything() -> None:
    async with on_screen(_looker(), (200, 50)) as (console, pilot):
        assert console.screen_text.startswith(" read-only │ gputui")
        footer = console.screen_text.splitlines()[-1]
        assert "f log" in footer
        assert not any(word in footer for word in ("hold", "cancel", "submit", "pause", "prio", "drain", "top"))
        for command in places()["main screen"]:
            for key in command.keys if command.changes else ():
                await console.press(pilot, key)
                assert console.app.screen is console.app.screen_stack[0], command.name
        assert console.told
        console.app.clear_notifications()
        for key in ("s", "c"):
            await console.press(pilot, key)
            assert ": Not here: this console is read-only. Start it without --read-only" in console.told[-1], key
        console.app.clear_notifications()
        await console.press(pilot, "j", "question_mark", "escape", "slash", *"sc", "escape")
        assert console.told == []
        await console.press(pilot, "shift+tab", "d")
        assert len(console.app.screen_stack) == 1
        assert console.audited() == []


async def test_a_forced_action_is_refused_with_a_sentence() -> None:
    console = _looker()

    async with console.app.run_test(size=(120, 36)) as pilot:
        await console.begin(pilot)
        console.app.screen.post_message(ActionRequested(Hold((107,))))
        await console.settle(pilot)
        assert console.audited() == []
        assert any("read-only" in told for told in console.told)


async def test_the_read_only_status_fits_80_columns() -> None:
    console = _looker()
    async with console.app.run_test(size=(80, 24)) as pilot:
        await console.show(pilot, viewer())
        first = console.screen_text.splitlines()[0]
        assert first.startswith(" read-only ◐ serve ")
        assert "free" in first


def test_bindings_carry_the_names_of_their_commands() -> None:
    assert len(list(bindings(COMMANDS))) == len([command for command in COMMANDS if command.keys])
