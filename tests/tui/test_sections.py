"""Which rows of the queue's sections are visible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.tui.widgets.queue_folding import BLANK, FOOT, Extent, visible
from tests.cases import cases

sizes = st.integers(0, 40)
extents = st.builds(
    Extent,
    running=sizes,
    waiting=sizes,
    ended=sizes,
    has_ended=st.just(True),
    is_folding=st.booleans(),
)
places = st.tuples(sizes, sizes, sizes)


@given(extents, st.integers(1, 60), st.integers(0, 200), places)
def test_every_row_is_visible_under_the_cursor_and_none_twice(
    extent: Extent, height: int, at: int, tops: tuple[int, int, int]
) -> None:
    total = sum(extent.counts) + (extent.fold is not None)
    row = at % total if total else None
    view = visible(extent, height, row, tops)
    rows = [line for line in view.lines if line >= 0]
    assert len(view.lines) == height
    assert rows == sorted(set(rows))
    assert row is None or row in rows
    assert not rows or rows[-1] < total


@given(extents, st.integers(4, 60), places)
def test_live_rows_come_first_and_ended_ones_do_not_push_them_out(
    extent: Extent, height: int, tops: tuple[int, int, int]
) -> None:
    view = visible(extent, height, None, tops)
    running, waiting, ended = view.shares
    assert waiting >= min(2, extent.waiting)
    assert running >= min(1, extent.running)
    assert (extent.fold if extent.fold is not None else FOOT) in view.lines
    opened = max(1, (height - 1) // 3) if extent.ended else 0
    if running < extent.running:
        assert waiting <= 2
        assert ended <= opened
    if (running, waiting, ended) != extent.counts and (extent.running or extent.waiting):
        assert BLANK not in view.lines, "no line is empty while rows are hidden"


@cases("height", range(4, 40))
def test_the_row_of_ended_jobs_stays_on_the_last_line_whatever_runs(height: int) -> None:
    for live in range(60):
        extent = Extent(live % 9, live // 9, has_ended=True)
        assert visible(extent, height).lines[-1] == extent.fold
