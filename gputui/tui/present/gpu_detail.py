"""Page of a GPU: graphs, processes, readings, topology, properties; and of a lost or sick one, what helps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import product, zip_longest
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from rich.style import Style

from gputui.domain.gpu import LOST, SICK, GpuFault, GpuView, HealthCode, Link, fault_of, index_of
from gputui.domain.job import Job
from gputui.domain.snapshot import Node, Snapshot, kept_words, reservations_by_gpu
from gputui.domain.text import UNKNOWN, fit, format_duration, format_size, minute, plain
from gputui.tui.present.cells import (
    AMBER,
    BLUE,
    DIM,
    GRAPH,
    GREEN,
    JOB_STYLES,
    PLAIN,
    RED,
    STRONG,
    Cell,
    Span,
    cell,
    fitted,
    joined,
    past_graph,
    width_of,
)
from gputui.tui.present.gpu import gpu_cells, gpu_state_words, label_of
from gputui.tui.present.gpu_rows import (
    HOTTEST,
    JUDGED,
    GpuPicture,
    GpuRow,
    foreign_words,
    graph_style,
    most_of,
    power_limit_of,
    running_words,
    short_container,
    slowed_cell,
    tone,
)
from gputui.tui.present.job import state_words

_Series: TypeAlias = tuple[str, str, str]
"""A reading, its label and its unit."""
_FIGURES = 22
"""Cells to the left of a graph: name, current reading, peak."""
_WIDE = 110
"""Cells from which two graphs fit side by side, and the times of a job are shown beside how it ended."""
_HIGHEST = 14
_GAP: Span = ("   ", DIM)
_LEAST_TOP = {"sm_clock": 2000.0, "pcie_rx": 1e9, "pcie_tx": 1e9, "nvlink_rx": 1e9, "nvlink_tx": 1e9}
"""Minimum value at the top of a graph, in its own unit, so that an idle GPU does not fill it."""


def graph_lines(row: GpuRow, room: int, rows: int, spare: int = 0) -> list[Cell]:
    """Return a graph of each reading; several side by side if there is room, and higher if there are spare lines.

    `rows`: the height of the page. `spare`: lines not needed otherwise.
    """
    series = _series_of(row)
    bands = _Bands(room)
    height = max(1, min(5, rows // 12), min(_HIGHEST, (spare - 2) // bands.count(series)))
    lines = bands.drawn(row, series, height)
    return [*lines, bands.axis(row, len(series))] if lines else []


def several_graph_lines(choices: Iterable[Sequence[GpuRow]], room: int, rows: int) -> list[Cell]:
    """Return graphs of the first choice of GPUs that fits, with as many readings as are legible in `rows` rows.

    They begin with utilisation; empty if even that of the last choice does not fit.
    """
    bands = _Bands(room)
    for gpus, (most, least) in product(choices, _LEGIBLE):
        read = [_series_of(row, most) for row in gpus]
        height = min(_HIGHEST, (rows - len(gpus) - 1) // sum(map(bands.count, read))) if any(read) else 0
        if height >= least:
            break
    else:
        return []
    lines: list[Cell] = []
    for row, series in zip(gpus, read, strict=True):
        model, state = f"  {plain(row.view.gpu.model or '', 40)}", gpu_state_words(row)
        title = ((f"GPU {label_of(row)}", STRONG), (f"{model}  " if state else model, DIM), *state)
        lines += [title, *bands.drawn(row, series, height)]
    return [*lines, bands.axis(gpus[0], max(map(len, read)))]


_LEGIBLE = ((6, 4), (4, 3), (2, 2), (1, 2))
"""Numbers of readings, each with the minimum height of graphs for which it is worth it."""


class _Bands:
    """Graphs side by side, as many as fit into a room."""

    def __init__(self, room: int) -> None:
        self.across = max(1, min(4, room // (_WIDE // 2)))
        self.width = (room - len(_GAP[0]) * (self.across - 1)) // self.across

    def count(self, series: Sequence[_Series]) -> int:
        return max(1, -(-len(series) // self.across))

    def drawn(self, row: GpuRow, series: Sequence[_Series], height: int) -> list[Cell]:
        lines: list[Cell] = []
        for number in range(0, len(series), self.across):
            high = height + (number == 0 and height == 1)
            drawn = [_graph(row, *one, self.width, high) for one in series[number : number + self.across]]
            lines += [joined(parts, _GAP) for parts in zip(*drawn, strict=True)]
        return lines

    def axis(self, row: GpuRow, count: int) -> Cell:
        """Return the line below `count` graphs that shows how far back they go."""
        wide = max(0, self.width - _FIGURES)
        line = [" "] * wide
        for cells in range(30, wide, 30):
            past = timedelta(seconds=cells * 2 * _seconds(row, wide))
            words = "-" + format_duration(past).removesuffix("00s")
            line[wide - cells : wide - cells + len(words)] = words
        line[max(0, wide - 3) :] = "now"
        axis: Cell = ((" " * _FIGURES, DIM), ("".join(line[:wide]), DIM))
        return joined([axis] * min(self.across, count), _GAP)


def _graph(row: GpuRow, name: str, label: str, unit: str, width: int, height: int) -> list[Cell]:
    wide = max(0, width - _FIGURES)
    values = row.past.columns(name, _seconds(row, wide), 2 * wide) if wide else []
    known = [value for value in values if value is not None]
    if name in {"utilization", "memory_utilization", "memory_used", "power"}:
        top = most_of(row, name) or 1.0
    else:
        top = HOTTEST if name == "temperature" else max([_LEAST_TOP.get(name, 1.0), *known])
    drawn = past_graph(row.past, name, top, (wide, height), row.look.seconds)
    reading = amount(getattr(row.view.current, name) if row.view.current is not None else None, unit)
    most = f"peak {amount(max(known), unit)}" if known else ""
    first: Cell = ((label.ljust(_LABEL), BLUE), (reading.rjust(_FIGURES - max(_LABEL, len(label)) - 1) + " ", PLAIN))
    second: Cell = ((most.rjust(_FIGURES - 1) + " ", DIM),)
    blank: Cell = ((" " * _FIGURES, DIM),)
    figures = [first, second, *[blank] * height][:height]
    ink = GRAPH
    if row.is_old or name == "utilization":
        ink = graph_style(row)
    elif name in JUDGED:
        ink = tone(row, name).style
    return [(*figure, (line, ink)) for figure, line in zip(figures, drawn, strict=True)]


def _seconds(row: GpuRow, wide: int) -> int:
    """Return the seconds that a column of dots represents in a graph of that width."""
    return max(1, -(-row.look.seconds // max(1, 2 * wide)))


_SERIES: tuple[_Series, ...] = (
    ("utilization", "utilisation", "%"),
    ("memory_used", "memory", "B"),
    ("power", "power", "W"),
    ("temperature", "temperature", "°C"),
    ("sm_clock", "SM clock", "MHz"),
    ("memory_utilization", "memory bandwidth", "%"),
    ("pcie_rx", "PCIe in", "B/s"),
    ("pcie_tx", "PCIe out", "B/s"),
    ("nvlink_rx", "NVLink in", "B/s"),
    ("nvlink_tx", "NVLink out", "B/s"),
)


def _series_of(row: GpuRow, most: int | None = None) -> list[_Series]:
    known = (row.view.sample, *row.past.steps)
    return [one for one in _SERIES[:most] if any(getattr(each, one[0], None) is not None for each in known)]


def amount(value: float | None, unit: str) -> str:
    """Return `97%`, `62G`, `4.1G/s`, `640W`; a dash if unknown."""
    if value is None:
        return UNKNOWN
    if unit == "%":
        return f"{value * 100:.0f}%"
    if unit.startswith("B"):
        return format_size(round(value)) + unit[1:]
    return f"{value:.0f}{unit}"


_LABEL = 12


def is_in_trouble(view: GpuView) -> bool:
    return fault_of(view) in {LOST, SICK}


def remedy_lines(view: GpuView, fault: GpuFault | None, now: datetime) -> list[Cell]:
    """Return when it failed, as far as known, and what to do, in the order in which to do it."""
    lines: list[Cell] = []
    if fault is not None:
        since = f"{minute(fault.at, now)}, {format_duration(now - fault.at)} ago"
        lines.append(_line("reported", (since, PLAIN), (f"  {plain(fault.text, 200)}", RED)))
    for number, (command, why) in enumerate(_remedies(view)):
        lines.append(_line("" if number else "what to do", (f"{number + 1}. {command:<28}  ", PLAIN), (why, DIM)))
    return lines


def _remedies(view: GpuView) -> Sequence[tuple[str, str]]:
    """Return commands, each with what it is for; of a GPU of a cluster's node, of which the cluster knows nothing."""
    replaced = ("replace the board", "its memory cannot be repaired by a reset")
    if view.gpu.drivers_uuid:
        node = view.gpu.uuid.rpartition(":")[0]
        drain = (f"gputui drain {node} --reason …", "keeps jobs off the node: the cluster does not know of this")
        see = ("journalctl -k -g 'NVRM|Xid'", f"on {node}: an Xid names the fault")
        if view.health.code is HealthCode.LOST:
            return (drain, see, ("sudo reboot", "on the node, once its jobs have ended"))
        if view.health.code is HealthCode.REMAP_FAILED:
            return (drain, see, replaced)
        reset = (f"sudo nvidia-smi -i {view.gpu.drivers_uuid} -r", "on the node, once no process uses it")
        return (drain, see, reset, (f"gputui resume {node}", "gives the node jobs again"))
    index = index_of(view) if view.gpu.index >= 0 else "INDEX"
    see = ("journalctl -k -g 'NVRM|Xid'", "shows what the kernel reported: an Xid names the fault")
    check = ("gputui doctor", "checks driver, engine and every GPU")
    if view.health.code is HealthCode.LOST:
        reboot = ("sudo reboot", "brings back a GPU that fell off the bus; drain the others first")
        return (see, check, reboot, ("reseat or replace the board", "if it is lost again"))
    if view.health.code is HealthCode.REMAP_FAILED:
        return (see, replaced)
    reset = (f"sudo nvidia-smi -i {index} -r", "resets it, once no process uses it; X on the processes ends them")
    return (see, check, reset, (f"gputui resume {index}", "gives it jobs again, unless a reset is detected"))


