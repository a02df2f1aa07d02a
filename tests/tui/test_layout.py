"""Panes: sizes, visibility, and the restored layout."""

from __future__ import annotations

import json
from pathlib import Path

from textual.pilot import Pilot

from gputui.tui.actions import ExitChoice
from gputui.tui.preferences import Preferences
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.screens.main import Main
from gputui.tui.screens.panes import LEAST, PANES, PaneLayout, pane_of
from gputui.tui.widgets.job_table import JobTable
from tests.cases import cases
from tests.tui.console import Console, on_screen, until

SIZE = (120, 36)


def heights(console: Console) -> dict[str, int]:
    """Return the rows of each shown pane."""
    panes = {name: console.app.screen.query_one(f"#{name}") for name in PANES}
    return {name: pane.size.height for name, pane in panes.items() if pane.display}


def heights_of_notices(console: Console) -> int:
    """Return the rows that messages and the summary take."""
    shown = (console.app.screen.query_one(name) for name in ("#messages", "#summary"))
    return sum(widget.size.height for widget in shown if widget.display)


def kept(path: Path) -> dict[str, object]:
    """Return the layout in the file."""
    found: dict[str, object] = json.loads(path.read_text())["layout"]
    return found


async def test_the_focused_pane_grows_and_shrinks_by_a_row() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        before = heights(console)
        await pilot.press("right_square_bracket")
        await pilot.pause()
        after = heights(console)
        assert (after["queue"], after["log"]) == (before["queue"] + 1, before["log"] - 1)
        await pilot.press("left_square_bracket", "left_square_bracket")
        await pilot.pause()
        assert heights(console)["queue"] == before["queue"] - 1
        assert sum(heights(console).values()) == sum(before.values())


async def test_added_rows_of_the_gpu_pane_come_from_the_others() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        before = heights(console)
        await pilot.press("shift+tab", "right_square_bracket", "right_square_bracket")
        await pilot.pause()
        after = heights(console)
        assert after["gpus"] == before["gpus"] + 2
        assert sum(after.values()) == sum(before.values())


async def test_no_pane_is_squeezed_out() -> None:
    async with on_screen(Console(), (80, 24)) as (console, pilot):
        for key, name in (("tab", "log"), ("tab", "gpus"), ("tab", "queue")):
            await pilot.press(key, *["right_square_bracket"] * 30)
            await pilot.pause()
            assert pane_of(console.app.focused) == name
            assert min(heights(console).values()) >= LEAST
            assert sum(heights(console).values()) == 21


@cases("size", [(1, 1), (20, 2), (20, 5), (40, 8), (40, 10)])
async def test_no_pane_extends_beyond_a_small_screen(size: tuple[int, int]) -> None:
    async with on_screen(Console(), size) as (console, pilot):
        assert max(heights(console).values()) <= max(3, size[1])
        assert console.app.screen.query_one(LogPane).height < size[1]
        await console.resize(pilot, *SIZE)
        assert sum(heights(console).values()) == SIZE[1] - 2 - heights_of_notices(console)


@cases("size", [(40, 10), (60, 12), (80, 12)])
async def test_a_small_screen_shows_one_pane_and_tab_switches_to_the_other(
    size: tuple[int, int],
) -> None:
    async with on_screen(Console(), size) as (console, pilot):
        for name in ("queue", "log", "gpus", "queue"):
            await until_focused(console, pilot, name)
            shown = [console.app.screen.query_one(f"#{pane}") for pane in heights(console)]
            assert all(pane.region.bottom <= size[1] - 1 for pane in shown)
            assert console.app.screen.query_one(f"#{name}") in shown
            await pilot.press("tab")
        await until_focused(console, pilot, "log")
        await pilot.press("shift+tab")
        await until_focused(console, pilot, "queue")
        await pilot.press("f")
        await until_focused(console, pilot, "log")
        await pilot.press("shift+tab")
        await until_focused(console, pilot, "queue")
        await pilot.press("G")
        await pilot.pause()
        rows = heights(console)["queue"]
        assert "▸ ENDED 3, 2 failed" in console.screen_text, "the last row is in sight"
        assert rows < size[1]
        await console.resize(pilot, *SIZE)
        assert {"queue", "log"} < set(heights(console))


async def until_focused(console: Console, pilot: Pilot[ExitChoice], name: str) -> None:
    await until(pilot, lambda: pane_of(console.app.screen.focused) == name)
    await pilot.pause()


