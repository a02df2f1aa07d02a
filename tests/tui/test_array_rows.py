"""Rows of arrays whose waiting elements are one entry: folded, unfolded, filtered, sorted and marked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.domain.job import ArrayRef, Job
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, PendingReason, Reason
from gputui.tui.present.job import JobContext
from gputui.tui.widgets.job_table import JobTable
from gputui.tui.widgets.queue_folding import Marks, RowKeys
from gputui.tui.widgets.queue_rows import ChosenColumns, QueueRows, Sorting
from gputui.tui.widgets.queue_tabs import QueueTab
from tests.cases import cases
from tests.factories import NOW, array, job, running
from tests.tui import sample
from tests.tui.console import Console, on_screen, until

COUNT = 100_000
ENTRY = array(range(COUNT), first=7, limit=8, name="sweep")
WAITS = Reason(PendingReason.RESOURCES, "needs 1 GPU: 0 are free")
LAST = 7 + COUNT - 1


def picture(*jobs: Job) -> Snapshot:
    order = tuple(each.id for each in jobs if each.state is JobState.PENDING)
    return sample.rich_snapshot(jobs=tuple(sorted(jobs, key=lambda each: each.id)), order=order, reasons={7: WAITS})


def started(entry: Job = ENTRY) -> tuple[Job, Job]:
    """Return the entry's first element, which runs, and the rest."""
    rest = entry.without((entry.id,))
    assert rest is not None
    return replace(running(entry.id), spec=entry.spec, array=ArrayRef(7, 0, 8)), rest


@pytest.fixture
def rows() -> QueueRows:
    found = QueueRows()
    found.update(picture(job(1), ENTRY))
    return found


def texts(rows: QueueRows, row: int) -> dict[str, str]:
    """Return the cells of a row."""
    sheet = QueueTab(rows, ChosenColumns())
    context = JobContext(NOW, reasons={7: WAITS})
    return {
        column: "".join(text for text, _ in sheet.cell(rows.keys[row], column, context))
        for column in ("id", "why", "name")
    }


class TestFolded:
    def test_a_row_represents_all_elements(self, rows: QueueRows) -> None:
        assert list(rows.keys) == [1, -LAST]
        assert (rows.matching, rows.known) == (COUNT + 1, COUNT + 1)
        assert texts(rows, 1) == {"id": "7", "name": "▸sweep[0-99999%8]", "why": f"{WAITS.text} · {COUNT:,} waiting"}
        assert rows.jobs_of(-LAST) == (ENTRY,)

    def test_the_key_of_a_row_stays_as_elements_start(self, rows: QueueRows) -> None:
        first, rest = started()
        rows.update(picture(job(1), first, rest))
        assert list(rows.keys) == [7, 1, -LAST]
        assert rows.jobs_of(-LAST) == (rest,)

    def test_single_elements_join_the_row_while_they_are_alike(self, rows: QueueRows) -> None:
        first, rest = started()
        again = first.evolve(state=JobState.PENDING)
        rows.update(picture(again, rest))
        assert texts(rows, 0)["name"] == "▸sweep[0-99999%8]"
        rows.update(picture(again.evolve(priority=80), rest))
        assert [texts(rows, row)["name"] for row in (0, 1)] == [" sweep", "▸sweep[1-99999%8]"]

    def test_cancelled_elements_share_a_row(self, rows: QueueRows) -> None:
        rows.turn_fold()
        rows.update(picture(ENTRY.evolve(state=JobState.CANCELLED, ended_at=NOW)))
        assert texts(rows, 1)["why"].startswith(f"{COUNT:,} cancelled")


class TestUnfolded:
    def test_unfolded_elements_have_rows_without_objects(self, rows: QueueRows) -> None:
        assert rows.fold(-LAST) == 7
        assert isinstance(rows.keys, RowKeys)
        assert len(rows.keys) == COUNT + 1
        assert (rows.keys[0], rows.keys[1], rows.keys[-1]) == (1, 7, LAST)
        assert (rows.positions[1], rows.positions[50_007], rows.positions.get(LAST + 1)) == (0, 50_001, None)
        assert rows.id_width == len("7_99999")

    def test_a_row_gives_the_reason_of_an_element(self, rows: QueueRows) -> None:
        rows.fold(-LAST)
        assert texts(rows, 50_001) == {"id": "7_50000", "name": "sweep", "why": WAITS.text}
        assert rows.jobs_of(50_007) == (ENTRY.element(50_007),)

    def test_any_element_closes_its_row(self, rows: QueueRows) -> None:
        rows.fold(-LAST)
        assert rows.fold(50_007) == -LAST
        assert list(rows.keys) == [1, -LAST]

    def test_all_arrays_are_opened_and_closed_together(self, rows: QueueRows) -> None:
        rows.fold_all()
        assert len(rows.keys) == COUNT + 1
        rows.fold_all()
        assert list(rows.keys) == [1, -LAST]

    def test_elements_can_be_sorted_by_id_in_reverse(self, rows: QueueRows) -> None:
        rows.fold(-LAST)
        rows.sort_by(Sorting("id", True))
        assert (rows.keys[0], rows.keys[COUNT - 1], rows.keys[-1]) == (LAST, 7, 1)
        assert rows.positions[LAST - 1] == 1

    def test_dependents_of_an_array_are_beneath_its_first_element(self, rows: QueueRows) -> None:
        rows.update(picture(ENTRY, job(200_000, after=(7,))))
        rows.fold(-LAST)
        rows.fold(7)
        assert list(rows.keys[:3]) == [7, 200_000, 8]
        assert len(rows.keys) == COUNT + 1

    def test_an_array_is_beneath_its_dependency(self, rows: QueueRows) -> None:
        waiting = array(range(3), first=7, after=(1,))
        rows.update(picture(job(1), waiting))
        rows.fold(1)
        assert list(rows.keys) == [1, -9]
        assert rows.arranged.signs[-9] == "└▸"
        rows.fold(-9)
        assert list(rows.keys) == [1, 7, 8, 9]


