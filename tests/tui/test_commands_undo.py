"""`u` undoes the last action of this console."""

from __future__ import annotations

from typing import Any

from gputui.domain.action import Action, Hold, Release, SetPriority
from gputui.domain.errors import StoreFullError
from gputui.domain.settings import ConsoleSettings
from gputui.domain.submit_action import Done
from gputui.engine.actions.actions import Actions
from gputui.tui.actions import ActionRequested
from tests.factories import ACTOR, uuid
from tests.tui.console import Console, on_screen


async def test_actions_are_undone_one_by_one_and_named() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        console.select(107)
        await console.press(pilot, "plus", "h")
        assert console.store.get(107).priority == 60
        assert console.store.get(107).held
        await console.press(pilot, "u")
        assert not console.store.get(107).held
        assert console.told[-1] == "undone: job 107 may start again"
        await console.press(pilot, "u")
        assert console.store.get(107).priority == 50
        assert console.told[-1] == "undone: job 107 has priority 50 again"
        await console.press(pilot, "u")
        assert "Nothing to undo" in console.told[-1]


async def test_undo_keeps_later_changes_of_others() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        console.select(107)
        await console.press(pilot, "plus")
        Actions(console.store, console.clock, ACTOR).act(SetPriority((107,), 3))
        await console.press(pilot, "u")
        assert console.store.get(107).priority == 3
        assert console.told[-1] == "undo: job 107 has been changed since: not undone"


async def test_an_undone_drain_names_the_gpu_as_on_the_screen() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        await console.press(pilot, "shift+tab", "d", *"dust", "enter")
        assert uuid(0) in console.store.controls().drains
        await console.press(pilot, "u")
        assert console.store.controls().drains == {}
        assert console.told[-1] == "undone: GPU 0 takes jobs again"


async def test_a_failed_action_cannot_be_undone() -> None:
    console = Console()

    act = console.actions.act

    def fail(action: Action, **options: Any) -> Done:
        act(action, **options)
        raise StoreFullError("no space is left")

    console.actions.act = fail  # type: ignore[method-assign]
    async with console.app.run_test(size=(120, 36)) as pilot:
        await console.begin(pilot)
        console.app.screen.post_message(ActionRequested(Hold((107,))))
        await console.press(pilot, "u")
        assert "Nothing to undo" in console.told[-1]


async def test_many_jobs_of_one_action_are_undone_together() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        console.app.screen.post_message(ActionRequested(Hold((106, 107, 108, 110))))
        await console.settle(pilot)
        Actions(console.store, console.clock, ACTOR).act(Release((106,)))
        await console.press(pilot, "u")
        assert not any(console.store.get(job_id).held for job_id in (106, 107, 108, 110))
        assert console.told[-1].startswith("undone: job 110 may start again, job 108")
        assert console.told[-1].endswith("not undone: job 106 has been changed since")


async def test_a_read_only_console_has_nothing_to_undo() -> None:
    async with on_screen(Console(console=ConsoleSettings("off", read_only=True)), (120, 36)) as (console, pilot):
        await console.press(pilot, "u")
        assert [told.split(".")[0] for told in console.told] == ["undo: Not here: this console is read-only"]
