"""Telemetry of an attempt on its job's page: a line for each kind of reading, with a graph as wide as possible."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from gputui.domain.attempt import Attempt
from gputui.domain.telemetry import AttemptTelemetry, Spread
from gputui.domain.telemetry_series import Measured, Series
from gputui.domain.telemetry_words import summary_lines
from gputui.domain.text import width
from gputui.domain.units import format_duration
from gputui.tui.present.cells import Cell, cell
from gputui.tui.present.graphs import graph
from gputui.tui.present.style import DIM, GRAPH, PLAIN

_READINGS = {
    "GPU use": "utilization",
    "SMs": "sm_activity",
    "bandwidth": "memory_activity",
    "GPU mem": "gpu_memory",
    "power": "power",
    "heat": "temperature",
    "slowed": "throttled",
    "CPU": "cpus",
    "memory": "memory",
}
"""Reading that is drawn beside each line of the summary."""
_SHARES = frozenset({"utilization", "sm_activity", "memory_activity", "throttled"})
_HOT = 100.0
"""Top of the graph of temperatures, in degrees Celsius."""
_LEAST, _MOST = 16, 96
"""Cells of a graph."""
_GAP = 2


def telemetry_lines(
    attempt: Attempt, measured: Measured, room: int, *, has_graphs: bool = True, is_tall: bool = False
) -> list[tuple[str, Cell]]:
    """Return labels and cells of at most `room` cells, or text to be wrapped; empty if nothing is known.

    Graphs are beside the text; if there is no room for that, above it on a tall page.
    """
    summary, series = measured.summary, measured.series
    if summary is None:
        return []
    told = list(summary_lines(summary))
    cells = min(_MOST, room - _GAP - max((width(words) for _, words in told), default=0))
    is_stacked = cells < _LEAST and is_tall
    if not has_graphs or series is None or _is_short(series) or not (cells >= _LEAST or is_stacked):
        return [("measured", _heading(attempt, summary)), *((label, cell(words)) for label, words in told)]
    lines = [("measured", _heading(attempt, summary, series))]
    for label, words in told:
        drawn = _graph(label, summary, series, min(room, _MOST) if is_stacked else cells)
        if is_stacked:
            lines += [(label, ((drawn, GRAPH),)), ("", cell(words))] if drawn else [(label, cell(words))]
        else:
            lines.append((label, ((drawn or " " * cells, GRAPH), (" " * _GAP + words, PLAIN))))
    return lines


def _is_short(series: Series) -> bool:
    """Return whether there are too few readings for a graph."""
    return all(len(means) < 2 for means in series.means.values())


def _heading(attempt: Attempt, summary: AttemptTelemetry, series: Series | None = None) -> Cell:
    """Return `attempt 2, for 58m00s`, and the time that the graphs cover."""
    read = f", GPUs for {format_duration(timedelta(seconds=summary.seconds))}" if summary.seconds is not None else ""
    span = f" · graphs of {format_duration(timedelta(seconds=series.end - series.begin))}" if series else ""
    return ((f"attempt {attempt.number}{read}", PLAIN), (span, DIM))


def _graph(label: str, summary: AttemptTelemetry, series: Series, cells: int) -> str:
    """Return the graph of the reading of a line; empty if it has none."""
    name = _READINGS.get(label, "")
    means = series.means.get(name, ())
    return graph(_shares(name, _stretched(means, cells), summary), cells) if means else ""


def _stretched(means: Sequence[float | None], cells: int) -> list[float | None]:
    """Return a value for each cell: the mean of its columns, or the value of the column that contains it."""
    found: list[float | None] = []
    for place in range(cells):
        first = place * len(means) // cells
        last = max(first + 1, (place + 1) * len(means) // cells)
        known = [mean for mean in means[first:last] if mean is not None]
        found.append(sum(known) / len(known) if known else None)
    return found


def _shares(name: str, means: list[float | None], summary: AttemptTelemetry) -> list[float | None]:
    """Return the values as shares of the top of the graph."""
    most = _top(name, summary) or max((mean for mean in means if mean is not None), default=0.0) or 1.0
    return [None if mean is None else mean / most for mean in means]


def _top(name: str, summary: AttemptTelemetry) -> float | None:
    """Return the maximum value of a graph; None: the highest mean."""
    if name in _SHARES:
        return 1.0
    if name == "temperature":
        return _HOT
    if name == "gpu_memory" and summary.gpu_memory_total:
        return float(summary.gpu_memory_total)
    spread = getattr(summary, name, None)
    return spread.peak if isinstance(spread, Spread) else None
