"""GPUs as cells of a table, as cards, and as lines of the nodes of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.style import Style

from gputui.domain.conditions import INTRUDER
from gputui.domain.gpu import SICK, GpuState, HealthCode, Holder, index_of
from gputui.domain.idle_gpus import idle_words
from gputui.domain.job import Job
from gputui.domain.job_spec import shown_id
from gputui.domain.text import UNKNOWN, age_words, fit, format_duration, format_size, plain, width
from gputui.tui.present.cells import (
    AMBER,
    BLUE,
    DIM,
    GPU_STYLES,
    GRAPH,
    GREEN,
    PLAIN,
    RED,
    RED_STRONG,
    SICK_ROW,
    STRONG,
    VIOLET,
    Cell,
    Span,
    cell,
    fitted,
    graph,
    joined,
    past_graph,
    span_words,
    split_at_word,
    width_of,
)
from gputui.tui.present.gpu_rows import (
    GpuNode,
    GpuRow,
    Tone,
    charted,
    elapsed_share,
    elapsed_words,
    foreign_words,
    gauge,
    history_style,
    model_in,
    most_of,
    power_limit_of,
    program_words,
    progress_bar,
    short_model,
    slowed_cell,
    tone,
    tone_of,
    tone_of_kind,
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
_UNKNOWN_STATE = cell(_STATE_WORDS[GpuState.UNKNOWN], AMBER)


def gpu_cells(row: GpuRow, key: str, room: int) -> Cell:
    if key in _FIGURES and row.view.health.code is HealthCode.LOST:
        return cell(UNKNOWN, DIM)
    shown = _CELLS[key](row, room)
    return tuple((value, DIM) for value, _ in shown) if row.is_old and key in _READINGS else shown  # the state is old


def label_of(row: GpuRow) -> str:
    return row.label or index_of(row.view)


def _state(row: GpuRow, room: int) -> Cell:
    view = row.view
    if word := _HEALTH_WORDS.get(view.health.code):
        return cell(word, RED_STRONG if word.isupper() else AMBER)
    if view.stale:
        age = row.view.age
        words = "stale" if age is None else f"{format_duration(age + row.late)} old"
        return cell(words if len(words) <= 7 else words.replace(" old", "!"), AMBER)
    if view.gpu.mig_enabled and not view.gpu.mig_parent:
        return cell("MIG", DIM)
    if view.drain is not None and view.state is not GpuState.UNKNOWN:  # who is still on it stands beside
        return cell(_STATE_WORDS[GpuState.DRAINED], GPU_STYLES[GpuState.DRAINED])
    return cell("shared" if row.beside else _STATE_WORDS[view.state], GPU_STYLES[view.state])


def _held(row: GpuRow, room: int) -> Cell:
    state = gpu_state_words(row)
    who = gpu_cells(row, "who", room - width_of(state) - 1 if state else room)
    if not who:
        return state
    if row.view.state is GpuState.FREE and row.view.drain is None:  # it is reserved, or has a harmless fault
        return who
    if state == _UNKNOWN_STATE and not row.is_held:  # the reason says it
        return cell("".join(words for words, _ in who), AMBER)
    return (*state, (" ", DIM), *who) if state else who


def gpu_state_words(row: GpuRow) -> Cell:
    if (idle := row.idle) is not None and not row.view.drain:
        return cell(idle_words(idle), AMBER)
    state = _state(row, 7)
    return () if state[0][0] == _STATE_WORDS[GpuState.ALLOCATED] else state


def sick_words(row: GpuRow, room: int, *, has_model: bool = True) -> Cell | None:
    """Return the line of a lost or sick GPU, whose readings no longer matter. None for any other."""
    health = row.view.health
    if not row.is_old or health.is_schedulable or health.code is HealthCode.UNKNOWN:
        return None
    label = f"{label_of(row):>3} " + (f"{model_in(short_model(row.view.gpu.model), 5)} " if has_model else "")
    words = "".join(value for part in holder_parts(row, room) for value in (*(word for word, _ in part), "; "))
    return cell(f"{label}{_HEALTH_WORDS[health.code]} {words.removesuffix('; ')}", SICK_ROW)


def holder_parts(row: GpuRow, room: int, *, has_holder: bool = True) -> list[Cell]:
    """Return faults, holders, intruders, drain and reservation, without words that repeat the state."""
    view, state = row.view, _state(row, 7)[0][0]
    holder = _holder(row, room) if has_holder else None
    parts = [holder]
    if view.health.code is not HealthCode.OK and view.health.text:
        usable = view.health.is_schedulable or view.health.code is HealthCode.UNKNOWN
        fault = cell(plain(view.health.reason, 200), DIM if usable else tone_of_kind(SICK).style)
        parts = [holder, fault] if usable else [fault, holder]
    if view.job_id is not None and view.foreign:
        other, more = view.foreign[0], f" +{len(view.foreign) - 1}" if len(view.foreign) > 1 else ""
        user = f" {plain(other.user, 32)}" if other.user else ""
        mark: Span = ("! ", tone_of_kind(INTRUDER).style)
        parts.append((mark, ("also ", DIM), (plain(other.name, 80), VIOLET), (user + more, DIM)))
    if view.drain is not None:
        words = f"by {plain(view.drain.by, 32)}: {plain(view.drain.reason, 100)}"
        parts.append(cell(words if state == _STATE_WORDS[GpuState.DRAINED] else f"drained {words}", DIM))
    parts.append(cell(row.kept, BLUE) if row.kept else None)
    found = [part for part in parts if part]
    is_clear = view.state in {GpuState.FREE, GpuState.FOREIGN, GpuState.ALLOCATED} and not has_holder
    if not found and view.why and not view.stale and view.state is not GpuState.FREE and not is_clear:
        found.append(cell(plain(view.why, 200), DIM))
    return found


def with_dots(parts: Sequence[Cell]) -> Cell:
    return joined(parts, (" · ", DIM))


def _holder(row: GpuRow, room: int) -> Cell | None:
    view = row.view
    if view.job_id is not None and len(view.job_ids) < 2:
        return _job(view.job_id, row.job, room)
    if view.job_ids:
        jobs = {job.id: job for job in (row.job, *row.beside) if job is not None}
        named = with_dots([_job(job_id, jobs.get(job_id)) for job_id in view.job_ids])
        numbers = cell(" ".join(f"#{shown_id(job_id)}" for job_id in view.job_ids), BLUE)
        return named if width_of(named) <= room else numbers
    if not view.holders:
        return None
    more = f" +{len(view.holders) - 1}" if len(view.holders) > 1 else ""
    return (*_foreign(view.holders[0], room - len(more)), (more, DIM))


def _job(job_id: int, job: Job | None, room: int = 200) -> Cell:
    """Return number, name and tenant; where room is short the name is cut, so that one sees whose job it is."""
    shown = f"#{job.shown_id if job else shown_id(job_id)} "
    tenant = f" {plain(job.spec.tenant, 32)}" if job and job.spec.tenant else ""
    return ((shown, BLUE), (_cut(job.name if job else "", room - width(shown + tenant)), PLAIN), (tenant, DIM))


def _cut(name: str, room: int) -> str:
    name, cells = plain(name, 80), max(4, room)
    return name if width(name) <= cells else fit(name, cells)


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


def _ink(row: GpuRow, name: str, usual: Style = PLAIN) -> Style:
    judged = tone(row, name)
    return judged.style if judged.is_loud else usual


def _memory(row: GpuRow, room: int) -> Cell:
    used, total = row.reading("memory_used"), row.memory_total
    if used is None:
        return cell(f"{UNKNOWN}/{format_size(total)}" if total else UNKNOWN, DIM)
    shown, of = format_size(used), format_size(total) if total else ""
    style = _ink(row, "memory_used", PLAIN if used > 2**30 else DIM)
    if (of and shown[-1] == of[-1]) or not used:
        shown = shown.rstrip("GM")
    judged = tone(row, "memory_used")
    is_marked = judged.is_loud and room < 8  # a wider one stands beside a label with the mark
    mark: Cell = ((judged.mark, judged.style),) if is_marked else ()
    if not of or len(shown) + len(of) + 1 + len(mark) > room:
        return (*cell(format_size(used), style), *mark)
    return ((shown, style), (f"/{of}", DIM), *mark)


def _marked(row: GpuRow, name: str, unit: str, room: int) -> Cell:
    """Return temperature or power with its unit and the mark of its judgement, as far as there is room.

    The mark matters more than the unit: `!` if it is high or a limit was set, `✗` if a fault slows the GPU down.
    """
    value = row.reading(name)
    if value is None:
        return cell(UNKNOWN, DIM)
    judged, words = tone(row, name), f"{value:.0f}"
    mark = judged.mark.strip()
    shown = next((each for each in (f"{words}{unit}{mark}", f"{words}{mark}") if len(each) <= room), words)
    return cell(shown, judged.style if judged.is_loud else DIM)


def _time(row: GpuRow, room: int, *, is_bar: bool = False) -> Cell:
    """Return for how long its job has run, with the limit if there is room, or since when it is in foreign use.

    As a bar: the share of its limit that the job has used.
    """
    if row.now is not None and not row.is_held and not is_bar and (since := row.view.foreign_since):
        return cell(age_words(row.now - since), PLAIN)
    if row.job is None or row.now is None or len(row.view.job_ids) > 1:
        return ()
    if is_bar:
        share = elapsed_share(row.job, row.now)
        return () if share is None else progress_bar(share, room)
    words = elapsed_words(row.job, row.now)
    return cell(words if len(words) <= room else words.partition("/")[0], PLAIN)


def _figure_in(row: GpuRow, name: str, form: str) -> Cell:
    """Return a reading in that format; the load dim while it is low, in its alarm's colour if it has one."""
    value = row.reading(name)
    if value is None:
        return cell(UNKNOWN, DIM)
    style = _ink(row, name, PLAIN if value >= 0.05 else DIM) if name == "utilization" else DIM
    return cell(form.format(value), style)


