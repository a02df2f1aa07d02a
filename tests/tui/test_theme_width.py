"""Wide names: columns stay aligned, and every line is as wide as the screen."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rich.cells import cell_len
from textual.strip import Strip

from gputui.domain.state import JobState
from gputui.domain.text import width
from gputui.tui.present import cells
from gputui.tui.present.job import JobContext, why
from gputui.tui.widgets.gpu_grid import GpuCards, GpuGrid
from gputui.tui.widgets.job_table import JobTable
from gputui.tui.widgets.line_table import LineTable
from tests.cases import cases
from tests.factories import NOW, job
from tests.tui import sample
from tests.tui.console import Console, on_screen


def lines_of(table: LineTable[str] | LineTable[int] | GpuCards) -> list[Strip]:
    return [table.render_line(y) for y in range(table.size.height)]


def _has_columns(table: LineTable[Any], y: int) -> bool:
    key = table.key_at(y)
    return key is not None and table.whole_line(key) is None


@cases("room", [79, 81, 101, 133, 167])
async def test_columns_are_aligned_with_their_titles(room: int) -> None:
    async with on_screen(Console(sample.strange_names()), (room, 31)) as (console, _):
        tables = (console.app.screen.query_one(GpuGrid).shown, console.app.screen.query_one(JobTable))
        for table in tables:
            for strip in lines_of(table):  # type: ignore[arg-type]
                assert cell_len(strip.text) == room
            if isinstance(table, GpuCards):
                continue
            for placed in table.placed:
                rows = [y for y in range(table.size.height) if y >= table.head and _has_columns(table, y)]
                assert rows
                for strip in map(table.render_line, rows):
                    before, after = strip.crop(0, placed.x).text, strip.crop(placed.x).text
                    assert before + after == strip.text, "a character stands across the border of a column"
                    assert before[-1] in " ▌"


@cases("keys", [("T",), ("question_mark",), ("enter",), ("v", "v"), ("v", "v", "v"), ("c",)])
async def test_lines_of_other_screens_are_as_wide_as_the_screen(keys: tuple[str, ...]) -> None:
    async with on_screen(Console(sample.strange_names()), (101, 31)) as (console, pilot):
        await pilot.press(*keys)
        await pilot.pause()
        strips = console.strips
        assert {cell_len(strip.text) for strip in strips} == {101}
        assert {width(strip.text) for strip in strips} == {101}


class TestProgress:
    def shown(self, words: str, seconds: int = 0) -> str:
        return "".join(text for text, _ in cells.progress(words, NOW + timedelta(seconds=seconds)))

    def test_a_bar_agrees_with_its_words(self) -> None:
        assert self.shown("pulling registry/vit:2, 45 %") == "━━━──── 45 % pulling registry/vit:2"
        assert self.shown("pulling busybox: 45 %") == "━━━──── 45 % pulling busybox"
        assert self.shown("pulling 100 %") == "━━━━━━━ 100 % pulling"
        assert self.shown("pulling 999 %").startswith("━━━━━━━ 100 %")
        assert self.shown("0 %") == "───────  0 % "

    def test_progress_of_unknown_length_moves(self) -> None:
        seen = [self.shown("unpacking", second).split()[0] for second in range(11)]
        assert seen[0] == seen[10] != seen[1]
        assert {len(each) for each in seen} == {7}
        assert len(set(seen)) == 6

    def test_a_pull_names_its_image(self) -> None:
        context = JobContext(NOW, progress={1: "pulling 7 %"})
        pulled = job(1, image="registry/vit:2").to(JobState.CONFIGURING)
        assert "".join(text for text, _ in why(pulled, context)) == "╸──────  7 % pulling registry/vit:2"
