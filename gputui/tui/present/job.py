"""A job as a row of cells, with its progress."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType

from msgspec import Struct, field
from rich.style import Style

from gputui.domain.arrays import elements_word, short_id
from gputui.domain.gpu import faulty_gpus, index_ranges
from gputui.domain.idle_gpus import idle_gpus
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, own_id, server_of
from gputui.domain.queue_columns import QUEUE_COLUMNS, ColumnData, Tone, elapsed
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, Reason
from gputui.domain.text import format_duration, format_limit, minute, plain, plural
from gputui.tui.present.cells import (
    AMBER,
    BLUE,
    DIM,
    GREEN,
    JOB_STYLES,
    PLAIN,
    RED,
    STRONG,
    TRACK,
    Cell,
    bar,
    cell,
    progress,
)

WIDTH = QUEUE_COLUMNS["progress"].width
"""Cells that elapsed time and limit need without a bar."""
_LEAST_BAR = 4
_MOST_BAR = 12
_PERCENT = re.compile(r"\b(\d{1,3})\s?%")
_NEAR = 0.9
"""Share of the time limit from which the bar warns."""
DONE, LEFT = "▰", "▱"


def clock_words(elapsed_time: timedelta) -> str:
    """Return `0:42` for less than an hour, else `2h14m`."""
    if elapsed_time >= timedelta(hours=1):
        return format_duration(elapsed_time)
    minutes, seconds = divmod(max(0, int(elapsed_time.total_seconds())), 60)
    return f"{minutes}:{seconds:02}"


def elapsed_words(elapsed_time: timedelta, limit: timedelta | None) -> str:
    """Return `0:42 / 16m`, or only the time if there is no limit."""
    return clock_words(elapsed_time) if limit is None else f"{clock_words(elapsed_time)} / {format_limit(limit)}"


def time_progress(job: Job, elapsed_time: timedelta | None, room: int) -> Cell:
    limit = job.spec.time_limit
    if elapsed_time is None:
        return ((f"limit {format_limit(limit)}", DIM),) if limit else ()
    if not job.state.is_active or job.state is JobState.CONFIGURING:
        return ((clock_words(elapsed_time), DIM),)
    words = elapsed_words(elapsed_time, limit)
    cells = min(_MOST_BAR, room - WIDTH - 1)  # all rows have bars of the same width
    if limit is None or cells < _LEAST_BAR:
        return ((words, PLAIN),)
    share = elapsed_time / limit
    return (*bar(share, cells, AMBER if share >= _NEAR else GREEN), (f" {words}", PLAIN))


class ArrayCounts(Struct):
    done: int = 0
    running: int = 0
    failed: int = 0
    others: int = 0
    """Elements that wait, or were cancelled."""
    past: int = 0
    """Elements that are in the history, which are done."""

    @property
    def total(self) -> int:
        return self.done + self.running + self.failed + self.others + self.past

    def add(self, job: Job) -> None:
        if job.state is JobState.COMPLETED:
            self.done += job.count
        elif job.state.is_active:
            self.running += job.count
        elif job.state.is_terminal and job.state is not JobState.CANCELLED:
            self.failed += job.count
        else:
            self.others += job.count


def array_progress(counts: ArrayCounts, room: int) -> Cell:
    """Return `▰▰▰▱ 7/20 ✗1`: finished, running and failed elements, of all."""
    done = counts.done + counts.past
    words = f" {done:,}/{counts.total:,}"
    failed = f" ✗{counts.failed:,}" if counts.failed else ""
    cells = max(0, min(10, room - len(words) - len(failed)))  # cells of an array's bar at most
    parts, rest = [], cells
    for number, style in ((counts.failed, RED), (done, GREEN), (counts.running, AMBER)):
        filled = min(rest, -(-number * cells // max(1, counts.total)))
        rest -= filled
        parts.append((DONE * filled, style))
    parts = [parts[1], parts[2], parts[0], (LEFT * rest, TRACK)]
    return (*(part for part in parts if part[0]), (words if cells else words[1:], PLAIN), (failed, RED))


def job_title(job: Job) -> str:
    return f"#{job.shown_id} {plain(job.name, 60)}".rstrip()


class JobContext(ColumnData, frozen=True):
    reasons: Mapping[JobId, Reason] = field(default_factory=dict)
    progress: Mapping[JobId, str] = field(default_factory=dict)
    beside: Mapping[JobId, tuple[JobId, ...]] = field(default_factory=dict)
    """Jobs with which a job shares GPUs, for each that shares some."""
    room: Mapping[str, int] = field(default_factory=dict)
    idle: Mapping[JobId, str] = field(default_factory=dict)
    """Text about the idle GPUs of each job that leaves some idle."""
    faulty: Mapping[JobId, str] = field(default_factory=dict)
    """Text about the lost or sick GPUs of each job that holds some."""
    silent: frozenset[str] = frozenset()
    loads: Mapping[JobId, int] = field(default_factory=dict)
    """Mean utilisation of the GPUs of running jobs, in percent."""

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        now: datetime,
        gpu_names: Mapping[str, str],
        scores: Mapping[JobId, float] = MappingProxyType({}),
        room: Mapping[str, int] = MappingProxyType({}),
    ) -> JobContext:
        beside, starts = snapshot.sharing(), snapshot.expected_starts
        idle, faulty = idle_gpus(snapshot.gpus, now), faulty_gpus(snapshot.gpus)
        silent = frozenset(server.name for server in snapshot.servers if server.problem)
        known = (snapshot.reasons, snapshot.progress, beside, room, idle, faulty, silent)
        return cls(now, starts, scores, gpu_names, 0, *known)


def job_cells(job: Job, key: str, context: JobContext) -> Cell:
    """Return the cell of that column, grey if the job's server does not answer."""
    shown = _cell(job, key, context)
    if not context.silent or server_of(job.id) not in context.silent:
        return shown
    return tuple((text, DIM) for text, _ in shown)


