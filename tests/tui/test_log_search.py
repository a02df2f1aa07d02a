"""Searching, filtering and looking for errors: found a little at a time, and never at the cost of a key."""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gputui.tui.present.cells import AMBER, PLAIN, STRONG
from gputui.tui.present.log import highlighted
from gputui.tui.widgets import log_lines as module
from gputui.tui.widgets.log_lines import MOST_FOUND, Finder, FoundLines, LogLines, around, pack_lines
from gputui.tui.widgets.log_model import LogModel, LogWindow
from gputui.tui.widgets.log_pattern import TooSlow, impatient, pattern_of
from tests.cases import cases
from tests.tui.reader import NUMBERED, looked, reading

pytestmark = pytest.mark.usefixtures("drawn")

SIZE = (100, 40)


def finder(text: str, buffer: LogLines, start: int = 0) -> Finder:
    pattern = pattern_of(text)
    assert pattern is not None
    return Finder(buffer, pattern.is_in, start)


def finish(found: Finder) -> list[int]:
    while not found.is_done:
        found.step(1)
    return list(found.hits)


@cases(
    ("typed", "line", "is_in"),
    [
        ("nan", "loss is NaN", True),
        ("NaN", "loss is nan", False),
        ("loss.*nan", "loss is nan", True),
        (r"\Sss", "LOSS", True),  # the capital of an escape is none
        ("foo(", "call FOO(x)", True),  # no regular expression: taken as it stands
        ("a{2", "a{2", True),
        ("ü", "Ü", True),
    ],
)
def test_capitals_count_only_if_typed(typed: str, line: str, is_in: bool) -> None:
    pattern = pattern_of(typed)
    assert pattern is not None
    assert pattern.is_in(line) == is_in


def test_an_empty_text_is_not_a_pattern_and_an_invalid_one_is_reported() -> None:
    assert pattern_of("") is None
    wrong = pattern_of("foo(")
    assert wrong is not None
    assert "unterminated" in wrong.fault


@given(st.lists(st.sampled_from([b"x", b"y", b"xy", b""]), max_size=30), st.integers(0, 30), st.integers(0, 5))
def test_a_finder_finds_every_line_of_a_growing_log(lines: list[bytes], start: int, earlier: int) -> None:
    buffer = LogLines()
    buffer.add(pack_lines(lines))
    found = finder("x", buffer, min(start, buffer.end))
    finish(found)
    buffer.add_earlier(pack_lines([b"x"] * earlier, earlier))
    buffer.add(pack_lines([b"x", b"z"]))
    expected = [n for n in range(buffer.first, buffer.end) if b"x" in buffer.line(n)]
    assert finish(found) == expected


def test_an_expression_that_never_ends_is_aborted() -> None:
    buffer = LogLines()
    buffer.add(pack_lines([b"a" * 60 + b"!"]))
    found = finder("(a+)+$", buffer)
    began = time.process_time()
    found.step(1)
    assert time.process_time() - began < 2
    assert found.fault == "takes too long"
    assert found.is_done


def test_the_alarm_aborts_only_the_guarded_block() -> None:
    with pytest.raises(TooSlow), impatient(0.02):
        re.search("(a+)+$", "a" * 60 + "!")
    with impatient(0.02):
        pass
    began = time.process_time()
    while time.process_time() - began < 0.06:
        pass


@given(st.sets(st.integers(-5, 40), max_size=8), st.integers(1, 4))
def test_context_consists_of_near_lines(hits: set[int], context: int) -> None:
    hits = {hit for hit in hits if hit >= 0}
    near = [n for n in range(40) if any(abs(n - hit) <= context for hit in hits)]
    assert list(around(sorted(hit for hit in hits if hit < 40), context, 0, 40)) == [
        n for n in near if any(abs(n - hit) <= context for hit in hits if hit < 40)
    ]


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=40), st.integers(1, 12), st.lists(st.integers(-9, 9), max_size=12)
)
def test_a_window_is_full_and_moves_as_far_as_asked(rows: list[int], height: int, moves: list[int]) -> None:
    buffer = LogLines()
    buffer.add(pack_lines([b"x"] * len(rows)))
    window = LogWindow(buffer, lambda number: rows[number])
    window.height = height
    window.settle()
    total = sum(rows)
    flat = [(number, part) for number, count in enumerate(rows) for part in range(count)]
    at = max(0, total - height)
    for move in moves:
        window.move(move)
        at = max(0, min(at + move, max(0, total - height)))
        assert [(row.number, row.part) for row in window.rows()] == flat[at : at + height]
        assert window.follows == (at >= total - height)


