"""Output of an attempt in one answer: whole, or a range of its bytes, from a file or line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gputui.api.handlers import MOST_BYTES, log_answer
from gputui.api.http import HttpError
from gputui.engine.saved_logs import LONGEST_LINE, FileLog
from gputui.runtime.process.log import FileLogStream

TEXT = b"one\ntwo\nthree\n"


KINDS = ("kept", "running", "lines")
Source = Callable[..., Iterable[bytes]]


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    """Yield what makes the output of a kind: of an ended attempt, of a running one, or line by line."""
    path = tmp_path / "log"
    with ExitStack() as opened:

        def make(text: bytes = TEXT, tail: int | None = None) -> Iterable[bytes]:
            path.write_bytes(text)
            if request.param == "kept":
                return FileLog(path, tail)
            if request.param == "running":
                running = FileLogStream(path, tail=tail, follow=False, is_over=lambda: True)
                return opened.enter_context(closing(running))
            lines = text.removesuffix(b"\n").split(b"\n")
            return lines[-tail:] if tail else lines

        yield make


@pytest.mark.parametrize(
    ("wanted", "status", "body"),
    [
        (None, 200, TEXT),
        ("bytes=2-8", 206, TEXT[2:9]),
        ("bytes=8-", 206, TEXT[8:]),
        ("bytes=0-1000", 206, TEXT),
        ("bytes=5-2", 200, TEXT),
        ("bytes=-3", 200, TEXT),
    ],
)
@pytest.mark.parametrize("source", KINDS, indirect=True)
def test_a_range_is_of_bytes_wherever_they_come_from(
    source: Source, wanted: str | None, status: int, body: bytes
) -> None:
    answer = log_answer(source(), wanted)
    assert (answer.status, answer.body) == (status, body)


@pytest.mark.parametrize("source", KINDS, indirect=True)
def test_a_range_of_the_last_lines_begins_with_them(source: Source) -> None:
    assert log_answer(source(tail=2), "bytes=0-4").body == b"two\nt"


@pytest.mark.parametrize("source", KINDS, indirect=True)
def test_behind_the_end_there_is_nothing(source: Source) -> None:
    with pytest.raises(HttpError, match=f"there are {len(TEXT)} bytes") as caught:
        log_answer(source(), "bytes=900000000-")
    assert caught.value.status == 416


@pytest.mark.parametrize("source", ["kept", "running"], indirect=True)
def test_of_a_line_that_never_ends_no_more_than_a_part_is_held(source: Source) -> None:
    text = b"x" * (3 * LONGEST_LINE)
    assert b"".join(source(text)) == text
    assert max(map(len, source(text))) < LONGEST_LINE + 2**17
    with pytest.raises(HttpError, match="it has more than"):
        log_answer(source(b"x" * (MOST_BYTES + LONGEST_LINE)), None)
