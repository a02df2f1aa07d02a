"""Bars of the timeline: distinguishable without colours, cut at the edges, never too wide."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.gpu import Drain, GpuState, Health, HealthCode, index_ranges
from gputui.domain.policy.planning_context import DurationSource
from gputui.domain.policy.whatif import Bar, BarKind, Shift
from gputui.domain.settings import Window
from gputui.domain.text import distance, width
from gputui.tui.palette import ascii_of
from gputui.tui.present.cells import Cell, clock
from gputui.tui.present.gpu_rows import Labels
from gputui.tui.present.timeline import (
    DRAINED,
    KEPT,
    OTHERS,
    STEPS,
    UNKNOWN,
    Drawn,
    Scale,
    axis,
    by_impact,
    direction,
    gpu_row,
    lanes,
    legend,
    shape_of,
    step_for,
    zoomed,
)
from tests.cases import cases
from tests.factories import NOW, uuid, view
from tests.lane import examples
from tests.tui import plans
from tests.tui.sample import NAMES

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
HERE = Scale(NOW, 10 * MINUTE, 40)


def bar(
    start: float, end: float, kind: BarKind = BarKind.PLANNED, source: DurationSource = DurationSource.LIMIT
) -> Bar:
    return Bar(7, kind, (uuid(0),), NOW + start * MINUTE, NOW + end * MINUTE, source)


def text(cell: Cell) -> str:
    return "".join(value for value, _ in cell)


def drawn(*bars: Bar, name: str = "train") -> str:
    return text(gpu_row(Drawn(HERE, NOW - HOUR, names={7: name}), bars)).replace("·", " ").rstrip()


def kinds() -> list[Bar]:
    both = [(kind, source) for kind in BarKind for source in (DurationSource.LIMIT, DurationSource.DEFAULT)]
    plain = [bar(0, 200, kind, source) for kind, source in both]
    return [*plain, replace(plain[0], is_overrun=True)]


@cases("in_terminal", [str, ascii_of])
def test_each_kind_has_a_shape_of_its_own(in_terminal: Callable[[str], str]) -> None:
    shapes = [tuple(map(in_terminal, shape_of(one))) for one in kinds()]
    assert len({(fill, end) for _, fill, end in shapes}) == len(kinds())
    assert len({*map(in_terminal, (KEPT, DRAINED, UNKNOWN, OTHERS)), shapes[0][1], shapes[2][1]}) == 6


def test_ascii_bars_use_only_ascii() -> None:
    window = Window("exam", NOW, NOW + HOUR, gpus=(uuid(0),))
    drain = view(0, GpuState.DRAINED, drain=Drain("fan", "alice", NOW))
    row = gpu_row(Drawn(HERE, NOW, (window,), {7: "train"}), kinds(), drain)
    assert "".join(ascii_of(value) for value, _ in (*row, *axis(HERE, 0), *legend())).isascii()


def test_a_bar_has_its_job_in_it_and_ends_at_the_edges() -> None:
    assert drawn(bar(0, 200)) == "├7 train───────────┤"
    assert ascii_of(drawn(bar(0, 200))) == "(7 train-----------)"
    assert drawn(bar(-60, 100)) == "7 train──┤"
    assert drawn(bar(300, 900)) == " " * 30 + "├7 train─▸"
    assert drawn(bar(10, 40)) == " ├7┤"
    assert drawn(bar(10, 20)) == " ├"
    assert drawn(bar(-50, -20)) == drawn(bar(500, 600)) == ""


def test_reservations_and_conflicts_are_under_the_bars() -> None:
    window = Window("exam", NOW + HOUR, NOW + 3 * HOUR, gpus=(uuid(0),))
    row = gpu_row(Drawn(HERE, NOW, (window,), {7: "x"}), [bar(150, 400)], view(0))
    assert text(row).startswith("│     ")
    assert " exam ░░░├7 x" in text(row)
    other = gpu_row(Drawn(HERE, NOW, (window,)), [], view(1))
    assert "exam" not in text(other)


@cases(
    ("bars", "expected"),
    [
        ([(-60, 100)], "7 x──────┤ off the bus ?????????????????"),
        ([(-60, 100), (100, 180)], "7 x──────┤├7 x───┤ off the bus ?????????"),
        ([(200, 300)], "│ off the bus ??????├7 x─────┤??????????"),
        ([(110, 300)], "│ off the …├7 x──────────────┤??????????"),
        ([(30, 270)], "│??├7 x───────────────────┤ off the bus "),
        ([(-60, 900)], "7 x────────────────────────────────────▸"),
        ([], "│ off the bus ??????????????????????????"),
    ],
)
def test_the_reason_why_no_job_starts_is_beside_the_bars(bars: list[tuple[float, float]], expected: str) -> None:
    lost = view(0, GpuState.DRAINED, health=Health(HealthCode.LOST, "off the bus"))
    row = gpu_row(Drawn(HERE, NOW, names={7: "x"}), [bar(*each) for each in bars], lost)
    assert text(row) == expected


def test_the_name_of_a_reservation_is_beside_the_bars() -> None:
    window = Window("exam week", NOW - HOUR, NOW + 5 * HOUR, gpus=(uuid(0),))
    row = gpu_row(Drawn(HERE, NOW, (window,), {7: "x"}), [bar(-60, 80)], view(0))
    assert "┤ exam week ░" in text(row)
    assert text(gpu_row(Drawn(HERE, NOW + HOUR, (window,)), [], view(0))).startswith("░░░░░░│ exam week ░")


@cases(
    ("starts", "now", "labels"),
    [
        (HOUR, NOW, ["Mon 14:00", "16:00", "18:00"]),
        (20 * HOUR, NOW, ["Tue 08:00", "10:00", "12:00"]),
        (11 * HOUR, NOW, ["Tue 3", "02:00", "04:00"]),
        (0 * HOUR, NOW, ["│now", "14:00", "16:00"]),
    ],
)
def test_an_axis_without_the_present_names_its_day(starts: timedelta, now: datetime, labels: list[str]) -> None:
    scale = replace(HERE, start=NOW + starts)
    assert re.split(r" {2,}", text(axis(scale, scale.cell(now))).strip()) == labels


def test_jobs_that_share_a_gpu_have_a_line_each() -> None:
    first, second, third = bar(0, 100), bar(50, 150), bar(100, 200)
    assert lanes([third, second, first]) == [[first, third], [second]]
    assert lanes([]) == [[]]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.floats(-500, 900), st.floats(1, 600), st.sampled_from(NAMES)), max_size=6),
    st.integers(1, 60),
    st.sampled_from(STEPS),
)
def test_a_row_takes_exactly_its_cells(bars: list[tuple[float, float, str]], cells: int, step: timedelta) -> None:
    scale = Scale(NOW - 20 * step, step, cells)
    painted = [bar(start, start + length) for start, length, _ in bars]
    name = bars[0][2] if bars else ""
    row = gpu_row(Drawn(scale, NOW, names={7: name}), painted, view(0, GpuState.FOREIGN))
    assert width(text(row)) == width(text(axis(scale, scale.cell(NOW)))) == cells
    assert not {"\x1b", "\n", "\r", "\t", "\u202e"} & set(text(row))


@pytest.fixture
def summer(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """Set the time zone to Berlin, on the night in which clocks go forward."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    return datetime.fromisoformat("2026-03-28T22:00:00+00:00")


