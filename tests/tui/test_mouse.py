"""Mouse actions other than commands: the wheel over panes, dragged edges, selected lines."""

from __future__ import annotations

from textual import events
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from gputui.tui.commands import COMMANDS
from gputui.tui.screens.dialogs import LeaveDialog
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.screens.menu import CommandFinder
from gputui.tui.screens.timeline import TimelineScreen
from gputui.tui.widgets.status_bars import FilterLine, KeyBar
from tests.cases import cases
from tests.tui.every import stages, stages_dialogs, stages_log
from tests.tui.every.hand import Hand, at_work
from tests.tui.every.row import Step
from tests.tui.every.turns import in_turn
from tests.tui.every.world import world
from tests.tui.sample import many_gpus, many_jobs


async def test_the_wheel_goes_through_the_pane_under_the_pointer_and_moves_neither_focus_nor_cursor() -> None:
    async with at_work(world(), snapshot=many_jobs(100)) as hand:
        hand.grid.focus()
        await hand.breathe()
        cursor = hand.queue.cursor
        await hand.wheel(hand.queue)
        await hand.until(lambda: hand.queue.view.tops[1] == 3)
        await hand.wheel(hand.queue, down=False)
        await hand.until(lambda: hand.queue.view.tops[1] == 0)
        assert (hand.queue.cursor, hand.app.focused) == (cursor, hand.grid.shown)


async def test_the_wheel_goes_through_a_log_that_has_no_focus() -> None:
    async with at_work(world()) as hand:
        await stages_log.log(hand)
        hand.queue.focus()
        await hand.breathe()
        before = hand.log.reading.window.top
        await hand.wheel(hand.log, down=False)
        await hand.until(lambda: hand.log.reading.window.top == before - 3 and not hand.log.follows)
        await hand.wheel(hand.log)
        await hand.until(lambda: hand.log.follows)
        assert hand.app.focused is hand.queue


@cases("view", ["cards", "compact", "rows"])
async def test_the_wheel_goes_through_gpus_however_they_are_drawn(view: str) -> None:
    async with at_work(world(), (240, 40), many_gpus(120)) as hand:
        while hand.main.panes.layout.grid != view:
            hand.main.panes.action_grid()
        await hand.breathe()
        for name in ("queue", "log"):
            hand.main.panes.pane(name).focus()
            await hand.breathe()
        hand.main.panes.drag_edge("queue", -8)
        await hand.pilot.pause()
        assert hand.grid.shown.height < 120
        for _ in range(64):
            await hand.wheel(hand.grid)
        await hand.until(lambda: hand.grid.shown.top + hand.grid.shown.height >= 120, "the last GPU is in sight")
        for _ in range(64):
            await hand.wheel(hand.grid, down=False)
        await hand.until(lambda: hand.grid.shown.top == 0)


async def test_the_edge_between_gpus_and_queue_is_dragged_and_turns_to_no_tab() -> None:
    async with at_work(world()) as hand:
        high = hand.grid.region.height
        await hand.drag(hand.queue, (20, 0), (20, -4))
        await hand.until(lambda: hand.grid.region.height == high - 4)
        assert hand.queue.sheet is hand.queue.live
        assert hand.app.mouse_captured is None
        await hand.drag(hand.queue, (20, 0), (20, 2))
        await hand.until(lambda: hand.grid.region.height == high - 2)


async def test_a_click_on_the_name_of_a_tab_turns_to_it_and_one_behind_the_names_to_none() -> None:
    async with at_work(world()) as hand:
        names = [sheet.name for sheet in hand.queue.sheets]
        for name in (*names[1:], names[0]):
            title = hand.queue.render_line(0).text
            await hand.click(hand.queue, title.index(name) + len(name) - 1, 0)
            await hand.until(lambda name=name: hand.queue.sheet.name == name, name)  # type: ignore[misc]
            await hand.click(hand.queue, hand.queue.size.width - 2, 0)
            await hand.breathe()
            assert (hand.queue.sheet.name, hand.app.focused) == (name, hand.queue)


async def test_the_edge_of_a_log_leaves_at_least_three_rows() -> None:
    async with at_work(world()) as hand:
        await hand.drag(hand.log, (20, 0), (20, 30))
        await hand.until(lambda: hand.log.region.height <= 9)
        assert hand.log.region.height >= 3
        assert hand.queue.region.height >= 3


async def test_lines_are_picked_by_dragging_and_stay_under_the_pointer() -> None:
    async with at_work(world()) as hand:
        await stages_log.log(hand)
        await hand.drag(hand.log, (10, 2), (10, 4))
        rows = hand.log.reading.rows
        picked = hand.log.reading.selection
        assert [row.number for row in rows if picked.has(row.number)] == [rows[i].number for i in (1, 2, 3)]
        assert not hand.log.follows
        assert hand.app.mouse_captured is None
        assert hand.app.focused is hand.log


async def test_a_click_on_the_title_of_a_log_pins_it_and_a_drag_does_not() -> None:
    async with at_work(world()) as hand:
        await stages_log.log(hand)
        await hand.drag(hand.log, (20, 0), (20, 1))
        assert "pinned" not in hand.console.screen_text
        region = hand.log.region
        await hand.click_at(region.x + 8, region.y)
        await hand.until(lambda: "● pinned" in hand.console.screen_text)
        await hand.click_at(region.x + 8, region.y)
        await hand.until(lambda: "● pinned" not in hand.console.screen_text)


