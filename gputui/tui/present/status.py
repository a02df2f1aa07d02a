"""Words of the status line, and words in place of an empty grid or queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from gputui.domain.gpu import GpuState, ProbeCode
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import broken, plain
from gputui.domain.units import format_duration, plural
from gputui.tui.keys import keyed
from gputui.tui.present.cells import Cell, Span, cell, width_of
from gputui.tui.present.condition import Condition
from gputui.tui.present.conditions import condition_words, groups
from gputui.tui.present.same import Same
from gputui.tui.present.style import AMBER, BLUE, DIM, GREEN, PLAIN, RED, STRONG

_READ_ONLY: Cell = (("read-only", AMBER), (" │ ", DIM))


def status_line(
    snapshot: Snapshot,
    host: str,
    room: int = 10_000,
    *,
    found: Sequence[Condition] = (),
    read_only: bool = False,
) -> Cell:
    """Return the status line: host, scheduler, counts of jobs and GPUs, and the conditions `found`, worst first.

    Where there is no room, words are shortened, then the worst condition stays and the others are counted.
    """
    if read_only:
        line = status_line(snapshot, host, room - width_of(_READ_ONLY), found=found)
        return (*_READ_ONLY, *line)
    for parts in _ever_shorter(snapshot, host, found):
        line = _separated(parts)
        if width_of(line) <= room:
            return line
    return line


_NAME, _SCHEDULER, _JOBS, _GPUS, _CONDITIONS = range(5)
"""Places among the parts."""


def _parts(snapshot: Snapshot, host: str, found: Sequence[Condition], *, short: bool) -> list[Cell]:
    return [
        ((plain(host, 12), STRONG),) if short and host else (("gputui", STRONG), (f" {plain(host, 40)}", DIM)),
        scheduler_words(snapshot, short=short),
        _job_counts(snapshot, _SHORT if short else {}),
        _gpu_counts(snapshot, short=short),
        condition_words(found) if short else _with_key(condition_words(found)),
    ]


def _ever_shorter(snapshot: Snapshot, host: str, found: Sequence[Condition]) -> Iterator[list[Cell]]:
    """Yield the parts, each time shorter: what is missed least goes first."""
    full, short = _parts(snapshot, host, found, short=False), _parts(snapshot, host, found, short=True)
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


def _with_key(words: Cell) -> Cell:
    """Return the words with the key that shows the conditions in full."""
    return (*words, ("  ! shows", DIM)) if words else ()


def _with_stranded(parts: list[Cell], snapshot: Snapshot) -> list[Cell]:
    """Return the parts, and how many GPUs are free in vain."""
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
    """Return who schedules, and whether it dispatches."""
    if snapshot is EMPTY:
        return cell("starting", DIM)
    if snapshot.controls.paused:
        return cell("‖ PAUSED", AMBER)
    if snapshot.leads_here:
        return cell("✗ starts nothing", RED) if _is_halted(snapshot) else cell("● scheduling", GREEN)
    if snapshot.leader is None:
        return cell("○ no scheduler", RED)
    if silence := snapshot.leader.silent_for:
        words = f"not responding for {format_duration(silence)}"
        return cell(f"○ {words}" if short else f"○ scheduler {words}", RED)
    if _is_halted(snapshot):
        return cell("✗ starts nothing", RED)
    if short:
        return cell("◐ serve" if snapshot.leader.kind == "serve" else "◐ viewing", BLUE)
    kind = "service" if snapshot.leader.kind == "serve" else "another console"
    return cell(f"◐ scheduler: {kind}", BLUE)


def _is_halted(snapshot: Snapshot) -> bool:
    """Return whether the scheduler has told that it starts no job."""
    return any(notice.halts for notice in snapshot.notices)


_SHORT = MappingProxyType({"running": "run", "waiting": "wait"})
_LETTERS = MappingProxyType({"running": "R", "waiting": "PD", "held": "PDh"})


@lru_cache(maxsize=1)
def _counted(jobs: Same) -> tuple[int, int, int]:
    """Return counts of jobs by state; cached per snapshot."""
    states: Counter[JobState] = Counter()
    for job in jobs.jobs:
        states[job.state] += job.count
    running = sum(states[state] for state in (JobState.RUNNING, JobState.CONFIGURING, JobState.COMPLETING))
    held = sum(job.count for job in jobs.jobs if job.held and job.state is JobState.PENDING)
    waiting = states[JobState.PENDING] - held
    return running, waiting, held


def _job_counts(snapshot: Snapshot, shortened: Mapping[str, str] = MappingProxyType({})) -> Cell:
    if snapshot is EMPTY:
        return ()  # nobody knows yet
    running, waiting, held = _counted(Same(snapshot.jobs))
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
    """Return the words in place of the grid while there is no GPU, in lines of at most `room` cells."""
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


def empty_queue_words(filtered: str, *, has_keys: bool = True) -> tuple[Cell, ...]:
    """Return the words in place of an empty queue."""
    if filtered:
        return (cell(f"No job matches '{plain(filtered, 60)}'. {keyed('clear_filter')} shows them all.", DIM),)
    press = f"Press {keyed('submit')} to submit a job, or from" if has_keys else "From"
    return (
        cell(f"The queue is empty. {press} any shell:", DIM),
        cell("  gputui submit --gpus 1 IMAGE COMMAND...", BLUE),
        cell("  gputui submit --host --gpus 1 -- python train.py", BLUE),
    )
