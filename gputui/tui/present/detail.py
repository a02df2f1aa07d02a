"""All facts about a job, as lines of a label and a cell; its telemetry, and its standing in the queue."""

from __future__ import annotations

import platform
import shlex
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from msgspec import Struct

from gputui.domain.arrays import elements_in_history
from gputui.domain.cluster import ENGINES
from gputui.domain.conditions import slowed_kind
from gputui.domain.gpu_history import STEP
from gputui.domain.job import Attempt, Job, element_spec
from gputui.domain.job_spec import JobId, shown_id
from gputui.domain.policy.planning_context import DurationSource, Planned
from gputui.domain.queue_columns import elapsed, gpus_wanted
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.telemetry import AttemptTelemetry, Spread
from gputui.domain.telemetry_series import Measured, Series, summary_lines
from gputui.domain.text import fit, format_duration, format_limit, format_size, plain, width
from gputui.request.job_options import DOCKER_KEYS, RARER
from gputui.tui.present.cells import (
    AMBER,
    BLUE,
    DIM,
    GRAPH,
    JOB_STYLES,
    PLAIN,
    RED,
    STRONG,
    Cell,
    Span,
    bar,
    cell,
    clock,
    fitted,
    graph,
    in_full,
    joined,
    load_style,
    second,
    width_of,
)
from gputui.tui.present.gpu import gpu_cells, label_of
from gputui.tui.present.gpu_rows import GpuPicture, GpuRow, slowed_cell, tone_of_kind
from gputui.tui.present.job import JobContext, gpu_list, job_title, state_words, why

if TYPE_CHECKING:
    from gputui.domain.policy.whatif import Explanation


class ExplanationState(Struct, frozen=True):
    explanation: Explanation | None = None
    """Explanation of the wait; None while it is being computed."""
    failure: str = ""
    is_compact: bool = False
    """True if there are few rows, so that the score takes one line."""


def score_lines(job: Job, explained: ExplanationState) -> list[Line]:
    found = explained.explanation
    if found is None:
        return [("score", _pending(explained))]
    first: Span = (" · at the head of the queue by hand, before any score" if job.topped_at else "", AMBER)
    total: Span = (f"{found.terms.total:.3f}", PLAIN)
    place: Span = (f" · number {found.position} of {found.waiting} waiting", DIM)
    from gputui.domain.policy.whatif import describe_terms

    terms = describe_terms(job, found)
    if explained.is_compact:
        expansion, age = (f"{term.name} {term.points:.3f}" for term in terms[1:])  # the level is not part of the sum
        return [("score", (total, (" = ", DIM), (expansion, PLAIN), (" + ", DIM), (age, PLAIN), place, first))]
    lines: list[Line] = [("score", (total, place, first))]
    for term in terms:
        points: Span = (f"{term.points:8.3f}", PLAIN)
        lines.append((f"  {term.name}", (points, (f"  {plain(term.of, 120)}", DIM))))
    return lines


def _pending(explained: ExplanationState) -> Cell:
    if explained.failure:
        return cell(f"not known: {plain(explained.failure, 200)}", RED)
    return cell("being computed …", DIM)


Line = tuple[str, Cell]
MASK = "••••••"


class Live(Struct, frozen=True):
    gpus: Sequence[Line] = ()
    planned: Planned | None = None


def job_lines(
    job: Job,
    context: JobContext,
    explained: ExplanationState | None = None,
    live: Live | None = None,
    telemetry: Sequence[Line] = (),
    wait: Sequence[Line] = (),
) -> tuple[Line, ...]:
    """Return the lines of a job, its state first; `explained` for a waiting job, `live` for a running one.

    `wait` has what the engine of a cluster tells of a waiting job, in place of `explained`. A port is shown with the
    command that forwards it to another machine.
    """
    live, attempt = live or Live(), job.attempt
    lines = [("comment", cell(plain(job.spec.comment, 600)))] if job.spec.comment else []
    lines += _state(job, context, live)
    for port in attempt.ports if attempt is not None and not attempt.is_over else ():
        ssh = port.ssh(plain(platform.node(), 80))
        lines.append(("port", ((plain(str(port), 80), PLAIN), (f"   {ssh}" if ssh else "", DIM))))
    lines += [*live.gpus, *_times(job, context, explained, live, wait), *telemetry]
    lines += [("" if i else "attempts", _attempt(each, context)) for i, each in enumerate(reversed(job.attempts))]
    return (*lines, *_asked(job), *_options(job))


