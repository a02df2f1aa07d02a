"""Marks are sets of ids, in spans."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.runs import joined_spans
from gputui.tui.widgets.queue_folding import Marks
from tests.factories import array, job

spans = st.lists(st.builds(lambda start, count: range(start, start + count), st.integers(0, 30), st.integers(0, 8)))


def marks(found: list[range]) -> Marks:
    return Marks(joined_spans((span.start, span.stop) for span in found if span))


def ids(found: list[range]) -> set[int]:
    return {number for span in found for number in span}


@given(spans, spans)
def test_marks_behave_as_sets(first: list[range], second: list[range]) -> None:
    one, two = marks(first), marks(second)
    assert (sorted(one), len(one), bool(one)) == (sorted(ids(first)), len(ids(first)), bool(ids(first)))
    assert set(one.with_all(two)) == ids(first) | ids(second)
    assert set(one.without(two)) == ids(first) - ids(second)
    assert one.has_all(two) == (ids(first) >= ids(second))
    assert {number for number in range(50) if number in one} == ids(first)


@given(spans, st.sets(st.integers(0, 20), min_size=2))
def test_some_elements_of_an_entry_are_marked(found: list[range], indices: set[int]) -> None:
    chosen, entry = marks(found), array(sorted(indices), first=3)
    marked = [number for number in entry.ids if number in ids(found)]
    part = chosen.part(entry)
    assert list(part.ids if part else ()) == marked
    assert chosen.has_any(entry) == bool(marked)


def test_fully_marked_jobs_stay_the_same_objects() -> None:
    entry = array(range(100_000))
    assert set(Marks.of([entry, job(3)])) == {3, *entry.ids}
    assert Marks.of([entry]).part(entry) is entry
