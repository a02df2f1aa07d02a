"""Cells of a GPU in a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.style import Style

from gputui.domain.faulty_gpus import SICK
from gputui.domain.gpu import Drain, GpuState, GpuView, Health, HealthCode, Holder
from gputui.domain.gpu_names import index_of
from gputui.domain.idle_gpus import idle_words
from gputui.domain.job import Job
from gputui.domain.server_ids import shown_id
from gputui.domain.severity import INTRUDER
from gputui.domain.text import fit, plain, width
from gputui.domain.units import UNKNOWN, format_duration, format_size
from gputui.tui.present.cells import Cell, cell, width_of
from gputui.tui.present.gpu_gauge import (
    charted,
    gauge,
    history_style,
    most_of,
    power_limit_of,
    progress_bar,
    tone,
)
from gputui.tui.present.gpu_rows import GpuRow
from gputui.tui.present.gpu_tone import slowed_cell, tone_of_kind
from gputui.tui.present.gpu_words import age_words, elapsed_share, elapsed_words, model_in, program_words, short_model
from gputui.tui.present.graphs import graph, past_graph
from gputui.tui.present.style import (
    AMBER,
    BLUE,
    DIM,
    GPU_STYLES,
    GRAPH,
    PLAIN,
    RED_STRONG,
    SICK_ROW,
    VIOLET,
)

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
    """Return the cell of a column for `room` cells."""
    if key in _FIGURES and _is_lost(row):
        return cell(UNKNOWN, DIM)
    made = _CELLS[key](row, room)
    if row.is_old and key in _READINGS:  # the state shows its age
        return tuple((value, DIM) for value, _ in made)
    return made


def label_of(row: GpuRow) -> str:
    """Return the index, with the node's name if there are several nodes."""
    return row.label or index_of(row.view)


def _is_lost(row: GpuRow) -> bool:
    return row.view.health.code is HealthCode.LOST


def _index(row: GpuRow, room: int) -> Cell:
    return cell(label_of(row), DIM)


def _model(row: GpuRow, room: int) -> Cell:
    gpu = row.view.gpu
    if not gpu.mig_profile:
        return cell(model_in(short_model(gpu.model), room), PLAIN)
    profile = plain(gpu.mig_profile, 16)
    return cell(profile if len(profile) <= room else profile.removesuffix("gb"), PLAIN)


def _uuid(row: GpuRow, room: int) -> Cell:
    return cell(plain(row.view.gpu.shown_uuid, 12), DIM)


def _state(row: GpuRow, room: int) -> Cell:
    view = row.view
    if word := _HEALTH_WORDS.get(view.health.code):
        return cell(word, RED_STRONG if word.isupper() else AMBER)
    if view.stale:
        return cell(_age(row), AMBER)
    if view.gpu.mig_enabled and not view.gpu.mig_parent:
        return cell("MIG", DIM)
    if view.drain is not None and view.state is not GpuState.UNKNOWN:  # who is still on it stands beside
        return cell(_STATE_WORDS[GpuState.DRAINED], GPU_STYLES[GpuState.DRAINED])
    return cell("shared" if row.beside else _STATE_WORDS[view.state], GPU_STYLES[view.state])


def _held(row: GpuRow, room: int) -> Cell:
    """Return the state if it says more than a running job, holders, and why the GPU is slowed down."""
    state = gpu_state_words(row)
    parts = [part for part in (_holders(row, room - width_of(state) - 1 if state else room),) if part]
    if slowed := slowed_cell(row.view.current):
        parts.append(slowed)
    if not parts:
        return state
    if row.view.state is GpuState.FREE and row.view.drain is None:  # it is reserved, or has a harmless fault
        return with_dots(parts)
    return (*state, (" ", DIM), *with_dots(parts)) if state else with_dots(parts)


def gpu_state_words(row: GpuRow) -> Cell:
    """Return the state; empty if a running job implies it."""
    if (idle := row.idle) is not None and not row.view.drain:
        return cell(idle_words(idle), AMBER)
    state = _state(row, 7)
    return () if state[0][0] == _STATE_WORDS[GpuState.ALLOCATED] else state


def _who(row: GpuRow, room: int) -> Cell:
    """Return faults, then holders, then why the GPU is slowed down."""
    parts = [part for part in (_holders(row, room),) if part]
    if slowed := slowed_cell(row.view.current):
        parts.append(slowed)
    return with_dots(parts)


def sick_words(row: GpuRow, room: int, *, has_model: bool = True) -> Cell | None:
    """Return the line of a lost or sick GPU, whose readings no longer matter. None for any other."""
    health = row.view.health
    if not row.is_old or health.is_schedulable or health.code is HealthCode.UNKNOWN:
        return None
    label = f"{label_of(row):>3} " + (f"{model_in(short_model(row.view.gpu.model), 5)} " if has_model else "")
    words = "".join(value for part in holder_parts(row, room) for value in (*(word for word, _ in part), "; "))
    return cell(f"{label}{_HEALTH_WORDS[health.code]} {words.removesuffix('; ')}", SICK_ROW)


