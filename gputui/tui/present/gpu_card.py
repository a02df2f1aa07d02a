"""A GPU as a card: its holders, its readings as bars, and the history of its load."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gputui.domain.gpu import GpuProcess, GpuState, HealthCode
from gputui.domain.text import plain
from gputui.domain.units import UNKNOWN, format_duration, format_size
from gputui.tui.present.cells import Cell, Span, cell, fitted, split_at_word, width_of
from gputui.tui.present.gpu import gpu_cells, gpu_state_words, holder_parts, label_of, sick_words, with_dots
from gputui.tui.present.gpu_gauge import charted, gauge, history_style, most_of, power_limit_of, progress_bar, tone
from gputui.tui.present.gpu_rows import GpuRow
from gputui.tui.present.gpu_tiles import LINE_FULL
from gputui.tui.present.gpu_tone import Tone, slowed_cell
from gputui.tui.present.gpu_words import (
    age_words,
    elapsed_share,
    elapsed_words,
    foreign_words,
    model_in,
    program_words,
    short_model,
)
from gputui.tui.present.graphs import past_graph, span_words
from gputui.tui.present.style import DIM, PLAIN, SICK_ROW, STRONG, VIOLET

_LABEL = 4
"""Cells of a label with its mark."""
_FIGURE = 9
"""Cells of a figure, with the gap before it."""
_SECOND_FROM = 6
"""Lines of history from which memory gets some of them too."""
_ALL_FROM = 12
"""Lines of history from which power and temperature get some too: they show more than flat lines on an idle GPU."""
CardLine = tuple[Span, ...]
_SPAN = 4
"""Cells of the span beside a graph, such as `96s `."""
METERS = (("utilization", "UTL"), ("memory_used", "MEM"), ("power", "PWR"), ("temperature", "TMP"))
"""Readings that have a bar, with their labels."""


def card_lines(row: GpuRow, room: int, height: int, unread: frozenset[str] = frozenset()) -> tuple[CardLine, ...]:
    """Return the lines of the card from the top, each exactly `room` cells wide; `unread` readings have no line.

    Bars have the same height in all cards. Notes and the elapsed time are at the bottom, history in between.
    """
    below = height - 1
    lines: list[Cell] = [_title(row, room)]
    if row.is_old:
        lines += _troubles(row, room, below)
    else:
        meters = [_meter(row, name, label, room) for name, label in METERS if name not in unread][:below]
        below -= len(meters)
        foot = _foot(row, room, below)
        lines += [*meters, *_history(row, room, below - len(foot)), *foot]
    blank: Cell = ()
    return tuple(tuple(fitted(line, room)) for line in [*lines, *[blank] * height][:height])


def _title(row: GpuRow, room: int) -> Cell:
    """Return index and model, holders, and the state at the right; on red if the GPU is lost or sick."""
    state = gpu_state_words(row)
    label = f"{label_of(row)} "
    left = room - len(label) - width_of(state) - (1 if state else 0)
    holders = with_dots(_holders(row, left))
    gpu = row.view.gpu
    model = plain(gpu.mig_profile, 16) if gpu.mig_profile else short_model(gpu.model)
    named = model_in(model, max(4, left - width_of(holders) - 2)) if holders else model
    if holders and len(named) + 2 + width_of(holders) > left:
        named = ""
    middle = ((f"{named}  " if named and holders else named, DIM), *holders)
    title: Cell = ((label, STRONG), *fitted(middle, left), *(((" ", DIM), *state) if state else ()))
    if row.view.health.is_schedulable or row.view.health.code is HealthCode.UNKNOWN:
        return title
    return cell("".join(words for words, _ in title), SICK_ROW)


def _holders(row: GpuRow, room: int) -> list[Cell]:
    """Return the jobs or other holders, without faults and drains."""
    if not row.is_held and row.view.state is not GpuState.FOREIGN:
        return []
    return [part for part in (gpu_cells(row, "holder", room),) if part]


def _meter(row: GpuRow, name: str, label: str, room: int) -> Cell:
    """Return label, bar and figure of a reading."""
    judged = tone(row, name)
    figure = fitted(_figure(row, name, judged), _FIGURE, right=True)
    wide = max(1, room - _LABEL - _FIGURE)
    head: Span = (label + judged.mark, judged.style if judged.is_loud else DIM)
    return (head, *gauge(row, name, wide), *figure)


def _figure(row: GpuRow, name: str, judged: Tone) -> Cell:
    """Return `97%`, `62/80G`, `644/700W` or `70°C`; without the limit if room is short."""
    sample = row.view.sample
    value = getattr(sample, name) if sample is not None else None
    if value is None:
        return cell(UNKNOWN, DIM)
    ink = judged.style if judged.is_loud else PLAIN
    if name == "utilization":
        return cell(f"{value * 100:.0f}%", ink if value >= 0.05 or judged.is_loud else DIM)
    if name == "memory_used":
        return gpu_cells(row, "memory", _FIGURE - 1)
    if name == "temperature":
        return cell(f"{value:.0f}°C", ink)
    limit = power_limit_of(row)
    of = f"/{limit:.0f}W" if limit else "W"
    return ((f"{value:.0f}", ink), (of, DIM)) if len(f"{value:.0f}{of}") < _FIGURE else cell(f"{value:.0f}W", ink)


def _history(row: GpuRow, room: int, lines: int) -> list[Cell]:
    """Return the load over time, and if there is room the memory, over the whole width."""
    if lines <= 0:
        return []
    if lines >= _ALL_FROM and charted(row) == "utilization":
        each = lines // len(METERS)
        rows = {name: each for name, _ in METERS} | {"utilization": lines - each * (len(METERS) - 1)}
        return [line for name, height in rows.items() for line in _graph(row, name, room, height)]
    memory = lines // 3 if lines >= _SECOND_FROM and charted(row) == "utilization" else 0
    shown = _graph(row, charted(row), room, lines - memory)
    return [*shown, *(_graph(row, "memory_used", room, memory) if memory else [])]


def _graph(row: GpuRow, name: str, room: int, height: int) -> list[Cell]:
    """Return a graph, with its span as text beside it, and its name if there are several lines."""
    style = history_style(row, name)
    label = "" if height == 1 else f"{dict(METERS)[name]} "
    label += f"{span_words(room - len(label) - _SPAN, row.look.seconds)} "
    lines = past_graph(row.past, name, most_of(row, name), (max(1, room - len(label)), height), row.look.seconds)
    return [((label if number == 0 else " " * len(label), DIM), (line, style)) for number, line in enumerate(lines)]


def _foot(row: GpuRow, room: int, most: int) -> list[Cell]:
    """Return the notes and the elapsed time of the job; only the more important of them if history has no other line.

    A slowed GPU is marked at its bar too, so the elapsed time is more important than that note.
    """
    if row.view.state is GpuState.FOREIGN and not row.is_held and most > 1:
        notes = _notes(row, room)
        return [*([with_dots(notes)] if notes else []), *_users(row, room, most - 1 - bool(notes))]
    notes, progress = _notes(row, room), _progress(row, room)
    lines = [line for line in (with_dots(notes) if notes else (), progress) if line]
    if len(lines) < max(2, most):
        return lines[:most]
    is_slowed_only = len(notes) == 1 and row.view.current is not None and bool(row.view.current.slowed)
    return ([progress] if is_slowed_only else lines[:1]) if most else []


def _notes(row: GpuRow, room: int) -> list[Cell]:
    """Return why it is slowed down, faults, drain and reservation, and details of foreign use."""
    parts = [part for part in holder_parts(row, room, has_holder=False) if part]
    if slowed := slowed_cell(row.view.current):
        parts.insert(0, slowed)
    while len(parts) > 1 and width_of(with_dots(parts)) > room:
        parts.pop()  # rather than only its first letters
    return parts


def _users(row: GpuRow, room: int, most: int) -> list[Cell]:
    """Return the processes on a GPU that no job holds, the largest first; of a single one what the title lacks."""
    view = row.view
    listed = (view.sample.processes or ()) if view.sample else ()
    found = sorted(listed, key=lambda each: -(each.memory or 0))
    image = next((f"  {plain(holder.image, 100)}" for holder in view.holders if holder.image), "")
    if len(found) == 1:
        facts, command = (*_facts(found[0], row.now), (image, DIM)), _command(found[0])
        is_told = command[0][0] in "".join(words for words, _ in _title(row, room))
        return [facts, *([] if is_told else [command])][:most]
    if not found:
        return [cell(foreign_words(view, holder, row.now), DIM) for holder in view.holders][:most]
    lines = [
        ((f"{plain(each.user or '?', 16)} ", PLAIN), *_facts(each, row.now), (" ", DIM), *_command(each))
        for each in found
    ]
    left = len(lines) - most
    return [*lines[: most - 1], ((f"+{left} ", DIM), *lines[most - 1])] if left > 0 < most else lines[:most]


def _facts(process: GpuProcess, now: datetime | None) -> Cell:
    """Return its memory, age and process id."""
    memory = "" if process.memory is None else f"{format_size(process.memory)} "
    age = f"for {age_words(now - process.started_at)} " if now and process.started_at else ""
    return ((f"{memory}{age}", PLAIN), (f"pid {process.pid}", DIM))


def _command(process: GpuProcess) -> Cell:
    return cell(plain(program_words(process.command or ""), 200), VIOLET)


def _progress(row: GpuRow, room: int) -> Cell:
    """Return the elapsed time of its job, as a bar if there is a limit."""
    if row.job is None or row.now is None or len(row.view.job_ids) > 1:
        return ()
    share, words = elapsed_share(row.job, row.now), elapsed_words(row.job, row.now)
    if share is None:
        return (("RUN ", DIM), (words, PLAIN), ("" if words == "starting" else " without a limit", DIM))
    figure = words if len(words) < _FIGURE or room > 3 * _FIGURE + _LABEL else words.partition("/")[0]
    wide = max(1, room - _LABEL - max(_FIGURE, len(figure) + 1))
    return (("RUN ", DIM), *progress_bar(share, wide), *fitted(cell(figure), room - _LABEL - wide, right=True))


def _troubles(row: GpuRow, room: int, height: int) -> list[Cell]:
    """Return why there is no reading now, and the history until then."""
    parts = holder_parts(row, room, has_holder=False)
    words: list[Cell] = []
    rest = with_dots(parts)
    while rest and len(words) < max(1, height - 1):
        line, rest = split_at_word(rest, room)
        words.append(line)
    words.append(cell(_last_read(row), DIM))
    words = words[:height]
    return [*words, *_history(row, room, height - len(words))]


def _last_read(row: GpuRow) -> str:
    if row.view.sample is None or row.view.age is None or not row.view.stale:
        return "no reading"
    return f"not read for {format_duration(row.view.age + row.late)}"


# several to a line


def compact_line(row: GpuRow, room: int) -> CardLine:
    """Return the card as one short line."""
    meter, is_full = max(4, min(12, room // 6)), room >= LINE_FULL - 2
    if (sick := sick_words(row, room)) is not None:
        return tuple(fitted(sick, room))
    label: Span = (label_of(row).rjust(3) + " ", DIM)
    if row.is_old:
        return tuple(fitted((label, *gpu_cells(row, "held", room - width_of([label]))), room))
    used = row.view.sample.memory_used if row.view.sample else None
    parts: list[Span] = [label, *fitted(gauge(row, "utilization", meter), meter)]
    parts += _right(gpu_cells(row, "percent", 4), 5)
    memory = tone(row, "memory_used")
    ink = memory.style if memory.is_loud else PLAIN if used else DIM
    parts += _right(cell(UNKNOWN if used is None else format_size(used), ink), 5)
    if is_full:
        parts += [*_right(gpu_cells(row, "temperature", 4), 5), *_right(gpu_cells(row, "power", 5), 6)]
    held = gpu_cells(row, "held", room - width_of(parts) - 1)
    return tuple(fitted((*parts, (" ", DIM), *held), room))


def compact_title(room: int) -> CardLine:
    """Return the title above such lines."""
    meter = max(4, min(12, room // 6))
    more = f"{'TEMP'.rjust(5)}{'PWR'.rjust(6)}" if room >= LINE_FULL - 2 else ""
    return tuple(fitted(cell(f"GPU {'UTIL'.ljust(meter + 5)}{'MEM'.rjust(5)}{more} HELD BY", DIM), room))


def _right(made: Cell, room: int) -> Sequence[Span]:
    return fitted(made, room, right=True)
