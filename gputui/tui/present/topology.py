"""How GPUs reach each other: NV18, PIX, PXB, PHB, NODE or SYS, as `nvidia-smi topo -m` names it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style

from gputui.domain.gpu import Gpu, Link
from gputui.tui.present.cells import UNKNOWN, Cell, Span, cell
from gputui.tui.present.gpu import label_of
from gputui.tui.present.gpu_row import GpuPicture, GpuRow
from gputui.tui.present.style import BLUE, DIM, GREEN, PLAIN, STRONG

_NEAREST = ("NVLINK", "PIX", "PXB", "PHB", "NODE", "SYS")
_MEANING = {
    "NVLINK": "NVLink",
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "through the CPU",
    "NODE": "between host bridges of a NUMA node",
    "SYS": "between NUMA nodes",
}
_LABEL = 12
_CELL = 6


def link_word(link: Link) -> str:
    """`NV18`, `NODE`."""
    return f"NV{link.lanes or '#'}" if link.kind == "NVLINK" else link.kind


def topology_lines(row: GpuRow, picture: GpuPicture, room: int) -> list[Cell]:
    """The neighbours of a GPU, nearest first, and the map of all of them where it fits."""
    lines = neighbour_lines(row, picture)
    rows = [other for other in picture.rows.values() if other.view.gpu.links and not other.view.gpu.mig_parent]
    if len(rows) < 2 or not lines:
        return lines
    if _LABEL + _CELL * len(rows) > room:
        return lines
    return [*lines, (), *matrix(row, rows)]


def neighbour_lines(row: GpuRow, picture: GpuPicture) -> list[Cell]:
    """`NV18 NVLink: 1, 2, 3`."""
    labels = {uuid: label_of(other) for uuid, other in picture.rows.items()}
    groups: dict[tuple[int, str], list[str]] = {}
    for link in row.view.gpu.links:
        place = _NEAREST.index(link.kind) if link.kind in _NEAREST else len(_NEAREST)
        groups.setdefault((place, link_word(link)), []).append(labels.get(link.peer, "?"))
    lines: list[Cell] = []
    for (place, word), peers in sorted(groups.items(), key=lambda group: (group[0][0], -len(group[0][1]), group[0][1])):
        meaning = _MEANING[_NEAREST[place]] if place < len(_NEAREST) else ""
        label = "neighbours" if not lines else ""
        spans: list[Span] = [(label.ljust(_LABEL), BLUE), (word.ljust(_CELL - 1), _style(word)), ("GPU ", DIM)]
        lines.append((*spans, (", ".join(peers), PLAIN), (f"  {meaning}" if meaning else "", DIM)))
    return lines


def matrix(row: GpuRow, rows: Sequence[GpuRow]) -> list[Cell]:
    """Every pair of GPUs, and the NUMA node each is on."""
    names = [f"GPU{label_of(other)}"[: _CELL - 1] for other in rows]
    head = "topology".ljust(_LABEL) + "".join(name.rjust(_CELL) for name in names) + "  NUMA"
    return [cell(head, DIM), *(_matrix_line(row, other, rows) for other in rows)]


def _matrix_line(row: GpuRow, other: GpuRow, rows: Sequence[GpuRow]) -> Cell:
    is_this = other.view.gpu.uuid == row.view.gpu.uuid
    by_peer = {link.peer: link_word(link) for link in other.view.gpu.links}
    words = [_word(other.view.gpu, peer.view.gpu, by_peer) for peer in rows]
    numa = other.view.gpu.numa_node
    name = f"{'▸' if is_this else ' '} GPU{label_of(other)}".ljust(_LABEL)[:_LABEL]
    return (
        (name, STRONG if is_this else DIM),
        *((word.rjust(_CELL), _style(word)) for word in words),
        (f"  {UNKNOWN if numa is None else numa}".ljust(6), DIM),
    )


def _word(gpu: Gpu, peer: Gpu, by_peer: dict[str, str]) -> str:
    return "X" if gpu.uuid == peer.uuid else by_peer.get(peer.uuid, UNKNOWN)


def _style(word: str) -> Style:
    return GREEN if word.startswith("NV") else DIM