def _holders(row: GpuRow, room: int) -> Cell:
    """Return faults, then holders."""
    return with_dots(holder_parts(row, room))


def holder_parts(row: GpuRow, room: int, *, has_holder: bool = True) -> list[Cell]:
    """Return faults, holders, drain and reservation, without words that repeat the state."""
    view, state = row.view, _state(row, 7)[0][0]
    drained = _drained(view.drain, is_said=state == _STATE_WORDS[GpuState.DRAINED])
    holder = _holder(row, room) if has_holder else None
    parts = [_ill(view.health), holder, _intruder(view), drained, cell(row.kept, BLUE) if row.kept else None]
    found = [part for part in parts if part]
    is_told = view.state in {GpuState.FREE, GpuState.FOREIGN, GpuState.ALLOCATED} and not has_holder
    if not found and view.why and not view.stale and view.state is not GpuState.FREE and not is_told:
        found.append(cell(plain(view.why, 200), DIM))
    return found


def _ill(health: Health) -> Cell | None:
    if health.code is HealthCode.OK or not health.text:
        return None
    usable = health.is_schedulable or health.code is HealthCode.UNKNOWN
    return cell(plain(health.reason, 200), DIM if usable else tone_of_kind(SICK).style)


def _intruder(view: GpuView) -> Cell | None:
    """Return the foreign user of a GPU that is assigned to a job."""
    others = () if view.job_id is None else view.foreign
    if not others:
        return None
    user = f" {plain(others[0].user, 32)}" if others[0].user else ""
    more = f" +{len(others) - 1}" if len(others) > 1 else ""
    return (
        ("! ", tone_of_kind(INTRUDER).style),
        ("also ", DIM),
        (plain(others[0].name, 80), VIOLET),
        (user + more, DIM),
    )


def _drained(drain: Drain | None, *, is_said: bool) -> Cell | None:
    if drain is None:
        return None
    words = f"by {plain(drain.by, 32)}: {plain(drain.reason, 100)}"
    return cell(words if is_said else f"drained {words}", DIM)


def _age(row: GpuRow) -> str:
    """Return the age of a stale reading."""
    age = row.view.age
    words = "stale" if age is None else f"{format_duration(age + row.late)} old"
    return words if len(words) <= 7 else words.replace(" old", "!")


def with_dots(parts: Sequence[Cell]) -> Cell:
    """Return the parts joined by dots."""
    result: Cell = ()
    for part in parts:
        result += ((" · ", DIM), *part) if result else part
    return result


_LEAST = 4
"""Cells of a name at least."""


def _holder(row: GpuRow, room: int) -> Cell | None:
    view = row.view
    if view.job_id is not None and len(view.job_ids) < 2:
        return _job(view.job_id, row.job, room)
    if view.job_ids:
        return _sharers(row, room)
    if not view.holders:
        return None
    more = f" +{len(view.holders) - 1}" if len(view.holders) > 1 else ""
    return (*_foreign(view.holders[0], room - len(more)), (more, DIM))


def _sharers(row: GpuRow, room: int) -> Cell:
    """Return all jobs on a GPU by name, or by number if names do not fit."""
    jobs = {job.id: job for job in (row.job, *row.beside) if job is not None}
    named = with_dots([_job(job_id, jobs.get(job_id)) for job_id in row.view.job_ids])
    if width_of(named) <= room:
        return named
    return cell(" ".join(f"#{shown_id(job_id)}" for job_id in row.view.job_ids), BLUE)


def _job(job_id: int, job: Job | None, room: int = 200) -> Cell:
    """Return number, name and tenant; where room is short the name is cut, so that one sees whose job it is."""
    shown = f"#{job.shown_id if job else shown_id(job_id)} "
    tenant = f" {plain(job.spec.tenant, 32)}" if job and job.spec.tenant else ""
    return ((shown, BLUE), (_cut(job.name if job else "", room - width(shown + tenant)), PLAIN), (tenant, DIM))


def _cut(name: str, room: int) -> str:
    """Return the name in that many cells, but never in less than `_LEAST`."""
    name = plain(name, 80)
    return name if width(name) <= max(_LEAST, room) else fit(name, max(_LEAST, room))


def _foreign(holder: Holder, room: int) -> Cell:
    """Return the user of a process and its command, or a container with its user; without the kind if room is short."""
    if holder.kind == "process" and holder.name == f"pid {holder.pid}":
        return ((holder.name, VIOLET), (" not seen on this host", DIM))  # it has ended, or is in another PID namespace
    user = plain(holder.user or "", 32)
    if holder.kind == "process":
        words = plain(program_words(holder.name), 80) or "a process"
        return ((f"{user} " if user else "", PLAIN), (words, VIOLET), (f" pid {holder.pid}" if holder.pid else "", DIM))
    user = f" {user}" if user else ""
    name, kind = plain(holder.name, 80), "container "
    kind = kind if width(kind + name + user) <= room else ""
    return ((kind, DIM), (_cut(name, room - width(user)), VIOLET), (user, DIM))


