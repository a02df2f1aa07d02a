"""A job as a row of cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import dropwhile
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.arrays import elements_word
from gputui.domain.faulty_gpus import faulty_gpus
from gputui.domain.gpu_names import index_ranges
from gputui.domain.idle_gpus import idle_gpus
from gputui.domain.job import Job
from gputui.domain.job_spec import GpuRequest, JobId
from gputui.domain.server_ids import own_id, server_of, without_server
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, Reason
from gputui.domain.text import plain
from gputui.domain.units import format_duration, format_limit, plural
from gputui.tui.present.cells import UNKNOWN, Cell, cell
from gputui.tui.present.graphs import progress
from gputui.tui.present.job_progress import (
    WIDTH,
    ArrayCounts,
    array_progress,
    pull_progress,
    time_progress,
)
from gputui.tui.present.style import AMBER, BLUE, DIM, JOB_STYLES, PLAIN, RED, STRONG
from gputui.tui.present.times import minute


def job_title(job: Job) -> str:
    """Return `#17 train`, `#18_1 sweep`, without control characters."""
    return f"#{job.shown_id} {plain(job.name, 60)}".rstrip()


def moment(at: datetime | None, now: datetime) -> str:
    """Return the local time; empty for None."""
    return "" if at is None else minute(at, now)


def _eta(job: Job, context: JobContext) -> Cell:
    """Return the local time of the expected start."""
    return _expected(job, context, lambda at: moment(at, context.now))


def _expected(job: Job, context: JobContext, words: Callable[[datetime], str]) -> Cell:
    """Return the expected start in these words; a dash where unknown, empty where the job does not wait."""
    if job.state is not JobState.PENDING:
        return cell("")
    expected = context.expected_starts.get(job.id)
    if expected is None:
        return cell(UNKNOWN, DIM)
    return cell(f"~{words(expected)}" if expected > context.now else "now", PLAIN)


def _left(job: Job, context: JobContext) -> Cell:
    """Return the remaining time of the time limit."""
    if job.limit_at is None or not job.state.is_active:
        return cell("")
    left = job.limit_at - context.now
    return cell(format_duration(left) if left.total_seconds() > 0 else "over", PLAIN)


def _where(job: Job, context: JobContext) -> Cell:
    attempt = job.attempt
    held = attempt.gpus if attempt else ()
    names = [context.gpu_names.get(uuid, "?") for uuid in held]
    return cell(",".join(names), PLAIN if job.gpus else DIM)


def _exit(job: Job, context: JobContext) -> Cell:
    return cell("" if job.exit_code is None else str(job.exit_code), RED if job.exit_code else DIM)


def _attempts(job: Job, context: JobContext) -> Cell:
    return cell(str(len(job.attempts)) if job.attempts else "", PLAIN if len(job.attempts) > 1 else DIM)


def command_words(command: Sequence[str]) -> str:
    """Return the command with its program's base name; without `python3 -u` and `python -m`."""
    program, *arguments = command or ("",)
    if _PYTHON.fullmatch(base := _base_name(program)):
        rest = list(dropwhile(lambda word: word in _PYTHON_FLAGS, arguments))
        if len(rest) > 1 and rest[0] == "-m":
            return " ".join(rest[1:])
        if rest and not rest[0].startswith("-"):
            return command_words(rest)
    return " ".join((base, *arguments))


def more_than_name(job: Job) -> str:
    """Return the command as far as the name does not say it: `… 600` of `sleep 600` for a job `sleep`."""
    words = command_words(job.spec.command)
    program, _, arguments = words.partition(" ")
    if words == job.name:
        return ""
    return f"… {arguments}" if program == job.name else words


_PYTHON, _PYTHON_FLAGS = re.compile(r"python[\d.]*"), frozenset({"-u", "-I", "-O", "-OO", "-B", "-s", "-E"})


def _base_name(program: str) -> str:
    return program.rstrip("/").rpartition("/")[2] or program


def _score(job: Job, context: JobContext) -> Cell:
    score = context.scores.get(job.id)
    if score is None:
        return cell(UNKNOWN if job.state is JobState.PENDING else "", DIM)
    return cell(f"{score:.1f}", DIM)