def _model(row: GpuRow, room: int) -> Cell:
    profile = plain(row.view.gpu.mig_profile or "", 16)
    if not profile:
        return cell(model_in(short_model(row.view.gpu.model), room), PLAIN)
    return cell(profile if len(profile) <= room else profile.removesuffix("gb"), PLAIN)


_CELLS: dict[str, Callable[[GpuRow, int], Cell]] = {
    "index": lambda row, room: cell(label_of(row), DIM),
    "model": _model,
    "uuid": lambda row, room: cell(plain(row.view.gpu.known_uuid, 12), DIM),
    "state": _state,
    "who": lambda row, room: with_dots(
        [part for part in (*holder_parts(row, room), slowed_cell(row.view.current)) if part]
    ),
    "holders": lambda row, room: with_dots(holder_parts(row, room)),
    "held": _held,
    "holder": lambda row, room: _holder(row, room) or (),
    "steps": lambda row, room: cell(graph(row.past.values("utilization"), room), GRAPH),
    "history": lambda row, room: cell(
        past_graph(row.past, charted(row), most_of(row, charted(row)), (room, 1), row.look.seconds)[0],
        history_style(row, charted(row)),
    ),
    "time": _time,
    "time_bar": lambda row, room: _time(row, room, is_bar=True),
    "load": lambda row, room: gauge(row, "utilization", room),
    "percent": lambda row, room: _figure_in(row, "utilization", "{:.0%}"),
    "memory_bar": lambda row, room: gauge(row, "memory_used", room),
    "memory": _memory,
    "temperature": lambda row, room: _marked(row, "temperature", "°", room),
    "power": lambda row, room: _marked(row, "power", "W", room),
    "power_limit": lambda row, room: cell(UNKNOWN if (value := power_limit_of(row)) is None else f"{value:.0f}W", DIM),
    "clock": lambda row, room: _figure_in(row, "sm_clock", "{}MHz"),
    "fan": lambda row, room: _figure_in(row, "fan", "{:.0%}"),
}
_FIGURES = frozenset({"percent", "memory", "temperature", "power", "clock", "fan"})
_READINGS = _FIGURES | {"history", "load", "memory_bar"}
_LABEL = 4
"""Cells of a label with its mark."""
_FIGURE = 9
"""Cells of a figure, with the gap before it."""
_SECOND_FROM = 6
"""Lines of history from which memory gets some of them too."""
_ALL_FROM = 12
"""Lines of history from which power and temperature get some too: they show more than flat lines on an idle GPU."""
_SPAN = 4
"""Cells of the span beside a graph, such as `96s `."""
METERS = (("utilization", "UTL"), ("memory_used", "MEM"), ("power", "PWR"), ("temperature", "TMP"))


