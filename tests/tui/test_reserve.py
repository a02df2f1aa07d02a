"""Reserving GPUs in the console: a form, its effects, and removal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input

from gputui.domain.settings import Window
from gputui.domain.snapshot import WindowState, WindowView
from gputui.tui.actions import ExitChoice
from gputui.tui.screens.forms import Reserve
from gputui.tui.screens.main import Main
from gputui.tui.screens.what_if import WhatIf
from tests.factories import NOW, uuid
from tests.tui.console import Console, on_screen
from tests.tui.foresight import opened, watched

HOUR = timedelta(hours=1)
KEPT = Window("r1", NOW + HOUR, NOW + 3 * HOUR, count=5, tenant="alice")


@asynccontextmanager
async def form(console: Console, *, kept: bool = False) -> AsyncIterator[Pilot[ExitChoice]]:
    """Return a console that shows the form."""
    view = WindowView(KEPT, WindowState.UPCOMING, "command", gpus=tuple(map(uuid, range(5))))
    picture = replace(console.snapshot, windows=(view,)) if kept else console.snapshot
    async with console.app.run_test(size=(120, 36)) as pilot:
        await console.show(pilot, picture)
        await pilot.press("B")
        await pilot.pause()
        assert isinstance(here(console), Reserve)
        yield pilot


def here(console: Console) -> object:
    """Return the topmost screen."""
    return console.app.screen


async def fill(console: Console, pilot: Pilot[ExitChoice], **texts: str) -> None:
    for name, text in texts.items():
        console.app.screen.query_one(f"#{name}", Input).value = text
    await pilot.pause()


def made(console: Console) -> tuple[Window, ...]:
    return console.store.controls().reservations


async def test_delayed_jobs_are_shown_before_a_reservation_is_made() -> None:
    console = watched()
    async with form(console) as pilot:
        await fill(console, pilot, gpus="4", start="+1h", tenant="bob", **{"for": "2h"})
        assert "for 2h00m, for bob" in console.screen_text
        await opened(console, pilot, "enter")
        assert isinstance(here(console), WhatIf)
        assert "Reserve 4 GPUs from" in console.screen_text
        assert "delays " in console.screen_text
        assert made(console) == ()
        await pilot.press("escape")
        assert isinstance(here(console), Reserve), "what was typed is still there"
        await opened(console, pilot, "enter")
        await console.press(pilot, "enter")
        assert isinstance(here(console), Main)
    [window] = made(console)
    assert (window.count, window.tenant, window.priority) == (4, "bob", None)
    assert (window.start, window.end) == (NOW + HOUR, NOW + 3 * HOUR)


async def test_the_default_reservation_is_the_selected_gpu_for_eight_hours() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        await pilot.press("shift+tab", "l", "B")
        await console.press(pilot, "enter")
        assert isinstance(here(console), Main)
    [window] = made(console)
    assert (window.gpus, window.end - window.start) == ((uuid(1),), 8 * HOUR)
    assert window.tenant == "alice"


async def test_a_start_with_its_end_needs_no_length() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        await pilot.press("shift+tab", "l", "B")
        console.app.screen.query_one("#start", Input).value = "Mon 9-17"
        await pilot.pause()
        await console.press(pilot, "enter")
        assert isinstance(here(console), Main)
    [window] = made(console)
    assert (f"{window.start.astimezone():%a %H:%M}", window.end - window.start) == ("Mon 09:00", 8 * HOUR)


WRONG: tuple[tuple[dict[str, str], str, str], ...] = (
    ({"gpus": "0"}, "GPUs: a reservation needs a number of GPUs", "gpus"),
    ({"gpus": "9"}, "GPUs: there are fewer than 9 GPUs", "gpus"),
    ({"gpus": "device=12"}, "GPUs: no GPU", "gpus"),
    ({"start": "soon"}, "from: 'soon' is not a time", "start"),
    ({"until": "+2h", "for": "3h"}, "until: either a time or a duration", "until"),
    ({"start": "+3h", "until": "+2h"}, "until: is not after the start", "until"),
    ({"priority": "200"}, "priority: 200 is out of range", "priority"),
    ({"name": "r1"}, "name: reservation r1 exists already", "name"),
    ({"gpus": "4"}, "4 GPUs are too many: reservation r1 keeps 5 of 8", "gpus"),
)
"""Texts of fields, the error that they show, and the field at fault."""


async def test_errors_are_shown_while_typing() -> None:
    console = Console()
    async with form(console, kept=True) as pilot:
        for texts, words, field in WRONG:
            if isinstance(here(console), Main):
                await console.press(pilot, "B")
            await fill(console, pilot, **texts)
            assert words in " ".join(console.screen_text.split())
            await console.press(pilot, "enter")
            assert isinstance(here(console), Reserve), texts
            assert console.app.focused is not None
            assert console.app.focused.id == field, texts
            await console.press(pilot, "escape")
            assert isinstance(here(console), Main), texts
    assert made(console) == ()


async def test_a_reservation_for_nobody_excludes_all_jobs() -> None:
    console = Console()
    async with form(console) as pilot:
        console.app.screen.query_one("#nobody").focus()
        await console.press(pilot, "space", "enter")
        assert isinstance(here(console), Main)
    assert made(console)[0].for_nobody


async def test_affected_jobs_are_shown_before_a_reservation_is_removed() -> None:
    console = watched()
    with console.store.transaction() as transaction:
        transaction.set_controls(replace(transaction.controls(), reservations=(KEPT,)))
    view = WindowView(KEPT, WindowState.UPCOMING, "command")
    controls = replace(console.snapshot.controls, reservations=(KEPT,))
    async with console.app.run_test(size=(120, 36)) as pilot:
        await console.show(pilot, replace(console.snapshot, windows=(view,), controls=controls))
        await pilot.press("4")
        await opened(console, pilot, "c")
        assert "Release reservation r1: 5 GPUs from" in console.screen_text
        await pilot.press("escape")
        assert made(console) == (KEPT,)
        await opened(console, pilot, "c")
        await console.press(pilot, "enter")
    assert made(console) == ()
