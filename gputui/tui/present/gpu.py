"""A GPU as a row of cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gputui.domain.gpu import Drain, GpuState, Health, HealthCode, Holder
from gputui.domain.job import Job
from gputui.domain.text import plain
from gputui.domain.units import format_duration, format_size
from gputui.tui.present.cells import UNKNOWN, Cell, cell, width_of
from gputui.tui.present.gpu_names import index_of, model_in, short_model
from gputui.tui.present.gpu_row import GpuPicture, GpuRow
from gputui.tui.present.gpu_words import slowed_words
from gputui.tui.present.meter import bar, graph, heat_style, load_style
from gputui.tui.present.style import AMBER, BLUE, DIM, GPU_STYLES, GRAPH, PLAIN, RED, RED_STRONG, VIOLET

__all__ = [
    "GpuPicture",
    "GpuRow",
    "gpu_cells",
    "holder_parts",
    "index_of",
    "joined",
    "label_of",
    "short_model",
]

_CAPS = frozenset(("power cap", "power brake"))
"""What slows a GPU down because of what it draws, in the words readings have for it."""
_HEALTH_WORDS = {
    HealthCode.LOST: "LOST",
    HealthCode.NEEDS_RESET: "RESET",
    HealthCode.XID: "XID",
    HealthCode.ECC: "ECC",
    HealthCode.REMAP_FAILED: "REMAP",
    HealthCode.UNKNOWN: "unknown",
}
_STATE_WORDS = {
    GpuState.FREE: "free",
    GpuState.ALLOCATED: "job",
    GpuState.FOREIGN: "foreign",
    GpuState.DRAINED: "drained",
    GpuState.UNKNOWN: "unknown",
}


def gpu_cells(row: GpuRow, key: str, room: int) -> Cell:
    """The cell of that column, `room` cells wide."""
    made = _CELLS[key](row, room)
    if (row.view.stale or _is_lost(row)) and key in _READINGS:
        return tuple((value, DIM) for value, _ in made)
    return made


def label_of(row: GpuRow) -> str:
    """The index, with the node's name where there are several."""
    return row.label or index_of(row.view)


def _is_lost(row: GpuRow) -> bool:
    return row.view.health.code is HealthCode.LOST


def _index(row: GpuRow, room: int) -> Cell:
    return cell(label_of(row), DIM)


def _model(row: GpuRow, room: int) -> Cell:
    gpu = row.view.gpu
    return cell(plain(gpu.mig_profile, 16) if gpu.mig_profile else model_in(short_model(gpu.model), room), PLAIN)


def _uuid(row: GpuRow, room: int) -> Cell:
    return cell(plain(row.view.gpu.uuid, 12), DIM)


def _state(row: GpuRow, room: int) -> Cell:
    view = row.view
    if word := _HEALTH_WORDS.get(view.health.code):
        return cell(word, RED_STRONG if word.isupper() else AMBER)
    if view.stale:
        return cell(_age(row), AMBER)
    if view.gpu.mig_enabled and not view.gpu.mig_parent:
        return cell("MIG", DIM)
    if view.drain is not None and view.state is not GpuState.UNKNOWN:  # who is still on it stands beside
        return cell(_STATE_WORDS[GpuState.DRAINED], AMBER)
    return cell("shared" if row.beside else _STATE_WORDS[view.state], GPU_STYLES[view.state])


def _who(row: GpuRow, room: int) -> Cell:
    """What is wrong first, then who holds it, then what slows it down."""
    parts = [part for part in (_holders(row, room),) if part]
    if row.view.sample is not None and row.view.sample.throttle:
        parts.append(cell(slowed_words(row.view.sample.throttle), AMBER))
    return joined(parts)


def _holders(row: GpuRow, room: int) -> Cell:
    """What is wrong first, then who holds it."""
    return joined(holder_parts(row, room))


def holder_parts(row: GpuRow, room: int) -> list[Cell]:
    """What is wrong, who holds it, whether it is drained, for whom it is kept; no word that the state says already."""
    view, state = row.view, _state(row, 7)[0][0]
    drained = _drained(view.drain, is_said=state == _STATE_WORDS[GpuState.DRAINED])
    parts = [_ill(view.health), _holder(row, room), drained, cell(row.kept, VIOLET) if row.kept else None]
    found = [part for part in parts if part]
    if not found and view.why and not view.stale and view.state is not GpuState.FREE:
        found.append(cell(plain(view.why, 200), DIM))
    return found


def _ill(health: Health) -> Cell | None:
    if health.code is HealthCode.OK or not health.text:
        return None
    serious = health.code is not HealthCode.REMAP_PENDING
    return cell(plain(health.text.removeprefix("lost: "), 200), RED if serious else DIM)


def _drained(drain: Drain | None, *, is_said: bool) -> Cell | None:
    if drain is None:
        return None
    words = f"by {plain(drain.by, 32)}: {plain(drain.reason, 100)}"
    return cell(words if is_said else f"drained {words}", AMBER)


def _age(row: GpuRow) -> str:
    """How old a reading is that is no longer believed."""
    age = row.view.age
    words = "stale" if age is None else f"{format_duration(age + row.late)} old"
    return words if len(words) <= 7 else words.replace(" old", "!")


def joined(parts: Sequence[Cell]) -> Cell:
    """One after the other."""
    result: Cell = ()
    for part in parts:
        result += ((" · ", DIM), *part) if result else part
    return result