def job_lines(view: GpuView, jobs: Iterable[Job], now: datetime, room: int, most: int, past: str = "") -> list[Cell]:
    """Return the last jobs that ran on it, the latest first, with how each came out there.

    `past` says what `jobs` lacks of the history; empty if it lacks nothing.
    """
    found = [(attempt, job) for job in jobs for attempt in job.attempts if view.gpu.uuid in attempt.gpus]
    found.sort(key=lambda pair: pair[0].started_at or pair[0].claimed_at or pair[1].submitted_at, reverse=True)
    if not found:
        return [_line("last jobs", (past or "none in the queue, and none that ended in the last 7 days", DIM))]
    shown = found[: max(3, most - 1)]  # lines of jobs even on a low page
    is_wide = room >= _WIDE
    names, times = (28, f"{'FROM':<12} {'FOR':<9} ") if is_wide else (14, "")
    title = f"{'ID':>7}  {'NAME':<{names}} {'TENANT':<10} {'STATE':<10} {times}END"
    left = f", {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    lines = [_line("last jobs", (f"{len(found)}{left}", PLAIN), (f"  {past}" if past else "", DIM)), cell(title, DIM)]
    for attempt, job in shown:
        begun, is_last = attempt.started_at or attempt.claimed_at, attempt is job.attempts[-1]
        took = format_duration((attempt.ended_at or now) - begun) if begun else ""
        end = job.end_words if is_last and attempt.is_over else ""
        line: Cell = (
            (f"{'#' + job.shown_id:>7}  ", BLUE),
            (fit(plain(job.name, 60), names) + " ", PLAIN),
            (fit(plain(job.spec.tenant, 40), 10) + " ", DIM),
            (f"{state_words(job) if is_last else 'ended':<10} ", JOB_STYLES[job.state] if is_last else DIM),
            (f"{minute(begun, now) if begun else '':<12} {took:<9} " if is_wide else "", DIM),
            (plain(attempt.cause.text, 200), RED) if attempt.cause else (end, DIM),
        )
        lines.append(tuple(fitted(line, room)))
    return lines


