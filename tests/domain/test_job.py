"""A job is changed only by making the next one, and the table of transitions is asked each time."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest
from msgspec.structs import replace

from gputui.domain.errors import Cause, CauseCode, TransitionError
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import JobSpec
from gputui.domain.state import TRANSITIONS, JobState
from tests.cases import cases
from tests.factories import NOW, job, running, spec, uuid

ENDED = NOW + timedelta(seconds=5)


def test_a_job_moves_only_as_the_table_allows() -> None:
    for before, after in product(JobState, JobState):
        waiting = job(state=before)
        if after in TRANSITIONS[before]:
            assert waiting.to(after).state is after, (before, after)
            assert waiting.state is before
        else:
            with pytest.raises(TransitionError):
                waiting.to(after)


def test_a_move_carries_changes() -> None:
    done = running(7, on=[uuid(0)]).to(JobState.COMPLETED, ended_at=ENDED, exit_code=0)
    assert (done.id, done.state, done.ended_at, done.exit_code) == (7, JobState.COMPLETED, ENDED, 0)


def test_evolving_keeps_the_state() -> None:
    waiting = job(state=JobState.PENDING)
    assert waiting.evolve(held=True) == replace(waiting, held=True)


def test_nothing_can_be_changed_in_place() -> None:
    the_job = running(on=[uuid(0)])
    for frozen in (the_job, the_job.spec, the_job.attempts[0], the_job.spec.gpus, the_job.spec.options):
        with pytest.raises(AttributeError):
            setattr(frozen, frozen.__struct_fields__[0], None)
        hash(frozen)


def test_the_attempt_is_the_last_one() -> None:
    assert job().attempt is None
    first, second = Attempt(1, ended_at=NOW), Attempt(2)
    assert job(attempts=(first, second)).attempt is second


def test_changing_the_attempt_keeps_earlier_ones() -> None:
    first = Attempt(1, ended_at=NOW)
    changed = job(attempts=(first, Attempt(2))).with_attempt(exit_code=3, ended_at=ENDED)
    assert changed.attempts == (first, Attempt(2, exit_code=3, ended_at=ENDED))


@cases("state", JobState)
def test_gpus_are_held_only_while_an_attempt_is_under_way(state: JobState) -> None:
    held = (uuid(0), uuid(1))
    under_way = job(state=state, attempts=(Attempt(1, held),))
    assert under_way.gpus == (held if state.is_active else ())
    assert under_way.with_attempt(ended_at=ENDED).gpus == ()


def test_a_job_without_attempts_holds_no_gpu() -> None:
    assert job(gpus=2, state=JobState.CONFIGURING).gpus == ()


def test_gpus_of_earlier_attempts_are_not_held() -> None:
    again = job(state=JobState.RUNNING, attempts=(Attempt(1, (uuid(0),), ended_at=NOW), Attempt(2, (uuid(1),))))
    assert again.gpus == (uuid(1),)


def test_only_charged_attempts_that_are_over_count() -> None:
    lost = Cause(CauseCode.GPU_LOST, "fell off the bus")
    attempts = (
        Attempt(1, ended_at=NOW, exit_code=3),
        Attempt(2, ended_at=NOW, cause=lost, charged=False),
        Attempt(3, ended_at=NOW, exit_code=3),
        Attempt(4),
    )
    assert job(attempts=attempts).charged_attempts == 2
    assert job().charged_attempts == 0


def test_a_job_without_an_image_is_a_host_process() -> None:
    assert JobSpec(command=("true",)).is_host
    assert not spec().is_host


def test_jobs_are_compared_by_value() -> None:
    def one() -> Job:
        return running(3, on=[uuid(1)])

    assert one() == one()
    assert one() is not one()
    assert one() != one().evolve(priority=60)
