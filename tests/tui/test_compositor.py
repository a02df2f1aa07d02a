"""Compositor: draws only the changes, and exactly as a redraw of the whole screen would."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from textual._compositor import ChopsUpdate
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gputui.tui.present.cells import Cell
from gputui.tui.textual_internals import ExactCompositor, cut
from gputui.tui.widgets.job_table import JobTable
from gputui.tui.widgets.queue_tabs import Key
from tests.tui.console import Console, on_screen, steady

KEYS = ("down", "up", "j", "k", "tab", "shift+tab", "space", "pagedown", "home", "end", "enter", "escape", "slash", "z")


@given(
    st.lists(st.text("ab█⣿漢", min_size=1, max_size=6), min_size=1, max_size=5),
    st.integers(0, 9),
    st.lists(st.integers(1, 4), max_size=4),
)
def test_parts_of_a_line_are_cut_as_textual_cuts_them(texts: list[str], x: int, widths: list[int]) -> None:
    strip = Strip([Segment(text) for text in texts])
    parts, at = [], x
    for number, width in enumerate(widths):
        start, at = at + number % 2, at + number % 2 + width
        if at <= x + strip.cell_length:
            parts.append((start, at))
    found = [(start, "".join(segment.text for segment in part)) for start, part in cut(strip, x, parts)]
    assert found == [(start, strip.crop(start - x, end - x).text) for start, end in parts]


@pytest.mark.usefixtures("drawn_at_once")
async def test_a_cursor_key_draws_only_the_old_and_the_new_row(monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_screen(Console(), (200, 50)) as (console, pilot):
        await console.press(pilot, "home")
        await steady(pilot)
        drawn: list[tuple[str, int]] = []
        whole = Widget.render_lines

        def seen(self: Widget, crop: Region) -> list[Strip]:
            drawn.append((type(self).__name__, crop.height))
            return whole(self, crop)

        monkeypatch.setattr(Widget, "render_lines", seen)
        await pilot.press("down")
        await pilot.pause()
    assert ("JobTable", 2) in drawn
    assert not {name for name, _ in drawn} & {"GpuGrid", "GpuCards", "LogPane", "StatusBar"}, drawn
    assert not {name for name, _ in drawn} & {"Vertical", "Main"}, "they lie behind the table"
    assert max(height for name, height in drawn) == 2, drawn


async def test_a_cursor_key_makes_only_the_old_and_the_new_row(monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_screen(Console(), (120, 24)) as (console, pilot):
        await console.press(pilot, "home")
        table, made = console.app.screen.query_one(JobTable), set[Key]()
        whole = table.cell_of

        def seen(key: Key, column: str, room: int) -> Cell:
            made.add(key)
            return whole(key, column, room)

        monkeypatch.setattr(table, "cell_of", seen)
        table.action_down(1)
        assert made == set(table.keys[:2])
        made.clear()
        table.action_last()
        assert made == {104}, "only the cursor's old row: the last one was in sight, and is no job"


@pytest.mark.usefixtures("drawn_at_once")
async def test_partial_updates_equal_the_whole_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    partial = ExactCompositor.render_partial_update

    def checked(self: ExactCompositor) -> ChopsUpdate | None:
        nonlocal compared
        update = partial(self)
        if update is not None:
            strips = self.render_strips()
            for y, x1, x2 in update.spans:
                assert _cells(update, y, x1, x2) == _plain(strips[y].crop(x1, x2)), (y, x1, x2)
                compared += 1
        return update

    monkeypatch.setattr(ExactCompositor, "render_partial_update", checked)
    console = Console()
    chosen = random.Random(20261122)
    async with on_screen(console, (120, 36)) as (_, pilot):
        for _ in range(50):
            await pilot.press(chosen.choice(KEYS))
            if chosen.random() < 0.1:
                await console.show(pilot, console.snapshot)
    assert compared > 50


def _cells(update: ChopsUpdate, y: int, x1: int, x2: int) -> list[tuple[str, object]]:
    """Return the characters of that span as sent, each with its style."""
    sent: list[Strip] = []
    for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
        if x < x2 and end > x1:
            assert strip is not None, f"nothing is drawn at {x} of row {y}"
            sent.append(strip.crop(max(x, x1) - x, min(end, x2) - x))
    return _plain(Strip.join(sent))


def _plain(strip: Strip) -> list[tuple[str, object]]:
    return [(character, segment.style) for segment in strip for character in segment.text]
