"""History of a GPU in columns of a graph."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.gpu_history import KEPT, GpuPast, Step

LAST = 1_800_000_007
"""Second of the last reading, in the middle of a step."""
LOADS = st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=60)


def steps(loads: list[float | None]) -> tuple[Step, ...]:
    return tuple(map(Step, loads))


def means(loads: dict[int, float | None], now: int, width: int, count: int) -> list[float | None]:
    """Return the mean of each of the last `count` columns, which begin at multiples of `width`; `loads` by second."""
    found: list[float | None] = []
    for column in range(now // width - count + 1, now // width + 1):
        known = [
            load for second in range(column * width, (column + 1) * width) if (load := loads.get(second)) is not None
        ]
        found.append(fmean(known) if known else None)
    return found


@given(LOADS, st.integers(1, 25), st.integers(1, 12))
def test_a_column_is_the_mean_of_its_seconds(loads: list[float | None], width: int, count: int) -> None:
    past = GpuPast(seconds=steps(loads), second=LAST)
    read = dict(zip(range(LAST - len(loads) + 1, LAST + 1), loads, strict=True))
    assert past.columns("utilization", width, count) == pytest.approx(means(read, LAST, width, count))


@given(LOADS, st.integers(1, 60), st.integers(1, 12))
def test_steps_stand_in_the_columns_of_their_time(loads: list[float | None], width: int, count: int) -> None:
    """A step counts in the column in which it begins, and in every later one that it fills a part of."""
    ended = LAST // 60 * 60
    past = GpuPast(steps=steps(loads), number=len(loads), ended=ended)
    begun = range(ended - 10 * len(loads), ended, 10)
    read = {
        second: load
        for start, load in zip(begun, loads, strict=True)
        for second in range(start, start + 10, min(width, 10))
    }
    assert past.columns("utilization", width, count) == pytest.approx(means(read, ended, width, count))


def test_seconds_and_steps() -> None:
    # seconds replace the steps of the same time
    ended = LAST // 10 * 10
    seconds = LAST - ended + 21  # those of two whole steps, and those after them
    past = GpuPast(steps=steps([0.25] * KEPT), number=KEPT, ended=ended, seconds=steps([0.75] * seconds), second=LAST)
    assert past.columns("utilization", 10, 5) == [0.25, 0.25, 0.75, 0.75, 0.75]
    # of the oldest step nothing comes before
    past = GpuPast(steps=steps([0.5] * 3), number=3, ended=LAST // 10 * 10)
    assert past.columns("utilization", 10, 6) == [None, None, 0.5, 0.5, 0.5, None]
