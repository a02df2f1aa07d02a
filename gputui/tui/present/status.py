"""The status line, the summary of GPUs and host, and texts that replace an empty grid or queue."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from math import fsum
from typing import TypeAlias

from msgspec import Struct
from rich.style import Style

from gputui.domain.cluster import ENGINES
from gputui.domain.conditions import (
    DISK_FULL,
    DISK_LOW,
    FAILED,
    FOREIGN,
    IDLE,
    INFORMATION,
    KINDS,
    LOAD,
    MEMORY,
    SWAP,
    WARNING,
    Condition,
    Same,
    disk_kind,
    is_filling,
    keyed,
)
from gputui.domain.gpu import GpuSample, GpuState, GpuView, ProbeCode, index_of, index_ranges
from gputui.domain.gpu_history import Steady
from gputui.domain.gpu_processes import JOB, GpuProcessRow, process_rows
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import UNKNOWN, age_words, broken, format_duration, plain, plural, width
from gputui.tui.present.cells import (
    AMBER,
    BLUE,
    DIM,
    GREEN,
    PLAIN,
    RED,
    SEVERITY_MARKS,
    SEVERITY_STYLES,
    STRONG,
    VIOLET,
    Cell,
    Column,
    Span,
    block_bar,
    cell,
    fitted,
    joined,
    lay_out,
    load_style,
    width_of,
)
from gputui.tui.present.gpu_rows import program_words, tone_of_kind
from gputui.tui.present.process import PROCESS_VIEW_COLUMNS, view_cell

SUBMIT: tuple[Cell, ...] = (
    cell("  gputui submit --gpus 1 IMAGE COMMAND...", BLUE),
    cell("  gputui submit --host --gpus 1 -- python train.py", BLUE),
)
"""Commands that submit a job with a container, and one without."""
_OF_GPU = (Column("load", "UTIL", 4, right=True), Column("idle", "IDLE", 6, right=True))
_SHOWN = ("gpu", "user", "pid", "load", "idle", "gpu_memory", "age", "what", "command")
_COLUMNS = tuple(column for key in _SHOWN for column in (*PROCESS_VIEW_COLUMNS, *_OF_GPU) if column.key == key)


def submit_words(machine: str) -> tuple[Cell, ...]:
    """Return commands that submit a job, among them that of a host job if no other `machine` runs the jobs."""
    return SUBMIT[:1] if machine else SUBMIT


def empty_queue_words(
    filtered: str, others: tuple[Cell, ...] = (), *, machine: str = "", has_keys: bool = True
) -> tuple[Cell, ...]:
    """Return the text that replaces an empty queue; `others` says who uses the GPUs, and is then all of it."""
    if filtered:
        return (cell(f"No job matches '{plain(filtered, 60)}'. {keyed('clear_filter')} shows them all.", DIM),)
    if others:
        return others
    press = f"Press {keyed('submit')} to submit a job, or from" if has_keys else "From"
    first = (cell(f"The queue is empty. {press} any shell:", DIM), *submit_words(machine))
    return (*first, *further_ways()) if has_keys else first


def further_ways() -> tuple[Cell, ...]:
    ways = (
        ("gputui run -it --gpus 1 IMAGE bash", "a shell on a GPU, as soon as one is free"),
        ("gputui submit --sweep lr=1e-3,1e-4 … {lr}", "a job for each value, in one row"),
        ("gputui submit --after 12 …", "once job 12 has completed"),
        ("gputui cron add '30 2 * * 1-5' -- …", "at regular times"),
    )
    return (
        *(((f"  {command:<44}", BLUE), (words, DIM)) for command, words in ways),
        cell(f"A `docker run` line pasted into the form ({keyed('submit')}) fills it in.", DIM),
        cell(f"{keyed('finished')} shows finished jobs, {keyed('help')} all keys.", DIM),
    )


def foreign_use_words(snapshot: Snapshot, room: int, *, may_end: bool = True) -> tuple[Cell, ...]:
    held = sum(view.state is GpuState.FOREIGN for view in snapshot.gpus)
    if not held or len(snapshot.nodes) > 1:
        return ()
    free, whole = sum(view.state is GpuState.FREE for view in snapshot.gpus), len(snapshot.gpus)
    which = f"{held} of {whole} GPUs are" if held < whole else "The GPU is" if whole == 1 else f"All {whole} GPUs are"
    then = f"{free} {'is' if free == 1 else 'are'} free" if free else "jobs wait for a free one"
    rows = [row for row in process_rows(snapshot) if row.kind != JOB]
    views = {index_of(view): view for view in snapshot.gpus if view.current}
    has_containers = any(row.container_id for row in rows)
    placed = lay_out([column for column in _COLUMNS if has_containers or column.key != "what"], room)
    table = [[cell(p.column.title, STRONG) for p in placed]]
    for row in rows[:40]:  # processes that are listed: more than the tallest pane has lines for
        its = [views[gpu] for gpu in row.gpus if gpu in views]
        table.append([_cell(row, p.column.key, its, snapshot.taken_at) for p in placed])
    lines: list[Cell] = []
    for cells in table:
        fits = (fitted(each, p.width, right=p.column.right) for each, p in zip(cells, placed, strict=True))
        lines.append(tuple(span for spans in fits for span in (*spans, (" ", DIM))))
    end = " or end it (as root, anyone's)" if may_end else ""
    opens = f"{keyed('gpu_processes')} opens this list of {len(rows)}"
    return (
        cell(f"The queue is empty. {which} in foreign use: {then}.", PLAIN),
        cell(f"{opens}, to look at a process{end}.", DIM),
        *lines,
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


def _span(members: Sequence[Condition], *, is_short: bool = False) -> Span:
    severity, kind = members[0].severity, members[0].kind
    if severity == INFORMATION:  # it only tells
        return _words(members, is_short=is_short), VIOLET if kind == FOREIGN else PLAIN
    mark, style = SEVERITY_MARKS.get(severity, ""), SEVERITY_STYLES.get(severity, PLAIN)
    return mark + _words(members, is_short=is_short), style


def _words(members: Sequence[Condition], *, is_short: bool = False) -> str:
    """Return `GPUs 2-3 lost`, more than two of them counted; in short `3 lost`, and a text only up to its colon."""
    first = members[0]
    if first.kind == FAILED:
        return f"{sum(member.count for member in members)} failed{'' if is_short else ' in 1h'}"
    if not first.gpu and is_short:
        head = first.short.partition(": ")[0] if first.kind in KINDS else first.short
        return plain(re.sub(r"^(\d+) GPUs ", r"\1 ", head), 30)
    if not first.gpu:
        return plain(first.short, 60)
    if is_short:
        words = KINDS[first.kind].short or first.kind
        return f"{len(members)} {words}" if len(members) > 1 else f"GPU {first.gpu} {words}"
    words = KINDS[first.kind].words or first.kind
    if len(members) > 2:
        return f"{plural(len(members), 'GPU')} {words}"
    return f"{'GPU' if len(members) == 1 else 'GPUs'} {index_ranges([m.gpu for m in members])} {words}"


def alarm_words(found: Sequence[Condition], room: int, key: str = "") -> Cell:
    """Return the alarms as far as there is room, worst first, in words; the last ones are shortened first.

    They are in groups of one kind. If some do not fit, the line ends with their number and the key that shows all.
    What only tells comes last, as far as there is room.
    """
    kinds: dict[tuple[str, str], list[Condition]] = {}
    for condition in found:
        if condition.kind and condition.kind != "paused":  # which the line shows elsewhere
            subject = "" if condition.gpu or condition.kind in {FAILED, IDLE} else condition.short
            kinds.setdefault((condition.kind, subject), []).append(condition)
    alarms = [members for members in kinds.values() if members[0].severity != INFORMATION]
    news = [members for members in kinds.values() if members[0].severity == INFORMATION]
    full, few = [_span(members) for members in alarms], [_span(members, is_short=True) for members in alarms]
    if others := sum(not each.kind and each.severity == WARNING for each in found):
        span = f"{SEVERITY_MARKS[WARNING]}{plural(others, 'warning')}", SEVERITY_STYLES[WARNING]
        full, few = [*full, span], [*few, span]
    in_full = [*full, *(_span(members) for members in news)]
    briefly = [_span(members, is_short=True) for members in news]
    tries = [[*in_full, (f"{key} shows all", DIM)]] if key and in_full else []
    tries += [in_full]
    tries += [[*full, *briefly[:kept]] for kept in range(len(news), 0, -1)]
    tries += [[*full[:kept], *few[kept:]] for kept in range(len(full), -1, -1)]
    for kept in range(len(full) - 1, 0, -1):
        rest = f"and {len(full) - kept} more"
        tries += [[*few[:kept], (words, DIM)] for words in ((f"{rest}: {key}",) if key else ()) + (rest,)]
    for spans in tries:
        if width_of(line := joined(((span,) for span in spans), ("  ", DIM))) <= room:
            return line
    return tuple(fitted((few[0],), max(0, room))) if few else ()


class _LinePlaces(Struct, frozen=True):
    """Widths and words of the fixed places at the left; nothing in them moves the next one."""

    host: int
    """Cells of the host's name; 0: it has no place."""
    scheduler: int
    running: tuple[int, str]
    """Digits and words of the running jobs; so for those that wait, below."""
    waiting: tuple[int, str]
    gap: str
    least: int
    """Least cells for alarms beside these places."""


