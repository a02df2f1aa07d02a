"""The queue's pane: marks and bulk actions, the filter's line, sorting, columns, folded rows and tabs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input

from gputui.domain.job import ArrayRef, Job
from gputui.domain.settings import Window
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.tui.actions import ExitChoice
from gputui.tui.preferences import Preferences
from gputui.tui.present.job import job_title
from gputui.tui.screens.dialogs import ColumnChooser
from gputui.tui.screens.pages import Detail
from gputui.tui.screens.what_if import WhatIf
from gputui.tui.widgets.job_table import JobTable
from gputui.tui.widgets.queue_folding import FOLD
from gputui.tui.widgets.queue_rows import COLUMNS, USUAL, ChosenColumns
from gputui.tui.widgets.status_bars import FieldNames
from tests.factories import NOW, job, recurring, running, uuid
from tests.tui import sample
from tests.tui.console import Console, on_screen, steady, until

SIZE = (120, 36)


def queue(console: Console) -> JobTable:
    return console.app.screen_stack[0].query_one(JobTable)


def test_an_element_of_an_array_is_named_with_its_place() -> None:
    titles = {job_title(job) for job in with_array().jobs}
    assert {"#10_0 sweep", "#10_5 sweep", "#30 eval"} < titles


def with_array() -> Snapshot:
    """Return a snapshot with array 10, of which two elements run and four wait, and its dependents."""
    elements = [job(10 + i, name="sweep", gpus=1, age=500, array=ArrayRef(10, i, 2)) for i in range(6)]
    active = [
        element.evolve(state=JobState.RUNNING, started_at=NOW, attempts=running(1, on=(uuid(i),)).attempts)
        for i, element in enumerate(elements[:2])
    ]
    waiting = (*elements[2:], job(30, name="eval", after=(101,)), job(31, name="plot", after=(30,)))
    jobs = (*active, *waiting, *sample.jobs())
    order = (106, 12, 13, 107, 14, 15, 30, 31, 108, 110, 109)
    return sample.rich_snapshot(jobs=tuple(sorted(jobs, key=lambda job: job.id)), order=order)


async def test_a_covered_queue_loses_jobs_and_gains_room_for_tabs() -> None:
    async with on_screen(Console(sample.many_jobs(60)), (80, 24)) as (console, pilot):
        assert queue(console).head == 1
        await console.press(pilot, "question_mark")
        await console.resize(pilot, 120, 50)
        left = console.snapshot.jobs[30:]
        await console.show(pilot, replace(console.snapshot, jobs=left, order=tuple(job.id for job in left)))
        await console.press(pilot, "escape")
        await steady(pilot)
        assert queue(console).head == 2
        assert list(queue(console).keys) == [job.id for job in left]


class TestMarks:
    async def test_a_command_acts_on_marked_jobs_only(self) -> None:
        async with on_screen(Console(), SIZE) as (console, pilot):
            console.select(106)
            await console.press(pilot, "space", "space", "j", "space")
            assert set(queue(console).live.marks) == {106, 107, 110}
            assert "3 marked" in console.screen_text
            await console.press(pilot, "h")
            assert console.audited() == [("hold", "job 106"), ("hold", "job 107"), ("hold", "job 110")]
            assert console.told[-1] == "3 jobs are held: r releases them"

    async def test_marks_follow_their_jobs(self) -> None:
        async with on_screen(Console(), SIZE) as (console, pilot):
            console.select(107)
            await pilot.press("space")
            order = (110, 109, 108, 107, 106)
            await console.show(pilot, replace(console.snapshot, order=order))
            assert set(queue(console).live.marks) == {107}
            left = tuple(job for job in console.snapshot.jobs if job.id != 107)
            await console.show(pilot, replace(console.snapshot, jobs=left))
            assert not queue(console).live.marks

    async def test_all_shown_jobs_are_marked_and_escape_unmarks_first(self) -> None:
        async with on_screen(Console(), SIZE) as (console, pilot):
            await pilot.press("slash", *"alice", "enter", "asterisk")
            assert set(queue(console).live.marks) == {101, 106, 108}
            await pilot.press("escape")
            assert not queue(console).live.marks
            assert len(queue(console).keys) == 6
            await pilot.press("escape")
            assert len(queue(console).keys) == 9

    async def test_one_what_if_covers_all_suitable_marked_jobs(self) -> None:
        async with on_screen(Console(what_if="always"), SIZE) as (console, pilot):
            await pilot.press("asterisk", "h")
            panel = console.app.screen
            assert isinstance(panel, WhatIf)
            assert panel.proposal.job_ids == (106, 107, 108, 110)
            await pilot.pause()
            assert "4 jobs (106, 107, 108 and 110): hold them" in console.screen_text
            await console.press(pilot, "enter")
            assert [target for verb, target in console.audited()] == ["job 106", "job 107", "job 108", "job 110"]

    async def test_the_cost_of_a_bulk_cancel_is_shown(self) -> None:
        async with on_screen(Console(what_if="always"), SIZE) as (console, pilot):
            await pilot.press("asterisk", "c")
            await pilot.pause()
            assert "3 running jobs" in console.screen_text
            assert "5 waiting jobs will not be started" in console.screen_text

    async def test_a_job_that_changed_its_state_meanwhile_is_reported(self) -> None:
        async with on_screen(Console(what_if="always"), SIZE) as (console, pilot):
            await pilot.press("asterisk", "h")
            changed = [job for job in console.snapshot.jobs if job.id == 106]
            await console.show(pilot, sample.with_job(console.snapshot, [changed[0].evolve(held=True)]))
            assert "This can still be done to 3 of these 4 jobs only" in console.screen_text


class TestFilter:
    async def test_an_invalid_filter_is_reported_and_the_previous_one_holds(self) -> None:
        async with on_screen(Console(), SIZE) as (console, pilot):
            await pilot.press("slash", *"tenant:bob")
            shown = list(queue(console).keys)
            field = console.app.screen.query_one("#filter", Input)
            field.value = "tenant:bob nam:x"
            await pilot.pause()
            assert "there is no field 'nam'" in console.screen_text
            assert list(queue(console).keys) == shown
            field.value = "tenant:bob is:foo"
            await pilot.pause()
            told = " ".join(console.screen_text.split())
            assert "'foo' is not one of its values: one of running, waiting, held, starting, ending, " in told
            assert "or a state: pending, configuring, completing, timeout, out_of_memory" in told
            field.value = "tenant:bob nam:x"
            await pilot.press("enter")
            assert console.app.focused is field, "it is typed further, and no key falls through to the queue"
            await pilot.press("end", *["backspace"] * 2)
            assert "there is no field" not in console.screen_text
            await pilot.press("enter")
            assert console.app.focused is not field

    async def test_up_recalls_earlier_input_even_after_a_restart(self, tmp_path: Path) -> None:
        preferences = Preferences(tmp_path / "console.json")
        async with on_screen(Console(preferences=preferences), SIZE) as (console, pilot):
            await pilot.press("slash", *"bob", "enter", "escape", "slash", *"gpus>=4", "enter", "escape")
        async with on_screen(Console(preferences=Preferences(tmp_path / "console.json")), SIZE) as (console, pilot):
            await pilot.press("slash", "up")
            assert console.app.screen.query_one("#filter", Input).value == "gpus>=4"
            await pilot.press("up")
            assert console.app.screen.query_one("#filter", Input).value == "bob"
            await pilot.press("down", "down")
            assert console.app.screen.query_one("#filter", Input).value == ""

    async def test_names_of_fields_are_completed(self) -> None:
        suggest = FieldNames().get_suggestion
        assert await suggest("state:pd te") == "state:pd tenant:"
        assert await suggest("-prio") == "-priority>"
        assert await suggest("xyz") is None
        assert await suggest("tenant:al") is None


class TestSorting:
    async def test_the_sort_key_cycles_through_the_columns(self) -> None:
        async with on_screen(Console(), SIZE) as (console, pilot):
            planned = list(queue(console).keys)
            await pilot.press("S")
            assert list(queue(console).keys) == [101, 104, *sorted(planned[2:-1]), FOLD], "each section by itself"
            assert "by ID ▲" in console.screen_text
            await pilot.press("S", "S")
            assert queue(console).keys[queue(console).rows.extent.running] == 106
            assert "by PRI ▼" in console.screen_text
            for _ in range(20):
                if queue(console).rows.sorting.is_planned:
                    break
                await pilot.press("S")
            assert list(queue(console).keys) == planned

    async def test_a_click_on_a_title_sorts_and_a_second_one_reverses(self) -> None:
        async with on_screen(Console(), SIZE) as (console, pilot):
            table = queue(console)
            await pilot.click(JobTable, offset=(3, table.head - 1))
            waiting = list(table.keys[table.rows.extent.running : -1])
            assert waiting == sorted(waiting)
            await pilot.click(JobTable, offset=(3, table.head - 1))
            assert list(table.keys[table.rows.extent.running : -1]) == waiting[::-1]
            assert table.keys[-1] == FOLD

    async def test_a_new_snapshot_keeps_the_order_and_the_job_of_the_cursor(self) -> None:
        async with on_screen(Console(), SIZE) as (console, pilot):
            await pilot.press("S", "j", "j")
            cursor = queue(console).cursor
            more = (*console.snapshot.jobs, job(90, name="earlier"))
            await console.show(pilot, replace(console.snapshot, jobs=more))
            assert queue(console).keys[queue(console).rows.extent.running] == 90
            assert queue(console).cursor == cursor


class TestColumns:
    async def test_columns_are_chosen_ordered_and_remembered(self, tmp_path: Path) -> None:
        preferences = Preferences(tmp_path / "console.json")
        async with on_screen(Console(preferences=preferences), (200, 50)) as (console, pilot):
            await console.press(pilot, "vertical_line")
            assert isinstance(console.app.screen, ColumnChooser)
            await console.press(pilot, "j", "space", "j", "j", "J", "enter")
            titles = [p.column.key for p in queue(console).placed]
            assert titles[:4] == ["id", "priority", "tenant", "name"]
            assert "state" not in titles
        assert ChosenColumns.of(Preferences(tmp_path / "console.json").get("queue")).keys[2:4] == ("tenant", "name")

    async def test_every_column_can_be_drawn_of_every_kind_of_job(self) -> None:
        async with on_screen(Console(with_array()), (380, 60)) as (console, pilot):
            queue(console).live.chosen = ChosenColumns(tuple(COLUMNS))
            queue(console).lay_again()
            await pilot.pause()
            assert "SUBMITTED" in console.screen_text
            assert "busybox" in console.screen_text

    def test_invalid_choices_are_ignored(self) -> None:
        assert ChosenColumns.of({"columns": ["nonsense"]}).keys == USUAL
        assert ChosenColumns.of({"columns": "id"}, ("id", "why")).keys == ("id", "why")


class TestFolding:
    async def test_waiting_elements_share_a_row_until_it_is_opened(self) -> None:
        async with on_screen(Console(with_array()), (200, 50)) as (console, pilot):
            assert -15 in queue(console).keys
            assert "sweep[2-5%2]" in console.screen_text
            assert "4 waiting, 2 running" in console.screen_text
            console.select(-15)
            await pilot.press("o")
            assert queue(console).cursor == 12
            assert {12, 13, 14, 15} <= set(queue(console).keys)
            await pilot.press("o")
            assert queue(console).cursor == -15

    async def test_a_command_on_a_folded_row_is_about_all_its_elements(self) -> None:
        async with on_screen(Console(with_array()), SIZE) as (console, pilot):
            console.select(-15)
            await console.press(pilot, "h")
            assert [target for _, target in console.audited()] == ["job 12", "job 13", "job 14", "job 15"]

    async def test_the_cursor_stays_when_an_element_starts(self) -> None:
        async with on_screen(Console(with_array()), SIZE) as (console, pilot):
            console.select(-15)
            first = next(job for job in console.snapshot.jobs if job.id == 12)
            started = first.evolve(state=JobState.RUNNING, started_at=NOW)
            await console.show(pilot, sample.with_job(console.snapshot, [started]))
            assert queue(console).cursor == -15
            assert [job.id for job in queue(console).jobs] == [13, 14, 15]

    async def test_dependents_are_beneath_a_job_when_it_is_opened(self) -> None:
        async with on_screen(Console(with_array()), (200, 50)) as (console, pilot):
            assert "▸llama-7b-sft" in console.screen_text
            console.select(101)
            await pilot.press("o")
            keys = list(queue(console).keys)
            at = keys.index(101)
            assert keys[at + 1 : at + 3] == [30, 108]
            assert "└▸eval" in console.screen_text
            await pilot.press("j", "o")
            keys = list(queue(console).keys)
            assert keys[at + 1 : at + 4] == [30, 31, 108]
            assert "  └plot" in console.screen_text

    async def test_all_rows_are_opened_and_closed_together(self) -> None:
        async with on_screen(Console(with_array()), SIZE) as (console, pilot):
            folded = list(queue(console).keys)
            await pilot.press("O", "a")
            assert sorted(queue(console).keys) == [FOLD, *sorted(job.id for job in console.snapshot.jobs)]
            await pilot.press("a")
            await pilot.press("O")
            assert list(queue(console).keys) == folded

    async def test_jobs_with_circular_dependencies_are_shown(self) -> None:
        jobs = (job(1, after=(2,)), job(2, after=(1,)), job(3))
        async with on_screen(Console(sample.rich_snapshot(jobs=jobs, order=(1, 2, 3), reasons={})), SIZE) as (
            console,
            pilot,
        ):
            await pilot.press("O")
            assert sorted(queue(console).keys) == [1, 2, 3]


class TestMoves:
    async def test_a_job_is_moved_up_after_its_what_if(self) -> None:
        async with on_screen(Console(what_if="always"), SIZE) as (console, pilot):
            console.select(110)
            await pilot.press("K")
            await until(pilot, lambda: isinstance(console.app.screen, WhatIf))
            await pilot.pause()
            assert "up past job" in console.screen_text
            await console.press(pilot, "enter")
            assert console.audited() == [("move", "job 110")]

    async def test_the_reason_against_a_move_is_shown(self) -> None:
        async with on_screen(Console(), SIZE) as (console, pilot):
            console.select(106)
            await pilot.press("K")
            await until(pilot, lambda: bool(console.told))
            assert console.told == ["Not moved: already first"]
            assert console.audited() == []

    async def test_scores_are_computed_only_when_shown(self) -> None:
        async with on_screen(Console(), (200, 50)) as (console, pilot):
            assert not queue(console).rows.scores
            queue(console).live.chosen = ChosenColumns(("id", "score", "why"))
            queue(console).lay_again()
            await console.show(pilot, replace(console.snapshot, taken_at=NOW + timedelta(seconds=1)))
            await until(pilot, lambda: len(queue(console).rows.scores) == 5)


class FakeHistory:
    """Fake history that records requests."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs = list(jobs)
        self.asked: list[datetime | None] = []

    def __call__(self, since: datetime | None) -> Iterator[Job]:
        self.asked.append(since)
        return (job for job in self.jobs if since is None or (job.ended_at or NOW) >= since)