def card_lines(row: GpuRow, room: int, height: int, unread: frozenset[str] = frozenset()) -> tuple[Cell, ...]:
    """Return the lines of the card from the top, each exactly `room` cells wide; `unread` readings have no line.

    Bars have the same height in all cards. Notes and the elapsed time are at the bottom, history in between; of a GPU
    without a reading why there is none, and the history until then.
    """
    below = height - 1
    lines: list[Cell] = [_title(row, room)]
    if row.is_old:
        rest = with_dots(holder_parts(row, room, has_holder=False))
        while rest and len(lines) < max(2, below):
            line, rest = split_at_word(rest, room)
            lines.append(line)
        view = row.view
        age = view.age + row.late if view.sample is not None and view.age is not None and view.stale else None
        lines.append(cell("no reading" if age is None else f"not read for {format_duration(age)}", DIM))
        lines += _graphs(row, room, height - len(lines))
    else:
        wide = max(1, room - _LABEL - _FIGURE)
        for name, label in [(name, label) for name, label in METERS if name not in unread][:below]:
            judged = tone(row, name)
            head: Span = (label + judged.mark, judged.style if judged.is_loud else DIM)
            figure = fitted(_figure(row, name, judged), _FIGURE, right=True)
            lines.append((head, *gauge(row, name, wide), *figure))
        foot = _foot(row, room, height - len(lines))
        lines += [*_graphs(row, room, height - len(lines) - len(foot)), *foot]
    blank: Cell = ()
    return tuple(tuple(fitted(line, room)) for line in [*lines, *[blank] * height][:height])