_WIDE = _LinePlaces(40, 17, (4, " running"), (5, " waiting"), " │ ", 40)
_MIDDLE = _LinePlaces(12, 17, (4, " run"), (5, " wait"), " │ ", 31)
_NARROW = _LinePlaces(0, 8, (3, " run"), (4, " wait"), " ", 28)
_LEAST = _LinePlaces(0, 8, (3, " R"), (4, " W"), " ", 0)


def status_line(
    snapshot: Snapshot,
    host: str,
    room: int = 10_000,
    *,
    found: Sequence[Condition] = (),
    read_only: bool = False,
    key: str = "",
) -> Cell:
    """Return the status line: who schedules, running and waiting jobs, free GPUs, then the alarms `found`, worst first.

    The width of everything left of the alarms depends on the room alone, and on the host and its number of GPUs: no
    alarm and no count moves it. `key` shows the alarms in full; empty where there are no keys.
    """
    machine = snapshot.elsewhere
    for places, away in ((_WIDE, machine), (_MIDDLE, machine), (_NARROW, machine), (_LEAST, machine), (_LEAST, "")):
        head: Cell = (("read-only", AMBER), (places.gap, DIM)) if read_only else ()
        left = (*head, *_left(snapshot, host, away, places))
        if width_of(left) + places.least <= room:
            break
    left = tuple(fitted(left, room)) if width_of(left) > room else left
    rest = room - width_of(left) - width_of((_BAR,))
    right = alarm_words(found, rest, key)
    held, stranded = _counted(Same(snapshot.jobs), frozenset(snapshot.progress))[2], snapshot.fragmentation
    for count, words in ((held, " held"), (stranded, " free that no waiting job can use")):
        longer = (*right, *((("  ", DIM),) if right else ()), (str(count), PLAIN), (words, DIM))
        right = longer if count and width_of(longer) <= rest else right
    return (*left, _BAR, *right) if right else left


