"""ASCII: no other character is on any screen, and nothing has moved."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain, width
from gputui.tui.themes.look import ascii_of
from gputui.tui.themes.selection import Appearance
from tests.tui import sample
from tests.tui.console import Console
from tests.tui.test_pictures import LOG, show_history

DAYS = (sample.rich_snapshot, sample.strange_names, sample.stale, sample.no_docker, sample.empty_queue, sample.no_gpu)
ASCII = Appearance(ascii_only=True)


@pytest.mark.parametrize("size", [(80, 24), (161, 50)], ids=["80x24", "161x50"])
@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.__name__)
async def test_the_main_screen(day: Callable[[], Snapshot], size: tuple[int, int]) -> None:
    console = Console(day(), look=ASCII)
    console.logs.lines = {101: [*LOG, "训练 ✓ loss ↓ ▏███▏".encode()], 50: LOG}
    async with console.app.run_test(size=size) as pilot:
        await console.begin(pilot)
        if console.logs.opened:
            await console.read_log(pilot, console.logs.opened[0][0])
        lines = console.screen_text.splitlines()
        assert console.screen_text.isascii()
        assert {len(line) for line in lines} == {size[0]}


@pytest.mark.parametrize(
    "keys",
    [("question_mark",), ("s",), ("colon",), ("c",), ("T",), ("enter",), ("L",), ("ctrl+t",), ("slash", "b"), ("q",)],
    ids="-".join,
)
async def test_every_other_screen(keys: tuple[str, ...]) -> None:
    console = Console(look=ASCII)
    console.logs.lines = {101: LOG}
    async with console.app.run_test(size=(120, 36)) as pilot:
        await console.begin(pilot)
        await pilot.press(*keys)
        await pilot.pause()
        assert console.screen_text.isascii()
        assert {len(line) for line in console.screen_text.splitlines()} == {120}


async def test_characters_with_a_meaning_keep_it() -> None:
    """Bars, graphs and the cursor stay what they are."""
    console = Console(look=ASCII)
    async with console.app.run_test(size=(161, 50)) as pilot:
        await show_history(console, pilot)
        await console.begin(pilot)
        await pilot.press("v", "v")
        await pilot.pause()
        text = console.screen_text
        assert "===" in text
        assert any(line.startswith(">") and "llama-7b-sft" in line for line in text.splitlines())


def test_bars_of_a_timeline_stay_apart() -> None:
    shapes = ("┣━━┫", "┣╍╍╍", "┣≈≈≈", "├──┤", "├╌╌╌", "╞══╡", "░░░░", "××××", "▒▒▒▒")
    assert len({ascii_of(shape) for shape in shapes}) == len(shapes)


def test_a_graph_of_braille_keeps_its_heights() -> None:
    assert [ascii_of(chr(0x2800 + dots)) for dots in (0x00, 0xC0, 0x24, 0x12, 0x09)] == [" ", ".", "-", "=", "#"]
    assert ascii_of("▁▃▆█") == "_:+#"


@given(st.text())
def test_any_text_is_as_wide_as_before(text: str) -> None:
    harmless = plain(text)
    shown = ascii_of(harmless)
    assert shown.isascii()
    assert len(shown) == width(harmless)
