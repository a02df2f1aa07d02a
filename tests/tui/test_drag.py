"""A waiting job is dragged by keys over several places, in the queue and in the panel that shows what that would do."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial

from textual.pilot import Pilot

from gputui.domain.policy.reorder import standings
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.tui.leave import Leave
from gputui.tui.proposals import JobProposal
from gputui.tui.queue.drag import Drag
from gputui.tui.screens.main import Main
from gputui.tui.screens.what_if import WhatIf
from tests.factories import NOW, job
from tests.tui import plans
from tests.tui.console import Console
from tests.tui.foresight import opened, select, until, watched

SETTINGS = replace(Settings(), policy=plans.KEPT)


async def panel_of(console: Console, pilot: Pilot[Leave]) -> WhatIf:
    """The panel that a move opens, filled in."""
    await until(pilot, lambda: isinstance(console.app.screen, WhatIf))
    panel = console.app.screen
    assert isinstance(panel, WhatIf)
    await until(pilot, lambda: panel.comparison is not None)
    await pilot.pause()
    return panel


def delta_of(panel: WhatIf) -> int:
    """How much more priority it proposes."""
    assert isinstance(panel.proposal, JobProposal)
    return panel.proposal.delta


def queue() -> Snapshot:
    """Jobs far enough from each other that one point of priority takes none past two."""
    waiting = tuple(
        job(i, name=f"run-{i}", tenant="dave", gpus=1, age=600, nice=50 * (i - 110)) for i in range(111, 116)
    )
    return plans.contended(jobs=(*plans.running_jobs(), *waiting), order=tuple(one.id for one in waiting))


async def test_keys_in_the_panel_move_it_on_and_the_forecast_follows() -> None:
    console = watched(queue())
    async with console.app.run_test(size=(120, 40)) as pilot:
        await console.begin(pilot)
        await select(console, 114)
        await pilot.press("K")
        panel = await panel_of(console, pilot)
        first = delta_of(panel)
        assert "past job 113" in console.screen_text
        starts = panel.comparison.after.starts if panel.comparison else {}
        await pilot.press("K")
        await until(pilot, lambda: delta_of(panel) > first and panel.comparison is not None)
        await pilot.pause()
        assert "past job 112 and 1 more job" in console.screen_text
        assert panel.comparison is not None
        assert panel.comparison.after.starts[114] < starts[114]
        await pilot.press("J")
        await until(pilot, lambda: "past job 113" in console.screen_text)
        assert delta_of(panel) > 0
        await console.press(pilot, "enter")
        assert console.audited() == [("priority", "job 114")]
        assert console.store.get(114).priority == 50 + delta_of(panel)


async def test_keys_pressed_before_it_is_known_what_they_take_all_count() -> None:
    console = watched(queue())
    async with console.app.run_test(size=(120, 40)) as pilot:
        await console.begin(pilot)
        await select(console, 115)
        main = console.app.screen
        assert isinstance(main, Main)
        for _ in range(3):
            main.action_move(-1)
        panel = await panel_of(console, pilot)
        assert "past job 112 and 2 more jobs" in console.screen_text
        for step in (1, 1, -1):
            panel.action_drag(step)
        await until(pilot, lambda: "past job 113 and 1 more job" in console.screen_text)


async def test_another_key_in_the_panel_takes_the_place_of_steps_not_made_yet() -> None:
    console = watched(queue())
    async with console.app.run_test(size=(120, 40)) as pilot:
        await console.begin(pilot)
        await select(console, 113)
        panel = await opened(console, pilot, "plus")
        panel.action_drag(-1)
        panel.action_further("top")
        await until(pilot, lambda: panel.comparison is not None)
        await pilot.pause()
        assert "to the head of the queue" in console.screen_text


async def test_the_panel_tells_why_it_goes_no_further() -> None:
    console = watched(queue())
    async with console.app.run_test(size=(120, 40)) as pilot:
        await console.begin(pilot)
        await select(console, 112)
        await pilot.press("K")
        panel = await panel_of(console, pilot)
        first = delta_of(panel)
        await pilot.press("K")
        await until(pilot, lambda: "! it is first already" in console.screen_text)
        assert delta_of(panel) == first
        await pilot.press("minus")
        await pilot.pause()
        assert "it is first already" not in console.screen_text


async def test_a_wish_that_is_no_order_is_not_dragged() -> None:
    console = watched(queue())
    async with console.app.run_test(size=(120, 40)) as pilot:
        await console.begin(pilot)
        await select(console, 112)
        panel = await opened(console, pilot, "h")
        before = panel.proposal
        await pilot.press("K")
        await pilot.pause()
        assert panel.proposal == before


async def test_without_the_panel_steps_add_up_too_whatever_the_picture_shows_by_then() -> None:
    console = watched(queue(), what_if="off")

    def stands(wanted: int) -> bool:
        order = standings(Snapshot(jobs=tuple(console.store.jobs().values())), SETTINGS, NOW)
        return [each.job.id for each in order if each.job.id > 110].index(115) == wanted

    async with console.app.run_test(size=(120, 40)) as pilot:
        await console.begin(pilot)
        await select(console, 115)
        for wanted in (3, 2, 1):
            await pilot.press("K")
            await until(pilot, partial(stands, wanted))
        await console.show(pilot, replace(console.snapshot, jobs=tuple(console.store.jobs().values())))
        await pilot.press("K")
        await until(pilot, partial(stands, 0))


def test_the_jobs_that_were_dragged_are_let_go_with_their_picture() -> None:
    drag, one = Drag(), job()
    drag.press([one], 1)
    kept = weakref.ref(one)
    del one
    assert kept() is None
