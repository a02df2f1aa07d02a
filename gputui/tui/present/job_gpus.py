"""What the GPUs of a job do now, as lines of its page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from gputui.domain.gpu_past import STEP
from gputui.domain.job import Job
from gputui.domain.text import plain
from gputui.domain.units import format_duration, format_size
from gputui.tui.present.cells import Cell, Span, cell, fitted, width_of
from gputui.tui.present.gpu import gpu_cells, label_of
from gputui.tui.present.gpu_row import GpuPicture, GpuRow
from gputui.tui.present.gpu_words import slowed_words
from gputui.tui.present.meter import bar, heat_style, load_style
from gputui.tui.present.style import AMBER, DIM, GRAPH, RED

Line: TypeAlias = tuple[str, Cell]
_BAR = 10
_FIGURES = (("load", _BAR, 46), ("percent", 4, 0), ("memory", 9, 0), ("temperature", 4, 0), ("power", 5, 34))
"""Each with its cells, and the room from which it is there."""
_LIMIT_FROM = 54
_LEAST_STEPS, _MOST_STEPS = 12, 60
"""Of a graph, one to a cell."""
_FEW = 2
"""So many have a line each even where every line counts."""
_GAP: Span = ("  ", DIM)


def gpu_lines(job: Job, picture: GpuPicture, room: int, *, is_compact: bool = False) -> list[Line]:
    """A line for each that it holds; one for all of them where there are few lines."""
    rows = picture.rows
    mine = [rows[uuid] for uuid in job.gpus if uuid in rows]
    gone = [uuid for uuid in job.gpus if uuid not in rows] if rows else []
    has_graphs = "history" not in picture.left_out
    since = job.attempt.started_at if job.attempt else None
    one_each = [_one(row, room, since, has_graphs=has_graphs) for row in mine]
    lines = [_all_of_them(mine)] if is_compact and len(mine) > _FEW else one_each
    return lines + [("GPU gone", cell(f"{plain(uuid, 48)} is listed no more", RED)) for uuid in gone]


def _one(row: GpuRow, room: int, since: datetime | None, *, has_graphs: bool) -> Line:
    parts = [tuple(fitted(gpu_cells(row, key, cells), cells)) for key, cells, least in _FIGURES if room >= least]
    if room >= _LIMIT_FROM:
        parts[-1] = (
            *fitted(gpu_cells(row, "power", 5), 5, right=True),
            (" of ", DIM),
            *fitted(gpu_cells(row, "power_limit", 5), 5),
        )
    parts += _wrong(row)
    told = _apart(parts)
    steps = min(_MOST_STEPS, room - width_of(told) - len("   in 10m00s"))
    if has_graphs and steps >= _LEAST_STEPS and (known := min(steps, _steps_since(row, since))) > 0:
        told += _graph(row, known)
    return f"GPU {label_of(row)}", told


def _wrong(row: GpuRow) -> list[Cell]:
    """How old a reading is that is believed no more, what is wrong with it, what slows it down."""
    view = row.view
    parts = [gpu_cells(row, "state", 7)] if view.stale or not view.health.is_schedulable else []
    if view.sample is not None and view.sample.throttle and not row.is_old:
        parts.append(cell(slowed_words(view.sample.throttle, 60), AMBER))
    return parts


def _steps_since(row: GpuRow, since: datetime | None) -> int:
    """Return how many steps of the GPU's past lie within the job's own time."""
    if since is None or row.now is None:
        return 0
    return min(len(row.past.steps), (row.now - since) // STEP)


def _graph(row: GpuRow, steps: int) -> Cell:
    """Its load over the last minutes."""
    drawn = tuple((words, GRAPH) for words, _ in gpu_cells(row, "history", steps))
    return (_GAP, *drawn, (f" in {format_duration(steps * STEP)}", DIM))


def _all_of_them(rows: Sequence[GpuRow]) -> Line:
    """`━━━━━━────  62% on average  304G  4100W  hottest 61°`."""
    samples = [row.view.sample for row in rows if row.view.sample is not None and not row.is_old]
    loads = [sample.utilization for sample in samples if sample.utilization is not None]
    used = [sample.memory_used for sample in samples if sample.memory_used is not None]
    powers = [sample.power for sample in samples if sample.power is not None]
    heats = [sample.temperature for sample in samples if sample.temperature is not None]
    load = sum(loads) / len(loads) if loads else None
    parts = [bar(load, _BAR, load_style(load))]
    parts += [cell(f"{load * 100:.0f}% on average")] if load is not None else []
    parts += [cell(format_size(sum(used)))] if used else []
    parts += [cell(f"{sum(powers):.0f}W", DIM)] if powers else []
    parts += [(("hottest ", DIM), (f"{max(heats):.0f}°", heat_style(max(heats))))] if heats else []
    parts += [cell(f"{len(rows) - len(samples)} not read", AMBER)] if len(samples) < len(rows) else []
    return f"{len(rows)} GPUs", _apart(parts)


def _apart(parts: Sequence[Cell]) -> Cell:
    return tuple(span for i, part in enumerate(parts) for span in ((_GAP, *part) if i else part))