def engine_wait_lines(job: Job, snapshot: Snapshot) -> list[Line]:
    if job.state is not JobState.PENDING:
        return []
    engine = ENGINES.get(snapshot.leader.kind if snapshot.leader else "", "the engine")
    entry = snapshot.entry(job.id) or job
    lines: list[Line] = []
    if entry.id not in snapshot.expected_starts and job.id not in snapshot.expected_starts:
        lines.append(("starts", cell(f"{engine} expects no start yet", DIM)))
    if entry.id in snapshot.order:
        place = f"number {snapshot.order.index(entry.id) + 1} of {len(snapshot.order)} waiting"
        lines.append(("place", ((place, PLAIN), (f", in the order of {engine}", DIM))))
    return lines


def array_lines(job: Job, snapshot: Snapshot) -> list[Line]:
    array = job.array
    if array is None:
        return []
    states: Counter[str] = Counter()
    known = [each for each in snapshot.jobs if each.array is not None and each.array.id == array.id]
    for each in known:
        states[state_words(each)] += each.count
    states["in history"] += elements_in_history(known)
    which = f"{job.count} elements of" if job.runs else f"element {array.index} of"
    limit = f", at most {array.limit} at a time" if array.limit else ""
    counts = ", ".join(f"{count:,} {state}" for state, count in states.items() if count)
    return [("array", ((f"{which} array {shown_id(array.id)}{limit}", PLAIN), (f" · {counts} in all", DIM)))]


def _state(job: Job, context: JobContext, live: Live) -> list[Line]:
    requests = ["held"] if job.held else []
    by = f" by {plain(job.suspended_by, 32)}" if job.suspended_by else ""
    requests += [f"suspended{by}"] if job.suspended and job.state.is_active else []
    requests += ["cancel requested"] if job.cancel_requested and not job.state.is_terminal else []
    requests += ["requeue requested"] if job.requeue_requested else []
    requests += [f"not before {second(job.not_before, context.now)}"] if job.not_before else []
    also = "".join(f"  {request}" for request in requests)
    lines: list[Line] = [("state", ((str(job.state), JOB_STYLES[job.state]), (also, AMBER)))]
    here, reason = why(job, context), context.reasons.get(job.id)
    is_told = bool(live.gpus) and "".join(value for value, _ in here) == gpu_list(job, context.gpu_names)
    if any(value for value, _ in here) and not is_told:
        label = "where" if job.state.is_active else "why"
        code = f"{reason.code}: " if reason and not (job.held or reason.names_code) else ""
        lines.append((label, ((code, DIM), *here)))
    return lines


def _times(
    job: Job, context: JobContext, explained: ExplanationState | None, live: Live, wait: Sequence[Line]
) -> list[Line]:
    lines: list[Line] = []
    found = explained.explanation if explained else None
    if expected := context.expected_starts.get(job.id) or (found.expected_start_at if found else None):
        lines.append(("starts", cell(f"about {_moment(expected, context.now)}")))
    if explained:
        lines.append(("how sure", cell(plain(found.certainty, 400)) if found else _pending(explained)))
    lines.append(("priority", cell(_priority_words(job, context.now))))
    lines += score_lines(job, explained) if explained else wait
    by = f" by {plain(job.submitted_by, 32)}" if job.submitted_by else ""
    by += f", a run of recurring job {job.recurring}" if job.recurring else ""
    lines.append(("submitted", cell(f"{_moment(job.submitted_at, context.now)}{by}")))
    if job.started_at:
        lines.append(("started", cell(_moment(job.started_at, context.now))))
    if job.ended_at:
        lines.append(("ended", cell(_moment(job.ended_at, context.now))))
    if (ran := elapsed(job, context.now)) is not None:
        limit = f" of {format_limit(job.spec.time_limit)}" if job.spec.time_limit else ""
        lines.append(("time", cell(format_duration(ran) + limit)))
    if job.limit_at is not None:
        words = f"{_moment(job.limit_at, context.now)} by its time limit"
        if job.warning_at is not None:
            at = job.attempts[-1].warned_at
            words += (
                f", warned {second(at, context.now)}" if at else f", to be warned {second(job.warning_at, context.now)}"
            )
        lines.append(("ends", cell(words)))
    if live.planned is not None and job.started_at is not None and live.planned.source is not DurationSource.LIMIT:
        end = job.started_at + timedelta(seconds=live.planned.seconds)
        lines.append(("planned", cell(f"{_moment(end, context.now)} {live.planned.source.value}", DIM)))
    if job.avoid_gpus:
        avoided = ", ".join(context.gpu_names.get(uuid, plain(uuid, 12)) for uuid in job.avoid_gpus)
        lines.append(("avoids", cell(f"GPU {avoided}: it failed there", AMBER)))
    return lines


