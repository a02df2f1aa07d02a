"""Drawn log lines: harmless and exactly as wide as the pane, for any output and view."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.tui.present.log import MOST
from gputui.tui.widgets.log_lines import pack_lines
from gputui.tui.widgets.log_model import LogModel
from gputui.tui.widgets.log_pattern import pattern_of

PIECES = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.text(max_size=6).map(str.encode),
        st.sampled_from([b"\x1b[31m", b"\x1b[0m", b"\x1b[2J", b"\x1b]52;c;aGk=\x07", b"\x9b5n", b"\r", b"\t", b"\x1b"]),
        st.sampled_from(
            ["训练".encode(), "👩‍🔬".encode(), "\u202e".encode(), "e\u0301".encode(), b"loss", b"Error: x"]
        ),
        st.just(b"2026-11-21T10:02:04.123Z "),
    ),
    max_size=12,
).map(lambda pieces: b"".join(pieces).replace(b"\n", b""))


@given(
    st.lists(PIECES, min_size=1, max_size=5),
    st.integers(2, 30),
    st.sampled_from(["", "loss", ".", "x*", "[^a]", "(", "练"]),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 20)),
)
def test_every_row_is_harmless_and_fits(
    lines: list[bytes], room: int, looked_for: str, looks: tuple[bool, bool, bool, int]
) -> None:
    reading = LogModel()
    painter = reading.painter
    painter.wraps, reading.lines.is_stamped, painter.shows_stamps, painter.left = looks
    painter.width, reading.window.height = room, 8
    reading.lines.add(pack_lines(lines))
    reading.search.look_for(pattern_of(looked_for))
    reading.search.step(1)
    reading.settle()
    for row in reading.rows:
        strip = painter.row(row, selected=row.number % 2 == 0, marked=row.number == reading.search.at)
        assert strip.cell_length == room
        assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in strip.text)
        assert "\u202e" not in strip.text


@given(st.text(alphabet="ab训👩 ", max_size=60), st.integers(3, 20))
def test_wrapping_loses_nothing(text: str, room: int) -> None:
    reading = LogModel()
    reading.painter.wraps, reading.painter.width, reading.window.height = True, room, 200
    reading.lines.add(pack_lines([text.encode()]))
    reading.settle()
    drawn = "".join(reading.painter.row(row, selected=False, marked=False).text[1:] for row in reading.rows)
    assert sum(drawn.count(char) for char in "ab") == sum(text.count(char) for char in "ab")


def drawn(line: str, width: int, **looks: object) -> str:
    """Return the first row of a drawn line, without its sign."""
    reading = LogModel()
    painter = reading.painter
    for name, value in looks.items():
        setattr(painter, name, value)
    painter.width, reading.window.height = width, 8
    reading.lines.add(pack_lines([line.encode()]))
    reading.settle()
    strip = painter.row(reading.rows[0], selected=False, marked=False)
    assert strip.cell_length == width
    return strip.text[1:]


def test_a_cut_line_has_a_mark_where_it_goes_on_and_no_half_wide_character() -> None:
    assert drawn("step 100 loss 0.25", 11) == "step 100 …"
    assert drawn("step 100 loss 0.25", 11, left=8) == " loss 0.25"
    assert drawn("step 100 loss 0.25", 11, left=7) == "0 loss 0.…"
    assert drawn("step 100 !", 11) == "step 100 !"
    assert drawn("step", 11) == "step      "
    assert drawn("step 100 loss 0.25", 11, wraps=True) == "step 100 l"
    assert drawn("训练损失下降", 9) == "训练损 …"
    assert drawn("训练损失下降", 10) == "训练损失…"
    assert drawn("训练损失下降", 13) == "训练损失下降"
    assert drawn("\x1b[31m训练\x1b[0m损失", 6) == "训练…"
    assert drawn("x" * MOST, 11, left=MOST - 5) == "xxxxx…    ", "it is kept in part"
    assert drawn("x" * (MOST - 1), 11, left=MOST - 6) == "xxxxx     "


def test_the_mark_has_the_dim_colour() -> None:
    reading = LogModel()
    reading.painter.width, reading.window.height = 6, 1
    reading.lines.add(pack_lines([b"\x1b[1;31mabcdefgh"]))
    reading.settle()
    *_, mark = reading.painter.row(reading.rows[0], selected=False, marked=False)
    assert mark.text == "…"
    assert mark.style is not None
    assert not mark.style.bold