class TestFilter:
    @cases(
        ("words", "name"),
        [("id:10-19", "▸sweep[3-12%8]"), ("7_42424", "sweep"), ("7_4242", "▸sweep[4242,42420-42429%8]")],
    )
    def test_a_filter_shows_some_elements(self, rows: QueueRows, words: str, name: str) -> None:
        rows.show(filter=words)
        assert texts(rows, 0)["name"] == name
        assert len(rows.keys) == 1

    def test_matching_elements_are_counted_and_unfolded(self, rows: QueueRows) -> None:
        rows.show(filter="id:10-19")
        assert (rows.matching, rows.known) == (10, COUNT + 1)
        assert rows.fold(-19) == 10
        assert list(rows.keys) == list(range(10, 20))
        rows.show(filter="")
        assert len(rows.keys) == COUNT + 1


class TestMarks:
    def test_marks_stay_on_elements_that_start_and_go_with_their_end(self, rows: QueueRows) -> None:
        sheet = QueueTab(rows, ChosenColumns())
        sheet.marks = Marks.of(rows.jobs_of(-LAST))
        sheet.drop_ended_marks()
        first, rest = started()
        rows.update(picture(job(1), first, rest))
        sheet.drop_ended_marks()
        assert len(sheet.marks) == COUNT
        assert (sheet.lead(7), sheet.lead(-LAST), sheet.lead(1)) == ("●", "●", " ")
        rows.update(picture(first.evolve(state=JobState.COMPLETED, ended_at=NOW), rest))
        sheet.drop_ended_marks()
        assert (len(sheet.marks), 7 in sheet.marks) == (COUNT - 1, False)


class TestConsole:
    async def test_actions_are_about_one_element_or_about_all(self) -> None:
        async with on_screen(
            Console(picture(job(1), array(range(500), first=7, limit=8, name="sweep"))), (120, 36)
        ) as (console, pilot):
            table = console.app.screen_stack[0].query_one(JobTable)
            table.move_to(table.keys.index(-506))
            await console.press(pilot, "h")
            assert console.audited() == [("hold", "array 7")]
            await pilot.press("o")
            table.move_to(table.keys.index(107))
            await console.press(pilot, "plus")
            assert console.audited()[1:] == [("priority", "job 107")]

    async def test_a_folded_row_is_moved_as_one(self) -> None:
        async with on_screen(
            Console(picture(job(1), array(range(500), first=7, limit=8, name="sweep"))), (120, 36)
        ) as (console, pilot):
            table = console.app.screen_stack[0].query_one(JobTable)
            table.move_to(table.keys.index(-506))
            await pilot.press("K")
            await until(pilot, lambda: bool(console.audited()))
            assert console.audited() == [("move", "array 7")]

    async def test_ids_of_unfolded_elements_are_shown_whole(self) -> None:
        async with on_screen(Console(picture(job(1), ENTRY)), (80, 24)) as (console, pilot):
            table = console.app.screen_stack[0].query_one(JobTable)
            table.move_to(table.keys.index(-LAST))
            await pilot.press("o", "end")
            assert "7_99999 PD" in console.screen_text
            await pilot.press("o")
            assert "7_99999 PD" not in console.screen_text

    async def test_the_page_of_a_folded_row_is_about_all_its_elements(self) -> None:
        async with on_screen(
            Console(picture(job(1), array(range(500), first=7, limit=8, name="sweep"))), (120, 36)
        ) as (console, pilot):
            table = console.app.screen_stack[0].query_one(JobTable)
            table.move_to(table.keys.index(-506))
            await console.press(pilot, "enter")
            assert "Job #7_[0-499%8] sweep" in console.screen_text
            assert "500 elements of array 7, at most 8 at a time · 500 waiting in all" in console.screen_text
            first, rest = started(array(range(500), first=7, limit=8, name="sweep"))
            await console.show(pilot, picture(first, rest))
            assert "499 elements of array 7, at most 8 at a time · 1 running, 499 waiting in all" in console.screen_text