def _priority_words(job: Job, now: datetime) -> str:
    words = str(job.priority)
    if job.priority != job.spec.priority:
        words += f" (submitted with {job.spec.priority})"
    words += f", put on top {second(job.topped_at, now)}" if job.topped_at else ""
    words += f", placed beside job {job.placed.past}" if job.placed else ""
    return words + (f", by {plain(job.ranked_by, 32)}" if job.ranked_by else "")


def _moment(at: datetime, now: datetime) -> str:
    ago = f"{format_duration(now - at)} ago" if at <= now else f"in {format_duration(at - now)}"
    return f"{in_full(at)} ({ago})"


def _attempt(attempt: Attempt, context: JobContext) -> Cell:
    began = attempt.started_at or attempt.claimed_at
    ran = attempt.ended_at - began if attempt.ended_at and began else None
    cause = plain(attempt.end_words, 300)
    listed = [context.gpu_names[uuid] for uuid in attempt.gpus if uuid in context.gpu_names]
    gpus = [f"GPU {','.join(listed)}"] if listed else []
    gpus += [plain(uuid, 12) for uuid in attempt.gpus if uuid not in context.gpu_names]
    parts = [", ".join(gpus) or "no GPU"]
    parts += [f"from {second(began, context.now)}"] if began else []
    parts += [f"ran {format_duration(ran)}"] if ran is not None else []
    exit_code = "" if attempt.exit_code is None else f"exit code {attempt.exit_code}"
    parts += [exit_code] if exit_code and exit_code != cause else []
    parts += ["free of charge"] if attempt.is_over and not attempt.charged else []
    parts += [plain(attempt.container_id, 20)] if attempt.container_id else []
    notes = "; ".join(plain(note, 200) for note in attempt.notes)
    used = attempt.efficiency.long if attempt.efficiency else ""
    return (
        (f"{attempt.number}  ", BLUE),
        (" · ".join(parts), PLAIN),
        (f" · {cause}" if cause else "", RED),
        (f" · {used}" if used else "", PLAIN),
        (f" · {notes}" if notes else "", AMBER),
    )


def _asked(job: Job) -> list[Line]:
    spec = element_spec(job)
    request = spec.gpus
    wants = gpus_wanted(request)
    if request.devices:
        wants = ", ".join(plain(device, 50) for device in request.devices)
    wants += f" with {format_size(request.memory)} each" if request.memory else ""
    wants += ", shared with others" if request.share else ""
    wants += f" of model {plain(request.model, 40)}" if request.model else ""
    wants += f", driver capabilities {', '.join(request.capabilities)}" if request.capabilities else ""
    limits = format_limit(spec.time_limit) if spec.time_limit else "no time limit"
    if spec.retries:
        used = max(0, min(spec.retries, job.charged_attempts - job.state.is_terminal))
        limits += f", {spec.retries} {'retry' if spec.retries == 1 else 'retries'} ({used} used)"
        limits += f", backoff {format_limit(spec.backoff)}"
    else:
        limits += ", no retries"
    limits += f", only on {', '.join(spec.retry_on)}" if spec.retry_on else ""
    limits += ", preemptible" if spec.preemptible else ""
    lines: list[Line] = [
        ("image", cell(plain(job.image_words, 200), PLAIN if spec.image is not None else DIM)),
        ("command", cell(shlex.join(plain(word, 400) for word in spec.command))),
        ("tenant", cell(plain(spec.tenant, 80))),
        ("GPUs", cell(wants)),
        ("limits", cell(limits)),
    ]
    if spec.after or spec.after_any:
        after = [f"#{shown_id(job_id)} succeeds" for job_id in spec.after]
        after += [f"#{shown_id(job_id)} ends" for job_id in spec.after_any]
        lines.append(("after", cell(", ".join(after))))
    return lines