def _title(row: GpuRow, room: int) -> Cell:
    state = gpu_state_words(row)
    label = f"{label_of(row)} "
    left = room - len(label) - width_of(state) - (1 if state else 0)
    holders = gpu_cells(row, "holder", left) if row.is_held or row.view.state is GpuState.FOREIGN else ()
    gpu = row.view.gpu
    model = plain(gpu.mig_profile, 16) if gpu.mig_profile else short_model(gpu.model)
    named = model_in(model, max(4, left - width_of(holders) - 2)) if holders else model
    if holders and len(named) + 2 + width_of(holders) > left:
        named = ""
    middle = ((f"{named}  " if named and holders else named, DIM), *holders)
    title: Cell = ((label, STRONG), *fitted(middle, left), *(((" ", DIM), *state) if state else ()))
    if row.view.health.is_schedulable or row.view.health.code is HealthCode.UNKNOWN:
        return title
    return cell("".join(words for words, _ in title), SICK_ROW)


def _figure(row: GpuRow, name: str, judged: Tone) -> Cell:
    """Return `97%`, `62/80G`, `644/700W` or `70°C`; without the limit if room is short."""
    value = row.reading(name)
    if value is None:
        return cell(UNKNOWN, DIM)
    ink = judged.style if judged.is_loud else PLAIN
    if name == "utilization":
        return cell(f"{value * 100:.0f}%", ink if value >= 0.05 or judged.is_loud else DIM)
    if name == "memory_used":
        return gpu_cells(row, "memory", _FIGURE - 1)
    if name == "temperature":
        return cell(f"{value:.0f}°C", ink)
    limit = power_limit_of(row)
    of = f"/{limit:.0f}W" if limit else "W"
    return ((f"{value:.0f}", ink), (of, DIM)) if len(f"{value:.0f}{of}") < _FIGURE else cell(f"{value:.0f}W", ink)


def _graphs(row: GpuRow, room: int, lines: int) -> list[Cell]:
    if lines <= 0:
        return []
    if lines >= _ALL_FROM and charted(row) == "utilization":
        each = lines // len(METERS)
        rows = {name: each for name, _ in METERS} | {"utilization": lines - each * (len(METERS) - 1)}
        return [line for name, height in rows.items() for line in _graph(row, name, room, height)]
    memory = lines // 3 if lines >= _SECOND_FROM and charted(row) == "utilization" else 0
    shown = _graph(row, charted(row), room, lines - memory)
    return [*shown, *(_graph(row, "memory_used", room, memory) if memory else [])]


def _graph(row: GpuRow, name: str, room: int, height: int) -> list[Cell]:
    style = history_style(row, name)
    label = "" if height == 1 else f"{dict(METERS)[name]} "
    label += f"{span_words(room - len(label) - _SPAN, row.look.seconds)} "
    lines = past_graph(row.past, name, most_of(row, name), (max(1, room - len(label)), height), row.look.seconds)
    return [((label if number == 0 else " " * len(label), DIM), (line, style)) for number, line in enumerate(lines)]


