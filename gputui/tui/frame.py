"""The main screen as plain lines for `gputui top`: status, conditions, GPUs and queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.arrays import count
from gputui.domain.cluster import Capability
from gputui.domain.conditions import ConditionTracker, pressing
from gputui.domain.gpu_history import GpuHistory
from gputui.domain.queue_columns import absent_columns
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain, plural
from gputui.tui.present.cells import DIM, SEVERITY_STYLES, STRONG, Cell, Column, PlacedColumn, cell, fitted, lay_out
from gputui.tui.present.gpu import gpu_cells, node_line, node_titles
from gputui.tui.present.gpu_rows import GpuLook, Labels, gpu_picture
from gputui.tui.present.job import JobContext
from gputui.tui.present.status import empty_queue_words, no_gpu_words, status_line, summary_line
from gputui.tui.widgets.queue_folding import EndedRows
from gputui.tui.widgets.queue_rows import ChosenColumns, QueueRows
from gputui.tui.widgets.queue_tabs import QueueTab

K = TypeVar("K")


class FrameSize(Struct, frozen=True):
    width: int = 120
    height: int | None = None
    """Number of lines; None: as many as needed."""


def frame(
    snapshot: Snapshot,
    now: datetime,
    host: str,
    room: FrameSize,
    history: GpuHistory | None = None,
    tracker: ConditionTracker | None = None,
    lacking: Mapping[Capability, str] = MappingProxyType({}),
) -> list[Cell]:
    """Return lines of at most `width` cells. Rows that do not fit the height are counted in a last line.

    `history` and `tracker` know the frames before this one; `lacking` is what a cluster lacks.
    """
    found = (tracker or ConditionTracker()).look(snapshot, now)
    rows = QueueRows()
    rows.ended = EndedRows.HIDDEN
    rows.update(snapshot)
    time = f"{now.astimezone():%H:%M:%S}"
    beside = room.width - len(time) - 1
    words = fitted(status_line(snapshot, host, beside, found=found), beside)
    lines: list[Cell] = [(*words, (f" {time}", DIM))]
    for notice in pressing(snapshot, now):
        mark = "✗" if notice.severity == "error" else "!"
        lines.append(cell(f"{mark} {plain(notice.text, 1000)}", SEVERITY_STYLES.get(notice.severity, DIM)))
    lines += [(), *_gpus(snapshot, rows, history, now, room.width)]
    lines += [((" ", DIM), *summary) for summary in [summary_line(snapshot, now, room.width - 1)] if summary]
    lines.append(())
    left = None if room.height is None else max(1, room.height - len(lines))
    queue = _queue(snapshot, rows, now, room.width, left, absent_columns(lacking))
    kept = lines if room.height is None else lines[: room.height - len(queue)]
    return [tuple(fitted(line, room.width)) for line in (*kept, *queue)]


def _gpus(snapshot: Snapshot, rows: QueueRows, history: GpuHistory | None, now: datetime, width: int) -> list[Cell]:
    if not snapshot.gpus:
        return list(no_gpu_words(snapshot, width))
    picture = gpu_picture(snapshot, rows.jobs, history or GpuHistory(), now, GpuLook(span="10m"))
    if picture.nodes:
        nodes = picture.nodes
        lines = [node_titles(nodes, STRONG), *(node_line(node, nodes, is_open=False) for node in nodes)]
        return [tuple(fitted(((" ", DIM), *line), width)) for line in lines]
    unread = picture.unread() | (frozenset() if history else {"history"})
    columns = picture.columns(unread)
    made = lambda key, name, room: gpu_cells(picture.rows[key], name, room)  # noqa: E731
    return _table(columns, tuple(picture.rows), made, width, picture.title_of)


def _queue(
    snapshot: Snapshot, rows: QueueRows, now: datetime, width: int, height: int | None, absent: Mapping[str, str]
) -> list[Cell]:
    if not rows.keys:
        return list(empty_queue_words("", machine=snapshot.jobs_machine, has_keys=False))
    names = Labels.of(snapshot).by_uuid
    sheet, keys = QueueTab(rows, ChosenColumns()), rows.keys
    sheet.room, sheet.absent = width, absent
    placed = lay_out(sheet.columns, width)
    context = JobContext.of(snapshot, now, names, room={each.column.key: each.width for each in placed})
    context = replace(context, loads=rows.loads, id_digits=rows.id_digits)
    cut = height is not None and len(keys) + 1 > height
    shown = keys[: max(0, height - 2)] if cut and height is not None else keys
    lines = _table(sheet.columns, shown, lambda key, name, room: sheet.cell(key, name, context), width)
    left = sum(count(rows.jobs_of(key)) for key in keys[len(shown) :])
    return [*lines, cell(f" … and {plural(left, 'job')} more", DIM)] if cut else lines


def _table(
    columns: Sequence[Column],
    keys: Sequence[K],
    made: Callable[[K, str, int], Cell],
    width: int,
    title_of: Callable[[PlacedColumn], str] = lambda placed: placed.column.title,
) -> list[Cell]:
    placed = lay_out(columns, width)
    titles = [fitted(cell(title_of(p), STRONG), p.width, right=p.column.right) for p in placed]
    rows = [[fitted(made(key, p.column.key, p.width), p.width, right=p.column.right) for p in placed] for key in keys]
    return [tuple(span for made in row for span in ((" ", DIM), *made)) for row in (titles, *rows)]