def _holder(row: GpuRow, room: int) -> Cell | None:
    view = row.view
    if view.job_id is not None and len(view.job_ids) < 2:
        return _job(view.job_id, row.job)
    if view.job_ids:
        return _sharers(row, room)
    if not view.holders:
        return None
    more = f" +{len(view.holders) - 1}" if len(view.holders) > 1 else ""
    return (*_foreign(view.holders[0]), (more, DIM))


def _sharers(row: GpuRow, room: int) -> Cell:
    """All jobs on a GPU by name; by number alone where that is too much."""
    jobs = {job.id: job for job in (row.job, *row.beside) if job is not None}
    named = joined([_job(job_id, jobs.get(job_id)) for job_id in row.view.job_ids])
    if width_of(named) <= room:
        return named
    return cell(" ".join(f"#{job_id}" for job_id in row.view.job_ids), BLUE)


def _job(job_id: int, job: Job | None) -> Cell:
    name = plain(job.spec.name, 80) if job else ""
    tenant = plain(job.spec.tenant, 32) if job else ""
    shown = job.shown_id if job else str(job_id)
    return ((f"#{shown} ", BLUE), (name, PLAIN), (f" {tenant}" if tenant else "", DIM))


def _foreign(holder: Holder) -> Cell:
    """The process or container of somebody else, with its user and process id."""
    if holder.kind == "process" and holder.name == f"pid {holder.pid}":
        return ((holder.name, VIOLET), (" not seen on this host", DIM))  # it ended, or is in another PID namespace
    user = f" {plain(holder.user, 32)}" if holder.user else ""
    pid = f" pid {holder.pid}" if holder.pid is not None and holder.kind == "process" else ""
    kind = "container " if holder.kind == "container" else ""
    return ((kind, DIM), (plain(holder.name, 80) or "a process", VIOLET), (user + pid, DIM))


def _history(row: GpuRow, room: int) -> Cell:
    return cell(graph(row.past.values("utilization"), room), GRAPH)


def _load(row: GpuRow, room: int) -> Cell:
    share = row.view.sample.utilization if row.view.sample else None
    return bar(share, room, load_style(share))


def _percent(row: GpuRow, room: int) -> Cell:
    sample = row.view.sample
    if sample is None or sample.utilization is None:
        return cell(UNKNOWN, DIM)
    return cell(f"{sample.utilization * 100:.0f}%", PLAIN if sample.utilization >= 0.05 else DIM)


def _memory_total(row: GpuRow) -> int | None:
    sample = row.view.sample
    return (sample.memory_total if sample else None) or row.view.gpu.memory_total


def _memory_bar(row: GpuRow, room: int) -> Cell:
    sample, total = row.view.sample, _memory_total(row)
    share = sample.memory_used / total if sample and sample.memory_used is not None and total else None
    return bar(share, room, load_style(share))


def _memory(row: GpuRow, room: int) -> Cell:
    sample, total = row.view.sample, _memory_total(row)
    used = sample.memory_used if sample else None
    shown = UNKNOWN if used is None else format_size(used)
    return ((shown, PLAIN if used and used > 2**30 else DIM), (f"/{format_size(total) if total else UNKNOWN}", DIM))


def _temperature(row: GpuRow, room: int) -> Cell:
    """With `!` where something slows it down: narrow lines have no room to name it. A power cap is the power's."""
    sample = row.view.sample
    value = sample.temperature if sample else None
    if value is not None and sample is not None and any(word not in _CAPS for word in sample.throttle):
        return cell(f"{value:.0f}°!" if value < 100 else f"{value:.0f}!", AMBER)
    return cell(UNKNOWN if value is None else f"{value:.0f}°", heat_style(value))


def _power(row: GpuRow, room: int) -> Cell:
    sample = row.view.sample
    value = sample.power if sample else None
    if value is not None and sample is not None and any(word in _CAPS for word in sample.throttle):
        return cell(f"{value:.0f}W!" if value < 1000 else f"{value:.0f}!", AMBER)
    return cell(UNKNOWN if value is None else f"{value:.0f}W", DIM)


def _power_limit(row: GpuRow, room: int) -> Cell:
    sample = row.view.sample
    value = (sample.power_limit if sample else None) or row.view.gpu.power_limit
    return cell(UNKNOWN if value is None else f"{value:.0f}W", DIM)


def _clock(row: GpuRow, room: int) -> Cell:
    value = row.view.sample.sm_clock if row.view.sample else None
    return cell(UNKNOWN if value is None else f"{value}MHz", DIM)


def _fan(row: GpuRow, room: int) -> Cell:
    value = row.view.sample.fan if row.view.sample else None
    return cell(UNKNOWN if value is None else f"{value * 100:.0f}%", DIM)


_CELLS: dict[str, Callable[[GpuRow, int], Cell]] = {
    "index": _index,
    "model": _model,
    "uuid": _uuid,
    "state": _state,
    "who": _who,
    "holders": _holders,
    "history": _history,
    "load": _load,
    "percent": _percent,
    "memory_bar": _memory_bar,
    "memory": _memory,
    "temperature": _temperature,
    "power": _power,
    "power_limit": _power_limit,
    "clock": _clock,
    "fan": _fan,
}
_READINGS = frozenset({"history", "load", "percent", "memory_bar", "memory", "temperature", "power", "clock", "fan"})
