"""The difference between two snapshots: everything that started and ended counts once, whenever the ticks came."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.errors import Cause, CauseCode
from gputui.domain.event import Change, JobChanges
from gputui.domain.job import Attempt, Job
from gputui.domain.state import JobState
from tests.factories import NOW, array, job, running, uuid


def ended(before: Job, state: JobState = JobState.COMPLETED, cause: Cause | None = None) -> Job:
    after = before.with_attempt(ended_at=NOW, cause=cause)
    return after.evolve(state=state, ended_at=NOW, cause=cause)


def only(changes: tuple[Change, ...]) -> Change:
    [change] = changes
    return change


def test_first_and_short_jobs() -> None:
    # initial jobs are not changes and new ones are submitted
    old = job(1)
    watched = JobChanges([old])
    assert watched.update((old,)).changes == ()
    new = array(range(10), first=2)
    assert only(watched.update((old, new)).changes).submitted == 10
    assert watched.update((old, new)).changes == ()
    # a job that starts and ends between two ticks is seen to do both
    watched = JobChanges([])
    change = only(watched.update((ended(running(1, on=[uuid(0)])),)).changes)
    assert (change.submitted, change.ended) == (1, 1)
    assert [attempt.number for attempt in change.started] == [1]
    assert [attempt.number for attempt in change.over] == [1]


def test_an_attempt_counts_once_when_it_starts_and_once_when_it_ends() -> None:
    it = running(1, on=[uuid(0)])
    claimed = it.with_attempt(started_at=None)
    watched = JobChanges([job(1)])
    assert only(watched.update((claimed,)).changes).started == ()
    assert len(only(watched.update((it,)).changes).started) == 1
    failed = it.with_attempt(ended_at=NOW, cause=Cause(CauseCode.NON_ZERO_EXIT, "exit code 1"))
    again = failed.evolve(state=JobState.PENDING)
    change = only(watched.update((again,)).changes)
    assert (len(change.over), change.started, change.ended) == (1, (), 0)
    second = again.evolve(
        state=JobState.RUNNING, attempts=(*again.attempts, Attempt(2, (uuid(0),), started_at=NOW + timedelta(1)))
    )
    change = only(watched.update((second,)).changes)
    assert ([attempt.number for attempt in change.started], change.over) == ([2], ())
    assert only(watched.update((ended(second),)).changes).ended == 1


def test_an_element_that_leaves_its_entry_is_not_submitted_again() -> None:
    entry = array(range(3), first=7)
    watched = JobChanges([entry])
    first, rest = entry.divided([7])
    assert first
    assert rest
    started = first.evolve(state=JobState.RUNNING, attempts=running(7, on=[uuid(0)]).attempts)
    changes = {change.job.id: change for change in watched.update((started, rest)).changes}
    assert {number: change.submitted for number, change in changes.items()} == {7: 0, 8: 0}
    assert len(changes[7].started) == 1


def test_elements_that_are_cancelled_together_end_by_their_number() -> None:
    entry = array(range(10), first=7)
    watched = JobChanges([entry])
    gone, rest = entry.divided(range(9, 12))
    assert gone
    assert rest
    changes = watched.update((rest, gone.evolve(state=JobState.CANCELLED, ended_at=NOW))).changes
    assert sum(change.ended for change in changes) == 3
    assert sum(change.submitted for change in changes) == 0


def test_jobs_that_come_back() -> None:
    # a job that comes back from history brings no old attempts along
    other = job(5)
    watched = JobChanges([other])
    back = ended(running(2, on=[uuid(0)]))
    assert watched.update((back, other)).changes == ()
    requeued = replace(back, state=JobState.PENDING)
    assert only(watched.update((requeued, other)).changes) == Change(requeued)
    # a requeued job that fails before the next tick ends once more
    first = ended(running(1, on=[uuid(0)]), JobState.FAILED, Cause(CauseCode.NON_ZERO_EXIT, "exit code 1"))
    watched = JobChanges([first])
    again = first.evolve(attempts=(*first.attempts, Attempt(2, (), started_at=NOW, ended_at=NOW)))
    change = only(watched.update((again,)).changes)
    assert (change.ended, len(change.started), len(change.over)) == (1, 1, 1)
    noted = again.evolve(announced_end_at=NOW)
    assert only(watched.update((noted,)).changes) == Change(noted)
