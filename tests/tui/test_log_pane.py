"""Commands of a shown log: errors, earlier lines, wrapping, times, copying and saving."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from textual.geometry import Region
from textual.widgets import Input

from gputui.domain.errors import NotFoundError
from gputui.domain.job_spec import JobId
from gputui.ports.backend import LogRequest
from gputui.runtime.process.log import FileLogStream
from gputui.tui.present.log import STAMP_WIDTH, kept_part, stamp_words, without_stamp
from gputui.tui.screens.dialogs import Confirm, Prompt
from gputui.tui.screens.log_pane import LogPane, save_log
from gputui.tui.widgets.log_follower import TAIL, KnownLines, LogFollower, read_earlier
from gputui.tui.widgets.log_lines import EARLIER, LogLines, pack_lines
from gputui.tui.widgets.log_model import MOST_COPIED, copied_text
from tests.tui import sample
from tests.tui.console import Console, FakeLogs, on_screen, until
from tests.tui.reader import NUMBERED, begun, looked, reading

pytestmark = pytest.mark.usefixtures("drawn")

SIZE = (100, 40)
LONG = [b"line %d" % i for i in range(9000)]
TRACE = [
    b"Traceback (most recent call last):",
    b'  File "/app/train.py", line 88, in <module>',
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
]


def always() -> bool:
    return True


def follower_of(lines: list[bytes]) -> LogFollower:
    logs = FakeLogs()
    logs.lines[1] = lines
    return LogFollower(logs, 1, None)


def known(lines: list[bytes], behind: int) -> KnownLines:
    return KnownLines(tuple(lines[len(lines) - behind :][:64]), behind)


@given(st.integers(1, 300), st.integers(0, 120), st.integers(0, 40), st.integers(1, 3))
def test_earlier_lines_are_found_in_a_growing_log(behind: int, wanted: int, grew: int, alike: int) -> None:
    lines = [b"%d" % (i // alike) for i in range(300)]
    later = follower_of([*lines, *(b"new %d" % i for i in range(grew))])
    earlier = read_earlier(later, known(lines, behind), wanted, always)
    start = 300 - behind
    assert earlier.lines.between(earlier.lines.first, earlier.lines.end) == lines[max(0, start - wanted) : start]
    assert earlier.is_start == (wanted >= start)


def test_identical_lines_are_not_duplicated() -> None:
    lines = [b"same"] * 300
    earlier = read_earlier(follower_of(lines), known(lines, 100), 1000, always)
    assert len(earlier.lines) == 200


def test_lines_that_cannot_be_located_are_reported_and_not_invented() -> None:
    earlier = read_earlier(follower_of(NUMBERED), KnownLines((b"other",), 1), 10, always)
    assert not earlier.lines
    assert "cannot be located" in earlier.fault
    far = read_earlier(follower_of(NUMBERED), KnownLines((b"line 0",), 10**6), 10, always)
    assert "too far back" in far.fault


@given(st.lists(st.binary(max_size=5), max_size=30), st.lists(st.binary(max_size=5), max_size=60), st.integers(1, 10))
def test_earlier_lines_are_bounded_and_numbered_downwards(late: list[bytes], early: list[bytes], most: int) -> None:
    buffer = LogLines(lines=most)
    buffer.add(pack_lines(late))
    before = dict(enumerate(buffer.kept.between(buffer.first, buffer.end), buffer.first))
    room = buffer.room
    kept = buffer.add_earlier(pack_lines(early, len(early)))
    assert kept <= room
    after = dict(enumerate(buffer.kept.between(buffer.first, buffer.end), buffer.first))
    assert {number: after[number] for number in before} == before
    assert len(after) <= most * EARLIER
    assert [after[number] for number in sorted(set(after) - set(before))] == early[len(early) - kept :]
    assert buffer.kept.size == sum(map(len, after.values()))


async def test_scrolling_above_memory_loads_earlier_lines_in_place() -> None:
    console = Console()
    console.logs.cuts_tails = True
    async with reading(LONG, console=console) as (_, pilot, pane):
        assert pane.reading.lines.line(pane.reading.lines.first) == LONG[-TAIL]
        pane.reading.window.show(pane.reading.lines.first)
        await pilot.press("k")
        await looked(pane, pilot)
        assert pane.reading.lines.line(pane.reading.lines.first) == LONG[-TAIL - 5000]
        top = pane.reading.rows[0].number
        assert pane.reading.lines.line(top) == LONG[-TAIL]
        await pilot.press("g")
        await looked(pane, pilot)
        assert "line 0 " in console.screen_text
        assert pane.reading.is_whole
        await pilot.press("G")
        assert "line 8999" in console.screen_text
        opened = len(console.logs.opened)
        await pilot.press("g")
        await looked(pane, pilot)
        assert len(console.logs.opened) == opened, "all of it is there"


async def test_the_first_error_is_found_even_before_memory_and_then_the_next() -> None:
    console = Console()
    console.logs.cuts_tails = True
    lines = [*LONG[:3000], *TRACE, *LONG[3000:], b"srun: error: node1: task 0: Exited with exit code 1"]
    async with console.app.run_test(size=SIZE) as pilot:
        pane = await begun(console, pilot, lines)
        await pilot.press("e")
        await looked(pane, pilot)
        assert "▶Traceback (most recent call last)" in console.screen_text
        assert "error 1 of 3: traceback" in console.screen_text
        assert "✗torch.OutOfMemoryError" in console.screen_text
        await pilot.press("e")
        await looked(pane, pilot)
        assert "error 2 of 3: out of memory" in console.screen_text
        await pilot.press("e")
        await looked(pane, pilot)
        assert "▶srun: error" in console.screen_text
        await pilot.press("E")
        await looked(pane, pilot)
        assert "error 2 of 3" in console.screen_text


async def test_the_error_of_a_failed_job_is_found_within_five_keys_of_the_main_screen() -> None:
    console = Console()
    console.logs.ends = True
    console.logs.lines[92] = [*NUMBERED, *TRACE, *NUMBERED]
    async with on_screen(console, (80, 24)) as (_, pilot):
        console.logs.opened_event.clear()
        await pilot.press(*"ajj", "e")
        await console.read_log(pilot, 92)
        pane = console.app.screen.query_one(LogPane)
        await looked(pane, pilot)
        assert console.app.focused is pane
        assert "▶Traceback (most recent call last)" in console.screen_text


async def test_unreadable_earlier_lines_are_reported() -> None:
    console = Console()
    console.logs.cuts_tails = True
    async with reading(LONG, console=console) as (_, pilot, pane):
        console.logs.error = NotFoundError("it was removed")
        await pilot.press("g")
        await looked(pane, pilot)
        assert "earlier lines cannot be read: it was removed" in console.screen_text
        console.logs.error = None
        await pilot.press("g")
        await looked(pane, pilot)
        assert "line 0 " in console.screen_text


async def test_an_error_is_found_in_the_last_lines_if_earlier_ones_are_unreadable() -> None:
    console = Console()
    console.logs.cuts_tails = True
    async with reading([*LONG, *TRACE], console=console) as (_, pilot, pane):
        console.logs.error = NotFoundError("it was removed")
        await pilot.press("e")
        await looked(pane, pilot)
        assert pane.reading.note == "earlier lines cannot be read: it was removed"
        assert "▶Traceback (most recent call last)" in console.screen_text


async def test_long_lines_are_broken_and_cut_again() -> None:
    async with reading([*NUMBERED, b"\x1b[31m" + b"a" * 79 + b"b" * 79 + b"END", b"last"], (80, 40)) as (
        console,
        pilot,
        pane,
    ):
        assert "bEND" not in console.screen_text
        await pilot.press("b")
        rows = [(row.number, row.part) for row in pane.reading.rows][-4:]
        assert rows == [(300, 0), (300, 1), (300, 2), (301, 0)]
        assert " " + "b" * 79 in console.screen_text
        assert "END" in console.screen_text
        await pilot.press("k")
        assert not pane.follows
        await pilot.press("G", "b")
        assert "bEND" not in console.screen_text


async def test_times_are_shown_where_they_are_known() -> None:
    console = Console()
    console.logs.is_stamped = True
    lines = [b"2026-11-21T10:02:%02d.123456789Z loss %d" % (i, i) for i in range(60)]
    async with console.app.run_test(size=SIZE) as pilot:
        pane = await begun(console, pilot, lines)
        assert "2026" not in console.screen_text.split("LOG")[1]
        await pilot.press("D")
        assert "10:02:59.123 loss 59" in console.screen_text
        await pilot.press("slash", *"^loss 57$", "enter")
        await looked(pane, pilot)
        assert "1 of 1" in console.screen_text
    async with reading(NUMBERED) as (console, pilot, _):
        await pilot.press("D")
        assert "no timestamps" in console.screen_text


@given(st.binary(max_size=60))
def test_a_stamp_is_taken_off_once_and_anything_else_is_left(raw: bytes) -> None:
    stamped = b"2026-11-21T10:02:04.5Z " + raw
    assert without_stamp(stamped) == raw
    assert stamp_words(stamped) == "10:02:04.500 "
    assert len(stamp_words(raw)) == STAMP_WIDTH
    assert stamp_words(b"2026-13-41T10:02:04Z x") == " " * STAMP_WIDTH, "no such month"


async def test_lines_are_picked_by_key_and_copied_without_their_colours() -> None:
    async with reading([b"\x1b[31mred\x1b[0m \x1b]52;c;aGk=\x07%d" % i for i in range(300)]) as (console, pilot, pane):
        top = pane.reading.rows[0].number
        await pilot.press("V", "j", "j")
        assert "3 lines selected" in console.screen_text
        await pilot.press("y")
        assert console.app.clipboard == "\n".join(f"red {top + i}" for i in range(3))
        assert "sent to the terminal's clipboard (OSC 52): 3 lines" in console.told
        assert not pane.reading.selection.is_on
        await pilot.press("y")
        assert len(console.app.clipboard.splitlines()) == pane.height
        await pilot.press("V", "escape")
        assert not pane.reading.selection.is_on


def test_nothing_is_copied_by_itself_and_copies_are_bounded() -> None:
    buffer = LogLines()
    buffer.add(pack_lines([b"x" * 4000] * 100))
    text, count = copied_text(buffer, list(range(100)))
    assert len(text) <= MOST_COPIED
    assert count == len(text.splitlines()) == MOST_COPIED // 4001


@given(st.lists(st.binary(max_size=80), max_size=6))
def test_copied_text_has_no_control_characters(lines: list[bytes]) -> None:
    buffer = LogLines()
    buffer.add(pack_lines(lines))
    text, _ = copied_text(buffer, list(range(len(lines))))
    assert not any((ord(char) < 0x20 and char != "\n") or 0x7F <= ord(char) < 0xA0 for char in text)


async def saved(console: Console, pane: LogPane, pilot: object, path: Path) -> None:
    """Save the log to a path, and wait for an answer."""
    await pilot.press("S")  # type: ignore[attr-defined]
    assert isinstance(console.app.screen, Prompt)
    console.app.screen.query_one(Input).value = str(path)
    await pilot.press("enter")  # type: ignore[attr-defined]


async def test_a_log_is_saved_byte_for_byte_and_no_file_is_overwritten_unasked(tmp_path: Path) -> None:
    console = Console()
    lines = [b"\x1b[31mred\x1b[0m", b"\xff\x00raw", b"last"]
    path = tmp_path / "out.log"
    async with console.app.run_test(size=SIZE) as pilot:
        pane = await begun(console, pilot, lines)
        await saved(console, pane, pilot, path)
        await until(pilot, lambda: bool(console.told))
        assert path.read_bytes() == b"\n".join(lines) + b"\n"
        assert path.stat().st_mode & 0o777 == 0o600
        assert console.told == [f"Saved 3 lines to {path}"]
        path.write_text("precious")
        await saved(console, pane, pilot, path)
        await until(pilot, lambda: isinstance(console.app.screen, Confirm))
        await pilot.press("n")
        assert path.read_text() == "precious"
        await saved(console, pane, pilot, path)
        await until(pilot, lambda: isinstance(console.app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: path.read_bytes().endswith(b"last\n"))
        await saved(console, pane, pilot, tmp_path / "no" / "such" / "folder")
        await until(pilot, lambda: any("No such file" in told for told in console.told))
    assert await asyncio.to_thread(lambda: [file.name for file in tmp_path.iterdir()]) == ["out.log"]


def test_a_file_created_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "out.log"

    def meanwhile() -> bool:
        path.write_text("precious")
        return True

    with pytest.raises(FileExistsError):
        save_log(follower_of([b"x"] * 1000), path, overwrite=False, is_wanted=meanwhile)
    assert path.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == ["out.log"]


def test_an_aborted_save_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InterruptedError):
        save_log(follower_of([b"x"] * 1000), tmp_path / "out.log", overwrite=False, is_wanted=lambda: False)
    assert list(tmp_path.iterdir()) == []


async def test_the_log_of_each_attempt_can_be_shown() -> None:
    console = Console(sample.with_job(sample.rich_snapshot(), [replace(sample.secret_job(), id=101)]))
    console.logs.attempts = {(101, 1): [b"first attempt"], (101, 2): [b"second attempt"]}
    async with reading([b"second attempt"], console=console) as (_, pilot, _):
        assert "attempt 2 of 2" in console.screen_text
        await pilot.press("comma")
        await until(pilot, lambda: "first attempt" in console.screen_text)
        assert "attempt 1 of 2" in console.screen_text
        await pilot.press("comma", "full_stop")
        await until(pilot, lambda: "second attempt" in console.screen_text)


async def test_while_it_is_paused_a_flood_paints_the_title_alone() -> None:
    async with reading(NUMBERED) as (console, pilot, pane):
        await pilot.press("space")
        await pilot.pause()
        asked: list[tuple[Region, ...]] = []
        refresh = pane.refresh
        pane.refresh = lambda *regions, **_: asked.append(regions) or refresh(*regions)  # type: ignore[func-returns-value, method-assign, redundant-expr]
        pane.reading.lines.add(pack_lines([b"more"] * 50))
        pane.repaint(is_same=True)
        await pilot.pause()
        assert asked == [(Region(0, 0, SIZE[0], 1),)]
        assert "50 lines below" in console.screen_text
        pane.reading.window.to_last()
        pane.repaint(is_same=True)
        assert asked[-2:] == [(Region(0, 1, SIZE[0], pane.size.height - 1),), (Region(0, 0, SIZE[0], 1),)]


class Bar:
    """Opener of a log in a file, which grows as the test wants."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def log(self, job_id: JobId, request: LogRequest) -> FileLogStream:
        return FileLogStream(self.path, tail=request.tail, follow=request.follow, is_over=lambda: False)

    def write(self, more: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(more)


async def test_the_last_state_of_a_progress_bar_is_the_last_row(tmp_path: Path) -> None:
    console, bar = Console(), Bar(tmp_path / "log")
    bar.write(b"".join(b"line %d\n" % number for number in range(100)) + b"epoch 1: 10%\repoch 1: 55%")
    async with console.app.run_test(size=SIZE) as pilot:
        pane = await begun(console, pilot, [])

        def rows() -> list[str]:
            return [pane.render_line(y).text.strip() for y in range(pane.size.height)]

        async def until_last(words: list[str]) -> None:
            await until(pilot, lambda: rows()[-len(words) :] == words)

        pane.follow(LogFollower(bar, 101, None), "101")
        await until_last(["line 99", "epoch 1: 55%"])
        bar.write(b"\repoch 1: 56%")
        await until_last(["line 99", "epoch 1: 56%"])
        await pilot.press("k")  # away from the end, where the bar is
        assert "epoch 1: 56%" not in rows()
        await pilot.press("G")
        bar.write(b"\repoch 1: 100%\n")
        await until_last(["line 99", "epoch 1: 100%"])
        assert pane.reading.lines.end == 101


def test_of_a_long_progress_bar_the_last_state_is_kept() -> None:
    bar = b"\r".join(b"%4d of 1000" % number for number in range(1001))
    stamp = b"2026-01-01T00:00:00.000000000Z "
    assert kept_part(bar) == kept_part(bar + b"\r").rstrip(b"\r") == b"1000 of 1000"
    assert kept_part(stamp + bar) == stamp + b"1000 of 1000"
    assert len(kept_part(b"x" * 9000)) == len(kept_part(b"x\r" + b"y" * 9000)) == 4096
