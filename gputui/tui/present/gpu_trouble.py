"""Page of a GPU that is lost or sick: what helps, the jobs that it had, and the other GPUs of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from gputui.domain.attempt import Attempt
from gputui.domain.faulty_gpus import LOST, SICK, fault_of
from gputui.domain.gpu import GpuView, HealthCode
from gputui.domain.gpu_faults import GpuFault
from gputui.domain.gpu_names import index_of
from gputui.domain.job import Job
from gputui.domain.text import fit, plain
from gputui.domain.units import format_duration, minute
from gputui.tui.present.cells import Cell, cell, fitted
from gputui.tui.present.gpu import gpu_cells, label_of
from gputui.tui.present.gpu_rows import GpuPicture, GpuRow
from gputui.tui.present.job import state_words
from gputui.tui.present.style import BLUE, DIM, JOB_STYLES, PLAIN, RED, STRONG

LABEL = 12
"""Cells of a label."""
_WIDE = 110
"""Cells from which the times of a job are shown beside how it ended."""
_NONE = "none in the queue, and none that ended in the last 7 days"
_LEAST_JOBS = 3
"""Lines of jobs even on a low page."""


def is_in_trouble(view: GpuView) -> bool:
    """Return whether the GPU is lost or sick."""
    return fault_of(view) in {LOST, SICK}


def remedy_lines(view: GpuView, fault: GpuFault | None, now: datetime) -> list[Cell]:
    """Return when it failed, as far as known, and what to do, in the order in which to do it."""
    lines: list[Cell] = []
    if fault is not None:
        since = f"{minute(fault.at, now)}, {format_duration(now - fault.at)} ago"
        lines.append(_line("reported", ((since, PLAIN), (f"  {plain(fault.text, 200)}", RED))))
    for number, (command, why) in enumerate(_remedies(view)):
        lines.append(_line("" if number else "what to do", ((f"{number + 1}. {command:<28}  ", PLAIN), (why, DIM))))
    return lines


def _remedies(view: GpuView) -> Sequence[tuple[str, str]]:
    if view.gpu.drivers_uuid:
        return _remedies_on_node(view, view.gpu.uuid.rpartition(":")[0], view.gpu.drivers_uuid)
    index = index_of(view) if view.gpu.index >= 0 else "INDEX"
    see = ("journalctl -k -g 'NVRM|Xid'", "shows what the kernel reported: an Xid names the fault")
    check = ("gputui doctor", "checks driver, engine and every GPU")
    resume = (f"gputui resume {index}", "gives it jobs again, unless a reset is detected")
    if view.health.code is HealthCode.LOST:
        reboot = ("sudo reboot", "brings back a GPU that fell off the bus; drain the others first")
        return (see, check, reboot, ("reseat or replace the board", "if it is lost again"))
    if view.health.code is HealthCode.REMAP_FAILED:
        return (see, ("replace the board", "its memory cannot be repaired by a reset"))
    reset = (f"sudo nvidia-smi -i {index} -r", "resets it, once no process uses it; X on the processes ends them")
    return (see, check, reset, resume)


def _remedies_on_node(view: GpuView, node: str, uuid: str) -> Sequence[tuple[str, str]]:
    """Return what to do about a GPU of a cluster's node: the cluster's engine knows nothing of it."""
    drain = (f"gputui drain {node} --reason …", "keeps jobs off the node: the cluster does not know of this")
    see = ("journalctl -k -g 'NVRM|Xid'", f"on {node}: an Xid names the fault")
    if view.health.code is HealthCode.LOST:
        return (drain, see, ("sudo reboot", "on the node, once its jobs have ended"))
    if view.health.code is HealthCode.REMAP_FAILED:
        return (drain, see, ("replace the board", "its memory cannot be repaired by a reset"))
    reset = (f"sudo nvidia-smi -i {uuid} -r", "on the node, once no process uses it")
    return (drain, see, reset, (f"gputui resume {node}", "gives the node jobs again"))


def job_lines(view: GpuView, jobs: Iterable[Job], now: datetime, room: int, most: int, past: str = "") -> list[Cell]:
    """Return the last jobs that ran on it, the latest first, with how each came out there.

    `past` says what `jobs` lacks of the history; empty if it lacks nothing.
    """
    found = [(attempt, job) for job in jobs for attempt in job.attempts if view.gpu.uuid in attempt.gpus]
    found.sort(key=lambda pair: pair[0].started_at or pair[0].claimed_at or pair[1].submitted_at, reverse=True)
    if not found:
        return [_line("last jobs", ((past or _NONE, DIM),))]
    shown = found[: max(_LEAST_JOBS, most - 1)]
    is_wide = room >= _WIDE
    times = f"{'FROM':<12} {'FOR':<9} " if is_wide else ""
    title = f"{'ID':>7}  {'NAME':<{_names(room)}} {'TENANT':<10} {'STATE':<10} {times}END"
    left = f", {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    lines = [_line("last jobs", ((f"{len(found)}{left}", PLAIN), (f"  {past}" if past else "", DIM))), cell(title, DIM)]
    return [*lines, *(tuple(fitted(_job(attempt, job, now, room), room)) for attempt, job in shown)]


def _names(room: int) -> int:
    """Return the cells of a job's name."""
    return 28 if room >= _WIDE else 14


def _job(attempt: Attempt, job: Job, now: datetime, room: int) -> Cell:
    begun = attempt.started_at or attempt.claimed_at
    took = format_duration((attempt.ended_at or now) - begun) if begun else ""
    is_last = attempt is job.attempts[-1]
    state = state_words(job) if is_last else "ended"
    cause = plain(attempt.cause.text, 200) if attempt.cause else job.end_words if is_last and attempt.is_over else ""
    return (
        (f"{'#' + job.shown_id:>7}  ", BLUE),
        (fit(plain(job.name, 60), _names(room)) + " ", PLAIN),
        (fit(plain(job.spec.tenant, 40), 10) + " ", DIM),
        (f"{state:<10} ", JOB_STYLES[job.state] if is_last else DIM),
        (f"{minute(begun, now) if begun else '':<12} {took:<9} " if room >= _WIDE else "", DIM),
        (cause, RED if attempt.cause else DIM),
    )


def machine_lines(row: GpuRow, picture: GpuPicture, room: int) -> list[Cell]:
    """Return a line for each GPU of the machine: which others are free or in trouble too."""
    others = [other for other in picture.rows.values() if not other.view.gpu.mig_parent]
    if len(others) < 2:
        return []
    return [_line("the machine", ()), *(tuple(fitted(_other(other, other is row), room)) for other in others)]


def _other(row: GpuRow, is_this: bool) -> Cell:
    who = gpu_cells(row, "who", 60)
    mark = "▸" if is_this else " "
    return (
        (f"{mark} GPU {label_of(row):<{LABEL - 6}}", STRONG if is_this else PLAIN),
        *fitted(gpu_cells(row, "state", 9), 11),
        *fitted(gpu_cells(row, "percent", 4), 4, right=True),
        (" ", DIM),
        *fitted(gpu_cells(row, "memory", 9), 9, right=True),
        ("  ", DIM),
        *who,
    )


def _line(label: str, spans: Cell) -> Cell:
    return ((label.ljust(LABEL), BLUE), *spans)
