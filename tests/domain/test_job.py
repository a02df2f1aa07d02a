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


def test_moves_and_changes_of_a_job() -> None:
    # a job moves only as the table allows
    for before, after in product(JobState, JobState):
        waiting = job(state=before)
        if after in TRANSITIONS[before]:
            assert waiting.to(after).state is after, (before, after)
            assert waiting.state is before
        else:
            with pytest.raises(TransitionError):
                waiting.to(after)
    # a move carries changes
    done = running(7, on=[uuid(0)]).to(JobState.COMPLETED, ended_at=ENDED, exit_code=0)
    assert (done.id, done.state, done.ended_at, done.exit_code) == (7, JobState.COMPLETED, ENDED, 0)
    # evolving keeps the state
    waiting = job(state=JobState.PENDING)
    assert waiting.evolve(held=True) == replace(waiting, held=True)
    # nothing can be changed in place
    the_job = running(on=[uuid(0)])
    for frozen in (the_job, the_job.spec, the_job.attempts[0], the_job.spec.gpus, the_job.spec.options):
        with pytest.raises(AttributeError):
            setattr(frozen, frozen.__struct_fields__[0], None)
        hash(frozen)


def test_attempts_of_a_job() -> None:
    # the attempt is the last one
    assert job().attempt is None
    first, second = Attempt(1, ended_at=NOW), Attempt(2)
    assert job(attempts=(first, second)).attempt is second
    # changing the attempt keeps earlier ones
    first = Attempt(1, ended_at=NOW)
    changed = job(attempts=(first, Attempt(2))).with_attempt(exit_code=3, ended_at=ENDED)
    assert changed.attempts == (first, Attempt(2, exit_code=3, ended_at=ENDED))
    # a job without attempts holds no GPU
    assert job(gpus=2, state=JobState.CONFIGURING).gpus == ()
    # GPUs of earlier attempts are not held
    again = job(state=JobState.RUNNING, attempts=(Attempt(1, (uuid(0),), ended_at=NOW), Attempt(2, (uuid(1),))))
    assert again.gpus == (uuid(1),)
    # only charged attempts that are over count
    lost = Cause(CauseCode.GPU_LOST, "fell off the bus")
    attempts = (
        Attempt(1, ended_at=NOW, exit_code=3),
        Attempt(2, ended_at=NOW, cause=lost, charged=False),
        Attempt(3, ended_at=NOW, exit_code=3),
        Attempt(4),
    )
    assert job(attempts=attempts).charged_attempts == 2
    assert job().charged_attempts == 0


@cases("state", JobState)
def test_gpus_are_held_only_while_an_attempt_is_under_way(state: JobState) -> None:
    held = (uuid(0), uuid(1))
    under_way = job(state=state, attempts=(Attempt(1, held),))
    assert under_way.gpus == (held if state.is_active else ())
    assert under_way.with_attempt(ended_at=ENDED).gpus == ()


def test_kinds_of_jobs_and_their_values() -> None:
    # a job without an image is a host process
    assert JobSpec(command=("true",)).is_host
    assert not spec().is_host

    # jobs are compared by value
    def one() -> Job:
        return running(3, on=[uuid(1)])

    assert one() == one()
    assert one() is not one()
    assert one() != one().evolve(priority=60)