_BAR: Span = (" │ ", DIM)


def _left(snapshot: Snapshot, host: str, machine: str, places: _LinePlaces) -> Cell:
    """Return the fixed places; `machine` is the one of the GPUs if it is another than the host."""
    most = places.host or (_MIDDLE.host if machine else 0)
    if machine:
        host = f"{machine} from {host}" if places is _WIDE else machine
    name = plain(host, most) if most else ""
    title: Cell = (("gputui", STRONG), (f" {name}", DIM)) if places is _WIDE else ((name, STRONG),)
    running, waiting, _ = _counted(Same(snapshot.jobs), frozenset(snapshot.progress))
    is_known = snapshot is not EMPTY
    has_gap = places.gap != " " or len(str(running)) >= places.running[0]  # else the digits leave one
    words = scheduler_words(snapshot, places.scheduler + (not has_gap))
    is_longer = width_of(words) > places.scheduler
    gpus = [view for view in snapshot.gpus if view.gpu.mig_parent or not view.gpu.mig_enabled]
    is_read = not all(view.state is GpuState.UNKNOWN or view.stale for view in gpus)
    free = str(sum(view.state is GpuState.FREE for view in gpus)) if is_read else UNKNOWN
    short = f"/{len(gpus) or UNKNOWN} free"
    return (
        *((*title, (places.gap, DIM)) if most else ()),
        *(words if is_longer and not has_gap else (*fitted(words, places.scheduler), (places.gap, DIM))),
        *_count(running if is_known else None, *places.running),
        (" ", DIM),
        *_count(waiting if is_known else None, *places.waiting),
        ("  " if places.gap == " " else places.gap, DIM),
        (free.rjust(len(str(len(gpus)))), PLAIN),  # in as many cells whether all or none are
        (f" of {plural(len(gpus), 'GPU') if gpus else UNKNOWN} free" if places is _WIDE else short, DIM),
    )


def _count(number: int | None, digits: int, words: str) -> Cell:
    """Return the number in at most that many cells, in thousands or millions if it is longer."""
    forms = (f"{(number or 0) // size}{unit}" for size, unit in ((1, ""), (1000, "k"), (10**6, "M"), (10**9, "G")))
    short = next((each for each in forms if len(each) <= digits), "9" * digits)
    return (((UNKNOWN if number is None else short).rjust(digits), PLAIN), (words, DIM))


