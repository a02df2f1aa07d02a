"""Panes: their sizes, which of them there are, and that the console is found as it was left."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gputui.tui.layout import LEAST, PANES, Layout
from gputui.tui.leave import Leave
from gputui.tui.remembered import Remembered
from gputui.tui.screens.main import Main
from gputui.tui.widgets.job_table import JobTable
from gputui.tui.widgets.log_pane import LogPane
from tests.tui.console import Console

SIZE = (120, 36)


def heights(console: Console) -> dict[str, int]:
    """The rows of each pane that is shown."""
    panes = {name: console.app.screen.query_one(f"#{name}") for name in PANES}
    return {name: pane.size.height for name, pane in panes.items() if pane.display}


def heights_of_notices(console: Console) -> int:
    """The rows that notices take."""
    return console.app.screen.query_one("#notices").size.height


def kept(path: Path) -> dict[str, object]:
    """The layout in the file."""
    found: dict[str, object] = json.loads(path.read_text())["layout"]
    return found


async def test_the_focused_pane_grows_and_shrinks_by_a_row() -> None:
    console = Console()
    async with console.app.run_test(size=SIZE) as pilot:
        await console.begin(pilot)
        before = heights(console)
        await pilot.press("right_square_bracket")
        await pilot.pause()
        after = heights(console)
        assert (after["queue"], after["log"]) == (before["queue"] + 1, before["log"] - 1)
        await pilot.press("left_square_bracket", "left_square_bracket")
        await pilot.pause()
        assert heights(console)["queue"] == before["queue"] - 1
        assert sum(heights(console).values()) == sum(before.values())


async def test_gpus_take_their_rows_of_the_others() -> None:
    console = Console()
    async with console.app.run_test(size=SIZE) as pilot:
        await console.begin(pilot)
        before = heights(console)
        await pilot.press("shift+tab", "right_square_bracket", "right_square_bracket")
        await pilot.pause()
        after = heights(console)
        assert after["gpus"] == before["gpus"] + 2
        assert sum(after.values()) == sum(before.values())


async def test_no_pane_is_squeezed_out() -> None:
    console = Console()
    async with console.app.run_test(size=(80, 24)) as pilot:
        await console.begin(pilot)
        for key, name in (("tab", "log"), ("tab", "gpus"), ("tab", "queue")):
            await pilot.press(key, *["right_square_bracket"] * 30)
            await pilot.pause()
            assert console.app.focused is not None
            assert console.app.focused.id == name
            assert min(heights(console).values()) >= LEAST
            assert sum(heights(console).values()) == 22


@pytest.mark.parametrize("size", [(1, 1), (20, 2), (20, 5), (40, 8), (40, 10)])
async def test_no_pane_is_laid_out_far_beyond_a_screen_without_room(size: tuple[int, int]) -> None:
    console = Console()
    async with console.app.run_test(size=size) as pilot:
        await console.begin(pilot)
        assert max(heights(console).values()) <= max(3, size[1])
        assert console.app.screen.query_one(LogPane).height < size[1]
        await pilot.resize_terminal(*SIZE)
        await pilot.pause()
        assert sum(heights(console).values()) == SIZE[1] - 2 - heights_of_notices(console)


@pytest.mark.parametrize("size", [(40, 10), (60, 12), (80, 12)])
async def test_where_two_panes_have_no_room_one_is_shown_whole_and_tab_turns_to_the_other(
    size: tuple[int, int],
) -> None:
    console = Console()
    async with console.app.run_test(size=size) as pilot:
        await console.begin(pilot)
        for name in ("queue", "log", "gpus", "queue"):
            await until_focused(console, pilot, name)
            shown = [console.app.screen.query_one(f"#{pane}") for pane in heights(console)]
            assert all(pane.region.bottom <= size[1] - 1 for pane in shown)
            assert console.app.screen.query_one(f"#{name}") in shown
            await pilot.press("tab")
        await pilot.press("shift+tab")
        await until_focused(console, pilot, "queue")
        await pilot.press("e")
        await until_focused(console, pilot, "log")
        await pilot.press("shift+tab")
        await until_focused(console, pilot, "queue")
        await pilot.press("G")
        await pilot.pause()
        rows = heights(console)["queue"]
        assert f"of {len(console.app.screen.query_one(JobTable).keys)} jobs" in console.screen_text
        assert "93" in console.screen_text, "the last job is in sight"
        assert rows < size[1]
        await pilot.resize_terminal(*SIZE)
        await pilot.pause()
        assert {"queue", "log"} < set(heights(console))


async def until_focused(console: Console, pilot: Pilot[Leave], name: str) -> None:
    async with asyncio.timeout(10):
        while console.app.screen.focused is None or console.app.screen.focused.id != name:
            await pilot.pause(0.005)
    await pilot.pause()


async def test_a_pane_is_hidden_and_all_come_back() -> None:
    console = Console()
    async with console.app.run_test(size=SIZE) as pilot:
        await console.begin(pilot)
        before = heights(console)
        await pilot.press("tab", "w")
        await pilot.pause()
        assert set(heights(console)) == {"gpus", "queue"}
        assert console.app.focused is not None
        assert console.app.focused.id == "gpus"
        await pilot.press("tab")
        assert console.app.focused.id == "queue"
        await pilot.press("tab")
        assert console.app.focused.id == "gpus"
        await pilot.press("w", "w", "w")
        await pilot.pause()
        assert heights(console) == {"queue": 34}
        await pilot.press("W")
        await pilot.pause()
        assert heights(console) == before


async def test_the_console_is_found_as_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "home" / "console.json"
    console = Console(remembered=Remembered(path))
    async with console.app.run_test(size=SIZE) as pilot:
        await console.begin(pilot)
        await pilot.press("right_square_bracket", "right_square_bracket", "tab", "tab", "w")
        await pilot.pause()
        left = heights(console)
    assert set(left) == {"queue", "log"}
    again = Console(remembered=Remembered(path))
    async with again.app.run_test(size=SIZE) as pilot:
        await again.begin(pilot)
        assert heights(again) == left
        assert isinstance(again.app.screen, Main)


async def test_without_a_change_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "console.json"
    console = Console(remembered=Remembered(path))
    async with console.app.run_test(size=SIZE) as pilot:
        await console.begin(pilot)
        await pilot.press("z", "z", "tab", "j")
    assert not path.exists()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"layout": 7}',
        b'{"layout": {"gpus": "much", "queue": -3, "hidden": ["gpus", "queue", "log"], "grid": "round"}}',
        b'{"layout": {"gpus": null, "queue": true, "hidden": [[1]], "grid": []}}',
    ],
)
async def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "console.json"
    path.write_bytes(damage)
    assert Layout.of(Remembered(path).get("layout")) == Layout()
    console = Console(remembered=Remembered(path))
    async with console.app.run_test(size=SIZE) as pilot:
        await console.begin(pilot)
        await pilot.press("tab", "w")
    assert kept(path)["hidden"] == ["log"]


def test_two_consoles_keep_out_of_each_others_sections(tmp_path: Path) -> None:
    path = tmp_path / "console.json"
    mine, other = Remembered(path), Remembered(path)
    other.put("columns", {"queue": ["id", "name"]})
    other.close()
    mine.put("layout", {"grid": "cards"})
    mine.close()
    assert json.loads(path.read_text()) == {"columns": {"queue": ["id", "name"]}, "layout": {"grid": "cards"}}
    assert [file.name for file in tmp_path.iterdir()] == ["console.json"]
    assert path.stat().st_mode & 0o77 == 0


def test_a_home_that_cannot_be_written_to_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    remembered = Remembered(tmp_path / "file" / "console.json")
    remembered.put("layout", {"grid": "cards"})
    remembered.close()
    assert remembered.get("layout") == {"grid": "cards"}


def test_a_layout_survives_being_remembered() -> None:
    layout = Layout(0.4, 0.7, frozenset({"log"}), "compact")
    assert Layout.of(json.loads(json.dumps(layout.values()))) == layout
