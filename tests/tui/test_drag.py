"""Moves of a waiting job over several places by keys, in the queue and in the panel with the effects."""

from __future__ import annotations

import weakref
from functools import partial

from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.domain.job import Placing
from gputui.domain.policy.queue_order import queue_standings
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.tui.actions import ExitChoice
from gputui.tui.proposals import JobProposal
from gputui.tui.screens.main import Main
from gputui.tui.screens.queue_pane import Drag
from gputui.tui.screens.what_if import WhatIf
from tests.factories import NOW, job
from tests.tui import plans
from tests.tui.console import Console, on_screen, until
from tests.tui.foresight import opened, watched

SETTINGS = replace(Settings(), policy=plans.KEPT)


async def panel_of(console: Console, pilot: Pilot[ExitChoice]) -> WhatIf:
    """Return the panel that a move opens, with its forecast."""
    await until(pilot, lambda: isinstance(console.app.screen, WhatIf))
    panel = console.app.screen
    assert isinstance(panel, WhatIf)
    await until(pilot, lambda: panel.comparison is not None)
    await pilot.pause()
    return panel


def places_of(panel: WhatIf) -> tuple[Placing, ...]:
    """Return the proposed places."""
    assert isinstance(panel.proposal, JobProposal)
    return panel.proposal.places


def queue() -> Snapshot:
    """Return a snapshot with five jobs in the order of their ids."""
    waiting = tuple(job(i, name=f"run-{i}", tenant="dave", gpus=1, age=1000 - i) for i in range(111, 116))
    return plans.contended(jobs=(*plans.running_jobs(), *waiting), order=tuple(one.id for one in waiting))


async def test_keys_in_the_panel_move_it_on_and_the_forecast_follows() -> None:
    async with on_screen(watched(queue()), (120, 40)) as (console, pilot):
        console.select(114)
        await pilot.press("K")
        panel = await panel_of(console, pilot)
        first = places_of(panel)
        assert "up past job 113" in console.screen_text
        starts = panel.comparison.after.starts if panel.comparison else {}
        await pilot.press("K")
        await until(pilot, lambda: places_of(panel) != first and panel.comparison is not None)
        await pilot.pause()
        assert "past job 112 and 1 more job" in console.screen_text
        assert panel.comparison is not None
        assert panel.comparison.after.starts[114] < starts[114]
        await pilot.press("J")
        await until(pilot, lambda: "past job 113" in console.screen_text)
        await console.press(pilot, "enter")
        assert console.audited() == [("move", "job 114")]
        placed = console.store.get(114).placed
        assert placed is not None
        assert (placed.past, placed.tie < 0) == (113, True)


async def test_keys_pressed_before_the_forecast_all_count() -> None:
    async with on_screen(watched(queue()), (120, 40)) as (console, pilot):
        console.select(115)
        main = console.app.screen
        assert isinstance(main, Main)
        for _ in range(3):
            main.editor.action_move(-1)
        panel = await panel_of(console, pilot)
        assert "past job 112 and 2 more jobs" in console.screen_text
        for step in (1, 1, -1):
            panel.action_drag(step)
        await until(pilot, lambda: "past job 113 and 1 more job" in console.screen_text)


async def test_another_key_in_the_panel_replaces_pending_steps() -> None:
    async with on_screen(watched(queue()), (120, 40)) as (console, pilot):
        console.select(113)
        panel = await opened(console, pilot, "plus")
        panel.action_drag(-1)
        panel.action_further("top")
        await until(pilot, lambda: panel.comparison is not None)
        await pilot.pause()
        assert "to the head of the queue" in console.screen_text


async def test_the_panel_says_why_it_goes_no_further() -> None:
    async with on_screen(watched(queue()), (120, 40)) as (console, pilot):
        console.select(112)
        await pilot.press("K")
        panel = await panel_of(console, pilot)
        first = places_of(panel)
        await pilot.press("K")
        await until(pilot, lambda: "! already first" in console.screen_text)
        assert places_of(panel) == first
        await pilot.press("minus")
        await pilot.pause()
        assert "already first" not in console.screen_text


async def test_other_actions_ignore_the_move_keys() -> None:
    async with on_screen(watched(queue()), (120, 40)) as (console, pilot):
        console.select(112)
        panel = await opened(console, pilot, "h")
        before = panel.proposal
        await pilot.press("K")
        await pilot.pause()
        assert panel.proposal == before


async def test_steps_add_up_without_the_panel_and_across_snapshots() -> None:
    console = watched(queue(), what_if="off")

    def stands(wanted: int) -> bool:
        order = queue_standings(Snapshot(jobs=tuple(console.store.jobs().values())), SETTINGS, NOW)
        return [each.job.id for each in order if each.job.id > 110].index(115) == wanted

    async with console.app.run_test(size=(120, 40)) as pilot:
        await console.begin(pilot)
        console.select(115)
        for wanted in (3, 2, 1):
            await pilot.press("K")
            await until(pilot, partial(stands, wanted))
        await console.show(pilot, replace(console.snapshot, jobs=tuple(console.store.jobs().values())))
        await pilot.press("K")
        await until(pilot, partial(stands, 0))


def test_moved_jobs_are_freed_with_their_snapshot() -> None:
    drag, one = Drag(), job()
    drag.press([one], 1)
    kept = weakref.ref(one)
    del one
    assert kept() is None