def scheduler_words(snapshot: Snapshot, room: int = 40) -> Cell:
    """Return which process schedules, and whether it starts jobs, in words for `room` cells."""
    words, style = _scheduler(snapshot)
    return cell(next((each for each in words if width(each) <= room), words[-1]), style)


def _scheduler(snapshot: Snapshot) -> tuple[Sequence[str], Style]:
    leader = snapshot.leader
    if snapshot is EMPTY:
        return ("starting",), DIM
    if snapshot.servers:
        count, silent = len(snapshot.servers), sum(bool(server.problem) for server in snapshot.servers)
        if silent:
            return (f"○ {count - silent} of {plural(count, 'server')}", f"○ {count - silent}/{count} up"), RED
        return (f"● {plural(count, 'server')}", f"● {count} up"), GREEN
    if snapshot.controls.paused:
        return ("‖ PAUSED",), AMBER
    if leader is None and not snapshot.leads_here:
        return ("○ no scheduler", "○ nobody"), RED
    if leader is not None and leader.silent_for and not snapshot.leads_here:
        words = f"not responding for {format_duration(leader.silent_for)}"
        return (f"○ {ENGINES.get(leader.kind) or 'scheduler'} {words}", "○ not responding", "○ silent"), RED
    if leader is not None and not snapshot.leads_here and (engine := ENGINES.get(leader.kind)):
        return (f"● {engine}", "● cluster"), GREEN
    if any(notice.halts for notice in snapshot.notices):
        return ("✗ starts nothing", "✗ halted"), RED
    if snapshot.leads_here or leader is None:
        return ("● scheduling", "● sched"), GREEN
    if leader.kind == "serve":
        return ("◐ serve schedules", "◐ serve"), BLUE
    return ("◐ another console", "◐ console", "◐ other"), BLUE


@lru_cache(maxsize=1)
def _counted(jobs: Same, held_up: frozenset[JobId]) -> tuple[int, int, int]:
    return job_counts(jobs.jobs, held_up)


def job_counts(jobs: Iterable[Job], held_up: Container[JobId]) -> tuple[int, int, int]:
    """Return how many run, wait, and are held. Starts that are held up wait: for an image, or an engine."""
    running = waiting = held = 0
    for job in jobs:
        if job.state is JobState.PENDING and job.held:
            held += job.count
        elif job.state is JobState.PENDING or (job.state is JobState.CONFIGURING and job.id in held_up):
            waiting += job.count
        elif job.state.is_active:
            running += job.count
    return running, waiting, held


def wrapped(text: str, room: int) -> list[str]:
    return broken(text, max(20, room))


def no_gpu_words(snapshot: Snapshot, room: int) -> tuple[Cell, ...]:
    if snapshot is EMPTY or not snapshot.nodes:
        return (cell("Reading the GPUs …", DIM),)
    if snapshot.leader is not None and (engine := ENGINES.get(snapshot.leader.kind)):
        return (cell(f"{engine} tells of no GPU on any node: `gputui doctor` says what is in the way."),)
    lines: list[Cell] = []
    for node in snapshot.nodes:
        code = node.probe.code
        if code is ProbeCode.STARTING:
            lines.append(cell("Reading the GPUs …", DIM))
            continue
        head = "No GPU to show: "
        first, *rest = wrapped(f"{head}{plain(node.probe.text, 400)}", room)
        lines.append(((first[: len(head)], RED), (first[len(head) :], PLAIN)))
        lines += [cell(line) for line in rest]
        checks = f"the way to {plain(node.name, 60)}" if node.is_elsewhere else "driver and toolkit"
        still = "Jobs without GPUs still run. " if any(each.up for each in node.runtimes) else ""
        lines.append(cell(f"{still}`gputui doctor` checks {checks}.", DIM))
    return tuple(lines)


STALE = timedelta(seconds=15)
"""Age from which a reading of the host is hidden."""
_LEAST_SHARES = {LOAD: 1.0, MEMORY: 0.9, SWAP: 0.1}
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
    for cells in (8, 5, 0):  # of a bar
        if width_of(line := _joined(groups, cells)) <= room:
            return line
    ranks = sorted({part.rank for group in groups for part in group}, reverse=True)
    for rank in ranks:
        groups = [[part for part in group if part.rank < rank] for group in groups]
        if width_of(line := _joined(groups, 0)) <= room:
            return line
    return ()