async def test_the_log_is_beside_the_queue_on_wide_screens() -> None:
    async with on_screen(Console(), (160, 50)) as (console, pilot):
        queue, log = console.app.screen.query_one(JobTable), console.app.screen.query_one(LogPane)
        assert queue.region.bottom <= log.region.y
        await pilot.press("backslash")
        await pilot.pause()
        assert (queue.region.y, queue.region.bottom) == (log.region.y, log.region.bottom)
        assert queue.region.right + 1 == log.region.x
        width = queue.size.width
        await pilot.press("right_square_bracket")
        await pilot.pause()
        assert queue.size.width == width + 2
        await pilot.mouse_down("Divider")
        await pilot.hover("#log", offset=(9, 3))
        await pilot.mouse_up("#log")
        await pilot.pause()
        assert queue.size.width > width + 2
        await pilot.press("f", "z")
        await pilot.pause()
        assert log.size.width == 160
        await pilot.press("z", "backslash")
        await pilot.pause()
        assert queue.size.width == log.size.width == 160
        await console.resize(pilot, 260, 50)
        assert queue.region.bottom <= log.region.y, "chosen by key"
    chosen = PaneLayout.of({}, "beside")
    assert chosen.is_beside(160)
    assert PaneLayout.of({"log": "below"}, "beside").log == "below", "a choice made in the console counts more"
    assert (chosen.most_for_gpus(70), chosen.most_for_gpus(70, is_beside=True)) == (35, 42)
    assert [chosen.most_for_gpus(rows, is_idle=True) for rows in (47, 77)] == [23, 68], "an empty queue needs few rows"
    for layout, width, is_beside in (("auto", 249, False), ("auto", 250, True), ("beside", 159, False)):
        assert PaneLayout(log=layout).is_beside(width) is is_beside


async def test_f_shows_a_hidden_or_covered_log() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        log = console.app.screen.query_one(LogPane)
        await pilot.press("z", "f")
        await pilot.pause()
        assert console.app.focused is log
        assert log.size.height > 3
        await pilot.press("w")
        await pilot.pause()
        assert "log" not in heights(console)
        await pilot.press("tab", "tab", "f")
        await pilot.pause()
        assert heights(console)["log"] > 3


async def test_a_pane_is_hidden_and_all_come_back() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        before = heights(console)
        await pilot.press("tab", "w")
        await pilot.pause()
        assert set(heights(console)) == {"gpus", "queue"}
        assert pane_of(console.app.focused) == "gpus"
        await pilot.press("tab")
        assert pane_of(console.app.focused) == "queue"
        await pilot.press("tab")
        assert pane_of(console.app.focused) == "gpus"
        await pilot.press("w", "w", "w")
        await pilot.pause()
        assert heights(console) == {"queue": 32}
        await pilot.press("W")
        await pilot.pause()
        assert heights(console) == before


async def test_the_layout_is_restored(tmp_path: Path) -> None:
    path = tmp_path / "home" / "console.json"
    async with on_screen(Console(preferences=Preferences(path)), SIZE) as (console, pilot):
        await pilot.press("right_square_bracket", "right_square_bracket", "tab", "tab", "w")
        await pilot.pause()
        left = heights(console)
    assert set(left) == {"queue", "log"}
    again = Console(preferences=Preferences(path))
    async with again.app.run_test(size=SIZE) as pilot:
        await again.begin(pilot)
        assert heights(again) == left
        assert isinstance(again.app.screen, Main)


async def test_an_unchanged_layout_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "console.json"
    async with on_screen(Console(preferences=Preferences(path)), SIZE) as (_, pilot):
        await pilot.press("z", "z", "tab", "j")
    assert not path.exists()


@cases(
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
async def test_a_damaged_preferences_file_is_ignored(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "console.json"
    path.write_bytes(damage)
    assert PaneLayout.of(Preferences(path).get("layout")) == PaneLayout()
    async with on_screen(Console(preferences=Preferences(path)), SIZE) as (_, pilot):
        await pilot.press("tab", "w")
    assert kept(path)["hidden"] == ["log"]


def test_two_consoles_keep_out_of_each_others_sections(tmp_path: Path) -> None:
    path = tmp_path / "console.json"
    mine, other = Preferences(path), Preferences(path)
    other.put("columns", {"queue": ["id", "name"]})
    other.close()
    mine.put("layout", {"grid": "cards"})
    mine.close()
    assert json.loads(path.read_text()) == {"columns": {"queue": ["id", "name"]}, "layout": {"grid": "cards"}}
    assert [file.name for file in tmp_path.iterdir()] == ["console.json"]
    assert path.stat().st_mode & 0o77 == 0


def test_an_unwritable_home_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    preferences = Preferences(tmp_path / "file" / "console.json")
    preferences.put("layout", {"grid": "cards"})
    preferences.close()
    assert preferences.get("layout") == {"grid": "cards"}


def test_a_layout_survives_being_remembered() -> None:
    layout = PaneLayout(0.4, 0.7, frozenset({"log"}), "compact")
    assert PaneLayout.of(json.loads(json.dumps(layout.values()))) == layout
