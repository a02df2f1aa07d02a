"""Lines of a log in large pieces of memory: each is found by its number, however they come and go."""

from __future__ import annotations

import gc
import sys
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from rich.style import Style

from gputui.tui.present.cells import PLAIN
from gputui.tui.present.log import style_after
from gputui.tui.widgets import log_lines as module
from gputui.tui.widgets.log_lines import EARLIER, LogLines, PackedLines, pack_lines
from tests.lane import examples

STYLES = (PLAIN, Style(bold=True), Style(dim=True))
LINES = st.lists(st.tuples(st.binary(max_size=4), st.sampled_from(STYLES)), max_size=9)


class PackedLinesMachine(RuleBasedStateMachine):
    """Packed lines beside a list of them; pieces are small, so that there are many."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = PackedLines()
        self.wanted: list[tuple[bytes, Style]] = []
        self.first = 0

    @rule(lines=LINES)
    def extend(self, lines: list[tuple[bytes, Style]]) -> None:
        for line, style in lines:
            self.lines.append(line, style)
        self.wanted += lines

    @rule(lines=LINES, gone=st.integers(0, 5))
    def put_behind(self, lines: list[tuple[bytes, Style]], gone: int) -> None:
        later = PackedLines()
        for line, style in lines:
            later.append(line, style)
        later.drop(gone)
        self.lines.extend(later)
        self.wanted += lines[gone:]

    @rule(lines=LINES, gone=st.integers(0, 5))
    def put_before(self, lines: list[tuple[bytes, Style]], gone: int) -> None:
        earlier = PackedLines()
        for line, style in lines:
            earlier.append(line, style)
        earlier.drop(gone)
        self.lines.put_before(earlier)
        self.wanted[:0] = lines[gone:]
        self.first -= len(lines[gone:])

    @rule(count=st.integers(-1, 12))
    def drop(self, count: int) -> None:
        self.lines.drop(count)
        gone = min(max(0, count), len(self.wanted))
        del self.wanted[:gone]
        self.first += gone

    @rule(size=st.integers(-2, 20))
    def worth(self, size: int) -> None:
        count = self.lines.worth(size)
        assert sum(len(line) for line, _ in self.wanted[: max(0, count - 1)]) < size or count == 0
        assert sum(len(line) for line, _ in self.wanted[:count]) >= size or count == len(self.wanted)

    @rule(back=st.integers(0, 12))
    def cut(self, back: int) -> None:
        number = max(self.first, self.lines.end - back)
        self.lines.cut(number)
        del self.wanted[number - self.first :]

    @rule(start=st.integers(-3, 12), count=st.integers(0, 12))
    def between(self, start: int, count: int) -> None:
        found = self.lines.between(self.first + start, self.first + start + count)
        assert found == [line for line, _ in self.wanted[max(0, start) : max(0, start + count)]]

    @invariant()
    def is_same(self) -> None:
        lines = self.lines
        assert (lines.first, lines.end, len(lines)) == (self.first, self.first + len(self.wanted), len(self.wanted))
        assert lines.size == sum(len(line) for line, _ in self.wanted)
        numbers = range(lines.first, lines.end)
        assert [(lines.line(number), lines.style(number)) for number in numbers] == self.wanted


@pytest.fixture(autouse=True)
def _small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.name != "test_a_hundred_thousand_lines_are_few_objects":
        monkeypatch.setattr(module, "PIECE_BYTES", 8)
        monkeypatch.setattr(module, "PIECE_LINES", 5)


def test_lines_are_found_while_they_arrive_and_leave() -> None:
    PackedLinesMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25)
    PackedLinesMachine.TestCase().runTest()


@given(st.lists(st.sampled_from([b"x", b"\x1b[31m", b"\x1b[0m", b""]), max_size=30), st.integers(0, 30))
def test_the_last_lines_keep_the_colours_of_earlier_ones(lines: list[bytes], most: int) -> None:
    kept = pack_lines(lines, most)
    last = len(lines) - min(most, len(lines))
    assert kept.between(kept.first, kept.end) == lines[last:]
    styles = list(accumulate(lines, lambda style, line: style_after(line, style), initial=PLAIN))[: len(lines)]
    assert [kept.style(number) for number in range(kept.first, kept.end)] == styles[last:]


def test_a_hundred_thousand_lines_are_few_objects() -> None:
    line = b"\x1b[32mstep %d\x1b[0m loss=0.001 tokens/s=%d"
    buffer = LogLines(lines=20_000)
    buffer.keeps_earlier = True
    gc.collect()
    before = sys.getallocatedblocks()
    for start in range(0, 20_000 * EARLIER, 1000):
        buffer.add(pack_lines([line % (number, number * 7) for number in range(start, start + 1000)]))
    assert buffer.end - buffer.first == 120_000
    gc.collect()
    assert sys.getallocatedblocks() - before < 6_000
    assert sum(1 for raw in buffer.kept.between(0, 120_000) if raw.startswith(b"\x1b[32mstep")) == 120_000
