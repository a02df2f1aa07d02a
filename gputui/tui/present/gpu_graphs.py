"""The last minutes of everything that is read of a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.domain.gpu_past import STEP
from gputui.domain.units import format_size
from gputui.tui.present.cells import UNKNOWN, Cell
from gputui.tui.present.gpu_card import most_of
from gputui.tui.present.gpu_row import GpuRow
from gputui.tui.present.graph import past_graph
from gputui.tui.present.style import BLUE, DIM, GRAPH, PLAIN

_LABEL = 12
_FIGURES = 22
"""Cells left of a graph: what it is of, how much now, and the most in sight."""
_WIDE = 110
"""Cells from which there is room for two side by side."""
_GAP = 3
_HOTTEST = 100.0
_LEAST_TOP = {"sm_clock": 2000.0, "pcie_rx": 1e9, "pcie_tx": 1e9, "nvlink_rx": 1e9, "nvlink_tx": 1e9}
"""What the top of a graph stands for at least, in its own unit: else a GPU at rest fills it."""


def graph_lines(row: GpuRow, room: int, rows: int) -> list[Cell]:
    """A graph of each reading that there is, over as many minutes as fit; two side by side where that is enough."""
    across = 2 if room >= _WIDE else 1
    width = (room - _GAP * (across - 1)) // across
    height = max(1, min(5, rows // 12))
    series = [one for one in _SERIES if _is_read(row, one[0])]
    lines: list[Cell] = []
    for number in range(0, len(series), across):
        high = height + (number == 0 and height == 1)
        drawn = [_graph(row, *one, width, high) for one in series[number : number + across]]
        lines += [_beside(parts) for parts in zip(*drawn, strict=True)]
    axis: Cell = ((" " * _FIGURES, DIM), (_axis(max(0, width - _FIGURES)), DIM))
    return [*lines, _beside([axis] * min(across, len(series)))] if lines else []


def _is_read(row: GpuRow, name: str) -> bool:
    now = getattr(row.view.sample, name) if row.view.sample is not None else None
    return now is not None or any(getattr(step, name) is not None for step in row.past.steps)


def _beside(parts: Sequence[Cell]) -> Cell:
    """Lines of graphs that stand side by side."""
    gap: Cell = ((" " * _GAP, DIM),)
    return tuple(span for number, part in enumerate(parts) for span in ((*gap, *part) if number else part))


def _graph(row: GpuRow, name: str, label: str, unit: str, width: int, height: int) -> list[Cell]:
    """A graph with its figures, each line exactly as wide."""
    wide = max(0, width - _FIGURES)
    values = [value for value in row.past.values(name)[-2 * wide :] if value is not None]
    now = getattr(row.view.sample, name) if not row.is_old else None
    drawn = past_graph(row.past, name, _top(row, name, values), wide, height)
    figures = _figures(label, unit, now, max(values, default=None), height)
    ink = DIM if row.is_old else GRAPH
    return [(*figure, (line, ink)) for figure, line in zip(figures, drawn, strict=True)]


_SERIES = (
    ("utilization", "utilisation", "%"),
    ("memory_used", "memory", "B"),
    ("power", "power", "W"),
    ("temperature", "temperature", "°C"),
    ("sm_clock", "SM clock", "MHz"),
    ("memory_utilization", "memory busy", "%"),
    ("pcie_rx", "PCIe in", "B/s"),
    ("pcie_tx", "PCIe out", "B/s"),
    ("nvlink_rx", "NVLink in", "B/s"),
    ("nvlink_tx", "NVLink out", "B/s"),
)


def _top(row: GpuRow, name: str, values: Sequence[float]) -> float:
    """What the top of a graph stands for."""
    if name in {"utilization", "memory_utilization", "memory_used", "power"}:
        return most_of(row, name) or 1.0
    return _HOTTEST if name == "temperature" else max([_LEAST_TOP.get(name, 1.0), *values])


def _figures(label: str, unit: str, now: float | None, peak: float | None, height: int) -> list[Cell]:
    """What stands at the left of a graph: its name, what is read now, and the most there was in it."""
    reading, most = amount(now, unit), f"most {amount(peak, unit)}" if peak is not None else ""
    first: Cell = ((label.ljust(_LABEL), BLUE), (reading.rjust(_FIGURES - _LABEL - 1) + " ", PLAIN))
    second: Cell = ((most.rjust(_FIGURES - 1) + " ", DIM),)
    blank: Cell = ((" " * _FIGURES, DIM),)
    return [first, second, *[blank] * height][:height]


def amount(value: float | None, unit: str) -> str:
    """`97%`, `62G`, `4.1G/s`, `640W`; a dash where it is not known."""
    if value is None:
        return UNKNOWN
    if unit == "%":
        return f"{value * 100:.0f}%"
    if unit.startswith("B"):
        return format_size(round(value)) + unit[1:]
    return f"{value:.0f}{unit}"


def _axis(wide: int) -> str:
    """`-20 min` every so often, `now` at the right end."""
    line = [" "] * wide
    for cells in range(30, wide, 30):
        words = f"-{cells * 2 * STEP.total_seconds() / 60:.0f} min"
        line[wide - cells : wide - cells + len(words)] = words
    line[wide - 3 :] = "now"
    return "".join(line[:wide])