def _options(job: Job) -> list[Line]:
    """Return the container options; values of the environment are masked."""
    options = job.spec.options
    lines: list[Line] = [
        ("" if i else "env", ((f"{plain(key, 80)}=", PLAIN), (MASK, DIM))) for i, (key, _) in enumerate(options.env)
    ]
    lines += [("" if i else "volumes", cell(plain(volume, 300))) for i, volume in enumerate(options.volumes)]
    lines += [("" if i else "mounts", cell(plain(mount, 300))) for i, mount in enumerate(options.mounts)]
    lines += [(f"label {plain(key, 40)}", cell(plain(value, 200))) for key, value in options.labels]
    for name in ("workdir", "user", "entrypoint", "ipc", "network", "runtime"):
        if value := getattr(options, name):
            lines.append((name, cell(plain(value, 200))))
    for name in ("memory", "shm_size"):
        if size := getattr(options, name):
            lines.append((name, cell(format_size(size))))
    if options.cpus:
        lines.append(("cpus", cell(f"{options.cpus:g}")))
    for key in DOCKER_KEYS:
        if key.name in RARER and (text := key.written(getattr(options, key.field))):
            lines.append((key.name.replace("_", " "), cell(plain(text, 300))))
    return lines


_BAR = 10
_FIGURES = (("load", _BAR, 46), ("percent", 4, 0), ("memory", 9, 0), ("temperature", 4, 0), ("power", 5, 34))
"""Figures with their cells, and the width from which each is shown."""
_LIMIT_FROM, _LIMIT = 54, 9
"""Width from which the limit of the power is shown too, and its cells."""
_LEAST_STEPS, _MOST_STEPS = 12, 60
"""Minimum and maximum number of steps of a graph, one per cell."""
_FEW = 2
"""Number of GPUs that have a line each even on a compact page."""
_GAP: Span = ("  ", DIM)


def gpu_rows_of(job: Job, picture: GpuPicture) -> list[GpuRow]:
    return [picture.rows[uuid] for uuid in job.gpus if uuid in picture.rows]


def job_gpu_lines(
    job: Job, picture: GpuPicture, room: int, *, is_compact: bool = False, has_graphs: bool = True
) -> list[Line]:
    """Return a line with a graph of its load for each GPU that it holds; one for all if there are few lines."""
    mine = gpu_rows_of(job, picture)
    gone = [uuid for uuid in job.gpus if uuid not in picture.rows] if picture.rows else []
    has_graphs = has_graphs and "history" not in picture.left_out
    since = job.attempt.started_at if job.attempt else None
    one_each = [_one(row, room, since, has_graphs=has_graphs) for row in mine]
    lines = [_all_of_them(mine)] if is_compact and len(mine) > _FEW else one_each
    return lines + [("GPU gone", cell(f"{plain(uuid, 48)} is no longer listed", RED)) for uuid in gone]


