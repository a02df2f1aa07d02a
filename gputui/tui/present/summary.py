"""The summary line: all GPUs together, and the host."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from math import fsum
from typing import TypeAlias

from msgspec import Struct
from rich.style import Style

from gputui.domain.conditions import disk_kind, is_filling
from gputui.domain.gpu import GpuSample
from gputui.domain.host import DiskUse, HostSample
from gputui.domain.severity import DISK_FULL, DISK_LOW, LOAD, MEMORY, SWAP
from gputui.domain.snapshot import Snapshot
from gputui.domain.steady import Steady
from gputui.domain.text import plain
from gputui.domain.units import format_duration, plural
from gputui.tui.present.cells import Cell, Span, cell, width_of
from gputui.tui.present.gpu_rows import tone_of_kind
from gputui.tui.present.graphs import block_bar, load_style
from gputui.tui.present.style import DIM, PLAIN

STALE = timedelta(seconds=15)
"""Age from which a reading of the host is hidden."""
_BARS = (8, 5, 0)
"""Widths of a bar in cells, of which the widest that fits is used; 0: none."""
_GROUPS = " │ "


_LEAST = {LOAD: 1.0, MEMORY: 0.9, SWAP: 0.1}
"""Shares from which the host's figures are worth a look; load is counted per processor."""


class SummaryPart(Struct, frozen=True):
    """Part of the line. If room is short, bars go first, then the parts of the highest rank."""

    rank: int
    words: Cell
    label: str = ""
    share: float | None = None
    """Filled share of its bar; None: it has no bar."""
    style: Style = PLAIN

    def drawn(self, cells: int) -> Cell:
        """Return the part with a bar of that many cells."""
        label: Cell = ((f"{self.label} ", DIM),) if self.label else ()
        if not cells or self.share is None:
            return (*label, *self.words)
        return (*label, *block_bar(self.share, cells, self.style), (" ", DIM), *self.words)


def summary_line(
    snapshot: Snapshot, now: datetime, room: int = 10_000, steady: Steady[tuple[str, str]] | None = None
) -> Cell:
    """Return the line, as far as there is room; empty while nothing is known.

    With `steady`, figures that fluctuate are marked only while they hold.
    """
    groups = [gpu_parts(snapshot), host_parts(snapshot, now, steady)]
    for cells in _BARS:
        if width_of(line := _joined(groups, cells)) <= room:
            return line
    ranks = sorted({part.rank for group in groups for part in group}, reverse=True)
    for rank in ranks:
        groups = [[part for part in group if part.rank < rank] for group in groups]
        if width_of(line := _joined(groups, 0)) <= room:
            return line
    return ()


def _joined(groups: Iterable[Iterable[SummaryPart]], cells: int) -> Cell:
    spans: list[Span] = []
    for group in groups:
        drawn = _group(group, cells)
        spans += [(_GROUPS, DIM)] if spans and drawn else []
        spans += drawn
    return tuple(spans)


def _group(parts: Iterable[SummaryPart], cells: int) -> Cell:
    spans: list[Span] = []
    for part in parts:
        spans += [("  ", DIM)] if spans else []
        spans += part.drawn(cells)
    return tuple(spans)


def gpu_parts(snapshot: Snapshot) -> list[SummaryPart]:
    """Return mean utilisation, memory and power of all GPUs with readings."""
    whole = [view for view in snapshot.gpus if not view.gpu.mig_parent]
    if not whole:
        return []
    read = [view.current for view in whole if view.current is not None]
    return [
        SummaryPart(0, _utilization(len(whole), read)),
        *_sum(2, read, "memory_used", "memory_total"),
        *_sum(3, read, "power", "power_limit"),
    ]


def _utilization(count: int, read: Iterable[GpuSample]) -> Cell:
    known = [sample.utilization for sample in read if sample.utilization is not None]
    mean = fsum(known) / len(known) if known else None
    words = "" if mean is None else f" {mean:3.0%}"
    return ((plural(count, "GPU"), PLAIN), (words, load_style(mean)))


def _sum(rank: int, read: Iterable[GpuSample], used: str, total: str) -> list[SummaryPart]:
    """Return the sum of a reading and of its limits, over the GPUs that report both."""
    pairs = [(getattr(sample, used), getattr(sample, total)) for sample in read]
    known = [(a, b) for a, b in pairs if a is not None and b]
    if not known:
        return []
    a, b = (sum(values) for values in zip(*known, strict=True))
    if used == "power":
        return [SummaryPart(rank, cell(f"{a / 1000:.1f}/{b / 1000:.1f} kW"))]
    return [SummaryPart(rank, cell(_of(a, b)))]