def _cell(job: Job, key: str, context: JobContext) -> Cell:
    if drawn := _DRAWN.get(key):
        return drawn(job, context)
    column = QUEUE_COLUMNS[key]
    return cell(column.text(job, context), _TONES[column.tone(job, context)])


def group_cells(jobs: Sequence[Job], key: str, context: JobContext, counts: ArrayCounts | None = None) -> Cell:
    """Return the cell of that column for elements of an array that share a row; `counts` are of the whole array."""
    first = jobs[0]
    if key == "id" and first.array:
        return cell(short_id(first, context.id_digits).partition("_")[0], BLUE)
    if key == "name" and first.array:
        limit = f"%{first.array.limit}" if first.array.limit else ""
        return ((plain(first.spec.name, 120), PLAIN), (f"[{elements_word(jobs)}{limit}]", DIM))
    if key == "progress" and counts is not None:
        return array_progress(counts, context.room.get("progress", WIDTH))
    if key == "why":
        states: dict[str, int] = {}
        for job in jobs:
            states[state_words(job)] = states.get(state_words(job), 0) + job.count
        words = ", ".join(f"{number:,} {words}" for words, number in states.items())
        if counts and counts.running and not (first.state.is_active or first.state.is_terminal):
            words += f", {counts.running:,} running"
        reason = why(first, context)
        return (*reason, (" · ", DIM), (words, DIM)) if any(text for text, _ in reason) else cell(words)
    return job_cells(first, key, context)


def gpu_list(job: Job, names: Mapping[str, str]) -> str:
    """Return `GPU 0,1,4` for the GPUs it holds, `gpu1:0-1 gpu2:3` on nodes; their number if an index is unknown."""
    held = [names[uuid] for uuid in job.gpus if uuid in names]
    if len(held) < len(job.gpus):
        return plural(len(job.gpus), "GPU")
    if not held:
        return job.attempt.node if job.attempt and not job.attempt.is_over else ""
    if ":" not in held[0]:
        return f"GPU {','.join(held)}"
    nodes: dict[str, list[str]] = {}
    for label in held:
        node, _, index = label.rpartition(":")
        nodes.setdefault(node, []).append(index)
    return " ".join(f"{node}:{index_ranges(indices)}" for node, indices in nodes.items())