def _started(job: Job) -> datetime | None:
    return None if job.state is JobState.PENDING else job.started_at


MORE_CELLS: Mapping[str, Callable[[Job, JobContext], Cell]] = MappingProxyType(
    {
        "eta": _eta,
        "left": _left,
        "where": _where,
        "exit": _exit,
        "attempts": _attempts,
        "score": _score,
        "user": lambda job, context: cell(plain(job.submitted_by, 40), DIM),
        "server": lambda job, context: cell(plain(server_of(job.id), 40), PLAIN),
        "image": lambda job, context: cell(plain(job.spec.image or "", 120), DIM),
        "command": lambda job, context: cell(plain(more_than_name(job), 200), DIM),
        "submitted": lambda job, context: cell(moment(job.submitted_at, context.now), DIM),
        "started": lambda job, context: cell(moment(_started(job), context.now), DIM),
        "ended": lambda job, context: cell(moment(job.ended_at, context.now), DIM),
    }
)


class JobContext(Struct, frozen=True):
    """Data that cells of jobs need besides the job."""

    now: datetime
    reasons: Mapping[JobId, Reason] = field(default_factory=dict)
    expected_starts: Mapping[JobId, datetime] = field(default_factory=dict)
    progress: Mapping[JobId, str] = field(default_factory=dict)
    gpu_names: Mapping[str, str] = field(default_factory=dict)
    """The index of each GPU, by UUID."""
    beside: Mapping[JobId, tuple[JobId, ...]] = field(default_factory=dict)
    """For each job that shares GPUs, the jobs that it shares them with."""
    scores: Mapping[JobId, float] = field(default_factory=dict)
    """Scores of waiting jobs; only while a column shows them."""
    room: Mapping[str, int] = field(default_factory=dict)
    """Cells of each displayed column."""
    loads: Mapping[JobId, int] = field(default_factory=dict)
    """Mean utilisation of the GPUs of running jobs, in percent."""
    idle: Mapping[JobId, str] = field(default_factory=dict)
    """Text about the idle GPUs of each job that leaves some idle."""
    faulty: Mapping[JobId, str] = field(default_factory=dict)
    """Text about the lost or sick GPUs of each job that holds some."""
    silent: frozenset[str] = frozenset()
    """Names of servers that do not answer."""

    @property
    def is_in_words(self) -> bool:
        """Return whether the column of states has room for words."""
        return self.room.get("state", 0) >= WORDS

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        now: datetime,
        gpu_names: Mapping[str, str],
        scores: Mapping[JobId, float] = MappingProxyType({}),
        room: Mapping[str, int] = MappingProxyType({}),
    ) -> JobContext:
        """Return the data of a snapshot."""
        beside, progress = snapshot.sharing(), snapshot.progress
        idle = idle_gpus(snapshot.gpus, now)
        starts = snapshot.expected_starts
        faulty = faulty_gpus(snapshot.gpus)
        silent = frozenset(server.name for server in snapshot.servers if server.problem)
        known = cls(now, snapshot.reasons, starts, progress, gpu_names, beside, scores, room)
        return replace(known, idle=idle, faulty=faulty, silent=silent)


def job_cells(job: Job, key: str, context: JobContext) -> Cell:
    """Return the cell of that column."""
    return _as_known(_CELLS[key](job, context), job, context)


def _as_known(shown: Cell, job: Job, context: JobContext) -> Cell:
    """Return the cell, grey if the job's server does not answer."""
    if not context.silent or server_of(job.id) not in context.silent:
        return shown
    return tuple((text, DIM) for text, _ in shown)


def group_cells(jobs: Sequence[Job], key: str, context: JobContext, counts: ArrayCounts | None = None) -> Cell:
    """Return the cell of that column for elements of an array that share a row; `counts` are of the whole array."""
    first = jobs[0]
    if key == "id" and first.array:
        return cell(str(own_id(first.array.id)), BLUE)
    if key == "name" and first.array:
        limit = f"%{first.array.limit}" if first.array.limit else ""
        return ((plain(first.spec.name, 120), PLAIN), (f"[{elements_word(jobs)}{limit}]", DIM))
    if key == "progress" and counts is not None:
        return array_progress(counts, context.room.get("progress", WIDTH))
    if key == "why":
        states: dict[str, int] = {}
        for job in jobs:
            states[state_words(job)] = states.get(state_words(job), 0) + job.count
        told = ", ".join(f"{number:,} {words}" for words, number in states.items())
        if counts and counts.running and not (first.state.is_active or first.state.is_terminal):
            told += f", {counts.running:,} running"
        reason = why(first, context)
        return (*reason, (" · ", DIM), (told, DIM)) if any(text for text, _ in reason) else cell(told)
    return job_cells(first, key, context)


