"""Cells broken into several lines, each piece in its style."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style

from gputui.domain.text import broken, width
from gputui.tui.present.cells import broken_cell

STYLES = (Style(), Style(bold=True), Style(color="red"))
CELLS = st.lists(st.tuples(st.text("ab 界", max_size=12), st.sampled_from(STYLES)), max_size=6).map(tuple)


@given(CELLS, st.integers(2, 20))
def test_every_character_keeps_its_style(cell: tuple[tuple[str, Style], ...], room: int) -> None:
    lines = broken_cell(cell, room)
    assert ["".join(words for words, _ in line) for line in lines] == broken("".join(w for w, _ in cell), room)
    assert all(width("".join(words for words, _ in line)) <= room for line in lines)
    kept = [(char, style) for line in lines for words, style in line for char in words if char != " "]
    assert kept == [(char, style) for words, style in cell for char in words if char != " "]
