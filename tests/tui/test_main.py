"""The main screen: stability of the cursor, panes, filter, quitting, and the cost of a snapshot."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace
from textual.events import MouseScrollDown, Paste
from textual.widgets import Input

from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.tui.actions import ExitChoice
from gputui.tui.commands import BY_NAME
from gputui.tui.present.cells import Cell
from gputui.tui.screens.help import Context, Help
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.screens.pages import Detail
from gputui.tui.screens.panes import pane_of
from gputui.tui.textual_internals import ExactUpdate, bindings_of
from gputui.tui.widgets.gpu_grid import GpuGrid
from gputui.tui.widgets.job_table import JobTable
from gputui.tui.widgets.line_table import LineTable
from gputui.tui.widgets.queue_folding import FOLD
from gputui.tui.widgets.queue_tabs import Key
from gputui.tui.widgets.status_bars import StatusBar
from tests.cases import cases
from tests.factories import NOW, job
from tests.tui import sample
from tests.tui.console import Console, on_screen, steady, until

SIZE = (100, 30)


def queue(console: Console) -> JobTable:
    return console.app.screen_stack[0].query_one(JobTable)


def focused_id(console: Console) -> str | None:
    return pane_of(console.app.focused)


async def test_the_screen_is_drawn_before_the_first_snapshot() -> None:
    console = Console()
    async with console.app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "starting" in console.screen_text
        assert "Reading the GPUs" in console.screen_text


async def test_a_snapshot_published_before_the_start_is_shown() -> None:
    console = Console()
    console.feed.publish(console.snapshot)
    async with console.app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "llama-7b-sft" in console.screen_text


async def test_a_snapshot_from_another_thread_is_shown() -> None:
    console = Console()
    async with console.app.run_test(size=(80, 24)) as pilot:
        await asyncio.to_thread(console.feed.publish, console.snapshot)
        await pilot.pause()
        assert "llama-7b-sft" in console.screen_text


async def test_all_panes_fit_80x24() -> None:
    async with on_screen(Console(), (80, 24)) as (console, _):
        lines = console.screen_text.splitlines()
        assert len(lines) == 24
        assert sum("H100" in line for line in lines) == 1, "it is said once of GPUs that are alike"
        assert console.app.screen.query_one(JobTable).height >= 4
        assert console.app.screen.query_one(LogPane).height >= 4


async def test_the_cursor_stays_on_its_job_when_rows_move() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        await pilot.press(*"jjjj")
        assert queue(console).cursor == 107
        first = tuple(j for j in console.snapshot.jobs if j.id != 101)
        await console.show(pilot, replace(console.snapshot, jobs=first, order=(107, 110, 106, 108, 109)))
        assert queue(console).cursor == 107
        await console.show(pilot, replace(console.snapshot, order=(110, 109, 108, 106, 107)))
        assert queue(console).cursor == 107
        assert queue(console).job is not None


async def test_when_its_job_goes_the_cursor_takes_the_next_row() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        await pilot.press("j")
        assert queue(console).cursor == 104
        await console.show(
            pilot, replace(console.snapshot, jobs=tuple(j for j in console.snapshot.jobs if j.id != 104))
        )
        assert queue(console).cursor == 105
        await console.show(pilot, replace(console.snapshot, jobs=()))
        assert queue(console).cursor is None


async def test_keys_move_the_cursor() -> None:
    async with on_screen(Console(sample.many_jobs(200)), SIZE) as (console, pilot):
        table = queue(console)
        await pilot.press("G")
        assert table.cursor == 200
        assert table.row_at(table.height - 1) is None, "the number of hidden jobs has a line"
        await pilot.press("k", "up")
        assert table.cursor == 198
        await pilot.press("g", "down")
        assert (table.cursor, table.view.tops) == (2, (0, 0, 0))
        await pilot.press("pagedown")
        assert table.cursor == 2 + table.page - 1


async def test_the_mouse_selects_scrolls_and_opens() -> None:
    async with on_screen(Console(sample.many_jobs(200)), SIZE) as (console, pilot):
        table = queue(console)
        await pilot.click("#queue", offset=(10, 2 + table.head))
        assert table.cursor == 3
        x, y = table.region.x + 10, table.region.y + 2 + table.head
        console.app.post_message(MouseScrollDown(None, x, y, 0, 0, 0, False, False, False, x, y))
        await pilot.pause()
        assert (table.cursor, table.view.tops[1]) == (3, 3)
        await pilot.double_click("#queue", offset=(10, 2 + table.head))
        await pilot.pause()
        assert isinstance(console.app.screen, Detail)


async def test_tab_cycles_through_the_panes() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        seen = []
        for _ in range(3):
            await pilot.press("tab")
            seen.append(focused_id(console))
        assert seen == ["log", "gpus", "queue"]
        await pilot.press("shift+tab")
        assert focused_id(console) == "gpus"


async def test_the_filter_narrows_as_it_is_typed_and_escape_shows_all() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        await pilot.press("slash", *"alice")
        assert set(queue(console).keys) == {91, 92, 93, 101, 106, 108}
        await pilot.press(*" sft")
        assert list(queue(console).keys) == [101, 108]
        await pilot.press("enter", "j")
        assert queue(console).cursor == 108
        await pilot.press("escape")
        assert len(queue(console).keys) == 9
        assert queue(console).cursor == 108
        await pilot.press("slash", *"nothing like it")
        assert "No job matches 'nothing like it'" in console.screen_text


async def test_keys_typed_into_the_filter_are_text() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        await console.press(pilot, "slash", *"chrtdsPq")
        assert console.app.screen.query_one("#filter", Input).value == "chrtdsPq"
        assert console.audited() == []


async def test_ended_jobs_share_a_row_that_opens_by_keys_and_by_a_click() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        table = queue(console)
        folded = list(table.keys)
        assert folded[-1] == FOLD
        await pilot.press("G")
        assert "▸ ENDED 3, 2 failed" in console.screen_text
        await pilot.press("enter")
        assert list(table.keys) == [*folded, 93, 92, 91] or sorted(table.keys[len(folded) :]) == [91, 92, 93]
        opened = list(table.keys)
        await pilot.press("enter", "a", "a", "o")
        assert list(table.keys) == opened
        assert "▾ ENDED 3, 2 failed" in console.screen_text
        y = table.view.lines.index(len(folded) - 1)
        await pilot.click(JobTable, offset=(5, table.head + y))
        assert list(table.keys) == folded
        assert table.cursor == FOLD
        assert table.job is None


async def test_failures_are_new_until_they_were_viewed_or_acknowledged() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        table = queue(console)
        assert "new)" not in console.screen_text, "all are"
        await pilot.press("a")
        table.move_to(table.keys.index(92))
        await pilot.press("enter", "escape")
        await console.show(pilot, replace(console.snapshot, taken_at=NOW + timedelta(seconds=1)))
        assert "ENDED 3, 2 failed (1 new)" in console.screen_text
        await console.press(pilot, "Y")
        assert "failed in 1h" not in console.screen_text
        assert "ENDED 3, 2 failed" in console.screen_text
        assert "new)" not in console.screen_text
        assert console.told[-1] == "1 failure acknowledged"
        until = console.preferences.get("looked_at")["until"]
        assert until == max(
            job.ended_at.timestamp() for job in console.snapshot.jobs if job.ended_at and job.id in (92, 93)
        )
        await pilot.press("slash", *"is:failed", "enter")
        assert sorted(table.keys) == [92, 93]


async def test_zoom_gives_the_focused_pane_the_screen() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        await pilot.press("z")
        await pilot.pause()
        assert queue(console).size.height == 26
        await pilot.press("tab")
        await until(pilot, lambda: focused_id(console) == "log" and console.app.query_one(LogPane).size.height == 26)
        await pilot.press("z")
        await pilot.pause()
        assert queue(console).size.height > 0


@cases(
    ("hand_over", "leads", "keys", "how"),
    [
        ("auto", False, ("q",), ExitChoice.PLAIN),
        ("auto", True, ("q", "enter"), ExitChoice.HAND_OVER),
        ("auto", True, ("q", "b"), ExitChoice.HAND_OVER),
        ("auto", True, ("q", "s"), ExitChoice.STOP),
        ("always", True, ("q",), ExitChoice.HAND_OVER),
        ("never", True, ("ctrl+c",), ExitChoice.STOP),
        ("auto", True, ("ctrl+q", "s"), ExitChoice.STOP),
        ("auto", True, ("question_mark", "ctrl+q", "ctrl+q", "b"), ExitChoice.HAND_OVER),
        ("auto", False, ("s", "ctrl+q"), ExitChoice.PLAIN),
        ("auto", False, ("s", "a", "ctrl+c", "y"), ExitChoice.PLAIN),
        ("never", True, ("P", "ctrl+c"), ExitChoice.STOP),
    ],
)
async def test_the_leave_dialog_chooses_the_way_to_exit(
    hand_over: str, leads: bool, keys: tuple[str, ...], how: ExitChoice
) -> None:
    async with on_screen(Console(sample.rich_snapshot() if leads else sample.viewer(), hand_over=hand_over), SIZE) as (
        console,
        pilot,
    ):
        await pilot.press(*keys)
    assert console.app.return_value is how


@cases(
    ("form", "day", "key"),
    [
        ("s", sample.rich_snapshot, "ctrl+q"),
        ("s", sample.viewer, "ctrl+c"),
        ("B", sample.rich_snapshot, "ctrl+c"),
        ("B", sample.viewer, "ctrl+q"),
    ],
)
async def test_the_input_of_a_form_outlives_the_question(form: str, day: Callable[[], Snapshot], key: str) -> None:
    async with on_screen(Console(day()), SIZE) as (console, pilot):
        await console.press(pilot, form, "x", key)
        assert "Your input in the form will be lost" in console.screen_text
        await console.press(pilot, "n")
        assert console.app.is_running
        focused = console.app.focused
        assert isinstance(focused, Input)
        assert focused.value.endswith("x")


async def test_ctrl_z_says_why_the_console_does_not_stop() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        for keys in ((), ("s",), ("escape", "question_mark")):
            await console.press(pilot, *keys, "ctrl+z")
            assert "Not stopped: jobs would wait for its scheduler." in console.told[-1]


async def test_text_pasted_outside_of_fields_is_ignored_and_that_is_said() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        console.app.post_message(Paste("export PATH=/x"))
        await console.settle(pilot)
        assert console.told == ["Pasted text ignored, as only fields take text: export PATH=/x"]
        await console.press(pilot, "slash")
        console.app.post_message(Paste("alice"))
        await console.settle(pilot)
        assert console.app.screen.query_one("#filter", Input).value == "alice"
        assert console.audited() == []


async def test_only_tab_is_inherited_from_textual() -> None:
    """Keys that nobody has declared come with an update of Textual: each is wanted, or left out."""
    async with on_screen(Console(), SIZE) as (console, _):
        for screen in (console.app.screen, Help(Context.of(console.app.screen))):
            if screen is not console.app.screen:
                await console.app.push_screen(screen)
            bound = [*bindings_of(console.app), *bindings_of(screen)]
            assert {one.key for one in bound if one.id not in BY_NAME} <= {"tab", "shift+tab", "space", "escape"}


async def test_an_action_under_way_is_carried_out_before_leaving() -> None:
    async with on_screen(Console(sample.viewer()), SIZE) as (console, pilot):
        await pilot.press("t", *"jjj", "h", "q")
    assert console.audited() == [("hold", "job 106")]


async def test_messages_after_the_end_are_ignored() -> None:
    async with on_screen(Console(), SIZE) as (console, _):
        pass
    console.feed.publish(console.snapshot)
    assert console.feed._subscribers == []  # noqa: SLF001 - nothing else tells who listens


async def test_queued_snapshots_are_replaced_by_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        shown: list[Snapshot] = []
        monkeypatch.setattr(type(console.app.pacer), "take", lambda _, snapshot: shown.append(snapshot))
        ages = [replace(console.snapshot, taken_at=NOW + timedelta(seconds=second)) for second in range(3)]
        for snapshot in ages:
            console.feed.publish(snapshot)
        await until(pilot, lambda: bool(shown))
        await pilot.pause()
        assert shown == ages[-1:]


async def test_detail_follows_its_job() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        await pilot.press("enter")
        assert "RUNNING" in console.screen_text
        ended = sample.jobs()[3].evolve(state=JobState.COMPLETED, exit_code=0, ended_at=NOW)
        await console.show(pilot, sample.with_job(console.snapshot, [ended]))
        await until(pilot, lambda: "COMPLETED" in console.screen_text)  # the page lays out its log first
        await console.show(pilot, replace(console.snapshot, jobs=()))
        assert "COMPLETED" in console.screen_text


async def test_nothing_is_drawn_behind_another_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        await pilot.press("enter")
        await pilot.pause()
        made = cells_made(queue(console), monkeypatch)
        await console.show(pilot, replace(console.snapshot, taken_at=NOW + timedelta(seconds=1)))
        assert not made
        await pilot.press("escape")
        assert made


def cells_made(table: JobTable, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the column of each cell that the table creates from now on."""
    made: list[str] = []
    cell_of = table.cell_of

    def noted(key: Key, column: str, room: int) -> Cell:
        made.append(column)
        return cell_of(key, column, room)

    monkeypatch.setattr(table, "cell_of", noted)
    return made