def _steps(row: GpuRow, room: int) -> Cell:
    return cell(graph(row.past.values("utilization"), room), GRAPH)


def _history(row: GpuRow, room: int) -> Cell:
    name = charted(row)
    return cell(
        past_graph(row.past, name, most_of(row, name), (room, 1), row.look.seconds)[0], history_style(row, name)
    )


def _load(row: GpuRow, room: int) -> Cell:
    return gauge(row, "utilization", room)


def _ink(row: GpuRow, name: str, usual: Style = PLAIN) -> Style:
    """Return the style of a figure: an alarm's, else the usual one."""
    judged = tone(row, name)
    return judged.style if judged.is_loud else usual


def _percent(row: GpuRow, room: int) -> Cell:
    sample = row.view.sample
    if sample is None or sample.utilization is None:
        return cell(UNKNOWN, DIM)
    usual = PLAIN if sample.utilization >= 0.05 else DIM
    return cell(f"{sample.utilization * 100:.0f}%", _ink(row, "utilization", usual))


def _memory_bar(row: GpuRow, room: int) -> Cell:
    return gauge(row, "memory_used", room)


def _memory(row: GpuRow, room: int) -> Cell:
    """Return `62/80G`, or without the total if there is no room for it."""
    sample, total = row.view.sample, row.memory_total
    used = sample.memory_used if sample else None
    if used is None:
        return cell(f"{UNKNOWN}/{format_size(total)}" if total else UNKNOWN, DIM)
    shown, of = format_size(used), format_size(total) if total else ""
    style = _ink(row, "memory_used", PLAIN if used > 2**30 else DIM)
    if (of and shown[-1] == of[-1]) or not used:
        shown = shown.rstrip("GM")
    judged = tone(row, "memory_used")
    mark: Cell = ((judged.mark, judged.style),) if judged.is_loud and room < MARKED_ELSEWHERE else ()
    if not of or len(shown) + len(of) + 1 + len(mark) > room:
        return (*cell(format_size(used), style), *mark)
    return ((shown, style), (f"/{of}", DIM), *mark)


MARKED_ELSEWHERE = 8
"""Minimum cells of a memory figure that stands beside a label with the mark."""


def _temperature(row: GpuRow, room: int) -> Cell:
    """Return the temperature, with `!` if it is high, `✗` if anything but power slows the GPU down."""
    return _marked(row, "temperature", "°", room)


def _power(row: GpuRow, room: int) -> Cell:
    """Return the power, with `✗` if its supply brakes it, `!` if a limit was set."""
    return _marked(row, "power", "W", room)


def _marked(row: GpuRow, name: str, unit: str, room: int) -> Cell:
    value = getattr(row.view.sample, name) if row.view.sample else None
    if value is None:
        return cell(UNKNOWN, DIM)
    judged = tone(row, name)
    return cell(_short(value, unit, room, judged.mark.strip()), judged.style if judged.is_loud else DIM)


def _short(value: float, unit: str, room: int, mark: str) -> str:
    """Return the value with its unit and a mark, as far as there is room: the mark matters more."""
    told = (f"{value:.0f}{unit}{mark}", f"{value:.0f}{mark}")
    return next((words for words in told if len(words) <= room), f"{value:.0f}")


def _power_limit(row: GpuRow, room: int) -> Cell:
    value = power_limit_of(row)
    return cell(UNKNOWN if value is None else f"{value:.0f}W", DIM)


def _time(row: GpuRow, room: int) -> Cell:
    """Return for how long its job has run, with the limit if there is room, or since when it is in foreign use."""
    if row.now is not None and not row.is_held and (since := row.view.foreign_since):
        return cell(age_words(row.now - since), PLAIN)
    if row.job is None or row.now is None or len(row.view.job_ids) > 1:
        return ()
    words = elapsed_words(row.job, row.now)
    return cell(words if len(words) <= room else words.partition("/")[0], PLAIN)


def _time_bar(row: GpuRow, room: int) -> Cell:
    """Return the share of its time limit that its job has used."""
    if row.job is None or row.now is None or len(row.view.job_ids) > 1:
        return ()
    share = elapsed_share(row.job, row.now)
    return () if share is None else progress_bar(share, room)


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
    "held": _held,
    "holder": lambda row, room: _holder(row, room) or (),
    "steps": _steps,
    "history": _history,
    "time": _time,
    "time_bar": _time_bar,
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
_FIGURES = frozenset({"percent", "memory", "temperature", "power", "clock", "fan"})
_READINGS = _FIGURES | {"history", "load", "memory_bar"}
