"""Holds and releases at any times, by anybody, by any way: they give a job no wait, and say who held it since when."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.domain.access import Actor
from gputui.domain.action import Hold, Release, SetPriority
from gputui.domain.job_spec import Submission
from gputui.domain.policy.waits import Dependencies, eligible_since, eligible_wait
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from tests.factories import NOW, FakeClock, spec
from tests.lane import examples
from tests.memory_store import MemoryJobStore

USERS = ("alice", "bob")
STEPS = st.tuples(
    st.sampled_from(("hold", "release", "undo", "raise", "lower", "none")),
    st.sampled_from(USERS),
    st.sampled_from((0.0, 0.001, 1.0, 59.5, 3600.0, 86_400.0 * 40)),
    st.integers(0, 3),
)


class Witness:
    """State of one job as its requests alone give it: an oracle beside the code."""

    def __init__(self, is_held: bool) -> None:
        self.is_held = is_held
        self.could_run = 0.0

    def pass_time(self, seconds: float) -> None:
        self.could_run += 0.0 if self.is_held else seconds


@given(st.lists(STEPS, max_size=12), st.booleans(), st.integers(1, 3))
@settings(max_examples=examples(300), derandomize=True, deadline=None)
def test_no_hold_and_no_release_gives_a_wait(
    steps: list[tuple[str, str, float, int]], is_held: bool, count: int
) -> None:
    clock, store = FakeClock(), MemoryJobStore()
    doors = {name: Actions(store, clock, Actor(1000 + at, name)) for at, name in enumerate(USERS)}
    array = tuple(range(count)) if count > 1 else ()
    ids = doors["alice"].act(SubmitJobs((Submission(spec(), held=is_held, array=array),))).ids
    told = {job_id: Witness(is_held) for job_id in ids}
    for verb, name, seconds, at in steps:
        chosen = ids if at >= len(ids) else ids[at : at + 1]
        before = {job_id: store.get(job_id).held for job_id in ids}
        carry_out(doors[name], verb, list(chosen))
        for job_id in ids:
            job = store.get(job_id)
            if verb in {"hold", "release"} and job_id in chosen:
                assert job.held is (verb == "hold")
            else:
                assert verb == "undo" or job.held is before[job_id], "the others are as they were"
            if job.held and not before[job_id]:
                assert (job.held_by, job.held_at) == (name, clock.now()) or verb == "undo"
            if not job.held:
                assert (job.held_by, job.held_at, job.hold_reason) == ("", None, None)
            else:
                assert job.held_at is not None
                assert NOW <= job.held_at <= clock.now()
            told[job_id].is_held = job.held
            told[job_id].pass_time(seconds)
        clock.advance(seconds)
        for job_id in ids:
            job, now = store.get(job_id), clock.now()
            ended_at = Dependencies.of(store.jobs().values()).ended_at(job, now)
            wait = eligible_wait(job, ended_at, now)
            assert wait <= timedelta(seconds=told[job_id].could_run) + timedelta(microseconds=2 * len(steps))
            if not {"raise", "lower"} & {step[0] for step in steps}:
                assert abs(wait.total_seconds() - told[job_id].could_run) < 0.001, "and takes none away"
            assert eligible_since(job, ended_at, now) >= now.timestamp() - told[job_id].could_run - 0.001


def carry_out(actions: Actions, verb: str, ids: list[int]) -> None:
    """Carry out one request; an undo takes the hold or release back that it makes itself."""
    if verb == "hold":
        actions.act(Hold(tuple(ids)))
    elif verb == "release":
        actions.act(Release(tuple(ids)))
    elif verb == "undo":
        held, released = actions.act(Hold(tuple(ids))), actions.act(Release(tuple(ids)))
        actions.undo((*held.changes, *released.changes))
    elif verb in {"raise", "lower"}:
        actions.act(SetPriority(tuple(ids), 80 if verb == "raise" else 20))