@given(st.lists(st.tuples(st.text("ab", max_size=4), st.sampled_from([PLAIN, STRONG])), max_size=5), st.data())
def test_marking_keeps_the_text_and_marks_only_the_hits(spans: list[tuple[str, object]], data: st.DataObject) -> None:
    text = "".join(value for value, _ in spans)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    places = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False) if a < b]
    marked = highlighted(spans, places, AMBER)  # type: ignore[arg-type]
    assert "".join(value for value, _ in marked) == text
    colours = [style.color == AMBER.color for value, style in marked for _ in value]
    assert colours == [any(a <= i < b for a, b in places) for i in range(len(text))]


async def test_a_search_goes_from_hit_to_hit_and_round() -> None:
    async with reading(NUMBERED) as (console, pilot, pane):
        await pilot.press("slash", *"line 1[05]0", "enter")
        await looked(pane, pilot)
        assert pane.reading.search.at == 150  # the end was in sight: the nearest above
        assert "/line 1[05]0 2 of 2" in console.screen_text
        assert "▶line 150" in console.screen_text
        await pilot.press("n")
        await looked(pane, pilot)
        assert pane.reading.search.at == 100
        assert "1 of 2, from the start again" in console.screen_text
        await pilot.press("N", "N")
        await looked(pane, pilot)
        assert pane.reading.search.at == 100
        assert not pane.follows
        await pilot.press("escape", "G")
        assert pane.reading.search.pattern is None
        assert pane.follows


async def test_a_search_is_shown_as_it_is_typed_and_forgotten_with_escape() -> None:
    async with reading(NUMBERED) as (_, pilot, pane):
        await pilot.press("slash", *"line 7")
        await looked(pane, pilot)
        assert pane.reading.search.at == 79
        await pilot.press("escape")
        await looked(pane, pilot)
        assert pane.reading.search.pattern is None
        assert pane.follows


async def test_a_filter_shows_matches_with_context_and_follows_new_lines() -> None:
    async with reading(NUMBERED) as (console, pilot, pane):
        await pilot.press("ampersand", *"line .?50$", "enter")
        await looked(pane, pilot)
        rows = [row.number for row in pane.reading.rows]
        assert rows == [50, 150, 250]
        assert "&line .?50$ 3 lines" in console.screen_text
        await pilot.press("right_parenthesis")
        assert [row.number for row in pane.reading.rows] == [49, 50, 51, 149, 150, 151, 249, 250, 251]
        assert "┄line 149" in console.screen_text
        await pilot.press("left_parenthesis")
        pane.reading.lines.add(pack_lines([b"line 350", b"line 351"]))
        pane.search_further()
        await looked(pane, pilot)
        pane.repaint()
        assert [row.number for row in pane.reading.rows] == [50, 150, 250, 300]
        await pilot.press("escape")
        assert len(pane.reading.rows) == pane.height


async def test_searching_a_long_log_delays_no_key() -> None:
    async with reading(NUMBERED) as (_, _, pane):
        pane.reading.lines.keeps_earlier = True
        pane.reading.lines.size = 10**9  # room for a long log at once
        pane.reading.lines.add(pack_lines([b"epoch 12 step 4711 loss 2.3412 \x1b[32mlr\x1b[0m 2.0e-05"] * 100_000))
        pattern = pattern_of("loss.*nan")
        pane.reading.search.look_for(pattern)
        pane.reading.search.narrow(pattern)
        worst = 0.0
        pane.search_further()
        while not pane.reading.search.is_done:
            began = time.thread_time()
            await asyncio.sleep(0)
            worst = max(worst, time.thread_time() - began)
        assert worst < 0.1, "seconds of the event loop that one turn took"


