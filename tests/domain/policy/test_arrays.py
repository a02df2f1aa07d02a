"""Arrays with dependents, and actions on parts of an array: planned like their elements one by one."""

from __future__ import annotations

import dataclasses

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.action import Cancel, Hold, SetPriority, Top
from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy import whatif
from gputui.domain.policy.plan import plan
from gputui.domain.runs import Run
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from tests.domain.policy.cases import Case, cases
from tests.factories import NOW
from tests.lane import examples

SLOW = settings(max_examples=examples(60), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
SPACE = 40
"""Ids from one array to the next."""


@st.composite
def with_entries(draw: st.DrawFn) -> Case:
    """Return a server on which some waiting jobs are arrays, each as one entry."""
    case: Case = draw(cases())
    sizes = {
        one.id: draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
        for one in case.snapshot.jobs
        if one.state is JobState.PENDING and draw(st.booleans())
    }
    first = {job_id: 1000 + place * SPACE for place, job_id in enumerate(sizes)}
    jobs = tuple(_entry(one, sizes.get(one.id), first) for one in case.snapshot.jobs)
    return dataclasses.replace(case, snapshot=replace(case.snapshot, jobs=jobs))


def _entry(one: Job, sizes: list[int] | None, first: dict[JobId, JobId]) -> Job:
    after, after_any = (tuple(first.get(other, other) for other in ids) for ids in (one.spec.after, one.spec.after_any))
    one = one.evolve(spec=replace(one.spec, after=after, after_any=after_any))
    if sizes is None:
        return one
    start = first[one.id]
    runs, index = [], 0
    for size in sizes:
        runs.append(Run(start, index, size, 1 if size == 1 else 2))
        start, index = start + size + 2, index + 2 * size + 5
    array = one.array or ArrayRef(first[one.id], 0)
    return one.evolve(id=first[one.id], array=array).with_runs(tuple(runs))


def expanded(picture: Snapshot) -> Snapshot:
    """Return the same server with each element as its own job."""
    return replace(picture, jobs=tuple(one.element(job_id) for one in picture.jobs for job_id in one.ids))


def check_alike(case: Case) -> None:
    together = plan(case.snapshot, case.settings, NOW)
    alone = plan(expanded(case.snapshot), case.settings, NOW)
    assert (together.starts, together.reservations) == (alone.starts, alone.reservations)
    assert list(together.forecast.items()) == list(alone.forecast.items())
    assert {job_id: together.reasons[job_id] for job_id in alone.reasons} == dict(alone.reasons)


@SLOW
@given(with_entries())
def test_entries_that_others_wait_for_are_planned_like_their_elements(case: Case) -> None:
    check_alike(case)


@SLOW
@given(
    with_entries(), st.sampled_from(["hold", "cancel", "raise", "top"]), st.sets(st.integers(1000, 1100), max_size=30)
)
def test_an_action_on_some_elements_changes_an_entry_as_it_changes_single_jobs(
    case: Case, verb: str, chosen: set[JobId]
) -> None:
    changes = {
        "hold": whatif.change_of(Hold(tuple(chosen)), NOW),
        "cancel": whatif.change_of(Cancel(tuple(chosen)), NOW),
        "raise": whatif.change_of(SetPriority(tuple(chosen), 10, relative=True), NOW),
        "top": whatif.change_of(Top(tuple(chosen)), NOW),
    }
    after, alone = changes[verb](case.snapshot), changes[verb](expanded(case.snapshot))
    by_id = {one.id: one for one in expanded(after).jobs}
    assert by_id == {one.id: one for one in alone.jobs}
    check_alike(dataclasses.replace(case, snapshot=after))
