"""Random queues with arrays, drawn by every view: `top`, `queue`, `explain`, JSON, the table of the console."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.cli import queue as listing
from gputui.cli import show as explaining
from gputui.domain import arrays
from gputui.domain.action import Cancel, Hold, SetPriority
from gputui.domain.as_json import explanation_json, job_json
from gputui.domain.filter import parse_filter, seen
from gputui.domain.job import ArrayRef, Job
from gputui.domain.policy.plan import plan
from gputui.domain.policy.whatif import change_of, compared, explain
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.engine.tick.snapshot_builder import with_plan
from gputui.tui.frame import FrameSize, frame
from gputui.tui.present.job import JobContext
from gputui.tui.widgets.queue_folding import FOLD, EndedRows, Marks
from gputui.tui.widgets.queue_rows import COLUMNS, ChosenColumns, QueueRows
from gputui.tui.widgets.queue_tabs import QueueTab
from tests.factories import NOW, job, running, snapshot, uuid
from tests.lane import examples

SETTINGS = Settings()
REQUESTS: list[int | tuple[int, int]] = [0, 1, 2, (1, 3)]


@st.composite
def queues(draw: st.DrawFn) -> Snapshot:
    """Single jobs and arrays: some wait, some run, some ended; some held, put first, or behind others."""
    found: list[Job] = []
    for _ in range(draw(st.integers(0, 4))):
        first, limit = len(found) + 1, draw(st.sampled_from([None, None, 1, 2]))
        indices = sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=5)))
        is_array = draw(st.booleans())
        after = tuple(draw(st.sets(st.integers(1, len(found)), max_size=2))) if found else ()
        gpus = draw(st.sampled_from(REQUESTS))
        for place, index in enumerate(indices if is_array else indices[:1]):
            ref = ArrayRef(first, index, limit) if is_array else None
            found.append(draw(_element(job(first + place, gpus=gpus, after=after, array=ref, age=60))))
    picture = snapshot(found, gpus=2)
    return with_plan(picture, plan(picture, SETTINGS, NOW))


@st.composite
def _element(draw: st.DrawFn, waiting: Job) -> Job:
    state = draw(st.sampled_from([*[JobState.PENDING] * 5, JobState.RUNNING, JobState.COMPLETED]))
    if state is JobState.RUNNING:
        held_one = running(waiting.id, on=(uuid(waiting.id % 2),))
        return waiting.evolve(state=state, attempts=held_one.attempts, started_at=held_one.started_at)
    if state is JobState.COMPLETED:
        return waiting.evolve(state=state, ended_at=NOW, exit_code=0)
    topped_at = draw(st.sampled_from([None, None, NOW]))
    return waiting.evolve(held=draw(st.booleans()), priority=draw(st.sampled_from([50, 80])), topped_at=topped_at)


@settings(max_examples=examples(60), deadline=None)
@given(queues(), st.sampled_from([None, 5, 9]))
def test_every_view_of_the_queue_survives_arrays(picture: Snapshot, height: int | None) -> None:
    live = [each for each in picture.jobs if not each.state.is_terminal]
    shown = frame(picture, NOW, "node1", FrameSize(110, height))
    assert height is None or len(shown) <= max(height, 8)
    _check_the_table(picture)
    _check_the_list(picture, live)
    json.dumps([job_json(each, picture) for each in picture.jobs])
    for each in live:
        if each.state is JobState.PENDING:
            told = explain(picture, each, SETTINGS, NOW)
            assert list(explaining.explained(each, told, NOW))
            json.dumps(explanation_json(each, told))
        assert parse_filter(f"id:{each.id}").matches(seen(each, picture))


def _check_the_table(picture: Snapshot) -> None:
    """Check that every cell can be drawn, folded and unfolded, and that every job has one row in its section."""
    rows = QueueRows()
    rows.show(ended=EndedRows.OPEN)
    rows.update(picture)
    sheet = QueueTab(rows, ChosenColumns())
    sheet.marks = Marks.of(picture.jobs)
    context = JobContext(NOW, picture.expected_starts, reasons=picture.reasons)
    for _ in range(2):
        assert [row for row, key in enumerate(sheet.keys) if key == FOLD] == (
            [] if rows.extent.fold is None else [rows.extent.fold]
        )
        jobs_of = {key: sheet.jobs(key) for key in sheet.keys if key != FOLD}
        for key in jobs_of:
            assert all(isinstance(sheet.cell(key, column, context), tuple) for column in COLUMNS)
            assert sheet.jobs(key)
            assert sheet.lead(key) != " "
        assert sorted(each.id for jobs in jobs_of.values() for each in jobs) == [e.id for e in picture.jobs]
        rows.fold_all()


def _check_the_list(picture: Snapshot, live: list[Job]) -> None:
    groups = arrays.folded(live)
    assert sorted(each.id for group in groups for each in group) == [each.id for each in live]
    assert all(len(listing.row(group[0], picture, group)) == len(listing.COLUMNS) for group in groups)


@settings(max_examples=examples(30), deadline=None)
@given(queues())
def test_what_if_survives_arrays(picture: Snapshot) -> None:
    ids = [each.id for each in picture.jobs]
    for change in (
        change_of(Cancel(tuple(ids[:2])), NOW),
        change_of(Hold(tuple(ids)), NOW),
        change_of(SetPriority(tuple(ids[1:]), 10, relative=True), NOW),
    ):
        assert isinstance(compared(replace(picture, taken_at=NOW), change, SETTINGS, NOW).shifts, tuple)
