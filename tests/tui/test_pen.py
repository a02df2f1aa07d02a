"""Pen: writes what was drawn, in fewer bytes than one sequence for each run."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style

from gputui.tui.textual_internals import Pen

SYSTEM = ColorSystem.TRUECOLOR
STYLES = (
    Style(),
    Style(color="#8fd39c", bgcolor="#11151a"),
    Style(color="#8fd39c", bgcolor="#1b222a"),
    Style(color="#ff7258", bold=True),
    Style(bgcolor="#22344a", reverse=True),
)
_PIECE = re.compile(r"\x1b\[(\d+);(\d+)H|\x1b\[(\d+)G|\x1b\[([\d;]*)m|([^\x1b])")
Cells = dict[tuple[int, int], tuple[str, str]]


def shown(written: str) -> Cells:
    """Return what a terminal shows: the character of each cell, and its style as Rich writes it."""
    cells: Cells = {}
    x = y = 0
    attributes, ink, ground = "", "39", "49"
    for row, column, in_row, look, character in _PIECE.findall(written):
        if row:
            x, y = int(column) - 1, int(row) - 1
        elif in_row:
            x = int(in_row) - 1
        elif character:
            cells[x, y] = (character, f"{attributes};{ink};{ground}")
            x += 1
        else:
            rest = f"{look};"
            if rest.startswith("0;"):
                attributes, ink, ground, rest = "", "39", "49", rest[2:]
            if found := re.match(r"([1-9];)+", rest):
                attributes, rest = found[0].rstrip(";"), rest[found.end() :]
            for code in re.findall(r"[34]8;2;\d+;\d+;\d+|[34]9", rest):
                ink, ground = (code, ground) if code[0] == "3" else (ink, code)
    assert (attributes, ink, ground) == ("", "39", "49"), "the terminal's own colours hold again"
    return cells


def alone(x: int, y: int, segments: list[Segment]) -> str:
    """Return a run as Rich writes it, with every sequence in full."""
    return f"\x1b[{y + 1};{x + 1}H" + "".join(
        (style or Style()).render(text, color_system=SYSTEM) for text, style, _ in segments
    )


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 5)),
        st.lists(st.tuples(st.text("ab█⣿", min_size=1, max_size=9), st.sampled_from(STYLES)), min_size=1, max_size=3),
        max_size=9,
    )
)
def test_shortened_sequences_show_the_same_text(
    drawn: dict[tuple[int, int], list[tuple[str, Style]]],
) -> None:
    pen, plain = Pen(SYSTEM), ""
    for (column, y), pieces in drawn.items():
        segments = [Segment(text, style) for text, style in pieces]
        pen.run(column * 40, y, segments)
        plain += alone(column * 40, y, segments)
    written = pen.text()
    assert shown(written) == shown(plain)
    moves = sum(len(pieces) - 1 for pieces in drawn.values())  # runs of several colours may be written in parts
    assert len(written) <= len(plain) + moves * len("\x1b[1;121H")


def test_short_runs_of_one_colour_share_one_sequence() -> None:
    pen = Pen(SYSTEM)
    for y in range(4):
        pen.run(3, y, [Segment("97", STYLES[1])])
        pen.run(9, y, [Segment("█▌", STYLES[2])])
    assert pen.text().count("m") == 3, "two colours, and the terminal's own at the end"