def ended(job_id: int, days: float) -> Job:
    at = NOW - timedelta(days=days)
    return job(job_id, name=f"old-{job_id}").evolve(state=JobState.COMPLETED, ended_at=at, exit_code=0)


class TestTabs:
    async def test_finished_jobs_come_from_queue_and_history_page_by_page(self) -> None:
        history = FakeHistory([ended(5, 3), ended(4, 30), ended(3, 900)])
        async with on_screen(Console(past=history), SIZE) as (console, pilot):
            await pilot.press("2")
            await until(pilot, lambda: 5 in queue(console).keys)
            assert list(queue(console).keys) == [91, 92, 93, 5]
            await pilot.press("G")
            await until(pilot, lambda: 4 in queue(console).keys)
            for _ in range(2):
                await pilot.press("G")
                await until(pilot, lambda: not console.app.screen_stack[0].jobs.history.is_reading)  # type: ignore[attr-defined]
            await until(pilot, lambda: 3 in queue(console).keys)
            assert len(history.asked) == 4
            await pilot.press("G")
            assert len(history.asked) == 4
            await pilot.press("slash", *"name:old-4", "enter")
            assert list(queue(console).keys) == [4]
            await pilot.press("enter")
            assert isinstance(console.app.screen, Detail)
            await pilot.pause()
            assert "old-4" in console.screen_text

    async def test_an_unreadable_history_is_reported(self) -> None:
        def broken(since: datetime | None) -> Iterator[Job]:
            raise OSError("no such disk")

        async with on_screen(Console(sample.empty_queue(), past=broken), SIZE) as (console, pilot):
            await pilot.press("2")
            await until(pilot, lambda: "no such disk" in console.screen_text)

    async def test_each_tab_keeps_its_cursor(self) -> None:
        async with on_screen(Console(sample.rich_snapshot(recurring=(recurring(id=7, name="nightly"),))), SIZE) as (
            console,
            pilot,
        ):
            await pilot.press("j", "j")
            cursor = queue(console).cursor
            await pilot.press("3")
            assert "nightly" in console.screen_text
            assert queue(console).cursor == 7
            await pilot.press("1")
            assert queue(console).cursor == cursor

    async def test_the_current_tab_is_named_even_if_not_all_fit(self) -> None:
        async with on_screen(Console(), (80, 24)) as (console, pilot):
            await pilot.press("4")
            assert "4 reservations" in console.screen_text
            assert "No GPUs are reserved" in console.screen_text