def machine_lines(row: GpuRow, picture: GpuPicture, room: int) -> list[Cell]:
    others = [other for other in picture.rows.values() if not other.view.gpu.mig_parent]
    if len(others) < 2:
        return []
    lines = [_line("the machine")]
    for other in others:
        mark, style = ("▸", STRONG) if other is row else (" ", PLAIN)
        line: Cell = (
            (f"{mark} GPU {label_of(other):<{_LABEL - 6}}", style),
            *fitted(gpu_cells(other, "state", 9), 11),
            *fitted(gpu_cells(other, "percent", 4), 4, right=True),
            (" ", DIM),
            *fitted(gpu_cells(other, "memory", 9), 9, right=True),
            ("  ", DIM),
            *gpu_cells(other, "who", 60),
        )
        lines.append(tuple(fitted(line, room)))
    return lines


_NEAREST = {
    "NVLINK": "NVLink",
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "through the CPU",
    "NODE": "between host bridges of a NUMA node",
    "SYS": "between NUMA nodes",
}
"""Kinds of links with their meaning, the nearest first."""
_CELL = 6


def topology_lines(row: GpuRow, picture: GpuPicture, room: int) -> list[Cell]:
    """Return the neighbours of a GPU, nearest first, and the matrix of all GPUs with NUMA nodes if it fits."""
    labels = {uuid: label_of(other) for uuid, other in picture.rows.items()}
    kinds = list(_NEAREST)
    groups: dict[tuple[int, str], list[str]] = {}
    for link in row.view.gpu.links:
        place = kinds.index(link.kind) if link.kind in _NEAREST else len(kinds)
        groups.setdefault((place, _link_word(link)), []).append(labels.get(link.peer, "?"))
    lines: list[Cell] = []
    for (place, word), peers in sorted(groups.items(), key=lambda group: (group[0][0], -len(group[0][1]), group[0][1])):
        meaning = f"  {_NEAREST[kinds[place]]}" if place < len(kinds) else ""
        label = ("" if lines else "neighbours").ljust(_LABEL)
        spans = ((label, BLUE), (word.ljust(_CELL - 1), _link_style(word)), ("GPU ", DIM))
        lines.append((*spans, (", ".join(peers), PLAIN), (meaning, DIM)))
    rows = [other for other in picture.rows.values() if other.view.gpu.links and not other.view.gpu.mig_parent]
    if len(rows) < 2 or not lines or _LABEL + _CELL * len(rows) > room:
        return lines
    names = [f"GPU{label_of(other)}"[: _CELL - 1].rjust(_CELL) for other in rows]
    lines += [(), cell("topology".ljust(_LABEL) + "".join(names) + "  NUMA", DIM)]
    for gpu, label in [(other.view.gpu, label_of(other)) for other in rows]:
        is_this = gpu.uuid == row.view.gpu.uuid
        links = {link.peer: _link_word(link) for link in gpu.links} | {gpu.uuid: "X"}
        words = [links.get(peer.view.gpu.uuid, UNKNOWN) for peer in rows]
        numa = f"  {UNKNOWN if gpu.numa_node is None else gpu.numa_node}".ljust(6)
        name = f"{'▸' if is_this else ' '} GPU{label}".ljust(_LABEL)[:_LABEL]
        styled = ((word.rjust(_CELL), _link_style(word)) for word in words)
        lines.append(((name, STRONG if is_this else DIM), *styled, (numa, DIM)))
    return lines


