"""Everything about one GPU, line by line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest

from gputui.domain.gpu import GpuProcess, GpuView, HealthCode
from gputui.domain.job import Job
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import fit, plain
from gputui.domain.units import format_size
from gputui.domain.window import WindowView
from gputui.tui.present.cells import UNKNOWN, Cell, Span, fitted, width_of
from gputui.tui.present.gpu import gpu_cells, label_of
from gputui.tui.present.gpu_card import power_limit
from gputui.tui.present.gpu_graphs import amount, graph_lines
from gputui.tui.present.gpu_row import GpuPicture, GpuRow
from gputui.tui.present.gpu_words import container_of, foreign_words, kept_words, running_words, slowed_words
from gputui.tui.present.style import AMBER, BLUE, DIM, PLAIN, RED, STRONG, VIOLET
from gputui.tui.present.topology import topology_lines

_LABEL = 12
_COLUMN = 76
"""Cells of a column from which there are two of what is read and known."""


@dataclass(frozen=True)
class GpuPage:
    """What the page is made from."""

    row: GpuRow
    picture: GpuPicture
    snapshot: Snapshot
    now: datetime
    jobs: tuple[Job, ...] = ()
    """All that hold it; the first is the one that keys act on."""
    pcie: str = ""
    """Why PCIe and NVLink throughput and shares of processes are not read; empty where they are."""
    keys: tuple[str, str] = ("Enter", "Tab")
    """What opens a job of several, and what means the next."""


def gpu_lines(page: GpuPage, room: int, rows: int) -> list[Cell]:
    """The page for a screen of that size: what matters now first, what never changes last."""
    half = room // 2
    is_wide = half >= _COLUMN
    topology = topology_lines(page.row, page.picture, half if is_wide else room)
    readings, instances, about = _readings(page), _instances(page), _about(page)
    if is_wide and topology:
        known = [_beside(_parted(readings, about), topology, half), instances]
    else:
        known = [readings, topology, instances, about]
    return _parted(_now(page), graph_lines(page.row, room, rows), _processes(page), *known)


def _parted(*sections: list[Cell]) -> list[Cell]:
    """Those that say anything, with a line between them."""
    lines: list[Cell] = []
    for section in sections:
        if section:
            lines += [*([()] if lines else []), *section]
    return lines


def _beside(left: list[Cell], right: list[Cell], half: int) -> list[Cell]:
    """Both, side by side: the left one in as many cells."""
    pairs = zip_longest(left, right, fillvalue=())
    return [(*fitted(one, half - 1), (" ", DIM), *other) if other else one for one, other in pairs]


def _line(label: str, *spans: Span) -> Cell:
    return ((label.ljust(_LABEL), BLUE), *spans)


def _now(page: GpuPage) -> list[Cell]:
    """How it stands, who is on it, and for whom it is kept."""
    view = page.row.view
    lines = [_line("state", *gpu_cells(page.row, "state", 7), (_why(page), DIM))]
    if view.health.code is not HealthCode.OK:
        style = AMBER if view.health.code is HealthCode.REMAP_PENDING else RED
        lines.append(_line("health", (plain(view.health.text or view.health.code, 300), style)))
    else:
        lines.append(_line("health", ("nothing wrong", DIM)))
    if view.drain is not None:
        at = f"{view.drain.at.astimezone():%Y-%m-%d %H:%M}"
        words = f"by {plain(view.drain.by, 32)} on {at}: {plain(view.drain.reason, 200)}"
        lines.append(_line("drained", (words, AMBER)))
    lines += [_job_line(page, job, number) for number, job in enumerate(page.jobs)]
    if view.job_id is None:
        for holder in view.holders:
            told = gpu_cells(GpuRow(GpuView(view.gpu, view.state, view.health, holders=(holder,))), "who", 100)
            lines.append(_line("held by", *told, (f"  {foreign_words(view, holder)}", DIM)))
    lines += _windows(page)
    return lines


def _why(page: GpuPage) -> str:
    """Why it is not free, where no line below says so as well."""
    view = page.row.view
    told = {"", view.health.text, *(words for words, _ in gpu_cells(page.row, "state", 7))}
    is_told = view.why in told or bool(page.jobs) or (view.drain is not None and view.why == "drained")
    return "" if is_told else f"  {plain(view.why, 300)}"


def _job_line(page: GpuPage, job: Job, number: int) -> Cell:
    """A job on it; of several, what each counts with and which one the keys mean."""
    share = next((sharer for sharer in page.row.view.sharers if sharer.job_id == job.id), None)
    parts = [plain(job.spec.tenant, 32), running_words(job, page.now)]
    parts.append(f"counts {format_size(share.memory)}" if share else "")
    parts.append(f"container {container_of(job)}" if container_of(job) else "")
    is_meant = number == 0 and len(page.jobs) > 1
    hint: Span = (f"◂ {page.keys[0]} opens it, {page.keys[1]} the next  ", AMBER) if is_meant else ("", DIM)
    words = ", ".join(part for part in parts if part)
    return _line("job", (f"#{job.shown_id} ", BLUE), (f"{plain(job.spec.name, 60)} ", PLAIN), hint, (words, DIM))


def _windows(page: GpuPage) -> list[Cell]:
    uuid = page.row.view.gpu.uuid
    mine = [window for window in page.snapshot.windows if uuid in window.gpus]
    return [_line("kept", *_window(window, page.now)) for window in mine]


def _window(view: WindowView, now: datetime) -> Cell:
    window = view.window
    start, end = window.start.astimezone(), window.end.astimezone()
    words = kept_words([view], now) or "kept"
    return ((words, VIOLET), (f"  {plain(window.name, 40)}: {start:%a %d %H:%M} to {end:%a %d %H:%M}", DIM))


def _readings(page: GpuPage) -> list[Cell]:
    """What has no graph, or is better read as a figure."""
    sample = page.row.view.sample
    if sample is None or page.row.is_old:
        return [_line("readings", ("none now: the driver does not answer for it", AMBER))]
    limit = power_limit(page.row)
    throttle = slowed_words(sample.throttle, 200)
    clocks = _told(_of(sample.sm_clock, "MHz", "SM"), _of(sample.memory_clock, "MHz", "memory"))
    counts = _told(_count(sample.ecc_corrected, "corrected"), _count(sample.ecc_uncorrected, "uncorrected"))
    lines: list[Cell] = []
    if clocks or throttle:
        slowed: Span = (throttle, AMBER) if throttle else ("not slowed", DIM)
        lines.append(_line("clocks", (f"{clocks}  " if clocks else "", PLAIN), slowed))
    if page.row.view.gpu.memory_total or sample.memory_total:
        lines.append(_line("memory", *gpu_cells(page.row, "memory", 12)))
    if sample.power is not None:
        lines.append(_line("power", (f"{amount(sample.power, 'W')} of {amount(limit, 'W')}", PLAIN)))
    if counts:
        style = RED if sample.ecc_uncorrected else PLAIN
        lines.append(_line("ECC", (f"{counts} since the driver was loaded", style)))
    lines.append(
        _line(
            "Xid",
            (
                f"{sample.xid}, the last one seen" if sample.xid is not None else "none seen",
                PLAIN if sample.xid is None else RED,
            ),
        ),
    )
    if not clocks and sample.power is None and sample.utilization is None:
        lines.insert(0, _line("readings", ("the driver tells none of this GPU: load, power, clocks", DIM)))
    if sample.fan is not None:
        lines.append(_line("fan", (f"{sample.fan * 100:.0f}%", PLAIN)))
    lines.append(_throughput("PCIe", sample.pcie_rx, sample.pcie_tx, page.pcie or "no reading yet"))
    has_nvlink = any(link.kind == "NVLINK" for link in page.row.view.gpu.links)
    if has_nvlink or sample.nvlink_rx is not None or sample.nvlink_tx is not None:
        why = page.pcie or "no reading yet, or the driver has none"
        lines.append(_throughput("NVLink", sample.nvlink_rx, sample.nvlink_tx, why))
    return lines


def _throughput(label: str, received: float | None, sent: float | None, why_not: str) -> Cell:
    if received is None and sent is None:
        return _line(label, (f"N/A: {why_not}", DIM))
    return _line(label, (f"in {amount(received, 'B/s')}, out {amount(sent, 'B/s')}", PLAIN))


def _told(*words: str) -> str:
    """Those of which there is something to tell."""
    return ", ".join(word for word in words if word)


def _of(value: int | None, unit: str, name: str) -> str:
    return "" if value is None else f"{name} {value} {unit}"


def _count(value: int | None, name: str) -> str:
    return "" if value is None else f"{value} {name}"


def _processes(page: GpuPage) -> list[Cell]:
    """The processes on it, as the driver lists them."""
    view = page.row.view
    processes = view.sample.processes if view.sample is not None else None
    if processes is None:
        return [_line("processes", ("cannot be read, so it does not count as free", AMBER))]
    if not processes:
        return [_line("processes", ("none", DIM))]
    # where shares are asked for the column stays, known or not: it would come and go as processes rest
    shares = not page.pcie and not view.gpu.mig_enabled and view.gpu.mig_parent is None
    title = f"{'PID':>9}  {'USER':<12} {'  SM  ' if shares else ''}{'MEMORY':>7}  {'CONTAINER':<12}  COMMAND"
    rows = [_process(process, shares) for process in processes]
    return [_line("processes", (str(len(processes)), PLAIN)), ((title, DIM),), *rows]


def _process(process: GpuProcess, shares: bool) -> Cell:
    container = process.container_id[:12] if process.container_id else UNKNOWN
    kind = "" if process.compute else " (graphics)"
    where = "" if process.visible else " (in another PID namespace)"
    return (
        (f"{process.pid:>9}  ", PLAIN),
        (fit(process.user or UNKNOWN, 12) + " ", PLAIN),
        (f"{amount(process.sm, '%'):>4}  " if shares else "", PLAIN),
        (f"{UNKNOWN if process.memory is None else format_size(process.memory):>7}  ", PLAIN),
        (fit(container, 12) + "  ", DIM),
        (plain(process.command or UNKNOWN, 300), PLAIN),
        (kind + where, DIM),
    )


def _instances(page: GpuPage) -> list[Cell]:
    """The MIG instances it is cut into, or the GPU that this instance is cut from."""
    gpu = page.row.view.gpu
    if gpu.mig_parent:
        parent = page.picture.rows.get(gpu.mig_parent)
        of = f"GPU {label_of(parent)}" if parent else plain(gpu.mig_parent, 48)
        return [_line("MIG", (f"instance {plain(gpu.mig_profile or '', 16)} of {of}", PLAIN))]
    mine = [row for row in page.picture.rows.values() if row.view.gpu.mig_parent == gpu.uuid]
    if not gpu.mig_enabled and not mine:
        return []
    head = _line("MIG", (f"cut into {len(mine)}: jobs for a whole GPU never go here", PLAIN))
    holders = [gpu_cells(row, "who", 60) for row in mine]
    longest = min(60, max((width_of(holder) for holder in holders), default=0))
    return [head, *(_instance(row, fitted(holder, longest)) for row, holder in zip(mine, holders, strict=True))]


def _instance(row: GpuRow, holder: list[Span]) -> Cell:
    gpu = row.view.gpu
    return (
        (f"{' ' * _LABEL}{label_of(row):<5} {fit(gpu.mig_profile or UNKNOWN, 12)} ", PLAIN),
        *fitted(gpu_cells(row, "memory", 9), 9, right=True),
        ("  ", DIM),
        *fitted(gpu_cells(row, "state", 7), 9),
        *holder,
        (f"  {plain(gpu.uuid, 48)}" if holder else plain(gpu.uuid, 48), DIM),
    )


def _about(page: GpuPage) -> list[Cell]:
    """What does not change."""
    gpu = page.row.view.gpu
    node = next((node for node in page.snapshot.nodes if any(view.gpu.uuid == gpu.uuid for view in node.gpus)), None)
    known = {
        "model": gpu.model,
        "UUID": gpu.uuid,
        "PCI": gpu.pci_bus_id,
        "device": None if gpu.minor is None else f"/dev/nvidia{gpu.minor}",
        "NUMA node": None if gpu.numa_node is None else str(gpu.numa_node),
        "persistence": None if gpu.persistence is None else ("on" if gpu.persistence else "off: slow to open"),
        "node": node.name if node else None,
        "driver": node.driver_version if node else None,
    }
    return [_line(name, (plain(value, 100), PLAIN)) for name, value in known.items() if value]


def title(row: GpuRow) -> Cell:
    """`GPU 3  NVIDIA H100 80GB HBM3`."""
    return ((f"GPU {label_of(row)}", STRONG), (f"  {plain(row.view.gpu.model or '', 60)}", DIM))


def holders(view: GpuView, jobs: Iterable[Job]) -> tuple[Job, ...]:
    """The jobs on it, in their order there."""
    ids = view.job_ids or ((view.job_id,) if view.job_id is not None else ())
    known = {job.id: job for job in jobs if job.id in ids} if ids else {}
    return tuple(known[job_id] for job_id in ids if job_id in known)
