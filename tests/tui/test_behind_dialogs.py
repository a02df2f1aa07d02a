"""What is behind a dialog goes on: clock, GPUs, queue and pages, and the dialog's own figures."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from textual._compositor import ChopsUpdate
from textual.screen import ModalScreen, Screen
from textual.widgets import Input

from gputui.domain.gpu import GpuState
from gputui.domain.snapshot import Snapshot, WindowState, WindowView
from gputui.domain.state import JobState
from gputui.tui import screens
from gputui.tui.proposals import GpuProposal
from gputui.tui.screens.dialogs import (
    Choose,
    ColumnChooser,
    Confirm,
    CopyDialog,
    Dialog,
    LeaveDialog,
    Prompt,
    ScrollingDialog,
    Themes,
)
from gputui.tui.screens.forms import Reserve, Submit
from gputui.tui.screens.help import Help, Notices
from gputui.tui.screens.log_pane import LogPrompt
from gputui.tui.screens.menu import CommandFinder, Menu, Pointed
from gputui.tui.screens.process_view import GpuProcessesScreen, ProcessPage
from gputui.tui.screens.what_if import WhatIf
from gputui.tui.widgets.log_view import LogView
from gputui.tui.widgets.status_bars import StatusBar
from tests.factories import NOW, uuid, view
from tests.lane import in_its_lane
from tests.tui import sample
from tests.tui.console import on_screen, steady, text_of
from tests.tui.every import stages, stages_dialogs, stages_screens
from tests.tui.every.hand import Hand
from tests.tui.every.row import Step
from tests.tui.every.stages_screens import gpu_page
from tests.tui.every.world import RESERVED, foreseen, world

LATER = NOW + timedelta(minutes=7)


async def menu(hand: Hand) -> None:
    """Open the menu of the first row."""
    await stages.queue(hand)
    await hand.right_click(hand.queue, 10, hand.queue.head)
    await hand.opened(Menu)


async def palette(hand: Hand) -> None:
    """Open the list of commands."""
    await stages.queue(hand)
    hand.app.action_command_palette()
    await hand.opened(CommandFinder)


async def process(hand: Hand) -> None:
    """Open the page of a process."""
    await stages_screens.process_view(hand)
    row = hand.top(GpuProcessesScreen).row()
    assert row is not None
    hand.app.push_screen(ProcessPage(row, hand.app.services.foreign))
    await hand.opened(ProcessPage)


async def proposed(hand: Hand) -> None:
    """Open the preview of a change."""
    await stages.at_gpu(2)(hand)
    hand.main.propose(GpuProposal(uuid(2), "2", "drain"))
    await hand.opened(WhatIf)


BY_KIND: dict[type[ModalScreen[Any]], tuple[Step, ...]] = {
    Choose: (stages_dialogs.submissions, stages_dialogs.templates),
    ColumnChooser: (stages_screens.columns,),
    CommandFinder: (palette,),
    Confirm: (stages_dialogs.question,),
    CopyDialog: (stages_dialogs.copying,),
    Help: (stages_dialogs.help_,),
    LeaveDialog: (stages_dialogs.leaving,),
    LogPrompt: (stages_dialogs.log_search,),
    Menu: (menu,),
    Notices: (stages_dialogs.notices,),
    ProcessPage: (process,),
    Prompt: (stages_dialogs.reason,),
    Reserve: (stages_dialogs.reservation,),
    Submit: (stages_screens.form,),
    Themes: (stages_dialogs.themes,),
    WhatIf: (proposed,),
}
"""Ways to open each kind of dialog; a test sees to it that none is missing."""
DIALOGS = tuple(dict.fromkeys(step for steps in BY_KIND.values() for step in steps))
BASES = {Dialog, ScrollingDialog, Pointed}
PAGES = (
    stages_screens.detail,
    gpu_page(2),
    stages_screens.processes,
    stages_screens.process_view,
    stages_screens.logs,
    stages_screens.timeline,
)


def after_seven_minutes(before: Snapshot) -> Snapshot:
    """Return the same day on which job 104 has ended, and its GPU is free."""
    ended = next(job for job in before.jobs if job.id == 104).evolve(state=JobState.COMPLETED, ended_at=LATER)
    gpus = tuple(view(2, GpuState.FREE) if each.gpu.uuid == uuid(2) else each for each in before.nodes[0].gpus)
    return replace(sample.with_job(before, [ended]), taken_at=LATER, nodes=(replace(before.nodes[0], gpus=gpus),))


@asynccontextmanager
async def shown(size: tuple[int, int]) -> AsyncIterator[Hand]:
    """Yield a console of this size that shows the day at noon."""
    console = world()
    async with console.app.run_test(size=size, notifications=True) as pilot:
        await console.begin(pilot)
        yield Hand(console, pilot)


async def pass_time(hand: Hand) -> None:
    """Let seven minutes pass, and show the snapshot of then."""
    hand.console.clock.time = LATER
    hand.console.snapshot = after_seven_minutes(hand.console.snapshot)
    await hand.console.show(hand.pilot, hand.console.snapshot)
    await hand.until(lambda: "7m00s old" not in text_of(hand.app))  # a forecast of the present comes from a thread
    await show_logs(hand)


async def show_logs(hand: Hand) -> None:
    """Wait until all lines of all logs on all screens are shown, and a form's forecast."""
    await hand.until(lambda: "Start  …" not in text_of(hand.app), "all is read")
    await hand.until(lambda: hand.console.logs.are_read)
    for pane in [pane for screen in hand.app.screen_stack for pane in screen.query(LogView)]:
        pane.tick()
    await steady(hand.pilot)


