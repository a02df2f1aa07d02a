"""The process that searches logs: its answers to batches of lines, without the process."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from io import BytesIO

import pytest

from gputui.tui.widgets.log_pattern import Matcher, serve


def answers(text: str, *batches: tuple[Sequence[bytes], bool]) -> list[list[int] | None]:
    """Return the indices of the matching lines of each batch; None for one that took too long."""
    expression = text.encode("utf-8", "surrogatepass")
    source, sink = BytesIO(), BytesIO()
    source.write(struct.pack(">i", len(expression)) + expression)
    for lines, is_stamped in batches:
        data = b"\n".join(lines)
        source.write(struct.pack(">IB", len(data), is_stamped) + data)
    source.seek(0)
    serve(source, sink)
    sink.seek(0)
    found: list[list[int] | None] = []
    while head := sink.read(4):
        (count,) = struct.unpack(">i", head)
        hits = array("i", sink.read(max(count, 0) * 4))
        found.append(None if count < 0 else hits.tolist())
    return found


def test_each_batch_is_answered() -> None:
    lines = [b"loss 0.5", b"epoch 2", b"LOSS 0.4", b""]
    assert answers("loss", (lines, False), ([b"epoch"], False), ([], False)) == [[0, 2], [], []]


def test_the_times_of_lines_are_not_searched() -> None:
    lines = [b"2026-11-26T10:00:00.5Z step 2026", b"2026-11-26T10:00:01.5Z step 7"]
    assert answers("2026", (lines, True), (lines, False)) == [[0], [0, 1]]


def test_what_is_no_expression_is_searched_as_text() -> None:
    assert answers("a(", ([b"f a(b)", b"a"], False)) == [[0]]


def test_an_empty_text_finds_every_line_with_text() -> None:
    assert answers("", ([b"a", b"", b"b"], False)) == [[0, 2]]


def test_an_expression_without_an_end_is_given_up_and_the_next_batch_answered() -> None:
    assert answers("(a|a)*$", ([b"a" * 60 + b"!"], False), ([b"a"], False)) == [None, [0]]


def test_an_end_of_the_input_within_a_batch_is_an_error() -> None:
    source = BytesIO(struct.pack(">i", 1) + b"a" + struct.pack(">IB", 100, False) + b"short")
    with pytest.raises(BrokenPipeError):
        serve(source, BytesIO())


def test_the_process_answers_and_ends() -> None:
    matcher = Matcher("b+")
    assert matcher.hits([b"abba", b"c"], is_stamped=False).tolist() == [0]
    matcher.close()
    with pytest.raises((OSError, ValueError)):
        matcher.hits([b"b"], is_stamped=False)
