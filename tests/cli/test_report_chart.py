"""The chart of the HTML report."""

from __future__ import annotations

import re
import sys
from datetime import date, timedelta
from importlib.metadata import version

from gputui.cli.report import Bars, chart
from gputui.domain.accounting import OUTCOMES
from tests.cases import cases


def bars(days: int) -> Bars:
    """Return bars of an hour of each outcome, but none on every other day."""
    begin = date(2026, 3, 2)
    return [((begin + timedelta(day)).isoformat(), dict.fromkeys(OUTCOMES, float(day % 2 == 0))) for day in range(days)]


def dates(svg: str) -> list[str]:
    """Return the dates below the chart."""
    return re.findall(r"<text[^>]*>(\d{4}-\d\d-\d\d)</text>", svg)


def test_each_part_of_a_bar_tells_day_hours_and_outcome() -> None:
    titles = re.findall(r"<title>([^<]*GPU-hours \w+)</title>", chart(bars(3), "GPU-hours by day"))
    days = ("2026-03-02", "2026-03-04")
    assert sorted(titles) == sorted(f"{day}: 1.0 GPU-hours {outcome}" for day in days for outcome in OUTCOMES)


@cases(("days", "labels"), [(1, 1), (7, 7), (12, 12), (90, 12), (120, 12)])
def test_dates_are_whole_and_inside_the_chart(days: int, labels: int) -> None:
    svg = chart(bars(days), "GPU-hours by day")
    assert len(dates(svg)) == labels
    assert dates(svg)[0] == "2026-03-02"
    plot = re.search(r'<g transform="translate\((\d+), \d+\)" class="plot">', svg)
    assert plot is not None
    places = [float(x) for x in re.findall(r'<text x="([\d.]+)" [^>]*>\d{4}-', svg)]
    width = re.search(r'viewBox="0 0 (\d+) ', svg)
    assert width is not None
    half = 45
    """Half the width of a date, in pixels."""
    assert min(places) + int(plot[1]) >= half
    assert max(places) + int(plot[1]) <= int(width[1]) - half


def test_the_chart_runs_and_loads_nothing_and_is_the_same_each_time() -> None:
    svg = chart(bars(7), "by <day>")
    assert svg == chart(bars(7), "by <day>")
    assert not re.search(r"https?:|<script|href|@import|url\(|<!--", svg)
    assert "by &lt;day&gt;" in svg


def test_the_library_leaves_no_finder_of_modules_behind() -> None:
    chart(bars(1), "GPU-hours by day")
    assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("pygal")]
    assert version("pygal"), "Python no longer finds installed packages"
