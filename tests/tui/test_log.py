"""Logs: harmless, lazy, bounded; a flood costs one repaint a tick."""

from __future__ import annotations

import asyncio
import queue
import re
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.errors import NotFoundError
from gputui.domain.settings import ConsoleSettings
from gputui.tui.present.cells import LOG_NAMES, PLAIN
from gputui.tui.present.log import log_spans
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.widgets.log_follower import INBOX, LogFollower
from gputui.tui.widgets.log_lines import LogLines, pack_lines
from tests.cases import cases
from tests.tui import sample
from tests.tui.console import Console, FakeLogs, on_screen, until

SIZE = (100, 30)


def shown(raw: bytes) -> str:
    return "".join(value for value, _ in log_spans(raw))


@cases(
    ("raw", "text"),
    [
        (b"plain", "plain"),
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"  0%|   \r 50%|## \r100%|####", "100%|####"),
        (b"\x1b[2J\x1b[Hcleared", "cleared"),
        (b"\x1b]0;title\x07after", "after"),
        (b"\x1b[?1049lout", "out"),
        (b"[bold]x[/]", "[bold]x[/]"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_partial_lines_are_kept(raw: bytes, text: str) -> None:
    assert shown(raw) == text


def test_colours_are_kept() -> None:
    [(word, style), (rest, _)] = log_spans(b"\x1b[1;32mOK\x1b[0m done")
    assert (word, rest) == ("OK", " done")
    assert style.bold
    assert style.color is not None
    assert style.color.name == LOG_NAMES[2]
    [(_, indexed)] = log_spans(b"\x1b[38;5;200mx")
    assert indexed.color is not None
    assert indexed.color.number == 200
    [(_, exact)] = log_spans(b"\x1b[38;2;1;2;3mx")
    assert exact.color is not None
    assert exact.color.triplet == (1, 2, 3)


@given(st.lists(st.sampled_from([b"\x1b[", b"38;5;", b"38;2;", b"m", b"999999999999", b";", b"1", b"x", b"\x1b"])))
def test_no_colour_sequence_is_an_error(parts: list[bytes]) -> None:
    assert "\x1b" not in shown(b"".join(parts))


def test_the_buffer_is_bounded_in_lines_and_bytes() -> None:
    buffer = LogLines(lines=100, size=1000)
    buffer.add(pack_lines([b"x" * 9] * 500))
    assert (buffer.first, buffer.end) == (400, 500)
    buffer.add(pack_lines([b"y" * 400] * 3))
    assert buffer.kept.size <= 1000
    assert buffer.end == 503


def test_a_follower_counts_skipped_lines() -> None:
    logs = FakeLogs()
    logs.ends = True
    logs.lines[1] = [b"x"] * (INBOX + 500)
    follower = LogFollower(logs, 1, None)
    follower.start()
    assert follower.join(60)
    lines, skipped = follower.take()
    assert (len(lines), skipped) == (INBOX, 500)
    lines, skipped = follower.take()
    assert (len(lines), skipped) == (0, 0)
    assert follower.is_over


def test_closing_ends_the_thread_even_while_nothing_is_written() -> None:
    logs = FakeLogs()
    follower = LogFollower(logs, 1, None)
    follower.start()
    assert logs.opened_event.wait(60)
    assert logs.streams[1].all_read.wait(60)
    follower.close()
    assert follower.join(60)


def flood(count: int, done: threading.Event) -> Iterator[bytes]:
    for i in range(count):
        yield b"line %d" % i
    done.set()


async def test_a_flood_keeps_memory_bounded_and_costs_one_repaint_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console()
    done = threading.Event()
    console.logs.lines[101] = flood(100_000, done)
    async with console.app.run_test(size=SIZE) as pilot:
        pane = console.app.screen.query_one(LogPane)
        await console.begin(pilot)
        assert await asyncio.to_thread(done.wait, 30)
        repaint, painted = pane.repaint, 0

        def counted(*, is_same: bool = False) -> None:
            nonlocal painted
            painted += 1
            repaint(is_same=is_same)

        monkeypatch.setattr(pane, "repaint", counted)
        for _ in range(3):
            painted = 0
            pane.tick()
            assert painted <= 1
        assert pane.reading.lines.end + pane.reading.lines.skipped == 100_000
        assert pane.reading.lines.end - pane.reading.lines.first <= 20_000
        assert len(pane.reading.painter.strips) <= 500
        await pilot.pause()
        assert "line 99999" in console.screen_text


async def test_the_log_follows_the_cursor_and_f_goes_into_it_and_back() -> None:
    console = Console()
    console.logs.lines = {101: [b"first"], 104: [b"second"]}
    async with on_screen(console, SIZE) as (_, pilot):
        await console.read_log(pilot, 101)
        assert "first" in console.screen_text
        console.logs.opened_event.clear()
        for key in "jjk":
            console.app.simulate_key(key)  # all at once: on a slow machine the cursor would rest between presses
        await console.read_log(pilot, 104)
        assert "LOG #104 resnet-ablation" in console.screen_text
        assert [opened[0] for opened in console.logs.opened] == [101, 104], "rows that were passed open no log"
        assert console.logs.streams[101].closed.is_set()
        pane = console.app.screen.query_one(LogPane)
        await pilot.press("f")
        assert console.app.focused is pane
        assert "second" in console.screen_text
        await pilot.press("f")
        assert console.app.focused is not pane
        await pilot.press("j", "j")
        await until(pilot, lambda: "Job 106 has not started: needs 8 GPUs" in console.screen_text)
        assert pane.follower is None
    assert console.logs.streams[104].closed.is_set()


async def test_a_pinned_log_stays_while_the_cursor_moves() -> None:
    console = Console()
    console.logs.lines = {101: [b"first"], 104: [b"second"]}
    async with on_screen(console, SIZE) as (_, pilot):
        await console.read_log(pilot, 101)
        await pilot.press("p")
        assert "LOG #101 llama-7b-sft  ● pinned" in console.screen_text
        await pilot.press("j")
        await asyncio.sleep(0.3)  # longer than the cursor has to rest
        assert [opened[0] for opened in console.logs.opened] == [101]
        console.logs.opened_event.clear()
        await pilot.press("f")  # asking for a log ends that
        await console.read_log(pilot, 104)
        assert "● pinned" not in console.screen_text


async def test_the_next_attempt_is_followed_when_it_starts() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        await console.read_log(pilot, 101)
        again = sample.secret_job()
        console.logs.opened_event.clear()
        await console.show(pilot, sample.with_job(console.snapshot, [again]))
        assert await asyncio.to_thread(console.logs.opened_event.wait, 60)
        assert [opened[0] for opened in console.logs.opened] == [101, 101]
        await console.show(pilot, sample.with_job(console.snapshot, [again.evolve(priority=1)]))
        assert len(console.logs.opened) == 2


async def test_scrolling_up_pauses_and_the_end_follows_again() -> None:
    console = Console()
    console.logs.lines[101] = [b"line %d" % i for i in range(300)]
    async with on_screen(console, SIZE) as (_, pilot):
        await console.read_log(pilot, 101)
        pane = console.app.screen.query_one(LogPane)
        pane.focus()
        assert "line 299" in console.screen_text
        await pilot.press("k")
        assert not pane.follows
        assert "line 299" not in console.screen_text
        assert "paused, 1 line below" in console.screen_text
        pane.reading.lines.add(pack_lines([b"new"]))
        await pilot.press("k")
        assert "paused, 3 lines below" in console.screen_text
        await pilot.press("G")
        assert "new" in console.screen_text
        await pilot.press("g")
        assert "line 0" in console.screen_text
        await pilot.press("space")
        assert "new" in console.screen_text


async def test_an_unreadable_log_says_why_in_its_pane() -> None:
    console = Console()
    console.logs.error = NotFoundError("its log was removed", hint="see gputui show 101")
    async with on_screen(console, SIZE) as (_, pilot):
        pane = console.app.screen.query_one(LogPane)
        assert pane.follower is not None
        assert await asyncio.to_thread(pane.follower.join, 10)
        pane.tick()
        await pilot.pause()
        assert "The log cannot be read: its log was removed (see gputui show 101)" in console.screen_text
        assert "  ended" not in console.screen_text


@cases("read_only", [False, True])
async def test_a_pane_without_a_log_has_hints_and_the_keys_of_logs(read_only: bool) -> None:
    console = Console(sample.empty_queue(), console=ConsoleSettings("off", read_only=read_only))
    async with on_screen(console, (200, 50)):
        assert "No log, for the queue is empty." in console.screen_text
        assert ("s submits a job" in console.screen_text) != read_only
        assert re.search(r"^ +e +To the first error in the job's log", console.screen_text, re.MULTILINE)
        assert re.search(r"^ +S +Save the whole log to a file", console.screen_text, re.MULTILINE)
        assert console.logs.opened == []


def test_colours_last_over_lines_until_they_are_reset() -> None:
    buffer = LogLines(lines=3)
    buffer.add(pack_lines([b"\x1b[31mTraceback:", b"  line 1", b"\x1b[0m\x1b[1mlast", b"bold", b"\x1b[mplain"]))
    shown = [
        log_spans(raw, buffer.style_before(number))
        for number, raw in enumerate(buffer.kept.between(0, 9), buffer.first)
    ]
    [(_, bold)] = shown[1]
    assert [style.bold for _, style in shown[0]] == [True]
    assert bold.bold
    assert bold.color is None or bold.color == PLAIN.color
    assert buffer.style_before(1) is PLAIN  # gone with its line
    assert buffer.style_before(buffer.end) is PLAIN


def test_a_colour_that_is_left_on_reaches_the_next_line_but_not_past_skipped_ones() -> None:
    buffer = LogLines()
    buffer.add(pack_lines([b"\x1b[31mred", b"still"]))
    assert log_spans(b"still", buffer.style_before(1)) == log_spans(b"\x1b[31mstill")
    buffer.add(pack_lines([b"after"]), skipped=5)
    assert buffer.style_before(2) is PLAIN


async def test_new_lines_are_shown_at_once_and_a_silent_log_costs_nothing() -> None:
    console = Console()
    more: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    console.logs.lines[101] = iter(more.get, b"")
    async with on_screen(console, SIZE) as (_, pilot):
        pane = console.app.screen.query_one(LogPane)
        for word in (b"one", b"two", b"three"):
            more.put(word)
            async with asyncio.timeout(60):
                while word.decode() not in console.screen_text:
                    await pilot.pause(0.01)
        timers = list(pane._timers)  # noqa: SLF001 - Textual has no public list of them
        assert not timers, "nothing ticks while nothing is written"
        more.put(b"")
