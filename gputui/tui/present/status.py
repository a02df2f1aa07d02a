"""The status line, and what an operator must know now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache

from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import GpuState, ProbeCode
from gputui.domain.job import Job
from gputui.domain.snapshot import EMPTY, Notice, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import broken, plain
from gputui.domain.units import format_duration, plural
from gputui.tui.key_words import keyed
from gputui.tui.present.cells import Cell, Span, cell, width_of
from gputui.tui.present.gpu_faults import fault_counts, gpu_faults
from gputui.tui.present.style import AMBER, BLUE, DIM, GREEN, PLAIN, RED, STRONG

LATE = timedelta(seconds=10)
"""A picture older than this is said to be old."""
_RANK = {"error": 0, "warning": 1, "information": 2}


_READ_ONLY: Cell = (("read-only", AMBER), (" │ ", DIM))


def status_line(snapshot: Snapshot, host: str, room: int = 10_000, *, read_only: bool = False) -> Cell:
    """Who we are, who schedules, how many jobs and GPUs, what to look at; in shorter words where there is no room."""
    if read_only:
        return (*_READ_ONLY, *status_line(snapshot, host, room - width_of(_READ_ONLY)))
    full, some = _parts(snapshot, host, short=False), _parts(snapshot, host, short=True)
    for parts in (_with_stranded(full, snapshot), *_ever_shorter(full, some)):
        line = _separated(parts)
        if width_of(line) <= room:
            return line
    least = _parts(snapshot, "", short=True)
    line = _separated(least)
    return line if width_of(line) <= room else _separated(least[1:])


_NAME, _SCHEDULER, _JOBS, _WARNINGS = 0, 1, 2, 4
"""Where they stand among the parts."""


def _parts(snapshot: Snapshot, host: str, *, short: bool) -> list[Cell]:
    return [
        (("gputui", STRONG), (f" {plain(host, 12 if short else 40)}" if host else "", DIM)),
        scheduler_words(snapshot, short=short),
        _job_counts(snapshot, short=short),
        _gpu_counts(snapshot),
        _warning_count(snapshot, short=short),
    ]


def _ever_shorter(full: list[Cell], short: list[Cell]) -> Iterator[list[Cell]]:
    """The full words, then those in short that are missed least, one more at a time."""
    parts = list(full)
    yield parts
    for part in (_SCHEDULER, _WARNINGS, _JOBS, _NAME):
        parts = [*parts[:part], short[part], *parts[part + 1 :]]
        yield parts


def _with_stranded(parts: list[Cell], snapshot: Snapshot) -> list[Cell]:
    """The parts, and how many GPUs are free in vain."""
    count = snapshot.fragmentation
    words: Cell = ((str(count), AMBER), (" free that no waiting job can use", DIM)) if count else ()
    return [*parts[:-1], words, parts[-1]]


def _separated(parts: list[Cell]) -> Cell:
    spans: list[Span] = []
    for part in parts:
        if part and spans:
            spans.append((" │ ", DIM))
        spans += part
    return tuple(spans)


def _warning_count(snapshot: Snapshot, *, short: bool) -> Cell:
    """How many standing warnings there are: `!` shows them."""
    count = sum(notice.severity == "warning" for notice in standing(snapshot))
    if not count:
        return ()
    return (("! ", AMBER), (str(count), AMBER)) if short else ((plural(count, "warning"), AMBER), (", ! shows", DIM))


def scheduler_words(snapshot: Snapshot, *, short: bool = False) -> Cell:
    """Who schedules, and whether it dispatches."""
    if snapshot is EMPTY:
        return cell("starting", DIM)
    if snapshot.controls.paused:
        return cell("‖ PAUSED", AMBER)
    if snapshot.leads_here:
        return cell("✗ starts nothing", RED) if _is_halted(snapshot) else cell("● scheduling", GREEN)
    if snapshot.leader is None:
        return cell("○ no scheduler" if short else "○ nobody schedules", RED)
    if silence := snapshot.leader.silent_for:
        words = f"not responding for {format_duration(silence)}"
        return cell(f"○ {words}" if short else f"○ scheduler {words}", RED)
    if _is_halted(snapshot):
        return cell("✗ starts nothing", RED)
    if short:
        return cell("◐ serve" if snapshot.leader.kind == "serve" else "◐ viewing", BLUE)
    kind = "gputui serve" if snapshot.leader.kind == "serve" else "a console"
    return cell(f"◐ {kind} schedules", BLUE)


def _is_halted(snapshot: Snapshot) -> bool:
    """Return whether the scheduler has told that it starts no job."""
    return any(notice.halts for notice in snapshot.notices)


_SHORT = {"running": "R", "waiting": "PD", "held": "PDh", "failed": "F"}
"""The queue's own words for them."""


class _Same:
    """The very tuple of jobs: to compare ten thousand of them would cost more than to count."""

    def __init__(self, jobs: tuple[Job, ...]) -> None:
        self.jobs = jobs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.jobs is other.jobs

    def __hash__(self) -> int:
        return id(self.jobs)


@lru_cache(maxsize=1)
def _counted(jobs: _Same) -> tuple[int, int, int, int]:
    """How many run, wait, are held and have failed: gone through once for each picture, not for each second."""
    states = Counter(job.state for job in jobs.jobs)
    running = sum(states[state] for state in (JobState.RUNNING, JobState.CONFIGURING, JobState.COMPLETING))
    held = sum(job.held for job in jobs.jobs if job.state is JobState.PENDING)
    waiting = states[JobState.PENDING] - held
    failed = sum(states[state] for state in (JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY))
    return running, waiting, held, failed


