"""A GPU as a card: who holds it, graphs of its last minutes, and its readings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style

from gputui.domain.gpu import GpuState, HealthCode
from gputui.domain.text import plain
from gputui.domain.units import format_size
from gputui.tui.present.cells import UNKNOWN, Cell, Span, cell, fitted, split, width_of
from gputui.tui.present.gpu import GpuRow, gpu_cells, holder_parts, joined, label_of, short_model
from gputui.tui.present.gpu_tiles import CARD_LEAST, LINE_FULL
from gputui.tui.present.gpu_words import SLOWED, foreign_words, running_words, slowed_words
from gputui.tui.present.graph import past_graph
from gputui.tui.present.meter import bar, heat_style, load_style
from gputui.tui.present.style import AMBER, DIM, GRAPH, PLAIN, STRONG

_FIGURES = 9
"""Cells for the figures beside a graph."""
_POWER_FROM = 6
"""Lines of graphs from which power has one too."""
Line = tuple[Span, ...]


def card_lines(row: GpuRow, room: int, height: int) -> tuple[Line, ...]:
    """Its lines from the top, each exactly `room` cells wide."""
    lines: list[Cell] = [_title(row, room), *_who(row, room, _lines_for_words(row, height))]
    graphs = height - len(lines) - 1
    lines += _graphs(row, room, graphs)
    lines.append(_readings(row, room, has_power=graphs < _POWER_FROM))
    blank: Cell = ()
    return tuple(tuple(fitted(line, room)) for line in [*lines, *[blank] * height][:height])


def _who(row: GpuRow, room: int, lines: int) -> list[Cell]:
    """Who holds it and what is wrong, and in further lines what there is no room for in the first."""
    parts, more = holder_parts(row, room * lines), _more(row)
    first = joined(parts)
    if lines < 2:
        while len(parts) > 1 and width_of(joined(parts)) > room:
            parts.pop()  # rather than the first letters of it
        return [joined(parts)]
    if width_of(first) <= room:
        return [first, more]
    told = [part for part in (*parts, more) if part]
    shown: list[Cell] = []
    while told and len(shown) < lines - 1:
        line, rest = split(told.pop(0), room)
        shown.append(line)
        told = [rest, *told] if rest else told
    while len(told) > 1 and width_of(joined(told)) > room:
        told.pop()  # rather than the half of it
    return [*shown, joined(told)] if told else shown


def _lines_for_words(row: GpuRow, height: int) -> int:
    """What is wrong with a sick GPU matters more than its graphs."""
    if not row.view.health.is_schedulable and height > CARD_LEAST:
        return 3
    return 2 if height >= 8 else 1


def compact_line(row: GpuRow, room: int) -> Line:
    """All of it that one short line can say."""
    meter, is_full = max(4, min(12, room // 6)), room >= LINE_FULL - 2
    share = row.view.sample.utilization if row.view.sample and not row.view.stale else None
    used = row.view.sample.memory_used if row.view.sample else None
    label = label_of(row)
    holder = (
        gpu_cells(row, "who" if is_full else "holders", room) if row.view.state is not GpuState.FREE or row.kept else ()
    )
    is_odd = row.view.health.code not in {HealthCode.OK, HealthCode.REMAP_PENDING} or row.view.stale
    state = gpu_cells(row, "state", 7)
    parts: list[Span] = [(label.rjust(3) + " ", DIM)]
    if is_odd:
        return tuple(fitted((*parts, *state, (" ", DIM), *holder), room))
    parts += [*bar(share, meter, load_style(share)), *_right(gpu_cells(row, "percent", 4), 5)]
    parts += _right(cell(UNKNOWN if used is None else format_size(used), PLAIN if used else DIM), 5)
    if is_full:
        parts += [*_right(gpu_cells(row, "temperature", 4), 5), *_right(gpu_cells(row, "power", 5), 6)]
    parts.append((" ", DIM))
    if not holder or row.view.drain is not None:
        parts += (*state, (" ", DIM))
    parts += holder
    return tuple(fitted(tuple(parts), room))


def compact_title(room: int) -> Line:
    """What stands above such lines."""
    meter = max(4, min(12, room // 6))
    more = f"{'TEMP'.rjust(5)}{'PWR'.rjust(6)}" if room >= LINE_FULL - 2 else ""
    return tuple(fitted(cell(f"GPU {'UTIL'.ljust(meter + 5)}{'MEM'.rjust(5)}{more} HELD BY", DIM), room))


def _right(made: Cell, room: int) -> list[Span]:
    return fitted(made, room, right=True)


def _title(row: GpuRow, room: int) -> Cell:
    """Which GPU, and at the right how it stands."""
    state = gpu_cells(row, "state", 7)
    label = f"{label_of(row)} "
    used = width_of(state) + 1
    model = plain(row.view.gpu.mig_profile, 16) if row.view.gpu.mig_profile else short_model(row.view.gpu.model)
    name = fitted(cell(model, DIM), max(0, room - used - len(label)))
    return ((label, STRONG), *name, (" ", DIM), *state)


def _more(row: GpuRow) -> Cell:
    """A second line about who holds it."""
    if row.job is not None and len(row.view.job_ids) < 2 and row.now is not None:
        return cell(running_words(row.job, row.now), DIM)
    if row.view.holders and row.view.job_id is None:
        return cell(foreign_words(row.view, row.view.holders[0]), DIM)
    return ()


def _graphs(row: GpuRow, room: int, lines: int) -> list[Cell]:
    """Utilisation, memory and, where there is room, power: the more lines the higher each."""
    if lines <= 0:
        return []
    if lines < _POWER_FROM:
        memory = lines // 2
        return [*_graph(row, "utilization", room, lines - memory), *_graph(row, "memory_used", room, memory)]
    power, memory = lines // 3, (lines - lines // 3) // 2
    shares = (("utilization", lines - memory - power), ("memory_used", memory), ("power", power))
    return [line for name, height in shares for line in _graph(row, name, room, height)]


def _graph(row: GpuRow, name: str, room: int, height: int) -> list[Cell]:
    drawn = past_graph(row.past, name, most_of(row, name), max(0, room - _FIGURES - 1), height) if height else []
    ink = DIM if row.is_old else GRAPH
    return [
        ((line + " ", ink), *fitted(figure, _FIGURES, right=True))
        for line, figure in zip(drawn, _figures(row, name, height), strict=True)
    ]


def _figures(row: GpuRow, name: str, height: int) -> Sequence[Cell]:
    """What stands beside a graph: the reading, and below it what it is of."""
    sample = row.view.sample
    if name == "utilization":
        told = [gpu_cells(row, "percent", 4), cell("util", DIM)]
    elif name == "memory_used":
        told = [gpu_cells(row, "memory", 9), cell("memory", DIM)]
    else:
        limit = power_limit(row)
        told = [
            _power(sample.power if sample else None, is_old=row.is_old),
            cell(f"of {limit:.0f}W" if limit else "power", DIM),
        ]
    return [*told, *[cell("", DIM)] * height][:height]


def _power(value: float | None, *, is_old: bool) -> Cell:
    return cell(UNKNOWN if value is None else f"{value:.0f}W", DIM if value is None or is_old else PLAIN)


def power_limit(row: GpuRow) -> float | None:
    """Watts it may take."""
    sample = row.view.sample
    return (sample.power_limit if sample else None) or row.view.gpu.power_limit


def most_of(row: GpuRow, name: str) -> float:
    """What a reading may be at most: the top of its graph."""
    if name == "memory_used":
        sample = row.view.sample
        return float((sample.memory_total if sample else None) or row.view.gpu.memory_total or 0)
    if name == "power":
        return power_limit(row) or max((value or 0 for value in row.past.values("power")), default=0.0)
    return 1.0


def _readings(row: GpuRow, room: int, *, has_power: bool) -> Cell:
    """The rest of what is read, whole figures alone; what slows it down stays longest where there is no room."""
    sample = row.view.sample
    if sample is None or row.is_old:
        return cell("no reading" if sample is None else "not read now", DIM)
    parts: list[Span] = []
    if sample.temperature is not None:
        parts.append((f"{sample.temperature:.0f}°C", heat_style(sample.temperature)))
    if has_power and sample.power is not None:
        limit = power_limit(row)
        parts.append((f"{sample.power:.0f}{f'/{limit:.0f}' if limit else ''}W", DIM))
    if sample.throttle:
        parts.append((slowed_words(sample.throttle), AMBER))
    if sample.sm_clock is not None:
        parts.append((f"{sample.sm_clock}MHz", DIM))
    if sample.fan is not None:
        parts.append((f"fan {sample.fan * 100:.0f}%", DIM))
    while width_of(_spaced(parts)) > room:
        spare = [part for part in parts[1:] if not part[0].startswith(SLOWED)]
        if not spare:
            break
        parts.remove(spare[-1])
    return _spaced(parts)


def _spaced(parts: Sequence[Span]) -> Cell:
    gap: Span = ("  ", Style())
    return tuple(span for i, part in enumerate(parts) for span in ((gap, part) if i else (part,)))