def _foot(row: GpuRow, room: int, most: int) -> list[Cell]:
    """Return the notes and the elapsed time of the job; only the more important of them if history has no other line.

    A slowed GPU is marked at its bar too, so the elapsed time is more important than that note.
    """
    notes = [part for part in (slowed_cell(row.view.current), *holder_parts(row, room, has_holder=False)) if part]
    while len(notes) > 1 and width_of(with_dots(notes)) > room:
        notes.pop()  # rather than only its first letters
    if row.view.state is GpuState.FOREIGN and not row.is_held and most > 1:
        return [*([with_dots(notes)] if notes else []), *_users(row, room, most - bool(notes) - 1)]
    progress = _progress(row, room)
    lines = [line for line in (with_dots(notes), progress) if line]
    if len(lines) < max(2, most):
        return lines[:most]
    is_slowed_only = len(notes) == 1 and row.view.current is not None and bool(row.view.current.slowed)
    return ([progress] if is_slowed_only else lines[:1]) if most else []


def _users(row: GpuRow, room: int, most: int) -> list[Cell]:
    view, now = row.view, row.now
    listed = (view.sample.processes or ()) if view.sample else ()
    if not listed:
        return [cell(foreign_words(view, holder, now), DIM) for holder in view.holders][:most]
    lines: list[Cell] = []
    for each in sorted(listed, key=lambda each: -(each.memory or 0)):
        memory = "" if each.memory is None else f"{format_size(each.memory)} "
        age = f"for {age_words(now - each.started_at)} " if now and each.started_at else ""
        command = plain(program_words(each.command or ""), 200)
        facts: Cell = ((f"{memory}{age}", PLAIN), (f"pid {each.pid}", DIM))
        if len(listed) == 1:
            image = next((f"  {plain(holder.image, 100)}" for holder in view.holders if holder.image), "")
            is_shown = command in "".join(words for words, _ in _title(row, room))
            return [(*facts, (image, DIM)), *([] if is_shown else [cell(command, VIOLET)])][:most]
        lines.append(((f"{plain(each.user or '?', 16)} ", PLAIN), *facts, (" ", DIM), (command, VIOLET)))
    left = len(lines) - most
    return [*lines[: most - 1], ((f"+{left} ", DIM), *lines[most - 1])] if left > 0 < most else lines[:most]


def _progress(row: GpuRow, room: int) -> Cell:
    if row.job is None or row.now is None or len(row.view.job_ids) > 1:
        return ()
    share, words = elapsed_share(row.job, row.now), elapsed_words(row.job, row.now)
    if share is None:
        return (("RUN ", DIM), (words, PLAIN), ("" if words == "starting" else " without a limit", DIM))
    figure = words if room > _LABEL + len(words) + _FIGURE else words.partition("/")[0]
    wide = max(1, room - _LABEL - max(_FIGURE, len(figure) + 1))
    return (("RUN ", DIM), *progress_bar(share, wide), *fitted(cell(figure), room - _LABEL - wide, right=True))


