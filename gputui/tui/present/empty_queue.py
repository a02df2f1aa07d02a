"""Texts that replace an empty queue: who uses the GPUs meanwhile, and how to submit a job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.gpu_processes import JOB, GpuProcessRow, gpu_label, process_rows
from gputui.domain.keyed import keyed
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.domain.units import UNKNOWN
from gputui.tui.present.cells import Cell, Column, PlacedColumn, cell, fitted, lay_out
from gputui.tui.present.gpu_rows import age_words, program_words
from gputui.tui.present.process import PROCESS_VIEW_COLUMNS, view_cell
from gputui.tui.present.style import AMBER, BLUE, DIM, PLAIN, STRONG, VIOLET

SUBMIT: tuple[Cell, ...] = (
    cell("  gputui submit --gpus 1 IMAGE COMMAND...", BLUE),
    cell("  gputui submit --host --gpus 1 -- python train.py", BLUE),
)
"""Commands that submit a job with a container, and one without."""
_FURTHER = (
    ("gputui run -it --gpus 1 IMAGE bash", "a shell on a GPU, as soon as one is free"),
    ("gputui submit --sweep lr=1e-3,1e-4 … {lr}", "a job for each value, in one row"),
    ("gputui submit --after 12 …", "once job 12 has completed"),
    ("gputui cron add '30 2 * * 1-5' -- …", "at regular times"),
)
_OF_GPU = (Column("load", "UTIL", 4, right=True), Column("idle", "IDLE", 6, right=True))
_SHOWN = ("gpu", "user", "pid", "load", "idle", "gpu_memory", "age", "what", "command")
_COLUMNS = tuple(column for key in _SHOWN for column in (*PROCESS_VIEW_COLUMNS, *_OF_GPU) if column.key == key)
_PROCESSES_ONLY = tuple(column for column in _COLUMNS if column.key != "what")
_MOST = 40
"""Processes that are listed: more than the tallest pane has lines for."""


def empty_queue_words(filtered: str, others: tuple[Cell, ...] = (), *, has_keys: bool = True) -> tuple[Cell, ...]:
    """Return the text that replaces an empty queue; `others` says who uses the GPUs, and is then all of it."""
    if filtered:
        return (cell(f"No job matches '{plain(filtered, 60)}'. {keyed('clear_filter')} shows them all.", DIM),)
    if others:
        return others
    press = f"Press {keyed('submit')} to submit a job, or from" if has_keys else "From"
    first = (cell(f"The queue is empty. {press} any shell:", DIM), *SUBMIT)
    return (*first, *further_ways()) if has_keys else first


def further_ways() -> tuple[Cell, ...]:
    """Return further ways to submit, for a pane that has room for them."""
    return (
        *(((f"  {command:<44}", BLUE), (words, DIM)) for command, words in _FURTHER),
        cell(f"A `docker run` line pasted into the form ({keyed('submit')}) fills it in.", DIM),
        cell(f"{keyed('finished')} shows finished jobs, {keyed('help')} all keys.", DIM),
    )


def foreign_use_words(snapshot: Snapshot, room: int, *, may_end: bool = True) -> tuple[Cell, ...]:
    """Return who uses the GPUs of a server with an empty queue, and what to do; empty if nobody does."""
    held = sum(view.state is GpuState.FOREIGN for view in snapshot.gpus)
    if not held or len(snapshot.nodes) > 1:
        return ()
    free, whole = sum(view.state is GpuState.FREE for view in snapshot.gpus), len(snapshot.gpus)
    which = f"{held} of {whole} GPUs are" if held < whole else "The GPU is" if whole == 1 else f"All {whole} GPUs are"
    then = f"{free} {'is' if free == 1 else 'are'} free" if free else "jobs wait for a free one"
    rows = [row for row in process_rows(snapshot) if row.kind != JOB]
    views = {gpu_label(view): view for view in snapshot.gpus if view.current}
    placed = lay_out(_COLUMNS if any(row.container_id for row in rows) else _PROCESSES_ONLY, room)
    table = [[cell(p.column.title, STRONG) for p in placed]]
    for row in rows[:_MOST]:
        its = [views[gpu] for gpu in row.gpus if gpu in views]
        table.append([_cell(row, p.column.key, its, snapshot.taken_at) for p in placed])
    end = " or end it (as root, anyone's)" if may_end else ""
    opens = f"{keyed('gpu_processes')} opens this list of {len(rows)}"
    return (
        cell(f"The queue is empty. {which} in foreign use: {then}.", PLAIN),
        cell(f"{opens}, to look at a process{end}.", DIM),
        *(_line(made, placed) for made in table),
    )


def _cell(row: GpuProcessRow, column: str, views: Sequence[GpuView], now: datetime) -> Cell:
    """Return the content of a cell; `views` are the GPUs of the row that are read now."""
    if column == "load":
        loads = [view.current.utilization for view in views if view.current and view.current.utilization is not None]
        return cell(f"{max(loads):.0%}", PLAIN if max(loads) else DIM) if loads else cell(UNKNOWN, DIM)
    if column == "idle":
        times = [view.idle_since for view in views]
        known = [since for since in times if since is not None]
        return cell(age_words(now - max(known)), AMBER) if known and len(known) == len(times) else ()
    if column == "age":
        return cell("" if row.age is None else age_words(row.age), DIM)  # to the minute, not to be drawn each second
    if column == "command":
        return cell(plain(program_words(row.command or ""), 400), VIOLET)
    return view_cell(row, column)


def _line(made: Sequence[Cell], placed: Sequence[PlacedColumn]) -> Cell:
    fits = (fitted(each, p.width, right=p.column.right) for each, p in zip(made, placed, strict=True))
    return tuple(span for spans in fits for span in (*spans, (" ", DIM)))
