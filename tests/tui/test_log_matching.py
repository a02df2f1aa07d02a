"""The process that searches logs: its answers to batches of lines, without the process."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from io import BytesIO

import pytest

from gputui.tui.widgets.log_pattern import Matcher, serve
from tests.cases import cases


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


STAMPED = [b"2026-11-26T10:00:00.5Z step 2026", b"2026-11-26T10:00:01.5Z step 7"]


@cases(
    ("text", "batches", "hits"),
    [
        (
            "loss",
            [([b"loss 0.5", b"epoch 2", b"LOSS 0.4", b""], False), ([b"epoch"], False), ([], False)],
            [[0, 2], [], []],
        ),
        ("2026", [(STAMPED, True), (STAMPED, False)], [[0], [0, 1]]),  # times of lines are not searched
        ("a(", [([b"f a(b)", b"a"], False)], [[0]]),  # no expression: taken as text
        ("", [([b"a", b"", b"b"], False)], [[0, 2]]),
        ("(a|a)*$", [([b"a" * 60 + b"!"], False), ([b"a"], False)], [None, [0]]),  # given up, and the next one answered
    ],
)
def test_each_batch_is_answered(
    text: str, batches: list[tuple[Sequence[bytes], bool]], hits: list[list[int] | None]
) -> None:
    assert answers(text, *batches) == hits


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
