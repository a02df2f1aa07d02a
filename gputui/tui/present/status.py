"""Texts of the status line, and texts that replace an empty grid or queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from gputui.domain.cluster import ENGINES
from gputui.domain.conditions import FAILED, Condition
from gputui.domain.gpu import GpuState, ProbeCode
from gputui.domain.gpu_names import index_ranges
from gputui.domain.job_spec import JobId
from gputui.domain.same import Same
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import broken, plain
from gputui.domain.units import format_duration, plural
from gputui.tui.present.cells import Cell, Span, cell, width_of
from gputui.tui.present.style import AMBER, BLUE, DIM, GREEN, PLAIN, RED, SEVERITY_STYLES, STRONG, VIOLET

_STYLES = {FAILED: RED, "foreign": VIOLET, "intruder": VIOLET, "drained": AMBER, "capped": AMBER}
_SAID = frozenset({"paused"})
"""Kinds that the status line shows elsewhere."""
_NAMED = 2
"""Maximum number of GPUs that are named in the status line; more are counted."""


def groups(found: Sequence[Condition]) -> list[Cell]:
    """Return short texts for the status line, worst first, one entry for conditions of one kind."""
    kinds: dict[tuple[str, str], list[Condition]] = {}
    for condition in found:
        if condition.kind and condition.kind not in _SAID:
            subject = "" if condition.gpu or condition.kind == FAILED else condition.short
            kinds.setdefault((condition.kind, subject), []).append(condition)
    return [(_span(members),) for members in kinds.values()]


def uncounted(found: Iterable[Condition]) -> int:
    """Return the number of warnings without a text in the status line."""
    return sum(not c.kind and c.severity == "warning" for c in found)


def _span(members: Sequence[Condition]) -> Span:
    first = members[0]
    mark = "✗ " if first.severity == "error" else "! " if first.severity == "warning" else ""
    style = _STYLES.get(first.kind) or SEVERITY_STYLES.get(first.severity, PLAIN)
    return f"{mark}{_group_words(members)}", style


def _group_words(members: Sequence[Condition]) -> str:
    first = members[0]
    if first.kind == FAILED:
        return f"{sum(member.count for member in members)} failed in 1h"
    if not first.gpu:
        return plain(first.short, 60)
    if len(members) > _NAMED:
        return f"{plural(len(members), 'GPU')} {first.kind_words}"
    return f"{'GPU' if len(members) == 1 else 'GPUs'} {index_ranges([m.gpu for m in members])} {first.kind_words}"


def condition_words(found: Sequence[Condition], most: int = 1000) -> Cell:
    """Return the texts of the `most` worst kinds, and the number of the others."""
    entries = groups(found)
    spans: list[Span] = []
    for entry in entries[:most]:
        spans += [("  ", DIM)] if spans else []
        spans += entry
    left = len(entries[most:]) + uncounted(found)
    if not left:
        return tuple(spans)
    return (*spans, ("  ", DIM), (f"+{left}", AMBER)) if spans else ((f"! {plural(left, 'warning')}", AMBER),)


_READ_ONLY: Cell = (("read-only", AMBER), (" │ ", DIM))


def status_line(
    snapshot: Snapshot,
    host: str,
    room: int = 10_000,
    *,
    found: Sequence[Condition] = (),
    read_only: bool = False,
    key: str = "",
) -> Cell:
    """Return the status line: host, scheduler, counts of jobs and GPUs, and the conditions `found`, worst first.

    `key` shows the conditions in full; empty where there are no keys. If there is no room, words are shortened, then
    only the worst condition stays and the others are counted.
    """
    if read_only:
        line = status_line(snapshot, host, room - width_of(_READ_ONLY), found=found, key=key)
        return (*_READ_ONLY, *line)
    for parts in _ever_shorter(snapshot, host, found, key):
        line = _separated(parts)
        if width_of(line) <= room:
            return line
    return line


_NAME, _SCHEDULER, _JOBS, _GPUS, _CONDITIONS = range(5)
"""Indices of the parts."""


def _parts(snapshot: Snapshot, host: str, found: Sequence[Condition], *, short: bool) -> list[Cell]:
    return [
        ((plain(host, 12), STRONG),) if short and host else (("gputui", STRONG), (f" {plain(host, 40)}", DIM)),
        scheduler_words(snapshot, short=short),
        _job_counts(snapshot, _SHORT if short else {}),
        _gpu_counts(snapshot, short=short),
        condition_words(found),
    ]


def _ever_shorter(snapshot: Snapshot, host: str, found: Sequence[Condition], key: str) -> Iterator[list[Cell]]:
    """Yield the parts, each time shorter: the least important part is shortened first."""
    full, short = _parts(snapshot, host, found, short=False), _parts(snapshot, host, found, short=True)
    full[_CONDITIONS] = _with_key(full[_CONDITIONS], key)
    yield _with_stranded(full, snapshot)
    parts = list(full)
    yield parts
    for part in (_SCHEDULER, _CONDITIONS, _JOBS, _NAME, _GPUS):
        parts = [*parts[:part], short[part], *parts[part + 1 :]]
        yield parts
    for most in range(len(groups(found)) - 1, 0, -1):
        yield [*short[:_CONDITIONS], condition_words(found, most)]
    least = [(short[_NAME][0],), *short[1:_CONDITIONS], condition_words(found, 1)]
    yield least
    yield least[1:]
    yield [least[_SCHEDULER], _job_counts(snapshot, _LETTERS), *least[_GPUS:]]
    yield [least[_SCHEDULER], least[_CONDITIONS]]


def _with_key(words: Cell, key: str) -> Cell:
    """Return the text with the key that shows the conditions in full."""
    return (*words, (f"  {key} shows all", DIM)) if words and key else words


def _with_stranded(parts: list[Cell], snapshot: Snapshot) -> list[Cell]:
    """Return the parts, with the number of GPUs that are free but useless to all waiting jobs."""
    count = snapshot.fragmentation
    words: Cell = ((str(count), AMBER), (" free that no waiting job can use", DIM)) if count else ()
    return [*parts[:-1], words, parts[-1]]


def _separated(parts: Sequence[Cell]) -> Cell:
    spans: list[Span] = []
    for part in parts:
        if part and spans:
            spans.append((" │ ", DIM))
        spans += part
    return tuple(spans)


def scheduler_words(snapshot: Snapshot, *, short: bool = False) -> Cell:
    """Return which process schedules, and whether it starts jobs."""
    if snapshot is EMPTY:
        return cell("starting", DIM)
    if snapshot.servers:
        return _server_words(snapshot)
    if snapshot.controls.paused:
        return cell("‖ PAUSED", AMBER)
    if snapshot.leads_here:
        return cell("✗ starts nothing", RED) if _is_halted(snapshot) else cell("● scheduling", GREEN)
    if snapshot.leader is None:
        return cell("○ no scheduler", RED)
    engine = ENGINES.get(snapshot.leader.kind)
    if silence := snapshot.leader.silent_for:
        words = f"not responding for {format_duration(silence)}"
        return cell(f"○ {words}" if short else f"○ {engine or 'scheduler'} {words}", RED)
    if engine:
        return cell(f"● {engine}", GREEN)
    if _is_halted(snapshot):
        return cell("✗ starts nothing", RED)
    if short:
        return cell("◐ serve" if snapshot.leader.kind == "serve" else "◐ viewing", BLUE)
    kind = "service" if snapshot.leader.kind == "serve" else "another console"
    return cell(f"◐ scheduler: {kind}", BLUE)


def _server_words(snapshot: Snapshot) -> Cell:
    """Return how many of several servers answer."""
    count, silent = len(snapshot.servers), sum(bool(server.problem) for server in snapshot.servers)
    if silent:
        return cell(f"○ {count - silent} of {plural(count, 'server')}", RED)
    return cell(f"● {plural(count, 'server')}", GREEN)


def _is_halted(snapshot: Snapshot) -> bool:
    """Return whether the scheduler reports that it starts no job."""
    return any(notice.halts for notice in snapshot.notices)


_SHORT = MappingProxyType({"running": "run", "waiting": "wait"})
_LETTERS = MappingProxyType({"running": "R", "waiting": "PD", "held": "PDh"})


@lru_cache(maxsize=1)
def _counted(jobs: Same, held_up: frozenset[JobId]) -> tuple[int, int, int]:
    """Return counts of jobs by state; cached per snapshot. Starts that are held up wait: for an image, or an engine."""
    states: Counter[JobState] = Counter()
    for job in jobs.jobs:
        waits = job.state is JobState.CONFIGURING and job.id in held_up
        states[JobState.PENDING if waits else job.state] += job.count
    running = sum(states[state] for state in (JobState.RUNNING, JobState.CONFIGURING, JobState.COMPLETING))
    held = sum(job.count for job in jobs.jobs if job.held and job.state is JobState.PENDING)
    waiting = states[JobState.PENDING] - held
    return running, waiting, held


def _job_counts(snapshot: Snapshot, shortened: Mapping[str, str] = MappingProxyType({})) -> Cell:
    if snapshot is EMPTY:
        return ()  # not known yet
    running, waiting, held = _counted(Same(snapshot.jobs), frozenset(snapshot.progress))
    shown = [(running, "running", PLAIN), (waiting, "waiting", PLAIN), (held, "held", AMBER)]
    spans: list[Span] = []
    for count, word, style in shown:
        if count or word in {"running", "waiting"}:
            spans += [(" " if spans else "", DIM), (str(count), style), (f" {shortened.get(word, word)}", DIM)]
    return tuple(spans)


def _gpu_counts(snapshot: Snapshot, *, short: bool) -> Cell:
    gpus = [view for view in snapshot.gpus if view.gpu.mig_parent or not view.gpu.mig_enabled]
    if not gpus:
        return ()
    free = sum(view.state is GpuState.FREE for view in gpus)
    rest = f"/{len(gpus)} free" if short else f" of {plural(len(gpus), 'GPU')} free"
    return ((f"{free}", PLAIN), (rest, DIM))


_NO_GPU = "No GPU to show: "


def wrapped(text: str, room: int) -> list[str]:
    """Return the text in lines, at least one."""
    return broken(text, max(20, room))


def no_gpu_words(snapshot: Snapshot, room: int) -> tuple[Cell, ...]:
    """Return the text that replaces the grid while there is no GPU, in lines of at most `room` cells."""
    if snapshot is EMPTY or not snapshot.nodes:
        return (cell("Reading the GPUs …", DIM),)
    lines: list[Cell] = []
    for node in snapshot.nodes:
        code = node.probe.code
        if code is ProbeCode.STARTING:
            lines.append(cell("Reading the GPUs …", DIM))
            continue
        first, *rest = wrapped(f"{_NO_GPU}{plain(node.probe.text, 400)}", room)
        lines.append(((first[: len(_NO_GPU)], RED), (first[len(_NO_GPU) :], PLAIN)))
        lines += [cell(line) for line in rest]
        lines.append(cell("Jobs without GPUs still run. `gputui doctor` checks driver and toolkit.", DIM))
    return tuple(lines)
