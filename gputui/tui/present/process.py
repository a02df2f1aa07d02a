"""The cells of a job's processes."""

from __future__ import annotations

from gputui.domain.process import ProcessRow
from gputui.domain.text import plain
from gputui.domain.units import format_duration, format_size
from gputui.tui.present.cells import UNKNOWN, Cell, Column, cell
from gputui.tui.present.style import AMBER, DIM, GREEN, PLAIN

PROCESS_COLUMNS = (
    Column("pid", "PID", 7, right=True),
    Column("user", "USER", 8, rank=2),
    Column("cpu", "CPU", 6, right=True),
    Column("memory", "MEM", 5, right=True),
    Column("gpu", "GPU MEM", 7, right=True),
    Column("age", "AGE", 7, right=True, rank=1),
    Column("command", "COMMAND", 20, flex=1),
)
_BUSY = 0.5
"""Of a core."""


def process_cells(row: ProcessRow, gpu_memory: int | None, column: str) -> Cell:
    """What stands in that cell; GPU memory is None for a process that has none."""
    if column == "cpu":
        return _cpu(row.cpu)
    texts = {
        "pid": (str(row.pid), DIM),
        "user": (plain(row.user, 32), DIM),
        "memory": (UNKNOWN if row.memory is None else format_size(row.memory), PLAIN),
        "gpu": ("" if gpu_memory is None else format_size(gpu_memory), AMBER),
        "age": (UNKNOWN if row.age is None else format_duration(row.age), DIM),
        "command": (plain(_without_directories(row.command), 1000), PLAIN),
    }
    return cell(*texts[column])


def _without_directories(command: str) -> str:
    """The command line, its program by its name alone: what tells jobs apart comes after it."""
    program, space, rest = command.partition(" ")
    return (program.rpartition("/")[2] or program) + space + rest


def _cpu(cpu: float | None) -> Cell:
    if cpu is None:
        return cell(UNKNOWN, DIM)
    return cell(f"{cpu:.0%}", GREEN if cpu >= _BUSY else PLAIN)