def gpus_wanted(request: GpuRequest) -> str:
    """Return `2`, `2-4`, `all`, `=0,3`, or a dash for none."""
    if request.everything:
        return "all"
    if request.devices:
        return f"={len(request.devices)}"
    if request.maximum == 0:
        return "-"
    low, high = request.minimum, request.maximum
    return str(low) if low == high else f"{low}-{high}"


def elapsed(job: Job, now: datetime) -> timedelta | None:
    """Return how long the latest attempt has run, or ran."""
    if job.started_at is None or job.state is JobState.PENDING:
        return None
    end = job.ended_at if job.state.is_terminal else now
    return max(timedelta(0), (end or now) - job.started_at)


def gpu_list(job: Job, names: Mapping[str, str]) -> str:
    """Return `GPU 0,1,4` for the GPUs it holds; their number if an index is unknown."""
    held = [names[uuid] for uuid in job.gpus if uuid in names]
    if len(held) < len(job.gpus):
        return plural(len(job.gpus), "GPU")
    if not held:
        return job.attempt.node if job.attempt and not job.attempt.is_over else ""
    return _by_node(held) if ":" in held[0] else f"GPU {','.join(held)}"


def _by_node(labels: Iterable[str]) -> str:
    """Return `gpu1:0-1 gpu2:3` for GPUs of several nodes."""
    nodes: dict[str, list[str]] = {}
    for label in labels:
        node, _, index = label.rpartition(":")
        nodes.setdefault(node, []).append(index)
    return " ".join(f"{node}:{index_ranges(indices)}" for node, indices in nodes.items())


def why(job: Job, context: JobContext) -> Cell:
    """Return why it waits, where it runs, or how it ended."""
    if job.cancel_requested and not job.state.is_terminal:
        return cell("being cancelled", AMBER)
    if job.requeue_requested:
        return cell("to be requeued", AMBER)
    if job.state is JobState.PENDING:
        return _why_waiting(job, context)
    if job.state.is_terminal or job.state is JobState.PREEMPTED:
        return _how_ended(job)
    where = gpu_list(job, context.gpu_names)
    if job.state is JobState.COMPLETING and job.stopping is not None:
        return ((f"{where} · " if where else "", DIM), (plain(job.stopping.cause.text, 200), AMBER))
    if (words := context.progress.get(job.id)) and "progress" in context.room:
        return cell(plain(_PERCENT.sub("", words), 200), AMBER)  # the bar has its own column
    if words:
        image = plain(job.spec.image, 120) if job.spec.image else ""
        told = f"{words} {image}" if words.startswith("pulling") and image not in words else words
        return ((f"{where} · " if where else "", DIM), *progress(plain(told, 200), context.now))
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


def _why_waiting(job: Job, context: JobContext) -> Cell:
    reason = context.reasons.get(job.id)
    if job.held:
        return cell(_hold(job, context.now), AMBER)
    return cell(plain(reason.local(context.now), 300), DIM) if reason else cell("", DIM)


def _hold(job: Job, now: datetime) -> str:
    """Return which user held it and when, or why the scheduler did."""
    if job.hold_reason:
        return f"held: {plain(job.hold_reason, 200)}"
    by = f" by {plain(job.held_by, 32)}" if job.held_by else ""
    return f"held{by}, {moment(job.held_at, now)}" if job.held_at else f"held{by}"


def _how_ended(job: Job) -> Cell:
    if told := job.end_info:
        return cell(plain(told, 300), RED if job.cause is not None and JOB_STYLES[job.state] is RED else DIM)
    return cell(f"exit code {job.exit_code}" if job.exit_code is not None else "", DIM)