def _link_word(link: Link) -> str:
    return f"NV{link.lanes or '#'}" if link.kind == "NVLINK" else link.kind


def _link_style(word: str) -> Style:
    return GREEN if word.startswith("NV") else DIM


class GpuPage(Struct, frozen=True):
    row: GpuRow
    picture: GpuPicture
    snapshot: Snapshot
    now: datetime
    jobs: tuple[Job, ...] = ()
    """Jobs that hold it, the subject first."""
    pcie: str = ""
    """Reason why PCIe and NVLink throughput and shares of processes are not read; empty if they are."""
    keys: tuple[str, str] = ("Enter", "Tab")
    """Keys that open a job, and that select the next of several."""
    past_jobs: tuple[Job, ...] = ()
    """Jobs from the history that it had; read only if it is lost or sick."""
    past: str = ""
    """State of the past jobs where they are incomplete: being read, or not readable; empty if they are complete."""

    @property
    def node(self) -> Node | None:
        uuid = self.row.view.gpu.uuid
        return next((each for each in self.snapshot.nodes if any(uuid == view.gpu.uuid for view in each.gpus)), None)

    @property
    def why_unread(self) -> str:
        is_of_node = ":" in self.row.view.gpu.uuid and self.row.view.sample is None
        return self.node.probe.text.removeprefix("no readings: ") if is_of_node and self.node is not None else ""