def why(job: Job, context: JobContext) -> Cell:
    if job.cancel_requested and not job.state.is_terminal:
        return cell("being cancelled", AMBER)
    if job.requeue_requested:
        return cell("to be requeued", AMBER)
    if job.state is JobState.PENDING:
        reason = context.reasons.get(job.id)
        if job.held:
            return cell(_hold(job, context.now), AMBER)
        return cell(plain(reason.local(context.now), 300), DIM) if reason else cell("", DIM)
    if job.state.is_terminal or job.state is JobState.PREEMPTED:
        if end := job.end_info:
            return cell(plain(end, 300), RED if job.cause is not None and JOB_STYLES[job.state] is RED else DIM)
        return cell(f"exit code {job.exit_code}" if job.exit_code is not None else "", DIM)
    where = gpu_list(job, context.gpu_names)
    if job.state is JobState.COMPLETING and job.stopping is not None:
        return ((f"{where} · " if where else "", DIM), (plain(job.stopping.cause.text, 200), AMBER))
    if (words := context.progress.get(job.id)) and "progress" in context.room:
        return cell(plain(_PERCENTAGE.sub("", words), 200), AMBER)  # the bar has its own column
    if words:
        image = plain(job.spec.image, 120) if job.spec.image else ""
        doing = f"{words} {image}" if words.startswith("pulling") and image not in words else words
        return ((f"{where} · " if where else "", DIM), *progress(plain(doing, 200), context.now))
    return _where_it_runs(job, context, where)


def _where_it_runs(job: Job, context: JobContext, where: str) -> Cell:
    """Return its GPUs, and what is wrong with them or unusual about the job, else their load."""
    if faulty := context.faulty.get(job.id):
        return ((f"{where} · " if len(job.gpus) > 1 and where else "", DIM), (faulty, RED))
    if others := context.beside.get(job.id):
        where += f" beside {' '.join(f'#{own_id(other)}' for other in others)}"
    if job.suspended:
        return ((f"{where} · " if where else "", DIM), ("suspended", AMBER))
    if (idle := context.idle.get(job.id)) and job.state is JobState.RUNNING:
        return cell(f"! {idle}", AMBER)
    if where and job.state is JobState.RUNNING and (load := context.loads.get(job.id)) is not None:
        where += f" · {load}%"
    return cell(where or ("no GPU" if job.state is JobState.RUNNING else ""), DIM)


def _hold(job: Job, now: datetime) -> str:
    if job.hold_reason:
        return f"held: {plain(job.hold_reason, 200)}"
    by = f" by {plain(job.held_by, 32)}" if job.held_by else ""
    return f"held{by}, {minute(job.held_at, now)}" if job.held_at else f"held{by}"


WORDS = 9
_WORDS = {
    JobState.PENDING: "waiting",
    JobState.CONFIGURING: "starting",
    JobState.RUNNING: "running",
    JobState.COMPLETING: "ending",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.TIMEOUT: "timed out",
    JobState.OUT_OF_MEMORY: "no memory",
    JobState.PREEMPTED: "preempted",
}
_PERCENTAGE = re.compile(r",?\s*\d{1,3}\s?%")


def state_words(job: Job) -> str:
    """Return the state as a word: `running`, `waiting`, `held`, ..."""
    if job.suspended and job.state is JobState.RUNNING:
        return "suspended"
    return "held" if job.held and job.state is JobState.PENDING else _WORDS[job.state]


def _state(job: Job, context: JobContext) -> Cell:
    held = job.held and job.state is JobState.PENDING
    is_suspended = job.suspended and job.state is JobState.RUNNING
    style = AMBER if held or is_suspended else JOB_STYLES[job.state]
    if context.room.get("state", 0) >= WORDS:
        return cell(state_words(job), style)
    return cell("PDh" if held else "S" if is_suspended else job.state.short, style)


def _progress(job: Job, context: JobContext) -> Cell:
    room = context.room.get("progress", WIDTH)
    if job.state is JobState.PENDING and context.room and not context.room.keys() & {"start", "eta"}:
        starts = _cell(job, "start", context) if job.id in context.expected_starts else ()
        limit = time_progress(job, None, WIDTH)
        return (
            (*starts, (f" / {format_limit(job.spec.time_limit)}", DIM))
            if starts and job.spec.time_limit
            else starts or limit
        )
    if job.state is JobState.CONFIGURING and (words := context.progress.get(job.id)):
        words = plain(words, 200)
        if (found := _PERCENT.search(words)) is None:
            return ((words.split(" ", 1)[0].rstrip(":"), AMBER),)
        percent = min(100, int(found[1]))
        return (*bar(percent / 100, max(_LEAST_BAR, min(_MOST_BAR, room - 6)), AMBER), (f" {percent:>2} %", PLAIN))
    return time_progress(job, elapsed(job, context.now), room)


_DRAWN: Mapping[str, Callable[[Job, JobContext], Cell]] = {"state": _state, "progress": _progress, "why": why}
_TONES: Mapping[Tone, Style] = {"plain": PLAIN, "strong": STRONG, "dim": DIM, "blue": BLUE, "red": RED}
