"""Whatever a job prints, and however it is looked at, what is drawn is harmless and exactly as wide as the pane."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.tui.log.pattern import pattern_of
from gputui.tui.log.reading import LogReading

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
    reading = LogReading()
    painter = reading.painter
    painter.wraps, painter.is_stamped, painter.shows_stamps, painter.left = looks
    painter.width, reading.window.height = room, 8
    reading.buffer.add(lines)
    reading.search.look_for(pattern_of(looked_for))
    reading.search.step(1)
    reading.settle()
    for row in reading.rows:
        strip = painter.row(row, picked=row.number % 2 == 0, marked=row.number == reading.search.at)
        assert strip.cell_length == room
        assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in strip.text)
        assert "\u202e" not in strip.text


@given(st.text(alphabet="ab训👩 ", max_size=60), st.integers(3, 20))
def test_wrapping_loses_nothing(text: str, room: int) -> None:
    reading = LogReading()
    reading.painter.wraps, reading.painter.width, reading.window.height = True, room, 200
    reading.buffer.add([text.encode()])
    reading.settle()
    drawn = "".join(reading.painter.row(row, picked=False, marked=False).text[1:] for row in reading.rows)
    assert sum(drawn.count(char) for char in "ab") == sum(text.count(char) for char in "ab")
