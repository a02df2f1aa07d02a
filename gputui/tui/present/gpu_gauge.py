"""Gauges of GPUs: readings as shares of their maximum, as bars and as colours of graphs."""

from __future__ import annotations

from rich.style import Style

from gputui.tui.present.cells import Cell, cell
from gputui.tui.present.gpu_rows import GpuRow
from gputui.tui.present.gpu_tone import HOTTEST, Tone, tone_of
from gputui.tui.present.graphs import block_bar
from gputui.tui.present.style import AMBER, BLUE, DIM, LIGHT_GREEN, TRACK


def charted(row: GpuRow) -> str:
    """Return the reading whose history represents the GPU: utilisation, or memory of a MIG instance."""
    has_load = row.view.sample is None or row.view.sample.utilization is not None
    return "utilization" if has_load else "memory_used"


def graph_style(row: GpuRow) -> Style:
    """Return the colour of a GPU's history: that of its state, but less bright than a bar."""
    if row.is_old or not row.is_used:
        return DIM
    return AMBER if row.idle is not None else LIGHT_GREEN


def history_style(row: GpuRow, name: str) -> Style:
    """Return the colour of a reading's history; only the load's has the GPU's state."""
    return graph_style(row) if name == "utilization" or row.is_old else tone(row, name).style


def share_of(row: GpuRow, name: str) -> float | None:
    """Return a reading as a share of its maximum; None if either is unknown."""
    value = getattr(row.view.sample, name) if row.view.sample is not None else None
    if name == "temperature":
        return None if value is None else value / HOTTEST
    most = most_of(row, name)
    return None if value is None or not most else value / most


def power_limit_of(row: GpuRow) -> float | None:
    """Watts it may take."""
    sample = row.view.sample
    return (sample.power_limit if sample else None) or row.view.gpu.power_limit


def most_of(row: GpuRow, name: str) -> float:
    """Return the maximum of a reading, the top of its graph."""
    if name == "memory_used":
        return float(row.memory_total or 0)
    if name == "power":
        return power_limit_of(row) or max((value or 0 for value in row.past.values("power")), default=0.0)
    return HOTTEST if name == "temperature" else 1.0


def tone(row: GpuRow, name: str) -> Tone:
    """Return the judgement on a reading."""
    return tone_of(row, name, share_of(row, name))


def gauge(row: GpuRow, name: str, room: int) -> Cell:
    """Return the bar of a reading; empty if it is unknown."""
    share = share_of(row, name)
    if share is None or row.is_old:
        return cell(" " * room, DIM)
    is_idle = name == "utilization" and row.idle is not None
    return block_bar(share, room, AMBER if is_idle else tone(row, name).style, is_hatched=is_idle)


def progress_bar(share: float, room: int) -> Cell:
    """Return a thin progress bar; amber beyond its end."""
    filled = round(min(1.0, max(0.0, share)) * room)
    return (("━" * filled, BLUE if share <= 1 else AMBER), ("─" * (room - filled), TRACK))