def _one(row: GpuRow, room: int, since: datetime | None, *, has_graphs: bool) -> Line:
    parts = [tuple(fitted(gpu_cells(row, key, cells), cells)) for key, cells, least in _FIGURES if room >= least]
    view = row.view
    wrong = [gpu_cells(row, "state", 7)] if view.stale or not view.health.is_schedulable else []
    wrong += [slowed] if (slowed := slowed_cell(view.current, 60)) else []
    if room >= max(_LIMIT_FROM, width_of(joined([*parts, *wrong], _GAP)) + _LIMIT):
        parts[-1] = (
            *fitted(gpu_cells(row, "power", 5), 5, right=True),
            (" of ", DIM),
            *fitted(gpu_cells(row, "power_limit", 5), 5),
        )
    line = joined([*parts, *wrong], _GAP)
    line = tuple(fitted(line, min(room, width_of(line))))
    steps = min(_MOST_STEPS, room - width_of(line) - len("   in 10m00s"))
    held = 0 if since is None or row.now is None else min(len(row.past.steps), (row.now - since) // STEP)
    if has_graphs and steps >= _LEAST_STEPS and (known := min(steps, held)) > 0:
        drawn = ((words, GRAPH) for words, _ in gpu_cells(row, "steps", known))
        line += (_GAP, *drawn, (f" in {format_duration(known * STEP)}", DIM))
    return f"GPU {label_of(row)}", line


def _all_of_them(rows: Sequence[GpuRow]) -> Line:
    """Return `━━━━━━────  62% on average  304G  4100W  hottest 61°`."""
    samples = [row.view.current for row in rows if row.view.current is not None]
    loads = [sample.utilization for sample in samples if sample.utilization is not None]
    used = [sample.memory_used for sample in samples if sample.memory_used is not None]
    powers = [sample.power for sample in samples if sample.power is not None]
    heats = [sample.temperature for sample in samples if sample.temperature is not None]
    load = sum(loads) / len(loads) if loads else None
    parts = [bar(load, _BAR, load_style(load))]
    parts += [cell(f"{load * 100:.0f}% on average")] if load is not None else []
    parts += [cell(format_size(sum(used)))] if used else []
    parts += [cell(f"{sum(powers):.0f}W", DIM)] if powers else []
    parts += [(("hottest ", DIM), (f"{max(heats):.0f}°", PLAIN))] if heats else []
    parts += [cell(f"{len(rows) - len(samples)} not read", AMBER)] if len(samples) < len(rows) else []
    slowed, is_fault = sum(bool(each.slowed) for each in samples), any(each.has_slowing_fault for each in samples)
    parts += [cell(f"{slowed} slowed", tone_of_kind(slowed_kind(is_fault=is_fault)).style)] if slowed else []
    return f"{len(rows)} GPUs", joined(parts, _GAP)


LEAST = 3
"""Lines from which it is shown."""
_TITLE, _TENANT, _GPUS, _WHEN = 24, 9, 9, 12


def standing_lines(
    job: Job, snapshot: Snapshot, context: JobContext, explained: ExplanationState, most: int
) -> Sequence[Line]:
    found = explained.explanation
    if most < LEAST or (found is None and not snapshot.engine_decides):  # an engine tells only its order
        return ()
    awaited = [each for each in found.waits_for if each != job.id] if found is not None else []
    order = snapshot.order
    place = order.index(job.id) if job.id in order else None
    others = 0 if place is None else min(len(order), most // 2)
    awaited = awaited[: max(1, most - 1 - others)]
    rest = most - 1 - len(awaited)
    near: Sequence[JobId] = ()
    if place is not None and rest >= LEAST:  # most of them are before it
        first = max(0, min(place - (rest - 1) * 3 // 4, len(order) - (rest - 1)))
        near = order[first : first + rest - 1]
    wanted = frozenset((*awaited, *near))
    jobs = {each.id: each for each in snapshot.jobs if each.id in wanted}
    running = sorted(
        (jobs[each] for each in awaited if each in jobs),
        key=lambda each: (each.limit_at is None, each.limit_at or snapshot.taken_at, each.id),
    )
    lines: list[Line] = [("", ())]
    lines += [("" if n else "waits for", _running(each, context)) for n, each in enumerate(running)]
    lines += [("", ())] if near else []
    lines += [
        ("" if n else "queue", _waiting(jobs[each], job, order.index(each) + 1, context))
        for n, each in enumerate(each for each in near if each in jobs)
    ]
    return lines if len(lines) > 1 else ()


def _head(job: Job, gpus: str, lead: tuple[Span, ...] = ()) -> Cell:
    number, space, name = fit(job_title(job), _TITLE).partition(" ")
    shown = ((number, BLUE), (space + name, PLAIN))
    return (*lead, *shown, (f" {fit(plain(job.spec.tenant, 40), _TENANT)} ", DIM), (fit(gpus, _GPUS) + " ", PLAIN))


def _running(job: Job, context: JobContext) -> Cell:
    """Return `#101 llama  alice  GPU 0,1  until 17:46 (in 5h46m), by its limit`."""
    head = _head(job, gpu_list(job, context.gpu_names))
    if job.limit_at is None:
        return (*head, ("no time limit", AMBER))
    left = f" (in {format_duration(job.limit_at - context.now)})" if job.limit_at > context.now else ""
    return (*head, (f"until {clock(job.limit_at, context.now)}{left}", PLAIN), (" by its limit", DIM))


def _waiting(job: Job, subject: Job, place: int, context: JobContext) -> Cell:
    """Return `▸ 3 #107 whisper  carol  2-4 GPUs  ~12:38  job 106 is before it`."""
    is_it = job.id == subject.id
    mark: Span = (f"{'▸' if is_it else ' '}{place:>3} ", STRONG if is_it else DIM)
    start = context.expected_starts.get(job.id)
    when = cell(fit(f"~{clock(start, context.now)}" if start else "", _WHEN) + " ", PLAIN)
    words = gpus_wanted(job.spec.gpus)
    wanted = "no GPU" if words == "-" else f"{words} GPU{'' if words == '1' else 's'}"
    return (*_head(job, wanted, (mark,)), *when, *why(job, context))


_READINGS = {
    "GPU use": "utilization",
    "SMs": "sm_activity",
    "bandwidth": "memory_activity",
    "GPU mem": "gpu_memory",
    "power": "power",
    "heat": "temperature",
    "slowed": "throttled",
    "CPU": "cpus",
    "memory": "memory",
}
"""Reading that is drawn beside each line of the summary."""
_TOPS = {
    **dict.fromkeys(("utilization", "sm_activity", "memory_activity", "throttled"), 1.0),
    "temperature": 100.0,
}
"""Tops of graphs, of shares and in degrees Celsius; of others the peak, if it is known."""
_LEAST, _MOST = 16, 96
_SPACE = 2


def telemetry_lines(
    attempt: Attempt, measured: Measured, room: int, *, has_graphs: bool = True, is_tall: bool = False
) -> list[tuple[str, Cell]]:
    """Return labels and cells of at most `room` cells, or text to be wrapped; empty if nothing is known.

    Graphs are beside the text; if there is no room for that, above it on a tall page.
    """
    summary, series = measured.summary, measured.series
    if summary is None:
        return []
    rows = list(summary_lines(summary))
    cells = min(_MOST, room - _SPACE - max((width(words) for _, words in rows), default=0))
    is_stacked = cells < _LEAST and is_tall
    is_short = series is None or all(len(means) < 2 for means in series.means.values())
    if not has_graphs or series is None or is_short or not (cells >= _LEAST or is_stacked):
        return [("measured", _heading(attempt, summary)), *((label, cell(words)) for label, words in rows)]
    lines = [("measured", _heading(attempt, summary, series))]
    for label, words in rows:
        drawn = _series_graph(label, summary, series, min(room, _MOST) if is_stacked else cells)
        if is_stacked:
            lines += [(label, ((drawn, GRAPH),)), ("", cell(words))] if drawn else [(label, cell(words))]
        else:
            lines.append((label, ((drawn or " " * cells, GRAPH), (" " * _SPACE + words, PLAIN))))
    return lines


def _heading(attempt: Attempt, summary: AttemptTelemetry, series: Series | None = None) -> Cell:
    read = f", GPUs for {format_duration(timedelta(seconds=summary.seconds))}" if summary.seconds is not None else ""
    span = f" · graphs of {format_duration(timedelta(seconds=series.end - series.begin))}" if series else ""
    return ((f"attempt {attempt.number}{read}", PLAIN), (span, DIM))


def _series_graph(label: str, summary: AttemptTelemetry, series: Series, cells: int) -> str:
    name = _READINGS.get(label, "")
    means = series.means.get(name, ())
    if not means:
        return ""
    found: list[float | None] = []  # a value for each cell: the mean of its columns, or that of the one that has it
    for place in range(cells):
        first = place * len(means) // cells
        last = max(first + 1, (place + 1) * len(means) // cells)
        known = [mean for mean in means[first:last] if mean is not None]
        found.append(sum(known) / len(known) if known else None)
    spread = getattr(summary, name, None)
    top = spread.peak if isinstance(spread, Spread) else None
    if name == "gpu_memory" and summary.gpu_memory_total:
        top = float(summary.gpu_memory_total)
    top = _TOPS.get(name) or top or max((mean for mean in found if mean is not None), default=0.0) or 1.0
    return graph([None if mean is None else mean / top for mean in found], cells)
