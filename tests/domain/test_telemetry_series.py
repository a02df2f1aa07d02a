"""Series are bounded and keep their ends, whatever is recorded."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.domain.telemetry_series import COLUMNS, MOST_BYTES, READINGS, Recorder, packed, unpacked
from tests.cases import cases
from tests.lane import examples

BEGIN = 1_772_452_800.0
values = st.dictionaries(st.sampled_from(READINGS), st.floats(0, 1e12), max_size=len(READINGS))
steps = st.tuples(st.floats(0.001, 1e6), st.floats(0, 1e6), values)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(steps, min_size=1, max_size=60))
def test_a_series_is_small_and_keeps_first_and_last(recorded: list[tuple[float, float, dict[str, float]]]) -> None:
    recorder, moment = Recorder(BEGIN, BEGIN), BEGIN
    for seconds, pause, told in recorded:
        recorder.add(moment, moment + seconds, told)
        moment += seconds
        end, moment = moment, moment + pause
    text = packed(recorder.series())
    assert len(text) <= MOST_BYTES
    found = unpacked(text)
    assert found is not None
    assert found.begin == BEGIN
    assert found.end == pytest.approx(end, abs=1e-3)
    assert all(len(means) <= COLUMNS for means in found.means.values())
    for name, means in found.means.items():
        assert (means[0] is not None) or name not in recorded[0][2]
        assert (means[-1] is not None) or name not in recorded[-1][2]


def test_folding() -> None:
    # the worst noise of a long job fits
    chosen, recorder = random.Random(3), Recorder(BEGIN, BEGIN)
    for second in range(COLUMNS):
        recorder.add(BEGIN + second, BEGIN + second + 1, {name: chosen.random() * 8e10 for name in READINGS})
    text = packed(recorder.series())
    assert 3500 < len(text) <= MOST_BYTES
    found = unpacked(text)
    assert found is not None
    for name, means in recorder.series().means.items():
        assert found.means[name] == pytest.approx(means, abs=8e10 / 500)
    # folding keeps means and gaps
    recorder = Recorder(BEGIN, BEGIN)
    for second in range(4 * COLUMNS):
        if not 400 <= second < 600:
            recorder.add(BEGIN + second, BEGIN + second + 1, {"power": float(second)})
    series = recorder.series()
    means = series.means["power"]
    assert (series.width, len(means)) == (4, COLUMNS)
    assert means[:2] == (1.5, 5.5)
    assert means[-1] == pytest.approx(4 * COLUMNS - 2.5)
    assert set(means[100:150]) == {None}
    # a reading counts in all columns that it covers
    recorder = Recorder(BEGIN, BEGIN)
    recorder.add(BEGIN - 5, BEGIN + 2.5, {"cpus": 2.0})
    recorder.add(BEGIN + 2.5, BEGIN + 3, {"cpus": 4.0})
    assert recorder.series().means["cpus"] == (2.0, 2.0, 3.0)


@cases("text", ["", "no", "é", packed(Recorder(BEGIN, BEGIN).series())[:-3]])
def test_invalid_data_give_no_series(text: str) -> None:
    assert unpacked(text) is None