async def test_the_prompt_remembers_and_reports_invalid_expressions() -> None:
    async with reading(NUMBERED) as (console, pilot, pane):
        await pilot.press("slash", *"line 42", "enter")
        await pilot.press("escape", "slash", "up")
        await pilot.pause()
        assert "line 42" in console.screen_text.splitlines()[-1]
        await pilot.press("left_parenthesis")
        await pilot.pause()
        assert "as plain text: missing ), unterminated" in console.screen_text
        await pilot.press("escape")
        await looked(pane, pilot)


def test_lines_that_a_filter_shows_are_bounded_however_many_leave_memory_at_once() -> None:
    reading = LogModel()
    reading.lines.keeps_earlier = True
    reading.lines.add(pack_lines([b"step %d" % number for number in range(110_000)]))
    reading.search.narrow(pattern_of("step"))
    while not reading.search.is_done:
        reading.search.step(0.01)  # as the pane does; much more would be a pattern that takes too long
    assert len(reading.lines.numbers) == 110_000
    reading.lines.keeps_earlier = False
    reading.lines.trim()
    reading.search.step(0.01)
    found = reading.lines.found
    assert MOST_FOUND <= len(found) <= MOST_FOUND * 1.1
    assert 89_999 in found
    assert found[89_999] == b"step 89999"
    assert list(dict(found.items())) == sorted(dict(found.items()))
    assert [reading.lines.numbers[-1], reading.lines.numbers[0]] == [109_999, min(dict(found.items()))]


@given(st.lists(st.tuples(st.booleans(), st.lists(st.binary(max_size=30), max_size=8)), max_size=12))
@example([(False, [b"x" * 30] * 5), (False, [b""])])
def test_the_newest_lines_that_match_are_kept(parts: list[tuple[bool, list[bytes]]]) -> None:
    found, every = FoundLines(), dict[int, bytes]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "MOST_FOUND", 10)
        patched.setattr(module, "FOUND_BYTES", 100)
        for is_newer, lines in parts:
            first = max(every, default=0) + 1 if is_newer else min(every, default=0) - len(lines)
            new = dict(enumerate(lines, first))
            every = {**every, **new} if is_newer else {**new, **every}
            found.add(new.items()) if is_newer else found.put_before(new)
    kept = dict(found.items())
    assert list(kept.items()) == list(every.items())[len(every) - len(kept) :]
    assert len(kept) <= 11
    assert sum(map(len, kept.values())) <= 110


@given(
    st.lists(st.sampled_from(["", "s", "h", "sh"]), max_size=30), st.integers(0, 2), st.lists(st.booleans(), max_size=8)
)
@example(["h"] * 3 + ["sh"] + ["h"] * 3 + ["sh"], 0, [True, True, False, False])
@example(["h", "s"], 0, [True, False])
def test_next_and_previous_pass_over_hits_that_a_filter_hides(
    lines: list[str], context: int, steps: list[bool]
) -> None:
    reading = LogModel()
    reading.lines.add(pack_lines([line.encode() for line in lines]))
    search = reading.search
    search.narrow(pattern_of("s"))
    search.widen(context)
    search.look_for(pattern_of("h"))
    kept = around([number for number, line in enumerate(lines) if "s" in line], context, 0, len(lines))
    hits = [number for number in kept if "h" in lines[number]]
    for step in (None, *steps):
        before = search.at
        if step is not None:
            search.go(1 if step else -1)
        while not search.is_done:
            search.step(0.01)
        if hits and before is not None and step is not None:
            place = hits.index(before) + (1 if step else -1)
            assert search.at == hits[place % len(hits)]
        assert search.at in hits if hits else search.at is None
    assert hits or "h" not in "".join(lines) or search.note == ", none shown"


async def test_what_is_not_found_or_not_shown_is_said() -> None:
    async with reading(NUMBERED) as (console, pilot, pane):
        for keys, words in (
            (("e",), "error: none"),
            (("slash", *"zebra", "enter"), "/zebra: none"),
            (("ampersand", *"zebra", "enter"), "&zebra 0 lines"),
            (("ampersand", *"7$", "enter", "slash", *"line 42", "enter"), "/line 42 1, none shown  &7$ 30 lines"),
        ):
            await pilot.press(*keys)
            await looked(pane, pilot)
            assert words in console.screen_text
            assert ("No line matches." in console.screen_text) == words.endswith(" 0 lines")
            await pilot.press("escape", "escape", "G")
            await looked(pane, pilot)
            assert pane.follows