def kept() -> Window:
    return Window("r1", NOW, NOW + timedelta(hours=2), count=2, tenant="alice")


class TestStableRows:
    """View and cursor row stay in place when jobs end or start."""

    async def test_jobs_that_end_under_the_cursor_keep_their_row_until_it_is_left(self) -> None:
        async with on_screen(Console(sample.many_jobs(90)), (80, 24)) as (console, pilot):
            table = queue(console)
            await pilot.press("j", "j", "g")
            for number in range(1, 8):
                assert table.cursor == number
                await self.end(console, pilot, number)
                assert (table.cursor, table.keys.index(number)) == (number, 0)
                assert table.view.lines[0] == 0
                await pilot.press("j")
            await console.show(pilot, replace(console.snapshot, taken_at=NOW + timedelta(seconds=9)))
            assert list(table.keys[:2]) == [8, 9]
            assert table.keys[-1] == FOLD
            await pilot.press("a")
            assert table.keys[-8:] == [FOLD, 7, 6, 5, 4, 3, 2, 1]

    async def test_the_rows_in_sight_stay_when_one_above_ends_or_starts(self) -> None:
        async with on_screen(Console(sample.many_jobs(90)), (80, 24)) as (console, pilot):
            table = queue(console)
            await pilot.press(*"jjjjjjjjjjkk")
            seen = self.in_sight(table)
            assert 9 in seen
            assert seen[0] != 1, "scrolled"
            await self.end(console, pilot, 2)
            assert self.in_sight(table) == [*seen[:-1], FOLD] or self.in_sight(table) == [*seen, FOLD]
            seen = self.in_sight(table)
            await self.start(console, pilot, 80)
            assert table.keys[0] == 80
            assert self.in_sight(table)[0] == 80, "a running job is in sight at once"
            assert set(self.in_sight(table)[1:]) <= set(seen)
            assert table.cursor == 9
            await self.start(console, pilot, 9)
            assert table.cursor == 9
            assert self.in_sight(table)[:2] == [80, 9]

    def in_sight(self, table: JobTable) -> list[object]:
        return [table.keys[row] for row in table.view.lines if row >= 0]

    async def start(self, console: Console, pilot: Pilot[ExitChoice], number: int) -> None:
        order = tuple(job_id for job_id in console.snapshot.order if job_id != number)
        begun = running(number, on=(uuid(number % 8),))
        console.snapshot = replace(sample.with_job(console.snapshot, [begun]), order=order)
        await console.show(pilot, console.snapshot)

    async def end(self, console: Console, pilot: Pilot[ExitChoice], number: int) -> None:
        """End that job, as a cancel does, and update the pane."""
        ended = next(job for job in console.snapshot.jobs if job.id == number)
        ended = ended.evolve(state=JobState.CANCELLED, ended_at=NOW + timedelta(seconds=number))
        order = tuple(job_id for job_id in console.snapshot.order if job_id != number)
        console.snapshot = replace(sample.with_job(console.snapshot, [ended]), order=order)
        await console.show(pilot, console.snapshot)
        queue(console).lay_out()
        await console.show(pilot, replace(console.snapshot, taken_at=NOW + timedelta(seconds=number)))

    async def test_marks_leave_ended_jobs_and_stay_on_later_ones(self) -> None:
        async with on_screen(Console(sample.many_jobs(20)), SIZE) as (console, pilot):
            await pilot.press("space", "space", "space")
            await self.end(console, pilot, 2)
            assert set(queue(console).live.marks) == {1, 3}
            await pilot.press("a", "G", "space")
            await self.end(console, pilot, 4)
            assert set(queue(console).live.marks) == {1, 2, 3}