def gpu_page_lines(page: GpuPage, room: int, rows: int) -> list[Cell]:
    half = room // 2
    is_wide = half >= 76  # width of a column from which readings and topology are side by side
    topology = topology_lines(page.row, page.picture, half if is_wide else room)
    readings, instances, about = _readings(page), _instances(page), _about(page)
    if is_in_trouble(page.row.view):
        return _trouble_page(page, room, rows, [readings, topology, instances, about])
    if is_wide and topology:
        left = _parted(readings, about)
        pairs = zip_longest(left, topology, fillvalue=())
        known = [[(*fitted(one, half - 1), (" ", DIM), *other) if other else one for one, other in pairs], instances]
    else:
        known = [readings, topology, instances, about]
    others = _parted(_now(page), _processes(page), *known)
    graphs = graph_lines(page.row, room, rows, rows - len(others))
    return _parted(_now(page), graphs, _processes(page), *known)


def _trouble_page(page: GpuPage, room: int, rows: int, known: Sequence[list[Cell]]) -> list[Cell]:
    """Return the page of a lost or sick GPU: what helps first, then its jobs, its last hour and the other GPUs."""
    view, now = page.row.view, page.now
    remedies = remedy_lines(view, page.snapshot.controls.faults.get(view.gpu.uuid), now)
    processes = [] if view.sample is None else _processes(page)
    machine = machine_lines(page.row, page.picture, room)
    live = {job.id for job in page.snapshot.jobs}  # one from history may have been requeued
    had = [*page.snapshot.jobs, *(job for job in page.past_jobs if job.id not in live)]
    least = _parted(_now(page), remedies, job_lines(view, had, now, room, 0, page.past), processes, *known)
    spare = rows - len(_parted(least, machine))
    hour = replace(page.row, look=replace(page.row.look, span="1h")) if page.row.is_old else page.row
    graphs = graph_lines(hour, room, rows, spare * 2 // 3)
    jobs = job_lines(view, had, now, room, spare - len(graphs), page.past)
    others = [row for row in page.picture.rows.values() if not row.is_old and not row.view.gpu.mig_parent]
    left = spare - len(graphs) - len(jobs)
    elsewhere = several_graph_lines([others], room, left) if others and not graphs else []
    return _parted(_now(page), remedies, graphs, jobs, processes, machine, elsewhere, *known)


def _parted(*sections: list[Cell]) -> list[Cell]:
    lines: list[Cell] = []
    for section in sections:
        if section:
            lines += [*([()] if lines else []), *section]
    return lines


def _line(label: str, *spans: Span) -> Cell:
    return ((label.ljust(_LABEL), BLUE), *spans)


def _now(page: GpuPage) -> list[Cell]:
    view, state = page.row.view, gpu_cells(page.row, "state", 7)
    shown = {"", view.health.text, *(words for words, _ in state)}
    is_known = view.why in shown or bool(page.jobs) or (view.drain is not None and view.why == "drained")
    lines = [_line("state", *state, ("" if is_known else f"  {plain(view.why, 300)}", DIM))]
    if view.health.code is not HealthCode.OK:
        style = AMBER if view.health.is_schedulable or view.health.code is HealthCode.UNKNOWN else RED
        lines.append(_line("health", (plain(view.health.text or view.health.code, 300), style)))
    else:
        lines.append(_line("health", ("OK", DIM)))
    if view.drain is not None:
        at = f"{view.drain.at.astimezone():%Y-%m-%d %H:%M}"
        words = f"by {plain(view.drain.by, 32)} on {at}: {plain(view.drain.reason, 200)}"
        lines.append(_line("drained", (words, PLAIN)))
    lines += [_job_line(page, job, number) for number, job in enumerate(page.jobs)]
    for holder in view.holders if view.job_id is None else ():
        who = gpu_cells(GpuRow(GpuView(view.gpu, view.state, view.health, holders=(holder,))), "who", 100)
        lines.append(_line("held by", *who, (f"  {foreign_words(view, holder, page.row.now)}", DIM)))
    for window in reservations_by_gpu(page.snapshot).get(view.gpu.uuid, ()):
        start, end = window.window.start.astimezone(), window.window.end.astimezone()
        words = f"  {plain(window.window.name, 40)}: {start:%a %d %H:%M} to {end:%a %d %H:%M}"
        lines.append(_line("reserved", (kept_words([window], page.now) or "reserved", BLUE), (words, DIM)))
    return lines


def _job_line(page: GpuPage, job: Job, number: int) -> Cell:
    share = next((sharer for sharer in page.row.view.sharers if sharer.job_id == job.id), None)
    parts = [plain(job.spec.tenant, 32), running_words(job, page.now)]
    parts.append(f"counts {format_size(share.memory)}" if share else "")
    container = job.attempt.container_id if job.attempt else None
    parts.append(f"container {short_container(container)}" if container else "")
    is_meant = number == 0 and len(page.jobs) > 1
    hint: Span = (f"◂ {page.keys[0]} opens it, {page.keys[1]} the next  ", AMBER) if is_meant else ("", DIM)
    words = ", ".join(part for part in parts if part)
    return _line("job", (f"#{job.shown_id} ", BLUE), (f"{plain(job.name, 60)} ", PLAIN), hint, (words, DIM))


def _readings(page: GpuPage) -> list[Cell]:
    sample = page.row.view.current
    if sample is None:
        why = f": {plain(page.why_unread, 200)}" if page.why_unread else " now: the driver does not answer for it"
        return [_line("readings", (f"none{why}", AMBER))]
    limit = power_limit_of(page.row)
    throttle = slowed_cell(sample, 200)
    speeds = (("SM", sample.sm_clock), ("memory", sample.memory_clock))
    clocks = ", ".join(f"{name} {value} MHz" for name, value in speeds if value is not None)
    errors = ((sample.ecc_corrected, "corrected"), (sample.ecc_uncorrected, "uncorrected"))
    counts = ", ".join(f"{value} {name}" for value, name in errors if value is not None)
    lines: list[Cell] = []
    if clocks or throttle:
        lines.append(_line("clocks", (f"{clocks}  " if clocks else "", PLAIN), *(throttle or cell("not slowed", DIM))))
    if page.row.view.gpu.memory_total or sample.memory_total:
        lines.append(_line("memory", *gpu_cells(page.row, "memory", 12)))
    if sample.power is not None:
        lines.append(_line("power", (f"{amount(sample.power, 'W')} of {amount(limit, 'W')}", PLAIN)))
    if counts:
        style = RED if sample.ecc_uncorrected else PLAIN
        lines.append(_line("ECC", (f"{counts} since the driver was loaded", style)))
    xid: Span = ("none seen", PLAIN) if sample.xid is None else (f"{sample.xid}, the last one seen", AMBER)
    lines.append(_line("Xid", xid))
    if not clocks and sample.power is None and sample.utilization is None:
        lines.insert(0, _line("readings", ("the driver reports none for this GPU: load, power, clocks", DIM)))
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


def _processes(page: GpuPage) -> list[Cell]:
    view = page.row.view
    processes = view.sample.processes if view.sample is not None else None
    if page.why_unread:
        return []
    if processes is None:
        return [_line("processes", ("cannot be read, so it does not count as free", AMBER))]
    if not processes:
        return [_line("processes", ("none" if view.current else "none when it was last read", DIM))]
    # the column stays if shares are requested, even while unknown: it would flicker as processes pause
    shares = not page.pcie and not view.gpu.mig_enabled and view.gpu.mig_parent is None
    title = f"{'PID':>9}  {'USER':<12} {'  SM  ' if shares else ''}{'MEMORY':>7}  {'CONTAINER':<12}  COMMAND"
    age = "" if view.current else "  when it was last read"
    lines = [_line("processes", (str(len(processes)), PLAIN), (age, AMBER)), cell(title, DIM)]
    for process in processes:
        container = process.container_id[:12] if process.container_id else UNKNOWN
        memory = UNKNOWN if process.memory is None else format_size(process.memory)
        note = ("" if process.compute else " (graphics)") + ("" if process.visible else " (in another PID namespace)")
        line: Cell = (
            (f"{process.pid:>9}  ", PLAIN),
            (fit(process.user or UNKNOWN, 12) + " ", PLAIN),
            (f"{amount(process.sm, '%'):>4}  " if shares else "", PLAIN),
            (f"{memory:>7}  ", PLAIN),
            (fit(container, 12) + "  ", DIM),
            (plain(process.command or UNKNOWN, 300), PLAIN),
            (note, DIM),
        )
        lines.append(line)
    return lines


def _instances(page: GpuPage) -> list[Cell]:
    gpu = page.row.view.gpu
    if gpu.mig_parent:
        parent = page.picture.rows.get(gpu.mig_parent)
        of = f"GPU {label_of(parent)}" if parent else plain(gpu.mig_parent, 48)
        return [_line("MIG", (f"instance {plain(gpu.mig_profile or '', 16)} of {of}", PLAIN))]
    mine = [row for row in page.picture.rows.values() if row.view.gpu.mig_parent == gpu.uuid]
    if not gpu.mig_enabled and not mine:
        return []
    lines = [_line("MIG", (f"cut into {len(mine)}: jobs for a whole GPU never go here", PLAIN))]
    holders = [gpu_cells(row, "who", 60) for row in mine]
    longest = min(60, max((width_of(holder) for holder in holders), default=0))
    for row, its in zip(mine, holders, strict=True):
        holder, gpu = fitted(its, longest), row.view.gpu
        line: Cell = (
            (f"{' ' * _LABEL}{label_of(row):<5} {fit(gpu.mig_profile or UNKNOWN, 12)} ", PLAIN),
            *fitted(gpu_cells(row, "memory", 9), 9, right=True),
            ("  ", DIM),
            *fitted(gpu_cells(row, "state", 7), 9),
            *holder,
            (f"  {plain(gpu.uuid, 48)}" if holder else plain(gpu.uuid, 48), DIM),
        )
        lines.append(line)
    return lines


def _about(page: GpuPage) -> list[Cell]:
    gpu = page.row.view.gpu
    node = page.node
    known = {
        "model": gpu.model,
        "UUID": gpu.known_uuid,
        "PCI": gpu.pci_bus_id,
        "device": None if gpu.minor is None else f"/dev/nvidia{gpu.minor}",
        "NUMA node": None if gpu.numa_node is None else str(gpu.numa_node),
        "persistence": None if gpu.persistence is None else ("on" if gpu.persistence else "off: slow to open"),
        "node": node.name if node else None,
        "driver": node.driver_version if node else None,
    }
    return [_line(name, (plain(value, 100), PLAIN)) for name, value in known.items() if value]


def title(row: GpuRow) -> Cell:
    return ((f"GPU {label_of(row)}", STRONG), (f"  {plain(row.view.gpu.model or '', 60)}", DIM))


def holders(view: GpuView, jobs: Iterable[Job]) -> tuple[Job, ...]:
    ids = view.job_ids or ((view.job_id,) if view.job_id is not None else ())
    known = {job.id: job for job in jobs if job.id in ids} if ids else {}
    return tuple(known[job_id] for job_id in ids if job_id in known)
