"""Searches cover all of a log, even if only its end is in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from gputui.tui.actions import ExitChoice
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.widgets.log_follower import ANCHOR, AROUND, TAIL, KnownLines, LogFollower, ScanResult, read_region, scan
from gputui.tui.widgets.log_lines import Finder, LogLines, pack_lines
from gputui.tui.widgets.log_pattern import Matcher, Pattern
from tests.tui.console import Console, FakeLogs, until
from tests.tui.reader import looked, reading

pytestmark = pytest.mark.usefixtures("drawn")

LINES = [b"step %d" % i + (b" needle" if i % 1500 == 7 else b"") for i in range(30_000)]


def always() -> bool:
    return True


def follower_of(lines: list[bytes], *, is_stamped: bool = False) -> LogFollower:
    logs = FakeLogs()
    logs.lines[1], logs.is_stamped = lines, is_stamped
    return LogFollower(logs, 1, None)


def scanned(lines: list[bytes], pattern: str, behind: int, told: Callable[[str], object] = str) -> ScanResult:
    """Search a log of which the last `behind` lines are in memory; their first has the number 0."""
    known = KnownLines(tuple(lines[len(lines) - behind :][:ANCHOR]), behind)
    return scan(follower_of(lines), Pattern(pattern), known, 0, always, told)


class TestScan:
    def test_all_lines_before_memory_are_searched_and_numbered(self) -> None:
        told: list[str] = []
        found = scanned(LINES, "needle", TAIL, told.append)
        assert list(found.numbers) == [place - 29_000 for place in range(7, 29_000, 1500)]
        assert (found.shift, found.uncounted, found.fault) == (29_000, 0, "")
        assert found.found[7 - 29_000] == b"step 7 needle"
        assert told[-1] == "30,000 lines"

    def test_a_log_that_grew_keeps_its_line_numbers(self) -> None:
        known = KnownLines(tuple(LINES[29_000 : 29_000 + ANCHOR]), TAIL)
        grown = [*LINES, *(b"new %d needle" % i for i in range(1500))]
        found = scan(follower_of(grown), Pattern("needle"), known, 0, always, str)
        assert (len(found.numbers), found.shift) == (20, 29_000)

    def test_unsearched_parts_are_reported(self) -> None:
        known = KnownLines((b"other",), 1)
        assert "cannot be found" in scan(follower_of(LINES), Pattern("needle"), known, 0, always, str).fault
        assert "too long" in scanned([b"a" * 40 + b"!"] * 2000, r"(a+)+$", 1000).fault
        given_up = scan(follower_of(LINES), Pattern("needle"), known, 0, lambda: False, str)
        assert given_up.fault == "cancelled"

    def test_a_line_is_matched_as_it_is_shown(self) -> None:
        matcher = Matcher("^loss nan$")
        try:
            lines = [b"loss nan", b"\x1b[31mloss\x1b[0m nan", b"x\rloss nan", b"loss nane"]
            assert list(matcher.hits(lines, is_stamped=False)) == [0, 1, 2]
            stamped = [b"2026-03-02T12:00:00.5Z " + line for line in lines]
            assert list(matcher.hits(stamped, is_stamped=True)) == [0, 1, 2]
        finally:
            matcher.close()

    def test_the_progress_of_stamped_lines_is_a_time(self) -> None:
        lines = [b"2026-03-02T12:%02d:%02dZ step %d" % (i // 1800, i // 30 % 60, i) for i in range(20_000)]
        told: list[str] = []
        known = KnownLines(tuple(lines[19_000 : 19_000 + ANCHOR]), 1000)
        found = scan(follower_of(lines, is_stamped=True), Pattern("step 5$"), known, 0, always, told.append)
        assert list(found.numbers) == [5 - 19_000]
        assert told[0] == "26 %"

    def test_the_lines_around_one_are_read(self) -> None:
        region = read_region(follower_of(LINES), 29_000, -14_000, always)
        assert (region.first, region.end) == (-14_000 - AROUND, -14_000 + AROUND)
        assert region.line(region.first + AROUND) == b"step 15000"
        assert read_region(follower_of(LINES), 29_000, -28_999, always).first == -29_000


def test_hits_that_leave_memory_are_added_to_those_of_the_search() -> None:
    lines = LogLines(lines=10)
    lines.add(pack_lines([b"x"] * 10))
    finder = Finder(lines, lambda text: text == "needle", 0)
    finder.begin_scan()
    lines.kept.drop(1)
    for new in ([b"needle", b"x", b"needle"], [b"x"] * 20):
        finder.step(1)
        lines.add(pack_lines(new))
        finder.step(1)
    assert list(finder.hits) == [10, 12], "they have left memory"
    finder.end_scan(scanned(LINES, "needle", TAIL).numbers, 2)
    assert (finder.count, finder.rank(12), finder.next_hit(-29_000, 1)) == (24, 24, (7 - 29_000, True))
    assert finder.next_hit(12, -1) == (10, True)
    assert finder.next_hit(10, -1) == (28_507 - 29_000, True)


async def test_search_and_filter_find_lines_outside_memory_and_go_there() -> None:
    console = Console()
    console.logs.cuts_tails = console.logs.ends = True
    async with reading(LINES, console=console) as (_, pilot, pane):
        await pilot.press("slash", *"needle")
        assert "/needle" in console.screen_text
        assert "searching: " in console.screen_text
        await found(pane, pilot)
        await until(pilot, lambda: "/needle 20 of 20" in console.screen_text)
        assert "▶step 28507 needle" in console.screen_text
        await pilot.press("enter", "n")
        await found(pane, pilot)
        assert "/needle 1 of 20, from the start again" in console.screen_text
        assert "▶step 7 needle" in console.screen_text
        assert pane.reading.window.below > 29_900
        await pilot.press("n")
        await found(pane, pilot)
        assert "▶step 1507 needle" in console.screen_text
        pane.action_down(AROUND)
        await found(pane, pilot)
        pane.action_down(AROUND)
        await found(pane, pilot)
        assert pane.reading.rows[0].number > 1507 - 29_000 + AROUND, "it goes on beyond the part that was loaded"
        await pilot.press("escape", "G", "ampersand", *"needle", "enter")
        await found(pane, pilot)
        assert "&needle 20 lines" in console.screen_text
        await pilot.press("g")
        assert " step 7 needle" in console.screen_text


async def test_errors_of_a_partly_loaded_log_are_labelled_as_those_of_its_end() -> None:
    console = Console()
    console.logs.cuts_tails = console.logs.ends = True
    async with reading([b"ERROR: first", *[b"step"] * 130_000, b"ERROR: last"], console=console) as (_, pilot, pane):
        await pilot.press("e")
        await looked(pane, pilot)
        await until(pilot, lambda: "error 1 of 1" in console.screen_text)
        assert "error 1 of 1: error in the last 120,000 lines" in console.screen_text


async def found(pane: LogPane, pilot: Pilot[ExitChoice]) -> None:
    """Wait until all of the log is searched, and the current hit is loaded."""
    search = pane.reading.search
    async with asyncio.timeout(60):
        while True:
            await pilot.pause(0.01)
            finders = [finder for finder in (search.hits, pane.reading.lines.filter) if finder is not None]
            is_over = all(f.border is not None and not f.progress for f in finders)
            is_still = not (pane.loader.is_loading or pane.paints_soon)
            if is_over and search.is_done and search.awaited is None and is_still:
                await pilot.pause()
                return


def test_loading_two_hundred_thousand_coloured_lines_costs_the_loop_a_moment() -> None:
    lines = [b"\x1b[3%dmstep %d\x1b[1m" % (i % 8, i) for i in range(1000)] * 200
    came = pack_lines(lines, len(lines))  # by the reading thread
    styles = [came.style(number) for number in range(1000)]
    buffer = LogLines(lines=200_000)
    buffer.add(pack_lines(lines[:1000]))
    begun_at = time.thread_time()
    kept = buffer.add_earlier(came)
    buffer.trim()
    spent = time.thread_time() - begun_at
    assert kept == 200_000
    assert buffer.style_before(buffer.first + 1) == styles[1]
    assert spent < 0.05
