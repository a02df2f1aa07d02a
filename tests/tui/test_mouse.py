"""Mouse beside commands: the wheel over any pane, edges that are dragged, lines that are picked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from textual import events
from textual.widgets import Static

from gputui.domain.snapshot import Snapshot
from gputui.tui.messages import ExitChoice
from gputui.tui.screens.dialog import Dialog
from gputui.tui.screens.questions import LeaveDialog
from tests.tui.every import eyes, stages, stages_log
from tests.tui.every.hand import Hand
from tests.tui.every.world import world
from tests.tui.sample import many_gpus, many_jobs


@asynccontextmanager
async def opened(snapshot: Snapshot | None = None, size: tuple[int, int] = (240, 50)) -> AsyncIterator[Hand]:
    """A console that shows this picture."""
    console = world()
    async with console.app.run_test(size=size) as pilot:
        hand = Hand(console, pilot)
        await console.show(pilot, snapshot or console.snapshot)
        await hand.until(lambda: len(hand.queue.keys) > 0 and hand.app.focused is hand.queue)
        yield hand


async def test_the_wheel_goes_through_the_pane_under_the_pointer_and_moves_neither_focus_nor_cursor() -> None:
    async with opened(many_jobs(100)) as hand:
        hand.grid.focus()
        await hand.breathe()
        cursor = hand.queue.cursor
        await hand.wheel(hand.queue)
        await hand.until(lambda: hand.queue.top == 3)
        await hand.wheel(hand.queue, down=False)
        await hand.until(lambda: hand.queue.top == 0)
        assert (hand.queue.cursor, hand.app.focused) == (cursor, hand.grid.shown)


async def test_the_wheel_goes_through_a_log_that_has_no_focus() -> None:
    async with opened() as hand:
        await stages_log.log(hand)
        hand.queue.focus()
        await hand.breathe()
        before = hand.log.reading.window.top
        await hand.wheel(hand.log, down=False)
        await hand.until(lambda: hand.log.reading.window.top == before - 3 and not hand.log.follows)
        await hand.wheel(hand.log)
        await hand.until(lambda: hand.log.follows)
        assert hand.app.focused is hand.queue


@pytest.mark.parametrize("view", ["cards", "compact", "rows"])
async def test_the_wheel_goes_through_gpus_however_they_are_drawn(view: str) -> None:
    async with opened(many_gpus(120), (240, 40)) as hand:
        while hand.main.panes.layout.grid != view:
            hand.main.action_grid()
        await hand.breathe()
        for name in ("queue", "log"):
            hand.main.panes.pane(name).focus()
            await hand.breathe()
        hand.main.panes.drag_edge("queue", -8)
        await hand.pilot.pause()
        assert hand.grid.height < 120
        for _ in range(64):
            await hand.wheel(hand.grid)
        await hand.until(lambda: hand.grid.top + hand.grid.height >= 120, "the last GPU is in sight")
        for _ in range(64):
            await hand.wheel(hand.grid, down=False)
        await hand.until(lambda: hand.grid.top == 0)


async def test_the_edge_between_gpus_and_queue_is_dragged_and_turns_to_no_tab() -> None:
    async with opened() as hand:
        high = hand.grid.region.height
        await hand.drag(hand.queue, (20, 0), (20, -4))
        await hand.until(lambda: hand.grid.region.height == high - 4)
        assert hand.queue.sheet is hand.queue.live
        assert hand.app.mouse_captured is None
        await hand.drag(hand.queue, (20, 0), (20, 2))
        await hand.until(lambda: hand.grid.region.height == high - 2)


async def test_the_edge_of_a_log_goes_no_further_than_leaves_three_rows() -> None:
    async with opened() as hand:
        await hand.drag(hand.log, (20, 0), (20, 30))
        await hand.until(lambda: hand.log.region.height <= 9)
        assert hand.log.region.height >= 3
        assert hand.queue.region.height >= 3


async def test_lines_are_picked_by_dragging_and_stay_under_the_pointer() -> None:
    async with opened() as hand:
        await stages_log.log(hand)
        await hand.drag(hand.log, (10, 2), (10, 4))
        rows = hand.log.reading.rows
        picked = hand.log.reading.picked
        assert [row.number for row in rows if picked.has(row.number)] == [rows[i].number for i in (1, 2, 3)]
        assert not hand.log.follows
        assert hand.app.mouse_captured is None
        assert hand.app.focused is hand.log


async def test_a_click_on_the_title_of_a_log_pins_it_and_a_drag_does_not() -> None:
    async with opened() as hand:
        await stages_log.log(hand)
        await hand.drag(hand.log, (20, 0), (20, 1))
        assert "pinned" not in hand.console.screen_text
        region = hand.log.region
        await hand.click_at(region.x + 8, region.y)
        await hand.until(lambda: "● pinned" in hand.console.screen_text)
        await hand.click_at(region.x + 8, region.y)
        await hand.until(lambda: "● pinned" not in hand.console.screen_text)


@pytest.mark.parametrize(
    ("key", "words", "seen"),
    [
        ("c", "yes", lambda hand: eyes.actions(hand) == [("cancel", "job 107")]),
        ("c", "n Esc", lambda hand: eyes.actions(hand) == []),
        ("P", "cancel", lambda hand: not eyes.is_paused(hand)),
        ("P", "OK", eyes.is_paused),
        ("y", "n  name", lambda hand: eyes.clipboard(hand) == "whisper-finetune"),
        ("q", "stop scheduling", lambda hand: hand.app.return_value is ExitChoice.STOP),
        ("q", "stay here", lambda hand: hand.app.return_value is None),
    ],
)
async def test_an_answer_is_clicked(key: str, words: str, seen: Callable[[Hand], bool]) -> None:
    async with opened() as hand:
        await stages.at_job(107)(hand)
        await hand.press(key)
        dialog = await hand.opened(Dialog)
        await hand.pilot.pause()
        lines = hand.console.screen_text.splitlines()
        y = next(y for y, line in enumerate(lines) if words in line)
        await hand.click_at(lines[y].index(words) + 1, y)
        await hand.until(lambda: hand.app.return_value is not None or hand.app.screen is not dialog)
        await hand.until(lambda: seen(hand))


async def test_a_drag_selects_no_text_for_that_fails_where_a_widget_goes_away_just_then() -> None:
    async with opened() as hand:
        await hand.press("q")
        dialog = await hand.opened(LeaveDialog)
        title = dialog.query_one(".title", Static)
        x, y = title.region.offset
        for kind, right in ((events.MouseDown, 0), (events.MouseMove, 4), (events.MouseUp, 8)):
            hand.app.post_message(kind(None, x + right, y, 0, 0, 1, False, False, False, x + right, y))
        await hand.breathe()
        assert dialog.selections == {}
        assert hand.app.screen is dialog
