"""Nodes of a cluster in the GPU grid: one line each, with a cell of heat for every GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from math import fsum

from rich.style import Style

from gputui.domain.gpu import GpuState, HealthCode, ProbeCode
from gputui.domain.text import fit, plain
from gputui.domain.units import format_duration
from gputui.tui.present.cells import Cell, Span
from gputui.tui.present.gpu_rows import GpuPicture, GpuRow
from gputui.tui.present.gpu_tone import tone_of
from gputui.tui.present.gpu_words import model_in, short_model
from gputui.tui.present.style import AMBER, BLUE, DIM, GREEN, PLAIN, RED, STRONG, VIOLET

NAME_LEAST, NAME_MOST = 4, 20
MARK = "node "
"""Beginning of the key of a node among the UUIDs of GPUs."""
_LEVELS = "▁▂▃▄▅▆▇█"
_MARKS = {
    GpuState.FREE: ("·", DIM),
    GpuState.ALLOCATED: ("■", GREEN),
    GpuState.FOREIGN: ("▣", VIOLET),
    GpuState.DRAINED: ("–", DIM),
    GpuState.UNKNOWN: ("?", AMBER),
}
"""Marks of GPUs without a reading."""


@dataclass(frozen=True)
class GpuNode:
    """A node with its GPUs."""

    name: str
    rows: tuple[GpuRow, ...] = ()
    is_unread: bool = False
    """True if its GPUs have no readings."""
    why_unread: str = field(default="", compare=False)
    """Why there are none, or no new ones."""

    @property
    def key(self) -> str:
        """Key of its line in the grid."""
        return MARK + self.name

    @property
    def uuids(self) -> Iterator[str]:
        """UUIDs of its GPUs."""
        return (row.view.gpu.uuid for row in self.rows)

    @cached_property
    def free(self) -> int:
        """Number of its free GPUs."""
        return sum(row.view.state is GpuState.FREE for row in self.rows)

    @cached_property
    def load(self) -> float | None:
        """Mean utilization of its GPUs; None without readings."""
        found = [
            row.view.current.utilization
            for row in self.rows
            if row.view.current is not None and row.view.current.utilization is not None
        ]
        return fsum(found) / len(found) if found else None

    @cached_property
    def late(self) -> timedelta | None:
        """Age of its readings if all of them are late."""
        ages = [row.view.age + row.late for row in self.rows if row.view.stale and row.view.age is not None]
        return min(ages) if ages and len(ages) == len(self.rows) else None

    @property
    def idleness(self) -> tuple[int, float]:
        """Rank among nodes, the idlest first: by free GPUs, then by load."""
        return -self.free, self.load or 0.0


def node_rows(picture: GpuPicture) -> tuple[GpuNode, ...]:
    """Return the nodes of a picture with their GPUs; empty if there is only one."""
    return tuple(
        GpuNode(
            node.name,
            tuple(picture.rows[view.gpu.uuid] for view in node.gpus),
            node.probe.code is not ProbeCode.OK and not any(view.sample for view in node.gpus),
            node.probe.text,
        )
        for node in picture.nodes
    )


def name_width(nodes: Sequence[GpuNode]) -> int:
    """Return the width of the column of names."""
    return min(NAME_MOST, max((len(node.name) for node in nodes), default=NAME_LEAST))


def heat_width(nodes: Sequence[GpuNode]) -> int:
    """Return the width of the column of heat."""
    return max(4, max((len(node.rows) for node in nodes), default=0))


def node_titles(nodes: Sequence[GpuNode], style: Style) -> Cell:
    """Return the titles above lines of nodes."""
    name, heat = name_width(nodes), heat_width(nodes)
    return ((f"  {'NODE':<{name}}  {'GPUS':<{heat}}  {'FREE':>7}  {'UTIL':>4}  {'MODEL':<9} JOBS", style),)


def node_line(node: GpuNode, nodes: Sequence[GpuNode], *, is_open: bool) -> Cell:
    """Return the line of a node: whether it is open, name, heat of each GPU, free ones, load, model, and jobs."""
    name, heat = name_width(nodes), heat_width(nodes)
    count = len(node.rows)
    load = f"{node.load:.0%}" if node.load is not None else "–"
    models = {short_model(row.view.gpu.model) for row in node.rows}
    model = model_in(models.pop(), 9) if len(models) == 1 else "mixed" if models else "–"
    return (
        ("▾ " if is_open else "▸ ", DIM),
        (f"{fit(plain(node.name), name):<{name}}  ", STRONG),
        *map(heat_of, node.rows),
        (" " * (heat - count + 2), DIM),
        (f"{node.free:>3}/{count:<3}", PLAIN if node.free else DIM),
        (f"  {load:>4}  {model[:9]:<9} ", DIM),
        *_age(node),
        *([] if is_open else _jobs(node)),
        *_drain(node),
        *_unread(node, is_told=is_open or any(not each.is_unread for each in nodes)),
    )


def heat_of(row: GpuRow) -> Span:
    """Return a character for a GPU: a bar as high as its load, or a mark of its state if it is not read."""
    view = row.view
    if view.health.code is HealthCode.LOST or not view.health.is_schedulable:
        return "✗", RED
    if view.stale and view.sample is not None:
        return _MARKS[view.state][0], DIM
    load = view.sample.utilization if view.sample is not None else None
    if load is None or view.state in {GpuState.FREE, GpuState.DRAINED, GpuState.UNKNOWN}:
        return _MARKS[view.state]
    style = VIOLET if view.state is GpuState.FOREIGN else tone_of(row, "utilization", load).style
    return _LEVELS[min(len(_LEVELS) - 1, int(load * len(_LEVELS)))], style


def _jobs(node: GpuNode) -> Iterator[Span]:
    """Yield the jobs on a node, each once, with the number of its GPUs there."""
    counts: dict[int, int] = {}
    names: dict[int, tuple[str, str]] = {}
    for row in node.rows:
        for job_id in row.view.job_ids:
            counts[job_id] = counts.get(job_id, 0) + 1
        if row.job is not None:
            names[row.job.id] = (row.job.shown_id, f"{plain(row.job.name, 40)} {plain(row.job.spec.tenant, 20)}")
    if not counts:
        yield from _users(node)
    for place, (job_id, count) in enumerate(counts.items()):
        shown, words = names.get(job_id, (str(job_id), ""))
        yield (" · " if place else "", DIM)
        yield (f"#{shown}", BLUE)
        yield (f"×{count} {words}" if count > 1 else f" {words}", PLAIN)


def _users(node: GpuNode) -> Iterator[Span]:
    """Yield who uses GPUs of a node whose engine does not tell which."""
    whys = (row.view.why for row in node.rows if row.view.state is GpuState.ALLOCATED and row.view.why)
    yield from ((f"{' · ' if place else ''}{plain(why, 200)}", PLAIN) for place, why in enumerate(dict.fromkeys(whys)))


def _drain(node: GpuNode) -> Iterator[Span]:
    """Yield who drained the node, and why."""
    drain = next((row.view.drain for row in node.rows if row.view.drain), None)
    if drain is not None:
        yield (f"  drained by {plain(drain.by, 20)}: {plain(drain.reason, 60)}", DIM)


def _age(node: GpuNode) -> Iterator[Span]:
    """Yield how old its readings are if they are late."""
    if node.late is not None:
        yield (f"{format_duration(node.late)} old  ", AMBER)


def _unread(node: GpuNode, *, is_told: bool) -> Iterator[Span]:
    """Yield why its GPUs are not read, or not any more."""
    if node.why_unread and (node.late is not None or (node.is_unread and is_told)):
        yield (f"  {plain(node.why_unread, 100)}", DIM)