async def test_the_cost_of_a_key_depends_on_visible_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random keys over 10,000 jobs: the jobs are not sorted again, and only visible rows are built."""
    console = Console(sample.many_jobs(10_000))
    keys = ("j", "k", "G", "g", "pagedown", "pageup", "down", "up", "tab", "shift+tab")
    rng = random.Random(3)
    async with on_screen(console, (200, 50)) as (_, pilot):
        table = queue(console)
        order, made = table.rows.keys, cells_made(table, monkeypatch)
        for _ in range(60):
            made.clear()
            await pilot.press(rng.choice(keys))
            assert made.count("id") <= 3 * table.height
        assert table.rows.keys is order


async def test_a_snapshot_of_the_same_jobs_sorts_nothing() -> None:
    async with on_screen(Console(sample.many_jobs(1000)), SIZE) as (console, pilot):
        order = queue(console).rows.keys
        await console.show(pilot, replace(console.snapshot, taken_at=NOW + timedelta(seconds=1)))
        assert queue(console).rows.keys is order


async def test_typing_a_filter_sorts_nothing() -> None:
    async with on_screen(Console(sample.many_jobs(2000)), SIZE) as (console, pilot):
        order = queue(console).rows.keys
        await pilot.press("slash", *"sweep-1")
        assert 0 < len(queue(console).keys) < 2000
        await pilot.press("escape")
        assert queue(console).rows.keys == order


@pytest.mark.usefixtures("drawn_at_once")
async def test_only_cells_that_changed_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second in which eight busy GPUs change costs well under 2 kB at 200x50."""
    console = Console()
    sent: list[int] = []
    render = ExactUpdate.render_segments
    async with on_screen(console, (200, 50)) as (_, pilot):
        await console.show(pilot, sample.with_node(gpus=tuple(sample.busy(i, 101) for i in range(8))))
        await steady(pilot)

        def spy(screen: object, update: object) -> None:
            if isinstance(update, ExactUpdate):
                sent.append(len(render(update, console.app.console).encode()))

        monkeypatch.setattr(console.app, "_display", spy)
        moved = []
        for i in range(8):
            gpu = sample.busy(i, 101)
            assert gpu.sample is not None
            reading = replace(gpu.sample, utilization=0.31, power=401.0 + i, temperature=71.0)
            moved.append(replace(gpu, sample=reading))
        console.clock.advance(1)
        await console.show(pilot, sample.with_node(gpus=tuple(moved)))
        await pilot.pause(0.1)
    assert 200 < sum(sent) < 2500


