"""Changes of a snapshot: entries of arrays change as their elements do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.domain.action import Cancel, Edit, EditJobs, Hold, Release, Requeue, SetPriority, Top
from gputui.domain.arrays import unfolded
from gputui.domain.job import Job
from gputui.domain.policy import whatif
from gputui.domain.policy.whatif import SnapshotChange
from gputui.domain.snapshot import Snapshot
from tests.factories import NOW, array, job, running, snapshot
from tests.lane import examples

CHANGES: dict[str, Callable[[set[int]], SnapshotChange]] = {
    "priority": lambda ids: whatif.change_of(SetPriority(tuple(ids), 7, relative=True), NOW),
    "top": lambda ids: whatif.change_of(Top(tuple(ids)), NOW),
    "hold": lambda ids: whatif.change_of(Hold(tuple(ids)), NOW),
    "release": lambda ids: whatif.change_of(Release(tuple(ids)), NOW),
    "requeue": lambda ids: whatif.change_of(Requeue(tuple(ids)), NOW),
    "cancel": lambda ids: whatif.change_of(Cancel(tuple(ids)), NOW),
}
ENTRY = array(range(20), first=7)
PICTURE = snapshot([job(1), running(2), ENTRY, array([0, 2], first=30)])
SINGLY = snapshot(unfolded(PICTURE.jobs))


def each(found: Snapshot) -> list[Job]:
    return sorted(unfolded(found.jobs), key=lambda job: job.id)


@pytest.mark.parametrize("verb", CHANGES)
@settings(max_examples=examples(25))
@given(ids=st.sets(st.integers(1, 32)))
def test_elements_are_changed_alike_in_an_entry_and_singly(verb: str, ids: set[int]) -> None:
    change = CHANGES[verb](ids)
    found = change(PICTURE)
    assert each(found) == each(change(SINGLY))
    assert [job.id for job in found.jobs] == sorted(job.id for job in found.jobs)


def test_an_entry_after_a_change() -> None:
    # a change of all elements leaves one entry
    found = whatif.change_of(Hold(tuple(ENTRY.ids)), NOW)(PICTURE)
    assert len(found.jobs) == len(PICTURE.jobs)
    # an edit takes one element out of its entry
    found = whatif.change_of(EditJobs((9,), Edit(held=True)), NOW)(PICTURE)
    assert {job.shown_id: job.held for job in found.jobs if job.array and job.array.id == 7} == {
        "7_[0-1,3-19]": False,
        "7_2": True,
    }
