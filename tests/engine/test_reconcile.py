"""Combinations of store and containers after a crash between two steps, and the decision for each."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.domain.container import ContainerRecord, ContainerState
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import GpuRequest
from gputui.domain.state import JobState
from gputui.engine.telemetry_files import AttemptKey
from gputui.engine.tick.reconcile import (
    Adopt,
    Clean,
    Correction,
    Finish,
    GiveBack,
    KillStray,
    Listing,
    StartAgain,
    Vanished,
    find_corrections,
    find_strays,
)
from gputui.engine.tick.start_protocol import adopted
from tests.cases import cases
from tests.factories import GIB, NOW, job, running, uuid

CREATED = ContainerRecord("c1", 1, 1, ContainerState.CREATED, (uuid(0),))
LOST = replace(
    CREATED,
    state=ContainerState.EXITED,
    cause=Cause(CauseCode.END_UNKNOWN, "it ran, but its runtime has lost all record of that, so its end is unknown"),
)
RUNNING = replace(CREATED, state=ContainerState.RUNNING)
EXITED = replace(CREATED, state=ContainerState.EXITED, exit_code=0)

WAITS = job(1, gpus=1)
CLAIMED = WAITS.to(JobState.CONFIGURING, attempts=(Attempt(1, (uuid(0),), claimed_at=NOW),))
PULLS = WAITS.to(JobState.CONFIGURING)
RUNS = CLAIMED.to(JobState.RUNNING)
ENDS = RUNS.to(JobState.COMPLETING)
ENDED = RUNS.with_attempt(ended_at=NOW).to(JobState.FAILED)
WAITS_AGAIN = ENDED.to(JobState.PENDING)


def decided(
    one: Job,
    *records: ContainerRecord,
    busy: frozenset[AttemptKey] = frozenset(),
    last_worked_on: int = 0,
    others: tuple[Job, ...] = (),
) -> list[Correction]:
    seen = Listing(records, begun=5, is_busy=busy.__contains__, last_worked_on=lambda _: last_worked_on)
    jobs = {each.id: each for each in (one, *others)}
    return find_corrections(jobs, [each for each in jobs.values() if each.state.is_active and each is one], seen)


@pytest.mark.parametrize(
    ("one", "records", "wanted"),
    [
        pytest.param(CLAIMED, [], [GiveBack(1, 1)], id="died between a and b"),
        pytest.param(CLAIMED, [CREATED], [StartAgain(1, 1)], id="died between b and c"),
        pytest.param(CLAIMED, [RUNNING], [Adopt(1, RUNNING)], id="died between c and d"),
        pytest.param(CLAIMED, [EXITED], [Finish(1, EXITED)], id="died between c and d, and it has ended since"),
        pytest.param(PULLS, [], [GiveBack(1, 0)], id="died while pulling"),
        pytest.param(RUNS, [RUNNING], [], id="runs"),
        pytest.param(RUNS, [EXITED], [Finish(1, EXITED)], id="ended"),
        pytest.param(RUNS, [], [Vanished(1, 1)], id="gone"),
        pytest.param(RUNS, [CREATED], [Finish(1, LOST)], id="the engine forgot that it was started"),
        pytest.param(ENDS, [RUNNING], [], id="ending"),
        pytest.param(ENDS, [EXITED], [Finish(1, EXITED)], id="ended as told"),
        pytest.param(ENDED, [EXITED], [Clean(EXITED)], id="to be cleaned up"),
        pytest.param(ENDED, [RUNNING], [KillStray(RUNNING)], id="runs though its attempt is over"),
        pytest.param(WAITS_AGAIN, [EXITED], [Clean(EXITED)], id="cleaned up while its job waits to run again"),
        pytest.param(WAITS, [CREATED], [Clean(CREATED)], id="created by a start that was given back"),
        pytest.param(WAITS, [RUNNING], [Adopt(1, RUNNING)], id="started after all"),
    ],
)
def test_reconcile_decides_each_case(one: Job, records: list[ContainerRecord], wanted: list[Correction]) -> None:
    assert decided(one, *records) == wanted


@cases("one", [CLAIMED, RUNS, ENDS])
@cases("records", [[], [CREATED]])
def test_a_listing_from_before_our_last_work_proves_no_absence(one: Job, records: list[ContainerRecord]) -> None:
    assert decided(one, *records, last_worked_on=5) == []


@cases("records", [[], [CREATED], [RUNNING]])
def test_a_busy_attempt_is_not_reconciled(records: list[ContainerRecord]) -> None:
    assert decided(CLAIMED, *records, busy=frozenset({(1, 1)})) == []


def test_a_job_is_not_given_back_during_its_pull() -> None:
    assert decided(PULLS, busy=frozenset({(1, 0)})) == []


def test_a_late_start_is_killed_when_its_gpus_have_been_given_away() -> None:
    assert decided(WAITS, RUNNING, last_worked_on=3, others=(running(2, on=[uuid(0)]),)) == [KillStray(RUNNING)]


@cases("number", [1, 3])
@cases("one", [WAITS, WAITS.to(JobState.CANCELLED)])
def test_an_attempt_that_a_repaired_queue_lost_is_never_killed(one: Job, number: int) -> None:
    lost = replace(RUNNING, attempt=number)
    assert decided(one, lost, others=(running(2, on=[uuid(0)]),)) == []
    assert find_strays({1: one}, [lost]) == (lost,)


@cases("one", [CLAIMED, RUNS, ENDS, ENDED])
def test_an_attempt_after_a_known_one_is_not_killed(one: Job) -> None:
    lost = replace(RUNNING, attempt=2)
    assert [each for each in decided(one, lost) if isinstance(each, KillStray | Clean)] == []


def test_a_container_is_adopted_with_its_number_despite_gaps() -> None:
    lost = replace(RUNNING, attempt=3)
    assert decided(WAITS_AGAIN, lost) == [Adopt(1, lost)]
    after = adopted(WAITS_AGAIN, lost, NOW)
    assert [attempt.number for attempt in after.attempts] == [1, 3]
    assert after.next_attempt == 4


def test_an_ended_container_is_adopted_so_that_its_job_runs_once() -> None:
    assert decided(WAITS, EXITED) == [Adopt(1, EXITED)]


def test_two_containers_on_a_shared_gpu_are_both_adopted() -> None:
    sharing = replace(WAITS.spec, gpus=GpuRequest(1, 1, memory=GIB, share=True))
    other = running(2, on=[uuid(0)])
    other = other.evolve(spec=replace(other.spec, gpus=sharing.gpus))
    assert decided(WAITS.evolve(spec=sharing), RUNNING, others=(other,)) == [Adopt(1, RUNNING)]


def test_containers_of_unknown_jobs_are_strays_and_kept() -> None:
    unknown = replace(RUNNING, job_id=99)
    assert decided(WAITS, unknown) == []
    assert find_strays({1: WAITS}, [unknown, CREATED]) == (unknown,)


@cases("record", [RUNNING, EXITED])
def test_a_container_of_an_older_listing_is_not_adopted(record: ContainerRecord) -> None:
    assert decided(WAITS, record, last_worked_on=5) == []
    assert decided(WAITS, record, last_worked_on=4) == [Adopt(1, record)]