async def test_an_unchanged_snapshot_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console()
    refreshed: list[object] = []
    async with on_screen(console, (200, 50)) as (_, pilot):
        for table in console.app.screen.query(LineTable):
            monkeypatch.setattr(table, "refresh", lambda *regions, **_: refreshed.append(regions))
        await console.show(pilot, replace(sample.rich_snapshot(), jobs=console.snapshot.jobs))
        assert refreshed == []


async def test_a_gpu_cursor_stays_on_its_gpu_when_one_drops_out() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        grid = console.app.screen.query_one(GpuGrid)
        grid.move_to(5)
        uuid = grid.cursor
        await console.show(pilot, sample.with_node(gpus=sample.gpus()[2:]))
        assert grid.cursor == uuid


async def test_the_pane_says_how_many_jobs_are_hidden() -> None:
    async with on_screen(
        Console(sample.rich_snapshot(jobs=tuple(job(i) for i in range(1, 101)), order=tuple(range(1, 101)))), SIZE
    ) as (console, _):
        assert re.search(r"\+9\d waiting", console.screen_text)


async def test_a_busy_thread_yields_to_keys() -> None:
    before = sys.getswitchinterval()
    try:
        async with Console().app.run_test(size=SIZE):
            assert sys.getswitchinterval() <= 0.001
    finally:
        sys.setswitchinterval(before)


async def test_the_screen_goes_on_below_a_dialog_but_not_below_a_page() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        bar = console.app.screen_stack[0].query_one(StatusBar)
        await console.press(pilot, "s")
        console.clock.advance(61)
        await console.show(pilot, replace(sample.paused(), taken_at=console.clock.now()))
        assert "PAUSED" in "".join(segment.text for segment in bar.render_line(0))
        assert bar.time == "12:01:01"
        await console.press(pilot, "escape")
        assert bar.time == "12:01:01"
        await console.press(pilot, "enter")
        await console.show(pilot, sample.rich_snapshot())
        assert "PAUSED" in "".join(segment.text for segment in bar.render_line(0)), "a page covers it"
