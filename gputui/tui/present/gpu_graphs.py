"""Graphs of a GPU's readings with their figures, for the pages of a GPU and of a job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeAlias

from rich.style import Style

from gputui.domain.text import plain
from gputui.domain.units import UNKNOWN, format_duration, format_size
from gputui.tui.present.cells import Cell
from gputui.tui.present.gpu import gpu_state_words, label_of
from gputui.tui.present.gpu_gauge import graph_style, most_of, tone
from gputui.tui.present.gpu_rows import GpuRow
from gputui.tui.present.gpu_tone import HOTTEST, JUDGED
from gputui.tui.present.graphs import past_graph
from gputui.tui.present.style import BLUE, DIM, GRAPH, PLAIN, STRONG

_Series: TypeAlias = tuple[str, str, str]
"""A reading, its label and its unit."""
_LABEL = 12
_FIGURES = 22
"""Cells to the left of a graph: name, current reading, peak."""
_WIDE = 110
"""Cells from which two graphs fit side by side."""
_MOST_ACROSS = 4
_HIGHEST = 14
"""Maximum lines of a graph."""
_GAP = 3
_LEAST_TOP = {"sm_clock": 2000.0, "pcie_rx": 1e9, "pcie_tx": 1e9, "nvlink_rx": 1e9, "nvlink_tx": 1e9}
"""Minimum value at the top of a graph, in its own unit, so that an idle GPU does not fill it."""


def graph_lines(row: GpuRow, room: int, rows: int, spare: int = 0) -> list[Cell]:
    """Return a graph of each reading; several side by side if there is room, and higher if there are spare lines.

    `rows`: the height of the page. `spare`: lines not needed otherwise.
    """
    series = [one for one in _SERIES if _is_read(row, one[0])]
    height = max(1, min(5, rows // 12), min(_HIGHEST, (spare - 2) // _bands(series, room)))
    lines = _drawn(row, series, room, height)
    return [*lines, _axes(row, room, len(series))] if lines else []


def several_graph_lines(gpus: Sequence[GpuRow], room: int, rows: int) -> list[Cell]:
    """Return graphs of several GPUs in at most `rows` rows, with as many readings as are legible at that height.

    They begin with utilisation; empty if even that does not fit.
    """
    for most, least in _CHOICES:
        read = [[one for one in _SERIES[:most] if _is_read(row, one[0])] for row in gpus]
        bands = sum(_bands(series, room) for series in read)
        height = min(_HIGHEST, (rows - len(gpus) - 1) // bands) if any(read) else 0
        if height >= least:
            break
    else:
        return []
    lines: list[Cell] = []
    for row, series in zip(gpus, read, strict=True):
        model, state = f"  {plain(row.view.gpu.model or '', 40)}", gpu_state_words(row)
        title = ((f"GPU {label_of(row)}", STRONG), (f"{model}  " if state else model, DIM), *state)
        lines += [title, *_drawn(row, series, room, height)]
    return [*lines, _axes(gpus[0], room, max(map(len, read)))]


_CHOICES = ((6, 4), (4, 3), (2, 2), (1, 2))
"""Numbers of readings, each with the minimum height of graphs for which it is worth it."""


def _width(room: int) -> tuple[int, int]:
    """Return the number of graphs side by side, and the cells of each."""
    across = max(1, min(_MOST_ACROSS, room // (_WIDE // 2)))
    return across, (room - _GAP * (across - 1)) // across


def _bands(series: Sequence[_Series], room: int) -> int:
    return max(1, -(-len(series) // _width(room)[0]))


def _drawn(row: GpuRow, series: Sequence[_Series], room: int, height: int) -> list[Cell]:
    """Return the graphs in bands of that height; the first has at least two lines."""
    across, width = _width(room)
    lines: list[Cell] = []
    for number in range(0, len(series), across):
        high = height + (number == 0 and height == 1)
        drawn = [_graph(row, *one, width, high) for one in series[number : number + across]]
        lines += [_side_by_side(parts) for parts in zip(*drawn, strict=True)]
    return lines


def _axes(row: GpuRow, room: int, count: int) -> Cell:
    """Return the line below `count` graphs that shows how far back they go."""
    across, width = _width(room)
    wide = max(0, width - _FIGURES)
    axis: Cell = ((" " * _FIGURES, DIM), (_axis(wide, graph_seconds(row, wide)), DIM))
    return _side_by_side([axis] * min(across, count))


def _is_read(row: GpuRow, name: str) -> bool:
    now = getattr(row.view.sample, name) if row.view.sample is not None else None
    return now is not None or any(getattr(step, name) is not None for step in row.past.steps)


def _side_by_side(parts: Sequence[Cell]) -> Cell:
    """Return lines of graphs side by side."""
    gap: Cell = ((" " * _GAP, DIM),)
    return tuple(span for number, part in enumerate(parts) for span in ((*gap, *part) if number else part))


def _graph(row: GpuRow, name: str, label: str, unit: str, width: int, height: int) -> list[Cell]:
    """Return a graph with its figures."""
    wide = max(0, width - _FIGURES)
    seconds = graph_seconds(row, wide)
    values = [value for value in row.past.columns(name, seconds, 2 * wide) if value is not None] if wide else []
    now = getattr(row.view.current, name) if row.view.current is not None else None
    drawn = past_graph(row.past, name, _top(row, name, values), (wide, height), row.look.seconds)
    figures = _figures(label, unit, now, max(values, default=None), height)
    ink = _ink(row, name)
    return [(*figure, (line, ink)) for figure, line in zip(figures, drawn, strict=True)]


def _ink(row: GpuRow, name: str) -> Style:
    """Return the colour of a graph: that of the judgement on the reading, if there is one."""
    if row.is_old:
        return DIM
    if name == "utilization":
        return graph_style(row)
    return tone(row, name).style if name in JUDGED else GRAPH


_SERIES: tuple[_Series, ...] = (
    ("utilization", "utilisation", "%"),
    ("memory_used", "memory", "B"),
    ("power", "power", "W"),
    ("temperature", "temperature", "°C"),
    ("sm_clock", "SM clock", "MHz"),
    ("memory_utilization", "memory bandwidth", "%"),
    ("pcie_rx", "PCIe in", "B/s"),
    ("pcie_tx", "PCIe out", "B/s"),
    ("nvlink_rx", "NVLink in", "B/s"),
    ("nvlink_tx", "NVLink out", "B/s"),
)


def _top(row: GpuRow, name: str, values: Sequence[float]) -> float:
    """Return the value of the top of a graph."""
    if name in {"utilization", "memory_utilization", "memory_used", "power"}:
        return most_of(row, name) or 1.0
    return HOTTEST if name == "temperature" else max([_LEAST_TOP.get(name, 1.0), *values])


def _figures(label: str, unit: str, now: float | None, peak: float | None, height: int) -> list[Cell]:
    """Return the figures to the left of a graph: name, current reading, peak."""
    reading, most = amount(now, unit), f"peak {amount(peak, unit)}" if peak is not None else ""
    first: Cell = ((label.ljust(_LABEL), BLUE), (reading.rjust(_FIGURES - max(_LABEL, len(label)) - 1) + " ", PLAIN))
    second: Cell = ((most.rjust(_FIGURES - 1) + " ", DIM),)
    blank: Cell = ((" " * _FIGURES, DIM),)
    return [first, second, *[blank] * height][:height]


def amount(value: float | None, unit: str) -> str:
    """Return `97%`, `62G`, `4.1G/s`, `640W`; a dash if unknown."""
    if value is None:
        return UNKNOWN
    if unit == "%":
        return f"{value * 100:.0f}%"
    if unit.startswith("B"):
        return format_size(round(value)) + unit[1:]
    return f"{value:.0f}{unit}"


def graph_seconds(row: GpuRow, wide: int) -> int:
    """Return the seconds that a column of dots represents in a graph of that width."""
    return max(1, -(-row.look.seconds // max(1, 2 * wide)))


def _axis(wide: int, seconds: int) -> str:
    """Return the time axis: `-1m30s` at intervals, `now` at the right end."""
    line = [" "] * wide
    for cells in range(30, wide, 30):
        words = "-" + format_duration(timedelta(seconds=cells * 2 * seconds)).removesuffix("00s")
        line[wide - cells : wide - cells + len(words)] = words
    line[max(0, wide - 3) :] = "now"
    return "".join(line[:wide])
