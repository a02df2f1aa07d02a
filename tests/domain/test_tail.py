"""The last lines of a text that is read from its end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.text import tail_start

CONTENTS = st.binary(max_size=200).map(lambda each: each.replace(b"a", b"\n").replace(b"\x00", b"\n"))


@given(CONTENTS, st.integers(0, 45), st.integers(1, 9))
def test_the_tail_begins_the_requested_lines_before_the_end(content: bytes, tail: int, block: int) -> None:
    start = tail_start(len(content), tail, lambda at, count: content[at : at + count], block)
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    found = content[start:].split(b"\n")
    if not found[-1]:
        found.pop()
    assert found == lines[len(lines) - min(tail, len(lines)) :]
    assert start == 0 or tail == 0 or content[start - 1 : start] == b"\n"


def test_the_tail_reads_only_the_necessary_blocks() -> None:
    content, read = b"line\n" * 1000, []

    def reader(at: int, count: int) -> bytes:
        read.append(at)
        return content[at : at + count]

    assert tail_start(len(content), 3, reader, block=20) == len(content) - 15
    assert min(read) == len(content) - 20