def host_parts(snapshot: Snapshot, now: datetime, steady: Steady[tuple[str, str]] | None = None) -> list[SummaryPart]:
    """Return the known parts of the host; empty if its reading is old."""
    host = next((node.host for node in snapshot.nodes if node.host is not None), None)
    if host is None or now - host.sampled_at > STALE:
        return []
    present = _loud(host)
    loud = present if steady is None else steady.update(present, now)
    return [*_cpu(host, loud), *_memory(host, loud), *(_disk(disk, loud) for disk in host.disks), *_network(host)]


_Loud: TypeAlias = frozenset[tuple[str, str]]
"""Kinds of conditions with their disks; of a figure that is not a disk's, with an empty text."""


def _loud(host: HostSample) -> _Loud:
    shares = {
        LOAD: (host.load, host.cores),
        MEMORY: (host.memory_used, host.memory_total),
        SWAP: (host.swap_used, host.swap_total),
    }
    figures = [(kind, "") for kind, (a, b) in shares.items() if a is not None and b and a / b >= _LEAST[kind]]
    disks = [(kind, disk.mount) for disk in host.disks if (kind := disk_kind(disk))]
    return frozenset((*figures, *disks))


def _marked(words: str, loud: _Loud, *kinds: str, subject: str = "") -> Span:
    """Return a figure, in colour and with a mark if one of these conditions holds, the worst first."""
    kind = next((kind for kind in kinds if (kind, subject) in loud), None)
    if kind is None:
        return words, PLAIN
    tone = tone_of_kind(kind)
    return words + tone.mark, tone.style


def _cpu(host: HostSample, loud: _Loud) -> list[SummaryPart]:
    parts = []
    if host.cpu is not None:
        parts.append(SummaryPart(0, cell(f"{host.cpu:3.0%}"), "CPU", host.cpu, load_style(host.cpu)))
    if host.load is not None:
        words = f"{host.load:.0f}" if host.load >= 10 else f"{host.load:.1f}"
        parts.append(SummaryPart(5, (_marked(words, loud, LOAD),), "load"))
    return parts


def _memory(host: HostSample, loud: _Loud) -> list[SummaryPart]:
    parts = []
    if host.memory_total and host.memory_used is not None:
        share = host.memory_used / host.memory_total
        words = _marked(_of(host.memory_used, host.memory_total), loud, MEMORY)
        parts.append(SummaryPart(0, (words,), "RAM", share, _filled(words[1], share)))
    if host.swap_total and host.swap_used is not None:
        words = _marked(f"{host.swap_used / host.swap_total:.0%}", loud, SWAP)
        parts.append(SummaryPart(6 if words[1] is PLAIN else 1, (words,), "swap"))
    return parts


def _disk(disk: DiskUse, loud: _Loud) -> SummaryPart:
    soon = f" full in {format_duration(disk.full_in)}" if disk.full_in is not None and is_filling(disk) else ""
    words = _marked(f"{disk.used:.0%}{soon}", loud, DISK_FULL, DISK_LOW, subject=disk.mount)
    return SummaryPart(1, (words,), disk_name(disk), disk.used, _filled(words[1], disk.used))


def disk_name(disk: DiskUse) -> str:
    """Return the mount point, or the last part of a long one."""
    return plain(disk.mount if len(disk.mount) <= 8 else disk.mount.rpartition("/")[2] or disk.mount, 16)


def _network(host: HostSample) -> list[SummaryPart]:
    if host.received is None or host.sent is None:
        return []
    words = (("↓ ", DIM), (_rate(host.received), PLAIN), ("  ↑ ", DIM), (_rate(host.sent), PLAIN))
    return [SummaryPart(4, words)]


def _rate(value: float) -> str:
    """Return bytes per second in the units of network cards, which are decimal."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.995 * size or unit == "k":
            number = value / size
            return f"{number:.1f} {unit}B/s" if number < 9.95 else f"{number:3.0f} {unit}B/s"
    return ""


def _of(used: float, total: float) -> str:
    """Return `410/640G`, in the unit of the total; a few terabytes are counted in gigabytes."""
    unit, size = ("T", 1024**4) if total >= 10 * 1024**4 else ("G", 1024**3)
    value = used / size
    return f"{value:.1f}/{total / size:.0f}{unit}" if value < 9.95 else f"{value:.0f}/{total / size:.0f}{unit}"


def _filled(style: Style, share: float) -> Style:
    """Return the style of a bar: its value's if that warns, else quiet if idle and green if busy."""
    return style if style is not PLAIN else load_style(share)