async def _palette(hand: Hand) -> None:
    await stages.queue(hand)
    await hand.press("colon")
    await hand.opened(CommandFinder)


async def _filtering(hand: Hand) -> None:
    await stages.queue(hand)
    await hand.press("slash")
    await hand.until(lambda: isinstance(hand.app.focused, Input))


HINTS: tuple[tuple[Step, str], ...] = (
    (_palette, "Esc cancel"),
    (_palette, "Enter OK"),
    (stages_dialogs.submissions, "OK"),
    (stages_dialogs.submissions, "Esc  cancel"),
    (stages_dialogs.help_, "close"),
    (stages_dialogs.notices, "close"),
    (stages_dialogs.themes, "keep"),
    (stages_dialogs.themes, "back"),
    (stages_dialogs.log_search, "Esc cancel"),
    (stages_dialogs.log_search, "Enter ok"),
    (stages_dialogs.reservation, "leave"),
    (stages_dialogs.reason, "Esc  cancel"),
    (stages_dialogs.question, "yes"),
)


async def test_a_hint_at_the_bottom_of_a_dialog_is_clicked() -> None:
    def click(stage: Step, words: str) -> Step:
        async def act(hand: Hand) -> None:
            await stage(hand)
            await hand.pilot.pause()
            dialog = hand.app.screen
            await hand.click_at(*place_of_words(hand, words))
            await hand.until(lambda: hand.app.screen is not dialog, f"the click on {words} closes the dialog")

        return act

    await in_turn(world, [click(*hint) for hint in HINTS])


async def test_each_key_of_a_hint_is_clicked_at_its_own_place() -> None:
    async with at_work(world(), (100, 30)) as hand:
        await stages_dialogs.help_(hand)
        body = hand.app.screen.query_one(VerticalScroll)
        x, y = place_of_words(hand, "j k scroll")
        await hand.click_at(x - 1, y)
        await hand.until(lambda: body.scroll_y == 1, "the first key scrolls down")
        x, y = place_of_words(hand, "k scroll")
        await hand.click_at(x - 1, y)
        await hand.until(lambda: body.scroll_y == 0, "the second key scrolls up")


@cases(("words", "is_typed"), [("Enter keep", True), ("Esc show all", True), ("Esc shows all", False)])
async def test_the_hints_of_the_filter_are_clicked(words: str, is_typed: bool) -> None:
    async with at_work(world()) as hand:
        await _filtering(hand)
        line = hand.main.query_one(FilterLine)
        line.query_one(Input).value = "alice"
        if not is_typed:
            await hand.press("enter")
            await hand.until(lambda: hand.app.focused is hand.queue)
        await hand.until(lambda: words in hand.console.screen_text)
        x, y = place_of_words(hand, words)
        await hand.click_at(x, y)
        await hand.until(lambda: hand.app.focused is hand.queue)
        await hand.until(lambda: line.is_open is (words == "Enter keep"))


async def test_a_click_means_what_the_key_bar_showed_when_it_was_made() -> None:
    async with at_work(world()) as hand:
        at = hand.words_at(next(command for command in COMMANDS if command.name == "timeline"))
        assert at is not None
        x, y = at
        kinds = (events.MouseDown, events.MouseUp)
        made = [kind(None, x, y, 0, 0, 1, False, False, False, x, y) for kind in kinds]
        hand.main.query_one(KeyBar).show(())
        for event in made:
            hand.app.post_message(event)
        await hand.opened(TimelineScreen)


async def test_a_pane_that_captures_the_mouse_too_late_keeps_it_from_no_other_screen() -> None:
    async with at_work(world()) as hand:
        await stages_log.log(hand)
        await stages_dialogs.notices(hand)
        dialog, log = hand.app.screen, hand.main.query_one(LogPane)
        log.capture_mouse()  # as when a button was pressed on it, and handled only after the dialog opened
        await hand.click_at(*place_of_words(hand, "close"))
        await hand.until(lambda: hand.app.screen is not dialog, "the click reaches the dialog")
        assert hand.app.mouse_captured is None


def place_of_words(hand: Hand, words: str) -> tuple[int, int]:
    """Return the second cell of the lowest line with these words."""
    lines = hand.console.screen_text.splitlines()
    y = max(y for y, line in enumerate(lines) if words in line)
    return lines[y].rindex(words) + 1, y


async def test_a_drag_selects_no_text() -> None:
    async with at_work(world()) as hand:
        await hand.press("q")
        dialog = await hand.opened(LeaveDialog)
        title = dialog.query_one(".title", Static)
        x, y = title.region.offset
        for kind, right in ((events.MouseDown, 0), (events.MouseMove, 4), (events.MouseUp, 8)):
            hand.app.post_message(kind(None, x + right, y, 0, 0, 1, False, False, False, x + right, y))
        await hand.breathe()
        assert dialog.selections == {}
        assert hand.app.screen is dialog