def _job_counts(snapshot: Snapshot, *, short: bool) -> Cell:
    if snapshot is EMPTY:
        return ()  # nobody knows yet
    running, waiting, held, failed = _counted(_Same(snapshot.jobs))
    shown = [(running, "running", PLAIN), (waiting, "waiting", PLAIN), (held, "held", AMBER), (failed, "failed", RED)]
    spans: list[Span] = []
    for count, word, style in shown:
        if count or word in {"running", "waiting"}:
            spans += [(" " if spans else "", DIM), (str(count), style), (f" {_SHORT[word] if short else word}", DIM)]
    return tuple(spans)


def _gpu_counts(snapshot: Snapshot) -> Cell:
    gpus = [view for view in snapshot.gpus if view.gpu.mig_parent or not view.gpu.mig_enabled]
    if not gpus:
        return ()
    free = sum(view.state is GpuState.FREE for view in gpus)
    return ((f"{free}", PLAIN), (f" of {plural(len(gpus), 'GPU')} free", DIM), *fault_counts(snapshot))


def notices(snapshot: Snapshot, now: datetime) -> tuple[Notice, ...]:
    """What is wrong or odd, worst first, each with what to do."""
    return _ranked([*pressing(snapshot, now), *gpu_faults(snapshot), *standing(snapshot)])


def pressing(snapshot: Snapshot, now: datetime) -> tuple[Notice, ...]:
    """What deserves a row of the screen: errors, and what keeps jobs from starting or the picture from being true."""
    if snapshot is EMPTY:
        return ()
    errors = [notice for notice in _lasting(snapshot) if notice.severity == "error"]
    return _ranked([*_old_picture(snapshot, now), *_paused(snapshot), *errors])


def standing(snapshot: Snapshot) -> tuple[Notice, ...]:
    """What is so for days and asks for nothing now: a number in the status line, in full when asked for."""
    if snapshot is EMPTY:
        return ()
    return _ranked([notice for notice in _lasting(snapshot) if notice.severity != "error"])


def _ranked(found: list[Notice]) -> tuple[Notice, ...]:
    return tuple(sorted(dict.fromkeys(found), key=lambda notice: _RANK.get(notice.severity, 1)))


def _lasting(snapshot: Snapshot) -> list[Notice]:
    return [*_scheduling(snapshot), *_runtimes(snapshot), *_probe(snapshot), *snapshot.notices]


def _old_picture(snapshot: Snapshot, now: datetime) -> list[Notice]:
    late = now - snapshot.taken_at
    if late < LATE:
        return []
    return [Notice("warning", f"this picture is {format_duration(late)} old: the scheduler has said nothing since")]


def _paused(snapshot: Snapshot) -> list[Notice]:
    controls = snapshot.controls
    if not controls.paused:
        return []
    why = f": {controls.pause_reason}" if controls.pause_reason else ""
    by = f" by {controls.paused_by}" if controls.paused_by else ""
    return [Notice("warning", f"paused{by}, {keyed('unpause')} resumes{why}. Running jobs go on, none starts")]


def _scheduling(snapshot: Snapshot) -> list[Notice]:
    leader = snapshot.leader
    if snapshot.leads_here:
        return []
    if leader is None:
        return [Notice("error", "no scheduler runs, so nothing starts: run `gputui serve`")]
    if leader.silent_for:
        return []  # the snapshot's own notices tell
    kind = "gputui serve" if leader.kind == "serve" else "another console"
    where = f"{kind} (pid {leader.pid}, {leader.user}@{leader.host})"
    return [Notice("information", f"{where} schedules; every command here works as usual")]


def _runtimes(snapshot: Snapshot) -> list[Notice]:
    found = []
    for node in snapshot.nodes:
        for runtime in node.runtimes:
            if runtime.asked and not runtime.up:
                found.append(Notice("error", _is_down(runtime)))
            found += [Notice("warning", f"{runtime.name}: {warning}") for warning in runtime.all_warnings]
    return found


def _is_down(runtime: RuntimeStatus) -> str:
    """Its own sentence, where that says which engine it is about."""
    is_named = runtime.text.lower().startswith(runtime.name.lower())
    return runtime.text if is_named else f"{runtime.name} does not answer: {runtime.text}"


def _probe(snapshot: Snapshot) -> list[Notice]:
    """Only where there are rows to show: else the words stand in place of the grid."""
    return [
        Notice("error", f"GPUs are not read: {node.probe.text}")
        for node in snapshot.nodes
        if node.gpus and node.probe.code not in {ProbeCode.OK, ProbeCode.STARTING}
    ]


_NO_GPU = "No GPU to show: "


def wrapped(text: str, room: int) -> list[str]:
    """The text in lines; one at least."""
    return broken(text, max(20, room))


def no_gpu_words(snapshot: Snapshot, room: int) -> tuple[Cell, ...]:
    """What stands in place of the grid while there is no GPU to show, in lines of at most `room` cells."""
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
    """What stands in place of the queue while it is empty."""
    if filtered:
        return (cell(f"No job matches '{plain(filtered, 60)}'. {keyed('clear_filter')} shows them all.", DIM),)
    press = f"Press {keyed('submit')} to submit a job, or from" if has_keys else "From"
    return (
        cell(f"The queue is empty. {press} any shell:", DIM),
        cell("  gputui submit --gpus 1 IMAGE COMMAND...", BLUE),
        cell("  gputui submit --host --gpus 1 -- python train.py", BLUE),
    )
