"""The right button opens a menu of the row under it; a click there runs a command, one elsewhere none."""

from __future__ import annotations

from gputui.tui.app import Gputui
from gputui.tui.commands import MENUS
from gputui.tui.screens.dialogs import Prompt
from gputui.tui.screens.help import Notices
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.screens.logs import LogController
from gputui.tui.screens.main import Main
from gputui.tui.screens.menu import Menu
from gputui.tui.screens.panes import Panes
from gputui.tui.screens.process_view import GpuProcessesScreen
from gputui.tui.screens.queue_pane import QueueController, QueueEditor
from gputui.tui.widgets.status_bars import StatusBar
from tests.cases import cases
from tests.factories import uuid
from tests.tui.every import eyes
from tests.tui.every.hand import Hand, at_work
from tests.tui.every.rows_dialogs import on
from tests.tui.every.world import world

SIZE = (120, 40)


async def on_job(hand: Hand, job_id: int, x: int = 20) -> Menu:
    """Open the menu of that job."""
    y = hand.queue.view.lines.index(list(hand.queue.keys).index(job_id))
    await hand.right_click(hand.queue, x, hand.queue.head + y)
    return await hand.opened(Menu)


async def on_gpu(hand: Hand, index: int) -> Menu:
    """Open the menu of that GPU, in any layout."""
    hand.grid.move_to(list(hand.grid.keys).index(uuid(index)))
    made = hand.grid.arrangement
    x, y = (index % made.across * made.width + 3, index // made.across * made.height) if made.across > 1 else (3, index)
    await hand.right_click(hand.grid, x, y + (0 if hand.grid.has_tiles else hand.grid.shown.head))
    return await hand.opened(Menu)


def lines(menu: Menu) -> dict[str, str]:
    """Return the names with their keys."""
    return {" ".join(words[:-1]): words[-1] for words in (text.split() for text in menu.texts)}


def test_the_menu_lists_commands_of_the_main_screen_each_once() -> None:
    for commands in MENUS.values():
        assert len({command.name for command in commands}) == len(commands)
        assert all(
            any(
                hasattr(place, f"action_{command.action_name}")
                for place in (
                    Main,
                    QueueController,
                    QueueEditor,
                    LogController,
                    Panes,
                    LogPane,
                    GpuProcessesScreen,
                    Gputui,
                )
            )
            for command in commands
        )
    assert all(command.in_palette for pane in ("queue", "gpus") for command in MENUS[pane])


async def test_a_waiting_job_is_held_by_a_click() -> None:
    async with at_work(world(), SIZE) as hand:
        menu = await on_job(hand, 107)
        assert hand.queue.cursor == 107
        assert {
            "hold": "h",
            "prio": "+",
            "move up": "K",
            "clone": "C",
            "hide pane": "w",
            "columns": "|",
        }.items() <= lines(menu).items()
        assert {"release", "shell", "pause runs"}.isdisjoint(lines(menu))
        assert menu.query_one(".dialog").border_title == "#107 whisper-finetune"
        await on("hold")(hand)
        await hand.until(lambda: eyes.is_held(hand))


async def test_a_gpu_is_drained_by_keys() -> None:
    async with at_work(world(), SIZE) as hand:
        menu = await on_gpu(hand, 1)
        assert hand.app.screen_stack[0].focused is hand.grid.shown
        assert menu.query_one(".dialog").border_title == "GPU 1"
        assert list(lines(menu))[:2] == ["GPU", "drain"]
        await hand.press("j", "enter")
        await hand.opened(Prompt)
        assert "Drain GPU 1" in hand.console.screen_text


async def test_the_menu_of_a_gpu_offers_commands_of_the_console() -> None:
    async with at_work(world(), SIZE) as hand:
        before = hand.app.services.gpus.look
        await on_gpu(hand, 1)
        await on("graph span")(hand)
        await hand.until(lambda: hand.app.services.gpus.look != before)
        await on_gpu(hand, 1)
        await on("GPU users")(hand)
        await hand.opened(GpuProcessesScreen)


async def test_a_log_has_a_menu_which_selects_no_line() -> None:
    async with at_work(world(), SIZE) as hand:
        log = hand.log
        await hand.right_click(log, 5, 1)
        menu = await hand.opened(Menu)
        assert {"search": "/", "wrap": "b", "zoom": "z"}.items() <= lines(menu).items()
        assert not log.reading.selection.is_on
        await on("wrap")(hand)
        await hand.until(lambda: hand.app.screen is hand.main)


async def test_a_click_on_the_status_lists_all_that_is_wrong() -> None:
    async with at_work(world(), SIZE) as hand:
        await hand.click(hand.main.query_one(StatusBar), 30, 0)
        await hand.opened(Notices)


@cases("how", ["escape", "left", "right"])
async def test_closing_the_menu_does_nothing(how: str) -> None:
    async with at_work(world(), SIZE) as hand:
        before = hand.console.audited()
        await on_job(hand, 107)
        if how == "escape":
            await hand.press("escape")
        elif how == "left":
            await hand.click(hand.queue, 100, 1)
        else:
            await hand.right_click(hand.queue, 100, 1)
        await hand.until(lambda: hand.app.screen is hand.main)
        assert (hand.console.audited(), hand.queue.cursor, eyes.sorting(hand)) == (before, 107, "")


async def test_the_cursor_follows_the_pointer() -> None:
    async with at_work(world(), SIZE) as hand:
        menu = await on_job(hand, 107)
        place = list(lines(menu)).index("clone")
        inside = menu.query_one("#lines").region
        await hand.point_at(inside.x + 3, inside.y + place)
        await hand.until(lambda: menu.cursor == place)


async def test_custom_keys_are_named_and_a_read_only_console_offers_no_change() -> None:
    async with at_work(world(keys={"clone": ("f7",), "follow": ("f8",), "hold": ()}), SIZE) as hand:
        shown = lines(await on_job(hand, 107))
        assert (shown["clone"], shown["log"]) == ("F7", "F8")
        assert "hold" in hand.console.screen_text
    async with at_work(world(read_only=True), SIZE) as hand:
        shown = lines(await on_job(hand, 107))
        assert {"hold", "clone", "move up", "cancel"}.isdisjoint(shown)
        assert {"detail", "columns", "zoom"} <= shown.keys()


@cases("size", [(80, 24), (60, 12)])
async def test_the_menu_fits_the_smallest_screen(size: tuple[int, int]) -> None:
    async with at_work(world(), size) as hand:
        menu = await on_job(hand, 101, x=size[0] - 3)
        await hand.until(lambda: menu.query_one(".dialog").region.right == size[0])
        assert menu.region.contains_region(menu.query_one(".dialog").region)
        await hand.press("G")
        await hand.until(lambda: f"▌ {menu.texts[-1]}" in hand.console.screen_text)


async def test_a_right_click_on_the_heading_opens_no_menu() -> None:
    async with at_work(world(), SIZE) as hand:
        order = list(hand.queue.keys)
        for y in range(hand.queue.head):
            await hand.right_click(hand.queue, 8, y)
        await hand.breathe()
        assert (hand.app.screen, list(hand.queue.keys), eyes.tab(hand)) == (hand.main, order, "queue")


async def test_rows_of_other_tabs_have_their_own_menus() -> None:
    async with at_work(world(), SIZE) as hand:
        await hand.press("3")
        await hand.until(lambda: eyes.tab(hand) == "recurring" and hand.queue.cursor is not None)
        await hand.right_click(hand.queue, 8, hand.queue.head)
        shown = lines(await hand.opened(Menu))
        assert next(iter(shown)) == "pause runs"
        await on("pause runs")(hand)
        await hand.until(lambda: eyes.runs_paused(hand) == [True])
