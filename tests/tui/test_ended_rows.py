"""Ended jobs in the queue: how long each keeps a row of its own, and what the folded row says."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.job import Job
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.tui.queue.ended import FOLD, EndedRows, LookedAt
from gputui.tui.queue.rows import QueueRows
from tests.factories import NOW, array, job, running

STAY = timedelta(minutes=5)


def ended(job_id: int, minutes: float, state: JobState = JobState.COMPLETED) -> Job:
    at = NOW - timedelta(minutes=minutes)
    return job(job_id).evolve(state=state, started_at=at - timedelta(hours=1), ended_at=at)


def snapshot(*jobs: Job) -> Snapshot:
    return Snapshot(taken_at=NOW, jobs=jobs, order=tuple(each.id for each in jobs if each.state is JobState.PENDING))


def text(rows: QueueRows) -> str:
    return "".join(words for words, _ in rows.fold_line())


def test_an_ended_job_leaves_the_list_after_the_set_time() -> None:
    rows = QueueRows(STAY)
    seen = snapshot(ended(1, 7), ended(2, 4), job(3), running(4))
    rows.update(seen)
    assert list(rows.keys) == [4, 3, 2, FOLD]
    assert text(rows) == "▸ 1 ended"
    rows.update(replace(seen, taken_at=NOW + timedelta(minutes=2)))
    assert list(rows.keys) == [4, 3, FOLD]
    assert rows.jobs_of(FOLD) == ()
    rows.turn_fold()
    assert list(rows.keys) == [4, 3, FOLD, 2, 1]
    assert text(rows) == "▾ 2 ended"


def test_the_folded_row_is_open_in_a_queue_of_ended_jobs() -> None:
    rows = QueueRows(STAY)
    rows.update(snapshot(ended(1, 7), ended(2, 9)))
    assert list(rows.keys) == [FOLD, 1, 2]
    assert text(rows) == "▾ 2 ended"
    rows.update(snapshot(ended(1, 7), ended(2, 9), job(3)))
    assert list(rows.keys) == [3, FOLD]


def test_failures_stay_for_a_day_or_until_they_were_viewed() -> None:
    failed = [ended(number, 10 * number, JobState.FAILED) for number in range(1, 6)]
    rows = QueueRows(STAY, LookedAt())
    rows.update(snapshot(*failed, ended(7, 2000, JobState.TIMEOUT), job(8), running(9)))
    assert list(rows.keys) == [3, 2, 1, 9, 8, 4, 5, FOLD]
    assert rows.look_at(failed[0])
    assert not rows.look_at(failed[0])
    assert not rows.look_at(ended(10, 1))
    rows.update(replace(snapshot(*failed, job(8), running(9)), taken_at=NOW + timedelta(seconds=1)))
    assert list(rows.keys) == [4, 3, 2, 9, 8, 5, FOLD]
    assert text(rows) == "▸ 1 ended (1 failed in the last hour)"


def test_viewed_failures_are_remembered_by_job_and_end() -> None:
    known = LookedAt()
    known.add(ended(1, 10, JobState.FAILED))
    again = LookedAt(known.values()["jobs"])
    assert again.has(ended(1, 10, JobState.FAILED))
    assert not again.has(ended(1, 3, JobState.FAILED))
    assert not LookedAt("nonsense").has(ended(1, 10, JobState.FAILED))


def test_a_filter_finds_folded_jobs_but_no_hidden_ones() -> None:
    rows = QueueRows(STAY)
    rows.update(snapshot(ended(1, 7), job(2)))
    rows.show(filter="state:cd")
    assert list(rows.keys) == [1]
    rows.show(filter="", ended=EndedRows.HIDDEN)
    assert list(rows.keys) == [2]


def test_running_jobs_are_sorted_by_their_start() -> None:
    early = running(5).evolve(started_at=NOW - timedelta(hours=2))
    late = running(2).evolve(started_at=NOW - timedelta(minutes=1))
    starting = job(1).evolve(state=JobState.CONFIGURING)
    rows = QueueRows(STAY)
    rows.update(snapshot(starting, late, early, job(9), job(7)))
    assert list(rows.keys) == [5, 2, 1, 9, 7]


def test_a_row_under_the_cursor_stays_where_it_is_until_it_is_left() -> None:
    rows = QueueRows(STAY)
    rows.update(snapshot(running(1), job(2), job(3), job(4), ended(5, 1), ended(6, 4)))
    rows.hold([3])
    assert list(rows.keys) == [1, 2, 3, 4, 5, 6]
    gone = job(3).evolve(state=JobState.CANCELLED, ended_at=NOW)
    rows.update(snapshot(running(1), job(2), gone, job(4), ended(5, 1), ended(6, 4)))
    assert list(rows.keys) == [1, 2, 3, 4, 5, 6]
    rows.hold([6])
    late = replace(snapshot(running(1), job(2), gone, job(4), ended(5, 1), ended(6, 4)), taken_at=NOW + STAY / 2)
    rows.update(late)
    assert list(rows.keys) == [1, 2, 4, 3, 5, 6]
    rows.hold([5])
    rows.update(replace(late, taken_at=NOW + STAY / 2 + timedelta(seconds=1)))
    assert list(rows.keys) == [1, 2, 4, 3, 5, FOLD]


def test_a_job_under_the_cursor_stays_when_it_stops_to_match_the_filter_or_the_fold_closes() -> None:
    rows = QueueRows(STAY)
    rows.update(snapshot(ended(1, 7), ended(2, 9)))
    rows.hold([2])
    rows.update(snapshot(ended(1, 7), ended(2, 9), running(3)))
    assert list(rows.keys) == [3, 2, FOLD]
    assert text(rows) == "▸ 1 ended"
    rows.show(filter="state:r")
    assert list(rows.keys) == [3]
    rows.hold([3])
    rows.update(snapshot(ended(1, 7), ended(2, 9), ended(3, 0), running(4)))
    assert list(rows.keys) == [3, 4]
    rows.hold([4])
    rows.update(snapshot(ended(1, 7), ended(2, 9), ended(3, 0), running(4)))
    assert list(rows.keys) == [4]


def test_the_cursor_goes_along_when_elements_of_an_array_get_another_row() -> None:
    whole = array(range(4), first=10)
    rows = QueueRows(STAY)
    rows.update(snapshot(whole, job(20)))
    assert list(rows.keys) == [-13, 20]
    rest = whole.without([13])
    assert rest is not None
    rows.update(snapshot(rest, whole.element(13).evolve(state=JobState.CANCELLED, ended_at=NOW), job(20)))
    assert rows.heir(-13) == -12
    rows.update(snapshot(whole.element(13), job(20)))
    assert rows.heir(-13) == 13
    rows.update(snapshot(whole, job(20)))
    assert rows.heir(13) == -13
    assert rows.heir(21) is None