async def close(hand: Hand, screen: Screen[object]) -> None:
    """Close the front screen, and wait until it is gone."""
    screen.dismiss()
    await hand.until(lambda: screen not in hand.app.screen_stack)
    await steady(hand.pilot)


async def assert_live(hand: Hand) -> None:
    """Check that what is seen beside the front screen is what is seen without it."""
    front = hand.app.screen
    covered = {(x, y) for box in front.children for y in box.region.line_range for x in range(*box.region.column_span)}
    seen = text_of(hand.app).splitlines()
    await close(hand, front)
    for y, (line, after) in enumerate(zip(seen, text_of(hand.app).splitlines(), strict=True)):
        beside = [x for x in range(len(line)) if (x, y) not in covered]
        assert "".join(line[x] for x in beside) == "".join(after[x] for x in beside)


def dialogs() -> set[type[Any]]:
    """Return the kinds of dialogs of the console."""
    for found in pkgutil.iter_modules(screens.__path__, f"{screens.__name__}."):
        importlib.import_module(found.name)
    kinds: set[type[Any]] = set()
    unseen: list[type[Any]] = [ModalScreen]
    while unseen:
        new = unseen.pop().__subclasses__()
        kinds.update(new)
        unseen += new
    return {kind for kind in kinds if kind.__module__.startswith("gputui.")} - BASES


def test_the_table_has_every_dialog() -> None:
    assert dialogs() == set(BY_KIND)


@pytest.mark.parametrize("size", [(80, 24), in_its_lane((240, 60), is_long=True)], ids=str)
async def test_what_is_seen_beside_a_dialog_goes_on(size: tuple[int, int]) -> None:
    for place in DIALOGS:
        async with shown(size) as hand:
            await place(hand)
            await pass_time(hand)
            while hand.app.screen.is_modal:
                await assert_live(hand)
            if len(hand.app.screen_stack) == 1:
                status = text_of(hand.app).splitlines()[0]
                assert "12:07:00" in status
                assert re.search(r" 3(/| of )8( GPUs)? free", status)


async def test_a_page_goes_on_behind_a_dialog() -> None:
    for page in PAGES:
        async with shown((240, 60)) as hand:
            await page(hand)
            hand.app.action_help()
            await hand.opened(Help)
            await pass_time(hand)
            await assert_live(hand)


async def test_a_reservation_is_checked_against_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown((120, 36)) as hand:
        console, pilot = hand.console, hand.pilot
        await stages_dialogs.reservation(hand)
        await hand.press(*"2")
        console.app.screen.query_one("#name", Input).value = "mine"
        await steady(pilot)
        assert "exists already" not in console.screen_text
        taken = WindowView(replace(RESERVED, name="mine"), WindowState.ACTIVE, "command", gpus=(uuid(4), uuid(5)))
        await console.show(pilot, replace(console.snapshot, windows=(taken,), taken_at=LATER))
        await steady(pilot)
        assert "exists already" in console.screen_text
        assert console.app.screen.query_one("#name", Input).value == "mine"


async def test_a_question_follows_its_job() -> None:
    async with shown((120, 36)) as hand:
        console = hand.console
        await stages.at_job(104)(hand)
        hand.main.action_verb("cancel")
        await hand.opened(Confirm)
        assert "Its container is stopped" in console.screen_text
        await pass_time(hand)
        assert "It has ended meanwhile: COMPLETED" in console.screen_text


async def test_notices_are_those_of_now() -> None:
    async with shown((120, 36)) as hand:
        console, pilot = hand.console, hand.pilot
        await stages_dialogs.notices(hand)
        assert "no permission to speak to Docker" not in console.screen_text
        console.snapshot = replace(sample.no_docker(), taken_at=NOW + timedelta(seconds=5))
        await console.show(pilot, console.snapshot)
        await hand.until(lambda: "no permission to speak to Docker" in console.screen_text)


async def test_two_dialogs_let_the_screen_be_seen_and_typed_text_is_not_lost() -> None:
    console = foreseen()
    async with console.app.run_test(size=(200, 50)) as pilot:
        hand = Hand(console, pilot)
        await console.begin(pilot)
        await stages_dialogs.reservation(hand)
        await hand.press("enter")
        await hand.opened(WhatIf)
        console.clock.time = LATER
        await console.show(pilot, replace(console.snapshot, taken_at=LATER))
        await steady(pilot)
        assert "12:07:00" in console.screen_text.splitlines()[0]
        await close(hand, console.app.screen)
        for number, character in enumerate("mine"):
            console.app.screen.query_one("#name", Input).focus()
            await pilot.press(character)
            console.clock.time = LATER + timedelta(seconds=number)
            await console.show(pilot, replace(console.snapshot, taken_at=console.clock.time))
        await steady(pilot)
        assert "mine" in console.screen_text


@pytest.mark.usefixtures("drawn_at_once")
async def test_a_change_behind_a_dialog_draws_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_screen(world(), (120, 36)) as (console, pilot):
        await stages_dialogs.reservation(Hand(console, pilot))
        await steady(pilot)
        drawn: list[int] = []
        display = console.app._display  # noqa: SLF001 - Textual has no public count of what is drawn

        def counted(screen: Screen[object], update: object) -> None:
            spans = update.spans if isinstance(update, ChopsUpdate) else [(0, 0, 120 * 36)]
            drawn.append(sum(end - start for _, start, end in spans))
            display(screen, update)  # type: ignore[arg-type]

        monkeypatch.setattr(console.app, "_display", counted)
        console.clock.time = NOW + timedelta(seconds=3)
        console.app.screen_stack[0].query_one(StatusBar).show((), "12:00:03")
        await steady(pilot)
        assert "12:00:03" in console.screen_text
        assert sum(drawn) <= 120 + len("12:00:03")
