"""Cells and order of the process view, and the pages of a process and of a container."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from rich.style import Style

from gputui.domain.gpu_processes import CONTAINER, FOREIGN, JOB, OTHER, ContainerDetail, GpuProcessRow, gpu_words
from gputui.domain.text import broken, format_duration, format_size, plain
from gputui.tui.present.cells import AMBER, BLUE, DIM, GREEN, PLAIN, RED, STRONG, VIOLET, Cell, Column, Span, cell

PROCESS_VIEW_COLUMNS = (
    Column("pid", "PID", 7, right=True),
    Column("user", "USER", 8, rank=1, flex=1, most=16),
    Column("gpu", "GPU", 4, flex=1, most=9),
    Column("what", "JOB OR CONTAINER", 16, flex=3, most=44),
    Column("age", "AGE", 6, right=True, rank=3),
    Column("sm", "SM", 4, right=True, rank=4),
    Column("gpu_memory", "GPU MEM", 7, right=True),
    Column("memory", "MEM", 5, right=True, rank=2),
    Column("cpu", "CPU", 5, right=True, rank=2),
    Column("command", "COMMAND", 12, flex=8),
)
_VALUES: Mapping[str, Callable[[GpuProcessRow], object]] = {
    "pid": lambda row: row.pid,
    "user": lambda row: row.user,
    "gpu": lambda row: [(len(label), label) for label in row.gpus] or None,
    "what": lambda row: (row.kind != FOREIGN, row.kind, row.job_id or 0, row.what),
    "age": lambda row: row.age,
    "sm": lambda row: row.sm,
    "gpu_memory": lambda row: row.gpu_memory,
    "memory": lambda row: row.memory,
    "cpu": lambda row: row.cpu,
    "command": lambda row: row.command,
}


class ProcessOrder(Struct, frozen=True):
    column: str = "gpu"
    is_turned: bool = False

    @property
    def is_down(self) -> bool:
        return (self.column in {"age", "sm", "gpu_memory", "memory", "cpu"}) != self.is_turned

    def by(self, column: str) -> ProcessOrder:
        """Return the order by a column; for the same column its reverse."""
        return ProcessOrder(column, column == self.column and not self.is_turned)

    def next(self) -> ProcessOrder:
        names = list(_VALUES)
        return ProcessOrder(names[(names.index(self.column) + 1) % len(names)])

    def sorted(self, rows: Iterable[GpuProcessRow]) -> list[GpuProcessRow]:
        value = _VALUES[self.column]
        listed = sorted(rows, key=lambda row: (-(row.gpu_memory or 0), row.pid or 0))
        known = [row for row in listed if value(row) is not None]
        known.sort(key=lambda row: value(row), reverse=self.is_down)  # type: ignore[arg-type, return-value]
        return [*known, *(row for row in listed if value(row) is None)]


def view_cell(row: GpuProcessRow, column: str) -> Cell:
    """Return the content of a cell; empty if the value is unknown.

    A command is shown without its program's directory, with a note if the process is invisible or a graphics one.
    """
    if column == "cpu":
        return cell(_percent(row.cpu), GREEN if (row.cpu or 0) >= 0.5 else PLAIN)
    if column == "what":
        return what_cell(row)
    program, space, rest = (row.command or "").partition(" ")
    command = (program.rpartition("/")[2] or program) + space + rest
    if row.pid is not None and not row.is_visible:
        command = command or "(in another PID namespace, or ended)"
    elif not row.computes:
        command = f"{command} (graphics)"
    texts: Mapping[str, tuple[str, Style]] = {
        "pid": ("" if row.pid is None else str(row.pid), DIM),
        "user": (plain(row.user or "", 32), PLAIN),
        "gpu": (gpu_words(row.gpus), PLAIN),
        "age": ("" if row.age is None else format_duration(row.age), DIM),
        "sm": (_percent(row.sm), PLAIN),
        "gpu_memory": ("" if row.gpu_memory is None else format_size(row.gpu_memory), PLAIN),
        "memory": ("" if row.memory is None else format_size(row.memory), PLAIN),
        "command": ("  " * min(row.depth, 20) + plain(command, 400), DIM if row.kind == OTHER else PLAIN),
    }
    return cell(*texts[column])


def what_cell(row: GpuProcessRow) -> Cell:
    style = {JOB: BLUE, CONTAINER: VIOLET, FOREIGN: VIOLET}.get(row.kind, DIM)
    return cell(plain(row.what, 200), style)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value * 100:.0f}%"


def row_lines(row: GpuProcessRow | None, room: int) -> list[Cell]:
    if row is None:
        return [(), ()]
    lead: list[Span] = [(f" pid {row.pid} " if row.pid is not None else " ", STRONG), *what_cell(row)]
    inside = f"  container {row.container_id[:12]}" if row.container_id else ""
    user = f"  {plain(row.user, 32)}" if row.user else ""
    return [(*lead, (f"{user}{inside}", DIM)), ((" " + plain(row.command or "", max(0, room - 1)), DIM),)]


def process_lines(row: GpuProcessRow, room: int) -> list[Cell]:
    known = {
        "user": row.user,
        "job": row.job,
        "container": row.what if row.container_id and not row.job else "",
        "GPU": gpu_words(row.gpus),
        "parent": str(row.parent or ""),
        "age": format_duration(row.age) if row.age is not None else "",
        "GPU memory": format_size(row.gpu_memory) if row.gpu_memory is not None else "",
        "memory": format_size(row.memory) if row.memory is not None else "",
        "CPU": _percent(row.cpu),
        "command": row.command,
    }
    return [line for name, text in known.items() if text for line in _named(name, text, room)]


def process_page(row: GpuProcessRow, environment: Sequence[str] | None, refusal: str, room: int) -> list[Cell]:
    lines = [*process_lines(row, room), ()]
    if refusal:
        return [*lines, *_named("environment", refusal, room)]
    note = ("reading …", DIM) if environment is None else ("as it was when the process began", DIM)
    lines.append(((f"{'environment':<{_LABEL}}", BLUE), note))
    words = (plain(word, 4000) for word in sorted(environment or ()))
    return [*lines, *(cell(plain(line, room)) for word in words for line in broken(word, room))]


_LABEL = 13


def _named(name: str, text: str, room: int) -> Iterator[Cell]:
    for number, line in enumerate(broken(plain(text, 4000), max(10, room - _LABEL))):
        yield ((f"{'' if number else name:<{_LABEL}}", BLUE), (line, PLAIN))


def container_lines(detail: ContainerDetail, now: datetime, room: int) -> list[Cell]:
    up = f"{detail.state} for {format_duration(now - detail.started_at)}" if detail.started_at else detail.state
    known = [
        ("state", up if detail.is_running else f"{detail.state}, exit code {detail.exit_code}"),
        ("owner", detail.user),
        ("image", detail.image),
        ("command", detail.command),
        ("GPUs", ", ".join(detail.devices)),
        *(("mounts" if not number else "", mount) for number, mount in enumerate(detail.mounts)),
        *(("ports" if not number else "", port) for number, port in enumerate(detail.ports)),
        ("restart", f"{detail.restart}: the engine starts it again unless it is stopped" if detail.restart else ""),
        ("project", detail.project),
        ("queue", f"job {detail.job} of the gputui queue {detail.store}" if detail.store else ""),
        ("id", detail.id),
    ]
    return [line for name, text in known if text for line in _named(name, text, room)]


def signal_question(row: GpuProcessRow, name: str) -> tuple[str, str]:
    inside = f", in container {row.what}" if row.container_id else ""
    where = f" on GPU {gpu_words(row.gpus)}" if row.gpus else ", on no GPU"
    lines = [f"pid {row.pid} of {row.user or 'an unknown user'}{where}{inside}", row.command or ""]
    if name == "KILL":
        lines.append("KILL gives it no chance to save or to clean up.")
    return f"Send {name} to pid {row.pid}?", "\n".join(plain(line, 300) for line in lines if line)


def heading_cell(words: str, filter_text: str, order: ProcessOrder) -> Cell:
    title = next(column.title for column in PROCESS_VIEW_COLUMNS if column.key == order.column)
    shown: list[Span] = [(" GPU USERS  ", STRONG), (words, PLAIN), (f"  by {title}", DIM)]
    return (*shown, (f"  /{plain(filter_text, 80)}", AMBER)) if filter_text else tuple(shown)


FAULT = RED
