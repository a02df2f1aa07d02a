"""Runs represent many elements of arrays, and behave like the list of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain import runs
from gputui.domain.arrays import Entries
from gputui.domain.job import ArrayRef, Job
from gputui.domain.runs import Run
from tests.cases import cases
from tests.factories import job

chosen_indices = st.lists(st.integers(0, 60), min_size=1, max_size=40, unique=True)
some_ids = st.sets(st.integers(0, 60))


def entry(indices: list[int], first: int = 7, limit: int | None = None) -> Job:
    found = runs.runs_of(first, indices)
    return job(first, array=ArrayRef(first, indices[0], limit)).with_runs(found)


@cases(
    ("indices", "found"),
    [
        (range(100_000), [Run(7, 0, 100_000)]),
        ([5], [Run(7, 5, 1)]),
        ([1, 5, 7, 9], [Run(7, 1, 1), Run(8, 5, 3, 2)]),
        ([1, 5, 6, 7], [Run(7, 1, 1), Run(8, 5, 3)]),
        ([0, 10, 20, 30], [Run(7, 0, 4, 10)]),
        ([5, 4, 3], [Run(7, 5, 1), Run(8, 4, 1), Run(9, 3, 1)]),
        ([], []),
    ],
)
def test_indices_become_few_runs(indices: list[int], found: list[Run]) -> None:
    assert list(runs.runs_of(7, indices)) == found


@given(chosen_indices)
def test_runs_contain_exactly_their_elements(indices: list[int]) -> None:
    made = runs.runs_of(7, indices)
    assert list(runs.indices(made)) == indices
    assert list(runs.ids(made)) == list(range(7, 7 + len(indices)))
    assert runs.count(made) == len(indices)
    for job_id, index in enumerate(indices, 7):
        run = runs.find(made, job_id)
        assert run is not None
        assert run.index_of(job_id) == index
    assert runs.find(made, 6) is runs.find(made, 7 + len(indices)) is None


@given(chosen_indices, some_ids)
def test_removed_and_restored_elements_are_complete(indices: list[int], ids: set[int]) -> None:
    made = runs.runs_of(7, indices)
    taken, left = runs.divided(made, ids)
    everything = dict(zip(runs.ids(made), indices, strict=True))
    assert dict(zip(runs.ids(taken), runs.indices(taken), strict=True)) == {
        job_id: index for job_id, index in everything.items() if job_id in ids
    }
    assert set(runs.ids(left)) == everything.keys() - ids
    together = runs.merged((*left, *taken))
    assert dict(zip(runs.ids(together), runs.indices(together), strict=True)) == everything


@given(st.integers(1, 50), some_ids)
def test_neighbours_become_one_run_again(count: int, ids: set[int]) -> None:
    whole = (Run(7, 3, count),)
    taken, left = runs.divided(whole, ids)
    assert runs.merged((*taken, *left)) == whole


def test_ranges_of_ids() -> None:
    # a range of ids is divided without iteration
    taken, left = runs.divided((Run(10, 0, 10**9),), range(20, 10**8))
    assert (taken, left) == ((Run(20, 10, 10**8 - 20),), (Run(10, 0, 10), Run(10**8, 10**8 - 10, 10**9 + 10 - 10**8)))
    # many runs are cut to the available space
    made = runs.runs_of(7, [place * place for place in range(100)])
    assert runs.words(made, 12) == "0-1,4,9,16,..."
    assert runs.words(made, 0) == "..."


@cases(
    ("indices", "words"),
    [([0, 1, 2, 3, 7], "0-3,7"), ([0, 5, 10, 15], "0-15:5"), ([7, 3], "3,7"), (list(range(0, 60, 7)), "0-56:7")],
)
def test_runs_are_written_in_the_notation_of_requests(indices: list[int], words: str) -> None:
    assert runs.words(runs.runs_of(7, indices)) == words


def test_entries() -> None:
    # an entry represents its elements
    array = entry([0, 1, 2, 10], limit=2)
    assert (array.id, array.count, list(array.ids), list(array.indices)) == (7, 4, [7, 8, 9, 10], [0, 1, 2, 10])
    assert (array.shown_id, array.element(10).shown_id, array.element(7).shown_id) == ("7_[0-2,10%2]", "7_10", "7_0")
    assert array.element(9) == job(9, array=ArrayRef(7, 2, 2))
    assert array.has(10)
    assert not array.has(11)
    with pytest.raises(KeyError):
        array.element(11)
    # a single element is not an entry
    assert entry([3]) == job(7, array=ArrayRef(7, 3))
    taken, left = entry([0, 1]).divided([7])
    assert (taken, left) == (job(7, array=ArrayRef(7, 0)), job(8, array=ArrayRef(7, 1)))
    # the rest of an entry has its first id
    left = entry([0, 1, 2, 3]).without({7, 8})
    assert left is not None
    assert (left.id, left.array, list(left.ids)) == (9, ArrayRef(7, 2), [9, 10])
    assert entry([0, 1]).without(range(7, 9)) is None
    # a plain job is divided into itself and nothing
    assert job(3).divided([3]) == (job(3), None)
    assert job(3).divided([4]) == (None, job(3))
    assert (job(3).count, list(job(3).ids), list(job(3).indices)) == (1, [3], [])


class TestEntries:
    @given(chosen_indices, some_ids)
    def test_elements_are_found_in_any_entry(self, indices: list[int], ids: set[int]) -> None:
        whole = entry(indices)
        parts = [part for part in whole.divided(ids) if part is not None] + [job(3), job(100)]
        entries = Entries({part.id: part for part in sorted(parts, key=lambda part: part.id)})
        assert {job_id for job_id in range(120) if job_id in entries} == {3, 100, *whole.ids}
        for job_id, index in zip(whole.ids, indices, strict=True):
            assert entries[job_id] == job(job_id, array=ArrayRef(7, index))
            around = entries.entry(job_id)
            assert around in parts
            assert around is not None
            assert around.has(job_id)
        assert entries.count == len(indices) + 2

    def test_iteration_yields_entries(self) -> None:
        array = entry([0, 1, 2])
        entries = Entries({3: job(3), 7: array})
        assert (list(entries), list(entries.values()), len(entries)) == ([3, 7], [job(3), array], 2)
        assert dict(entries.items()) == {3: job(3), 7: array}

    def test_the_id_of_an_entry_is_its_first_element(self) -> None:
        array = entry([0, 1, 2])
        entries = Entries({7: array})
        assert entries[7] == job(7, array=ArrayRef(7, 0))
        assert entries.entry(7) is array

    def test_absent_ids_are_missing(self) -> None:
        entries = Entries({7: entry([0, 1, 2])})
        assert entries.get(10) is None
        assert entries.entry(6) is None
        with pytest.raises(KeyError):
            entries[10]
