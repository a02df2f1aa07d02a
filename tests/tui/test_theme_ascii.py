"""ASCII mode: no other character is on any screen, and the layout is unchanged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.text import plain, width
from gputui.tui.palette import ascii_of
from gputui.tui.present.cells import PLAIN, block_bar
from gputui.tui.present.timeline import legend
from gputui.tui.themes import Appearance
from tests.cases import cases
from tests.tui import sample
from tests.tui.console import Console, on_screen
from tests.tui.test_pictures import LOG, show_history

DAYS = (sample.rich_snapshot, sample.strange_names, sample.stale, sample.no_docker, sample.empty_queue, sample.no_gpu)
ASCII = Appearance(ascii_only=True)


def _in_ascii(console: Console, width: int) -> bool:
    lines = console.screen_text.splitlines()
    return console.screen_text.isascii() and {len(line) for line in lines} == {width}


@cases("size", [(80, 24), (161, 50)])
async def test_the_main_screen_is_ascii(size: tuple[int, int]) -> None:
    console = Console(DAYS[0](), look=ASCII)
    console.logs.lines = {101: [*LOG, "训练 ✓ loss ↓ ▏███▏".encode()], 50: LOG}
    async with console.app.run_test(size=size) as pilot:
        for day in DAYS:
            await console.show(pilot, day())
            if console.logs.opened:
                await console.read_log(pilot, console.logs.opened[-1][0])
            assert _in_ascii(console, size[0]), f"{day.__name__}\n{console.screen_text}"


SCREENS = ("question_mark", "s", "colon", "c", "T", "enter", "L", "ctrl+t", "q", "slash b")


async def test_every_other_screen_is_ascii() -> None:
    console = Console(look=ASCII)
    console.logs.lines = {101: LOG}
    async with on_screen(console, (120, 36)) as (_, pilot):
        main = console.screen_text
        for keys in SCREENS:
            await pilot.press(*keys.split())
            await pilot.pause()
            assert console.screen_text != main, f"{keys} opens nothing"
            assert _in_ascii(console, 120), f"{keys}\n{console.screen_text}"
            while len(console.app.screen_stack) > 1:
                await console.app.pop_screen()
            await pilot.pause()


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


def test_the_dot_between_words_stays_a_dot_and_not_a_quote() -> None:
    assert ascii_of("GPU 4,7 · 96%") == "GPU 4,7 . 96%"


def test_no_bar_ends_like_the_mark_of_the_cursor() -> None:
    assert (ascii_of("▌"), ascii_of("▌ ")) == (">", "> ")
    bars = [
        block_bar(eighths / 80, 10, PLAIN, is_hatched=is_hatched)[0][0]
        for eighths in range(81)
        for is_hatched in (False, True)
    ]
    assert not [bar for bar in bars if ">" in ascii_of(bar)]
    assert ">" not in "".join(ascii_of(text) for text, _ in legend())