def compact_line(row: GpuRow, room: int) -> Cell:
    meter, is_full = max(4, min(12, room // 6)), room >= LINE_FULL - 2
    if (sick := sick_words(row, room)) is not None:
        return tuple(fitted(sick, room))
    label: Span = (label_of(row).rjust(3) + " ", DIM)
    if row.is_old:
        return tuple(fitted((label, *gpu_cells(row, "held", room - width_of([label]))), room))
    used = row.reading("memory_used")
    parts: list[Span] = [label, *fitted(gauge(row, "utilization", meter), meter)]
    parts += fitted(gpu_cells(row, "percent", 4), 5, right=True)
    memory = tone(row, "memory_used")
    ink = memory.style if memory.is_loud else PLAIN if used else DIM
    parts += fitted(cell(UNKNOWN if used is None else format_size(used), ink), 5, right=True)
    if is_full:
        parts += fitted(gpu_cells(row, "temperature", 4), 5, right=True)
        parts += fitted(gpu_cells(row, "power", 5), 6, right=True)
    held = gpu_cells(row, "held", room - width_of(parts) - 1)
    return tuple(fitted((*parts, (" ", DIM), *held), room))


def compact_title(room: int) -> Cell:
    meter = max(4, min(12, room // 6))
    more = f"{'TEMP'.rjust(5)}{'PWR'.rjust(6)}" if room >= LINE_FULL - 2 else ""
    return tuple(fitted(cell(f"GPU {'UTIL'.ljust(meter + 5)}{'MEM'.rjust(5)}{more} HELD BY", DIM), room))


_LEVELS = "▁▂▃▄▅▆▇█"
_MARKS = {
    GpuState.FREE: ("·", DIM),
    GpuState.ALLOCATED: ("■", GREEN),
    GpuState.FOREIGN: ("▣", VIOLET),
    GpuState.DRAINED: ("–", DIM),
    GpuState.UNKNOWN: ("?", AMBER),
}


def _node_widths(nodes: Sequence[GpuNode]) -> tuple[int, int]:
    """Return the cells of names and of the heat of GPUs, as wide as the widest, so that nodes align."""
    names, counts = [len(node.name) for node in nodes], [len(node.rows) for node in nodes]
    return min(20, max(names, default=4)), max(4, *counts)


def node_titles(nodes: Sequence[GpuNode], style: Style) -> Cell:
    name, heat = _node_widths(nodes)
    return ((f"  {'NODE':<{name}}  {'GPUS':<{heat}}  {'FREE':>7}  {'UTIL':>4}  {'MODEL':<9} JOBS", style),)


def node_line(node: GpuNode, nodes: Sequence[GpuNode], *, is_open: bool) -> Cell:
    name, heat = _node_widths(nodes)
    count = len(node.rows)
    load = f"{node.load:.0%}" if node.load is not None else "–"
    models = {short_model(row.view.gpu.model) for row in node.rows}
    model = model_in(models.pop(), 9) if len(models) == 1 else "mixed" if models else "–"
    spans: list[Span] = [("▾ " if is_open else "▸ ", DIM), (f"{fit(plain(node.name), name):<{name}}  ", STRONG)]
    spans += [*map(_heat_of, node.rows), (" " * (heat - count + 2), DIM)]
    spans.append((f"{node.free:>3}/{count:<3}", PLAIN if node.free else DIM))
    spans.append((f"  {load:>4}  {model[:9]:<9} ", DIM))
    if node.late is not None:
        spans.append((f"{format_duration(node.late)} old  ", AMBER))
    counts = Counter(job_id for row in node.rows for job_id in row.view.job_ids)
    jobs = {row.job.id: row.job for row in node.rows if row.job is not None}
    parts: list[Cell] = []
    for job_id, gpus in counts.items():
        job = jobs.get(job_id)
        words = f" {plain(job.name, 40)} {plain(job.spec.tenant, 20)}" if job else " "
        shown = f"#{job.shown_id if job else job_id}"
        parts.append(((shown, BLUE), (f"×{gpus}{words}" if gpus > 1 else words, PLAIN)))
    if not parts:  # of a node whose engine does not tell which GPUs are used
        whys = (row.view.why for row in node.rows if row.view.state is GpuState.ALLOCATED and row.view.why)
        parts = [cell(" · ".join(plain(why, 200) for why in dict.fromkeys(whys)), PLAIN)]
    spans += () if is_open else with_dots(parts)
    if (drain := next((row.view.drain for row in node.rows if row.view.drain), None)) is not None:
        spans.append((f"  drained by {plain(drain.by, 20)}: {plain(drain.reason, 60)}", DIM))
    is_told = node.is_unread and (is_open or any(not each.is_unread for each in nodes))
    if node.probe.text and (node.late is not None or is_told):
        spans.append((f"  {plain(node.probe.text, 100)}", DIM))
    return tuple(spans)


def _heat_of(row: GpuRow) -> Span:
    """Return a character for a GPU: a bar as high as its load, or a mark of its state if it is not read."""
    view = row.view
    if view.health.code is HealthCode.LOST or not view.health.is_schedulable:
        return "✗", RED
    if view.stale and view.sample is not None:
        return _MARKS[view.state][0], DIM
    load = row.reading("utilization")
    if load is None or view.state in {GpuState.FREE, GpuState.DRAINED, GpuState.UNKNOWN}:
        return _MARKS[view.state]
    style = VIOLET if view.state is GpuState.FOREIGN else tone_of(row, "utilization", load).style
    return _LEVELS[min(len(_LEVELS) - 1, int(load * len(_LEVELS)))], style


LINE_FULL = 58
"""Cells from which temperature, power and throttling are shown too."""
