"""Detach keys: their notation, and how typed input is searched for them."""

from __future__ import annotations

import pytest

from gputui.cli.conversation import DEFAULT, DetachScanner, parse
from gputui.domain.errors import InputError
from tests.cases import cases


@cases(
    ("text", "keys"),
    [(DEFAULT, b"\x10\x11"), ("ctrl-a,x", b"\x01x"), ("ctrl-@,ctrl-_", b"\x00\x1f"), ("ctrl-[", b"\x1b"), ("", b"")],
)
def test_keys_have_the_notation_of_docker(text: str, keys: bytes) -> None:
    assert parse(text) == keys


@cases("text", ["ctrl-", "ctrl-1", "xy", "a,,b", "ä"])
def test_invalid_keys_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a key"):
        parse(text)


@cases(
    ("typed", "passed", "is_found"),
    [
        ([b"ab"], b"ab", False),
        ([b"a\x10\x11b"], b"a", True),
        ([b"\x10", b"\x11"], b"", True),
        ([b"\x10", b"x"], b"\x10x", False),
        ([b"\x10\x10\x11"], b"\x10", True),
        ([b"\x10"], b"", False),
    ],
)
def test_keys_are_found_across_reads(typed: list[bytes], passed: bytes, is_found: bool) -> None:
    scanner = DetachScanner(parse(DEFAULT))
    results = [scanner.feed(piece) for piece in typed]
    assert b"".join(each for each, _ in results) == passed
    assert results[-1][1] is is_found


def test_keys_with_repeated_letters_are_found() -> None:
    assert DetachScanner(b"aab").feed(b"aaab") == (b"a", True)
    assert DetachScanner(b"").feed(b"\x10\x11") == (b"\x10\x11", False)