def test_times_are_local_across_changes_of_the_clocks(summer: datetime) -> None:
    scale = Scale(summer, 10 * MINUTE, 60)
    assert [words for _, words in scale.ticks()] == ["Sun 29", "03:00", "05:00", "07:00", "09:00"]
    assert clock(summer + 4 * HOUR, summer) == "Sun 04:00"


def test_positions_on_a_scale_are_read_back() -> None:
    assert step_for(timedelta(hours=8), 60) == 10 * MINUTE
    assert zoomed(10 * MINUTE, 1) == 5 * MINUTE
    assert zoomed(10 * MINUTE, -1) == 15 * MINUTE
    assert zoomed(STEPS[0], 5) == STEPS[0]
    assert zoomed(STEPS[-1], -5) == STEPS[-1]
    assert HERE.cell(NOW + 25 * MINUTE) == 2
    assert HERE.cell(NOW - MINUTE) == -1


def test_moments_and_shifts_have_words() -> None:
    assert clock(NOW, NOW) == "now"
    assert clock(NOW + HOUR, NOW) == "13:00"
    assert clock(NOW + 20 * HOUR, NOW) == "Tue 08:00"
    assert clock(NOW + 400 * HOUR, NOW) == "03-19 04:00"
    assert distance(NOW, NOW + HOUR) == "1h later"
    assert distance(NOW + 65 * MINUTE, NOW) == "1h05m earlier"
    assert distance(NOW + MINUTE, NOW) == "1m earlier"


def test_shifts_are_sorted_by_impact() -> None:
    later, much, lost, won = (
        Shift(1, NOW, NOW + HOUR),
        Shift(2, NOW + 5 * HOUR, NOW),
        Shift(3, NOW, None),
        Shift(4, None, NOW),
    )
    own = Shift(5, NOW, NOW + MINUTE)
    assert [shift.job_id for shift in by_impact([later, much, lost, won, own])] == [3, 1, 5, 4, 2]
    assert [direction(shift) for shift in (later, much, lost, won)] == ["▼", "▲", "✗", "+"]


def test_indices_of_gpus_are_shown_as_ranges() -> None:
    assert index_ranges(["0", "1", "2", "3", "6"]) == "0-3,6"
    assert index_ranges(["5", "0m", "0m"]) == "5,0m,0m"
    assert index_ranges([]) == ""


def test_gpus_of_several_nodes_carry_their_names() -> None:
    labels = Labels.of(plans.large())
    assert labels.of_all([uuid(i) for i in (0, 1, 2, 33)]) == "GPU node1:0-2 node2:33"
    assert Labels.of(plans.contended()).of_all([uuid(0), uuid(2)]) == "GPU 0,2"
    assert labels.of_all([]) == "no GPU"
    assert labels.of_all([uuid(90), uuid(91)]) == "2 GPUs", "the driver lists them no more"
    assert labels.of_all([uuid(0), uuid(90)]) == "GPU node1:0 and 1 more"