def _is_over(job: Job) -> bool:
    return job.state.is_terminal


def _id(job: Job, context: JobContext) -> Cell:
    return cell(without_server(job.shown_id), DIM if _is_over(job) else BLUE)


WORDS = 9
"""Cells needed for states as words."""
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
_PERCENT = re.compile(r",?\s*\d{1,3}\s?%")


def state_words(job: Job) -> str:
    """Return the state as a word: `running`, `waiting`, `held`, ..."""
    if job.suspended and job.state is JobState.RUNNING:
        return "suspended"
    return "held" if job.held and job.state is JobState.PENDING else _WORDS[job.state]


def _state(job: Job, context: JobContext) -> Cell:
    """Return the state as a word, or squeue's abbreviation; a held job is marked."""
    held = job.held and job.state is JobState.PENDING
    is_suspended = job.suspended and job.state is JobState.RUNNING
    style = AMBER if held or is_suspended else JOB_STYLES[job.state]
    if context.is_in_words:
        return cell(state_words(job), style)
    return cell("PDh" if held else "S" if is_suspended else job.state.short, style)


def _progress(job: Job, context: JobContext) -> Cell:
    room = context.room.get("progress", WIDTH)
    if job.state is JobState.PENDING and context.room and not context.room.keys() & {"start", "eta"}:
        return _start_of_limit(job, context)
    if job.state is JobState.CONFIGURING and (words := context.progress.get(job.id)):
        return pull_progress(plain(words, 200), room)
    return time_progress(job, elapsed(job, context.now), room)


def _start_of_limit(job: Job, context: JobContext) -> Cell:
    """Return `~29m / 2h`: the time until its start, which has no column of its own, and its limit."""
    starts = _start(job, context) if job.id in context.expected_starts else ()
    limit = time_progress(job, None, WIDTH)
    return (
        (*starts, (f" / {format_limit(job.spec.time_limit)}", DIM))
        if starts and job.spec.time_limit
        else starts or limit
    )


def _priority(job: Job, context: JobContext) -> Cell:
    topped = job.topped_at is not None and job.state is JobState.PENDING
    return cell("top" if topped else str(job.priority), STRONG if topped or job.priority > 50 else DIM)


def _name(job: Job, context: JobContext) -> Cell:
    shown = plain(job.name, 120) or plain(job.spec.image or command_words(job.spec.command[:3]), 120)
    return cell(shown, DIM if _is_over(job) else PLAIN)


def _tenant(job: Job, context: JobContext) -> Cell:
    return cell(plain(job.spec.tenant, 40), DIM)


def _gpus(job: Job, context: JobContext) -> Cell:
    return cell(str(len(job.gpus)) if job.gpus else gpus_wanted(job.spec.gpus), DIM if _is_over(job) else PLAIN)


def _time(job: Job, context: JobContext) -> Cell:
    taken = elapsed(job, context.now)
    return cell("" if taken is None else format_duration(taken), DIM if _is_over(job) else PLAIN)


def _limit(job: Job, context: JobContext) -> Cell:
    return cell("" if job.spec.time_limit is None else format_duration(job.spec.time_limit), DIM)


def _age(job: Job, context: JobContext) -> Cell:
    return cell(format_duration(context.now - job.submitted_at), DIM)


def _start(job: Job, context: JobContext) -> Cell:
    """Return the time until its expected start; a dash if unknown, empty if it is not waiting."""
    return _expected(job, context, lambda at: _until(at, context.now))


def _until(at: datetime, now: datetime) -> str:
    """Return `29m` or `1h59m`: seconds of a forecast would be redrawn all the time, and mean nothing."""
    left = at - now
    return format_limit(left // _MINUTE * _MINUTE if left >= _MINUTE else left)


_MINUTE = timedelta(minutes=1)


_CELLS: dict[str, Callable[[Job, JobContext], Cell]] = {
    "id": _id,
    "state": _state,
    "priority": _priority,
    "name": _name,
    "tenant": _tenant,
    "gpus": _gpus,
    "time": _time,
    "limit": _limit,
    "age": _age,
    "start": _start,
    "why": why,
    "progress": _progress,
    **MORE_CELLS,
}
