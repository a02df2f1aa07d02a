"""Ended jobs in the queue: how long each keeps a row of its own, and what the folded row says."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.job import Job
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.tui.widgets.queue_folding import FOLD, GRACE, EndedRows, LookedAt
from gputui.tui.widgets.queue_rows import QueueRows
from tests.factories import NOW, array, job, running


def ended(job_id: int, minutes: float, state: JobState = JobState.COMPLETED) -> Job:
    at = NOW - timedelta(minutes=minutes)
    return job(job_id).evolve(state=state, started_at=at - timedelta(hours=1), ended_at=at)


def snapshot(*jobs: Job) -> Snapshot:
    return Snapshot(taken_at=NOW, jobs=jobs, order=tuple(each.id for each in jobs if each.state is JobState.PENDING))


def text(rows: QueueRows) -> str:
    return "".join(words for words, _ in rows.fold_line())


def test_ended_jobs_share_a_row_until_it_is_opened() -> None:
    rows = QueueRows()
    rows.update(snapshot(ended(1, 7), ended(2, 4, JobState.FAILED), job(3), running(4)))
    assert list(rows.keys) == [4, 3, FOLD]
    assert text(rows) == "▸ ENDED 2, 1 failed"
    assert rows.jobs_of(FOLD) == ()
    rows.turn_fold()
    assert list(rows.keys) == [4, 3, FOLD, 2, 1]
    assert text(rows) == "▾ ENDED 2, 1 failed"


def test_a_running_job_keeps_its_line_and_the_next_one_takes_that_of_an_ended_one() -> None:
    def at(seconds: float, *jobs: Job) -> list[int]:
        rows.update(replace(snapshot(*jobs), taken_at=NOW + timedelta(seconds=seconds)))
        return list(rows.keys)

    def begun(job_id: int, second: float) -> Job:
        return running(job_id).evolve(started_at=NOW + timedelta(seconds=second))

    def over(job_id: int, second: float) -> Job:
        return begun(job_id, 0).evolve(state=JobState.FAILED, ended_at=NOW + timedelta(seconds=second))

    rows = QueueRows()
    one, two, three = (begun(each, each / 10) for each in (1, 2, 3))
    assert at(0, one, two, three) == [1, 2, 3]
    assert at(1, one, over(2, 1), three) == [1, 2, 3, FOLD]
    assert text(rows) == "▸ ENDED 1, 1 failed", "it counts the one that still has its line"
    assert at(9, one, over(2, 1), three, begun(4, 9)) == [1, 4, 3, FOLD]
    assert at(12, over(1, 12), over(2, 1), three, begun(4, 9)) == [1, 4, 3, FOLD]
    assert at(71, over(1, 12), over(2, 1), three, begun(4, 9)) == [1, 4, 3, FOLD], "no running job moves"
    assert at(72, over(1, 12), over(2, 1), three, begun(4, 9)) == [3, 4, FOLD], "only the last line moves"
    assert at(80, over(1, 12), over(2, 1), three, over(4, 80)) == [3, 4, FOLD]
    assert at(90, over(1, 12), over(2, 1), three, over(4, 80)) == [3, FOLD], "nothing runs below it"


def test_the_line_of_an_ended_job_goes_at_once_where_live_ones_need_it() -> None:
    rows = QueueRows()
    rows.height = 7
    jobs = [running(each).evolve(started_at=NOW + timedelta(seconds=each)) for each in range(1, 7)]
    rows.update(snapshot(*jobs, job(8), job(9)))
    gone = jobs[1].evolve(state=JobState.COMPLETED, ended_at=NOW)
    rows.update(replace(snapshot(jobs[0], gone, *jobs[2:], job(8), job(9)), taken_at=NOW + timedelta(seconds=1)))
    assert list(rows.keys) == [1, 6, 3, 4, 5, 8, 9, FOLD]


def test_an_array_is_one_row_in_every_section() -> None:
    whole = array(range(9), first=10)
    rest = whole.without([10, 11, 12, 13, 14])
    assert rest is not None
    active = [whole.element(each).evolve(state=JobState.RUNNING, started_at=NOW) for each in (12, 13, 14)]
    over = [whole.element(each).evolve(state=JobState.FAILED, ended_at=NOW) for each in (10, 11)]
    rows = QueueRows()
    rows.turn_fold()
    rows.update(snapshot(rest, *active, *over, job(30)))
    assert [len(rows.jobs_of(key)) for key in rows.keys] == [3, 1, 1, 0, 2]
    assert (rows.running, rows.waiting, rows.ended_counts.total) == (3, 5, 2)
    first = rows.keys[0]
    rows.stay(each.id for each in active)
    later = [active[0].evolve(state=JobState.COMPLETED, ended_at=NOW), *active[1:]]
    rows.update(snapshot(rest, *later, *over, job(30)))
    assert rows.keys[0] == first
    assert rows.fold(first) == 13
    assert list(rows.keys[:2]) == [13, 14]


def test_viewed_failures_are_remembered_by_job_and_end() -> None:
    known = LookedAt()
    known.add(ended(1, 10, JobState.FAILED))
    again = LookedAt(known.values())
    assert again.has(ended(1, 10, JobState.FAILED))
    assert not again.has(ended(1, 3, JobState.FAILED))
    assert not LookedAt({"jobs": "nonsense", "until": []}).has(ended(1, 10, JobState.FAILED))


def test_all_failures_are_acknowledged_and_later_ones_are_new() -> None:
    known = LookedAt()
    known.add(ended(1, 10, JobState.FAILED))
    assert known.add_all([ended(1, 10, JobState.FAILED), ended(2, 20, JobState.TIMEOUT), ended(3, 1)]) == 1
    again = LookedAt(known.values())
    assert again.has(ended(1, 10, JobState.FAILED))
    assert not again.has(ended(4, 9, JobState.FAILED))
    rows = QueueRows(again)
    rows.update(snapshot(ended(1, 10, JobState.FAILED), ended(4, 9, JobState.FAILED)))
    assert text(rows) == "▸ ENDED 2, 2 failed (1 new)"
    assert rows.look_at_all() == 1
    assert text(rows) == "▸ ENDED 2, 2 failed"
    assert rows.look_at_all() == 0


def test_a_filter_finds_folded_jobs_but_no_hidden_ones() -> None:
    rows = QueueRows()
    rows.update(snapshot(ended(1, 7), job(2)))
    rows.show(filter="state:cd")
    assert list(rows.keys) == [1]
    rows.show(filter="", ended=EndedRows.HIDDEN)
    assert list(rows.keys) == [2]


def test_running_jobs_are_sorted_by_their_start() -> None:
    early = running(5).evolve(started_at=NOW - timedelta(hours=2))
    late = running(2).evolve(started_at=NOW - timedelta(minutes=1))
    starting = job(1).evolve(state=JobState.CONFIGURING)
    rows = QueueRows()
    rows.update(snapshot(starting, late, early, job(9), job(7)))
    assert list(rows.keys) == [5, 2, 1, 9, 7]


def test_a_row_under_the_cursor_stays_where_it_is_until_it_is_left() -> None:
    rows = QueueRows()
    rows.update(snapshot(running(1), job(2), job(3), job(4), ended(5, 1)))
    rows.stay([3])
    gone = job(3).evolve(state=JobState.CANCELLED, ended_at=NOW)
    rows.update(snapshot(running(1), job(2), gone, job(4), ended(5, 1)))
    assert list(rows.keys) == [1, 2, 3, 4, FOLD]
    rows.stay([1])
    over = running(1).evolve(state=JobState.COMPLETED, ended_at=NOW)
    for seconds in (1, 60):
        rows.update(replace(snapshot(over, job(2), gone, job(4)), taken_at=NOW + timedelta(seconds=seconds)))
        assert list(rows.keys) == [1, 2, 4, FOLD]
    rows.stay([2])
    rows.update(replace(snapshot(over, job(2), gone, job(4)), taken_at=NOW + timedelta(seconds=61)))
    assert list(rows.keys) == [2, 4, FOLD]


def test_a_job_under_the_cursor_stays_when_it_stops_to_match_the_filter() -> None:
    rows = QueueRows()
    rows.update(snapshot(ended(1, 7), ended(2, 9), running(3)))
    rows.show(filter="state:r")
    assert list(rows.keys) == [3]
    rows.stay([3])
    rows.update(snapshot(ended(1, 7), ended(2, 9), ended(3, 0), running(4)))
    assert list(rows.keys) == [3, 4]
    rows.stay([4])
    rows.update(replace(snapshot(ended(1, 7), ended(2, 9), ended(3, 0), running(4)), taken_at=NOW + GRACE))
    assert list(rows.keys) == [4]


def test_the_cursor_goes_along_when_elements_of_an_array_get_another_row() -> None:
    whole = array(range(4), first=10)
    rows = QueueRows()
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