def _joined(groups: Iterable[Sequence[SummaryPart]], cells: int) -> Cell:
    return joined((joined((part.drawn(cells) for part in group), ("  ", DIM)) for group in groups if group), _BAR)


def gpu_parts(snapshot: Snapshot) -> list[SummaryPart]:
    whole = [view for view in snapshot.gpus if not view.gpu.mig_parent]
    if not whole:
        return []
    read = [view.current for view in whole if view.current is not None]
    known = [sample.utilization for sample in read if sample.utilization is not None]
    mean = fsum(known) / len(known) if known else None
    load: Span = ("" if mean is None else f" {mean:3.0%}", load_style(mean))
    return [
        SummaryPart(0, ((plural(len(whole), "GPU"), PLAIN), load)),
        *_sum(2, read, "memory_used", "memory_total"),
        *_sum(3, read, "power", "power_limit"),
    ]


def _sum(rank: int, read: Iterable[GpuSample], used: str, total: str) -> list[SummaryPart]:
    pairs = [(getattr(sample, used), getattr(sample, total)) for sample in read]
    known = [(a, b) for a, b in pairs if a is not None and b]
    if not known:
        return []
    a, b = (sum(values) for values in zip(*known, strict=True))
    return [SummaryPart(rank, cell(f"{a / 1000:.1f}/{b / 1000:.1f} kW" if used == "power" else _of(a, b)))]


def host_parts(snapshot: Snapshot, now: datetime, steady: Steady[tuple[str, str]] | None = None) -> list[SummaryPart]:
    """Return the known parts of the host; empty if its reading is old."""
    host = next((node.host for node in snapshot.nodes if node.host is not None), None)
    if host is None or now - host.sampled_at > STALE:
        return []
    shares = {
        LOAD: (host.load, host.cores),
        MEMORY: (host.memory_used, host.memory_total),
        SWAP: (host.swap_used, host.swap_total),
    }
    figures = [(kind, "") for kind, (a, b) in shares.items() if a is not None and b and a / b >= _LEAST_SHARES[kind]]
    disks = [(kind, disk.mount) for disk in host.disks if (kind := disk_kind(disk))]
    present: _Loud = frozenset((*figures, *disks))
    loud = present if steady is None else steady.update(present, now)
    parts = []
    if host.cpu is not None:
        parts.append(SummaryPart(0, cell(f"{host.cpu:3.0%}"), "CPU", host.cpu, load_style(host.cpu)))
    if host.load is not None:
        load = f"{host.load:.0f}" if host.load >= 10 else f"{host.load:.1f}"
        parts.append(SummaryPart(5, (_marked(load, loud, LOAD),), "load"))
    if host.memory_total and host.memory_used is not None:
        share = host.memory_used / host.memory_total
        words = _marked(_of(host.memory_used, host.memory_total), loud, MEMORY)
        parts.append(SummaryPart(0, (words,), "RAM", share, _filled(words[1], share)))
    if host.swap_total and host.swap_used is not None:
        words = _marked(f"{host.swap_used / host.swap_total:.0%}", loud, SWAP)
        parts.append(SummaryPart(6 if words[1] is PLAIN else 1, (words,), "swap"))
    for disk in host.disks:
        soon = f" full in {format_duration(disk.full_in)}" if disk.full_in is not None and is_filling(disk) else ""
        words = _marked(f"{disk.used:.0%}{soon}", loud, DISK_FULL, DISK_LOW, subject=disk.mount)
        name = plain(disk.mount if len(disk.mount) <= 8 else disk.mount.rpartition("/")[2] or disk.mount, 16)
        parts.append(SummaryPart(1, (words,), name, disk.used, _filled(words[1], disk.used)))
    if host.received is not None and host.sent is not None:
        rates = (("↓ ", DIM), (_rate(host.received), PLAIN), ("  ↑ ", DIM), (_rate(host.sent), PLAIN))
        parts.append(SummaryPart(4, rates))
    return parts


_Loud: TypeAlias = frozenset[tuple[str, str]]
"""Kinds of conditions with their disks; of a figure that is not a disk's, with an empty text."""


def _marked(words: str, loud: _Loud, *kinds: str, subject: str = "") -> Span:
    """Return a figure, in colour and with a mark if one of these conditions holds, the worst first."""
    kind = next((kind for kind in kinds if (kind, subject) in loud), None)
    if kind is None:
        return words, PLAIN
    tone = tone_of_kind(kind)
    return words + tone.mark, tone.style


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
    return style if style is not PLAIN else load_style(share)
