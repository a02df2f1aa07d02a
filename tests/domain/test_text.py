"""Foreign text cannot control the terminal, and fitted text has exactly its width."""

from __future__ import annotations

import re
import sys
import time
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gputui.domain.text import broken, fit, plain, plain_bytes, plain_log, width
from tests.cases import cases

COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
FRAGMENTS = (
    *("\x1b", "\x1b[", "\x1b]", "\x1bP", "\x1b\\", "\x07", "\x08", "\x9b", "\x9d", "\x9c", "\x7f", "\r", "\n", "\t"),
    *("31m", "\x1b[1;31m", "2J", "52;c;aGk=", "0;title", "?1049h", "\u200d", "\ufe0f", "\u0301", "\ud800", *BIDI),
    *("loss", "中文", "👩", "🚀", "👩\u200d🚀", "…", " "),
)
HOSTILE = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3) | st.characters(), max_size=12).map("".join)
INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Letters and marks that Unicode lets programs draw as nothing: fillers, variation selectors and the like."""
VISIBLE_FORMATS = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd" + "".join(
    map(chr, range(0x13430, 0x13456))
)
"""Format characters with a shape: signs above and below numbers, and the layout of hieroglyphs."""
ASSIGNED = st.characters(exclude_categories=["Cc", "Cf", "Cs", "Cn", "Co"])


def acts(text: str) -> list[str]:
    """Return the characters that a terminal may act on, or that reorder or hide others."""
    return [char for char in text if unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} or char in BIDI]


@given(HOSTILE)
def test_plain_text_contains_no_control_characters(text: str) -> None:
    assert acts(plain(text)) == []


def test_unseen_bytes() -> None:
    # only what cannot be seen is removed
    every = list(map(chr, range(0x20, sys.maxunicode + 1)))
    seen = [char for char in every if unicodedata.category(char)[0] in "LMNPS" and not INVISIBLE.match(char)]
    assert plain("".join(seen)) == "".join(seen)
    formats = [char for char in every if unicodedata.category(char) == "Cf" and char not in VISIBLE_FORMATS]
    assert plain("".join(formats)) == ""
    # bytes that are not UTF-8 are marked
    assert plain_bytes(b"caf\xe9 \xe4\xb8\xad") == "caf� 中"


@given(HOSTILE)
def test_a_log_line_contains_colours_but_no_other_control_sequences(text: str) -> None:
    assert acts(COLOUR.sub("", plain_log(text))) == []


@given(st.binary(max_size=40))
def test_bytes_of_any_kind_can_be_shown(raw: bytes) -> None:
    assert acts(COLOUR.sub("", plain_bytes(raw))) == []


@given(HOSTILE, st.none() | st.integers(0, 20))
def test_plain_is_idempotent(text: str, limit: int | None) -> None:
    once = plain(text, limit)
    assert plain(once, limit) == once
    assert limit is None or len(once) <= limit


@given(HOSTILE)
def test_plain_log_is_idempotent(text: str) -> None:
    once = plain_log(text)
    assert plain_log(once) == once


@given(HOSTILE, st.integers(0, 30), st.sampled_from(["left", "right", "center"]))
def test_fit_returns_exactly_the_given_width(text: str, cells: int, align: str) -> None:
    shown = fit(text, cells, align)  # type: ignore[arg-type]
    assert width(shown) == cells
    assert acts(shown) == []


@given(HOSTILE, st.integers(0, 30))
def test_cut_text_ends_with_an_ellipsis(text: str, cells: int) -> None:
    if width(plain(text)) > cells > 0:
        assert "…" in fit(text, cells)


@given(st.text(ASSIGNED, max_size=12).map(plain))
def test_widths_agree_with_those_of_the_console(text: str) -> None:
    assert width(text) == cell_len(text)


@cases(
    ("text", "shown"),
    [
        ("train-7b", "train-7b"),
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("a\x1b[2J\x1b[Hb", "ab"),
        ("\x1b]0;new title\x07shown", "shown"),
        ("\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;aGk=\x9cshown", "shown"),
        ("\x1b]0;never ended", "0;never ended"),
        ("\x1bPq#0;2;0;0;0\x1b\\shown", "shown"),
        ("\x1bc\x1b(0\x1b7shown", "shown"),
        ("bell\x07 null\x00 delete\x7f", "bell␇ null␀ delete␡"),
        ("user\u202egnp.exe", "usergnp.exe"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("half \ud83d pair", "half � pair"),
        ("👩\u200d🚀 flies", "👩\u200d🚀 flies"),
        ("a\u200db", "ab"),
        ("[bold]not markup[/]", "[bold]not markup[/]"),
        ("日本語 naïve", "日本語 naïve"),
    ],
)
def test_plain_removes_control_characters(text: str, shown: str) -> None:
    assert plain(text) == shown


@cases(
    ("line", "shown"),
    [
        ("\x1b[32mok\x1b[0m", "\x1b[32mok\x1b[0m"),
        ("\x1b[38;2;1;2;3mtrue\x1b[38:5:9mcolour", "\x1b[38;2;1;2;3mtrue\x1b[38:5:9mcolour"),
        ("\x1b[>4;2mmodified keys", "modified keys"),
        (f"\x1b[{'9' * 5000}mone", "one"),
        ("\x1b[2K\x1b[1Gdone", "done"),
        ("\x1b]8;;http://example.org\x07link\x1b]8;;\x07", "link"),
        (" 10%|#\r 20%|##\r 30%|###", " 30%|###"),
        ("100%|####\r", "100%|####"),
        ("100%\r\x1b[K", "100%"),
        ("ends as in DOS\r", "ends as in DOS"),
        ("\r", ""),
        ("a\tb", "a       b"),
        ("\x1b[1mab\x1b[0m\tc", "\x1b[1mab\x1b[0m      c"),
        ("中\tb", "中      b"),
        ("typed\x08\x08 twice\x07", "typed twice"),
        ("\x9bH\x84\x8dup", "up"),
    ],
)
def test_log_lines_keep_text_and_colours(line: str, shown: str) -> None:
    assert plain_log(line) == shown


@cases(
    ("text", "cells"),
    [
        ("abc", 3),
        ("中文", 4),
        ("e\u0301", 1),
        ("🚀", 2),
        ("👩\u200d🚀", 2),
        ("각", 2),
        ("─█⠿", 3),
        ("", 0),
        ("\x00\x1b", 0),
    ],
)
def test_the_width_of_a_text_is_in_cells(text: str, cells: int) -> None:
    assert width(text) == cells


def test_text_of_a_width() -> None:
    # fit pads on request
    assert [fit("ab", 5, "left"), fit("ab", 5, "right"), fit("ab", 5, "center")] == ["ab   ", "   ab", " ab  "]
    assert fit("a longer name", 6) == "a lon…"
    assert fit("中文名", 4) == "中… "  # a wide character is never cut in half
    assert fit("anything", 0) == ""
    assert fit("👩\u200d🚀👩\u200d🚀", 3) == "👩\u200d🚀…"
    # lines are broken between words
    assert broken("the engine went away", 10) == ["the engine", "went away"]
    assert broken("界界界 界", 4) == ["界界", "界", "界"]


@cases("bomb", ["\x1b]", "\x9d", "\x1b[", "\x1b", "a\r", "\t", "\u200d", "\x1b[1m"])
def test_a_line_of_escape_introducers_is_read_once(bomb: str) -> None:
    line = bomb * (200_000 // len(bomb))
    begun = time.process_time()
    plain(line)
    plain_log(line)
    assert time.process_time() - begun < 2  # a quadratic reading takes minutes


@given(st.text(alphabet="ab 界é\u0301", max_size=60), st.integers(2, 20))
def test_broken_lines_keep_the_whole_text_within_their_cells(text: str, cells: int) -> None:
    lines = broken(text, cells)
    assert all(width(line) <= cells for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert lines
