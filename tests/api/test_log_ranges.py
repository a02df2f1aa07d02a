"""Output of an attempt in one answer: whole, or a range of its bytes, from a file or line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gputui.api.handlers import MOST_BYTES, log_answer
from gputui.api.http import HttpError
from gputui.engine.saved_logs import LONGEST_LINE, FileLog
from gputui.runtime.process.log import FileLogStream
from tests.cases import cases

TEXT = b"one\ntwo\nthree\n"


KINDS = ("kept", "running", "lines")
"""Of an ended attempt, of a running one, or line by line."""


@contextmanager
def output_of(kind: str, place: Path, text: bytes = TEXT, tail: int | None = None) -> Iterator[Iterable[bytes]]:
    path = place / "log"
    path.write_bytes(text)
    if kind == "kept":
        yield FileLog(path, tail)
    elif kind == "running":
        with closing(FileLogStream(path, tail=tail, follow=False, is_over=lambda: True)) as running:
            yield running
    else:
        lines = text.removesuffix(b"\n").split(b"\n")
        yield lines[-tail:] if tail else lines


@cases("kind", KINDS)
@cases(
    ("wanted", "tail", "status", "body"),
    [
        (None, None, 200, TEXT),
        ("bytes=2-8", None, 206, TEXT[2:9]),
        ("bytes=8-", None, 206, TEXT[8:]),
        ("bytes=0-1000", None, 206, TEXT),
        ("bytes=5-2", None, 200, TEXT),
        ("bytes=-3", None, 200, TEXT),
        ("bytes=0-4", 2, 206, b"two\nt"),
    ],
)
def test_a_range_is_of_bytes_wherever_they_come_from(
    tmp_path: Path, kind: str, wanted: str | None, tail: int | None, status: int, body: bytes
) -> None:
    with output_of(kind, tmp_path, tail=tail) as source:
        answer = log_answer(source, wanted)
        assert (answer.status, answer.body) == (status, body)


@cases("kind", KINDS)
def test_behind_the_end_there_is_nothing(tmp_path: Path, kind: str) -> None:
    with output_of(kind, tmp_path) as source, pytest.raises(HttpError, match=f"there are {len(TEXT)} bytes") as caught:
        log_answer(source, "bytes=900000000-")
    assert caught.value.status == 416


@cases("kind", ["kept", "running"])
def test_of_a_line_that_never_ends_no_more_than_a_part_is_held(tmp_path: Path, kind: str) -> None:
    text = b"x" * (3 * LONGEST_LINE)
    with output_of(kind, tmp_path, text) as source:
        parts = list(source)
        assert b"".join(parts) == text
        assert max(map(len, parts)) < LONGEST_LINE + 2**17
    with (
        output_of(kind, tmp_path, b"x" * (MOST_BYTES + LONGEST_LINE)) as source,
        pytest.raises(HttpError, match="it has more than"),
    ):
        log_answer(source, None)
