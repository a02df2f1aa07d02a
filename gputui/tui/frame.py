"""The main screen as plain lines, for what is no screen: status, what to look at, GPUs and queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from gputui.domain.gpu_history import History
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.tui.gpu_rows import gpu_picture
from gputui.tui.present.cells import Cell, Column, Span, cell, fitted, lay_out
from gputui.tui.present.gpu import gpu_cells, index_of
from gputui.tui.present.gpu_columns import GPU_COLUMNS
from gputui.tui.present.job import JobContext
from gputui.tui.present.status import empty_queue_words, no_gpu_words, pressing, status_line
from gputui.tui.present.style import DIM, SEVERITY_STYLES, STRONG
from gputui.tui.queue.columns import Chosen
from gputui.tui.queue.rows import QueueRows
from gputui.tui.queue.sheets import QueueSheet

K = TypeVar("K")


@dataclass(frozen=True)
class Room:
    """What a frame may take."""

    width: int = 120
    height: int | None = None
    """None: as many lines as there is to say."""


def frame(snapshot: Snapshot, now: datetime, host: str, room: Room, history: History | None = None) -> list[Cell]:
    """Lines of at most `width` cells. What does not fit the height is told as a number."""
    rows = QueueRows()
    rows.finished = False
    rows.update(snapshot)
    time = f"{now.astimezone():%H:%M:%S}"
    words = fitted(status_line(snapshot, host, room.width - len(time) - 1), room.width - len(time) - 1)
    lines: list[Cell] = [(*words, (f" {time}", DIM))]
    for notice in pressing(snapshot, now):
        mark = "✗" if notice.severity == "error" else "!"
        lines.append(cell(f"{mark} {plain(notice.text, 1000)}", SEVERITY_STYLES.get(notice.severity, DIM)))
    lines += [(), *_gpus(snapshot, rows, history, now, room.width), ()]
    left = None if room.height is None else max(1, room.height - len(lines))
    queue = _queue(snapshot, rows, now, room.width, left)
    kept = lines if room.height is None else lines[: room.height - len(queue)]
    return [tuple(fitted(line, room.width)) for line in (*kept, *queue)]


def _gpus(snapshot: Snapshot, rows: QueueRows, history: History | None, now: datetime, width: int) -> list[Cell]:
    if not snapshot.gpus:
        return list(no_gpu_words(snapshot, width))
    picture = gpu_picture(snapshot, rows.jobs, history or History(), now)
    unread = picture.unread() | (frozenset() if history else {"history"})
    columns = [column for column in GPU_COLUMNS if column.key not in unread]
    return _table(columns, tuple(picture.rows), lambda key, name, room: gpu_cells(picture.rows[key], name, room), width)


def _queue(snapshot: Snapshot, rows: QueueRows, now: datetime, width: int, height: int | None) -> list[Cell]:
    if not rows.keys:
        return list(empty_queue_words("", has_keys=False))
    names = {view.gpu.uuid: index_of(view) for view in snapshot.gpus}
    context = JobContext(now, snapshot.reasons, snapshot.expected_starts, snapshot.progress, names, snapshot.sharing())
    sheet, keys = QueueSheet(rows, Chosen()), rows.keys
    cut = height is not None and len(keys) + 1 > height
    shown = keys[: max(0, height - 2)] if cut and height is not None else keys
    lines = _table(sheet.columns, shown, lambda key, name, room: sheet.cell(key, name, context), width)
    left = sum(len(rows.arranged.groups.get(key, (key,))) for key in keys[len(shown) :])
    return [*lines, cell(f" … and {plural(left, 'job')} more", DIM)] if cut else lines


def _table(columns: Sequence[Column], keys: Sequence[K], made: Callable[[K, str, int], Cell], width: int) -> list[Cell]:
    """Titles, and a line a key."""
    placed = lay_out(columns, width)
    titles = [fitted(cell(p.column.title, STRONG), p.width, right=p.column.right) for p in placed]
    rows = [[fitted(made(key, p.column.key, p.width), p.width, right=p.column.right) for p in placed] for key in keys]
    return [_joined(row) for row in (titles, *rows)]


def _joined(row: Sequence[Sequence[Span]]) -> Cell:
    return tuple(span for made in row for span in ((" ", DIM), *made))
