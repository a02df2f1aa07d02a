"""Everything about a job, as lines of a label and a cell."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gputui.domain.job import Attempt, Job
from gputui.domain.policy.durations import Planned, Source
from gputui.domain.text import plain
from gputui.domain.units import format_duration, format_size
from gputui.request.docker_keys import DOCKER_KEYS, RARER
from gputui.tui.present.cells import Cell, cell
from gputui.tui.present.explained import Told, score_lines, sureness
from gputui.tui.present.job import JobContext, elapsed, gpu_list, gpus_wanted, why
from gputui.tui.present.style import AMBER, BLUE, DIM, JOB_STYLES, PLAIN, RED
from gputui.tui.present.times import in_full, second

Line = tuple[str, Cell]
"""A label, and what stands beside it."""
MASK = "••••••"


@dataclass(frozen=True)
class Live:
    """What a job that runs does now, and what is thought of it."""

    gpus: Sequence[Line] = ()
    planned: Planned | None = None


def job_lines(job: Job, context: JobContext, told: Told | None = None, live: Live | None = None) -> tuple[Line, ...]:
    """The job from what it is now to what was asked for; `told` of one that waits, `live` of one that runs."""
    live = live or Live()
    now = (*_state(job, context, live), *_ports(job), *live.gpus, *_times(job, context, told, live))
    return (*now, *_attempts(job, context), *_asked(job), *_options(job))


def job_title(job: Job) -> str:
    """Return `#17 train`, `#18_1 sweep`, harmless."""
    return f"#{job.shown_id} {plain(job.spec.name, 60)}".rstrip()


def _state(job: Job, context: JobContext, live: Live) -> list[Line]:
    style = JOB_STYLES[job.state]
    reason = context.reasons.get(job.id)
    lines: list[Line] = [("state", ((str(job.state), style), (_wishes(job, context.now), AMBER)))]
    here = why(job, context)
    is_told = bool(live.gpus) and "".join(value for value, _ in here) == gpu_list(job, context.gpu_names)
    if any(value for value, _ in here) and not is_told:
        label = "where" if job.state.is_active else "why"
        lines.append((label, ((f"{reason.code}: " if reason and not job.held else "", DIM), *here)))
    return lines


def _ports(job: Job) -> list[Line]:
    """Ports of a running job, each with the command that leads to it from another machine."""
    attempt = job.attempt
    if attempt is None or attempt.is_over:
        return []
    server = plain(platform.node(), 80)
    told = [(str(port), port.ssh(server)) for port in attempt.ports]
    return [("port", ((plain(words, 80), PLAIN), (f"   {ssh}" if ssh else "", DIM))) for words, ssh in told]


def _times(job: Job, context: JobContext, told: Told | None, live: Live) -> list[Line]:
    lines: list[Line] = []
    if expected := context.expected_starts.get(job.id) or _foreseen(told):
        lines.append(("starts", cell(f"about {_moment(expected, context.now)}")))
    lines += sureness(told) if told else []
    lines.append(("priority", cell(_priority_words(job, context.now))))
    lines += score_lines(job, told, context.now) if told else []
    lines.append(("submitted", cell(f"{_moment(job.submitted_at, context.now)}{_by(job)}")))
    if job.started_at:
        lines.append(("started", cell(_moment(job.started_at, context.now))))
    if job.ended_at:
        lines.append(("ended", cell(_moment(job.ended_at, context.now))))
    if (taken := elapsed(job, context.now)) is not None:
        limit = f" of {format_duration(job.spec.time_limit)}" if job.spec.time_limit else ""
        lines.append(("time", cell(format_duration(taken) + limit)))
    if job.limit_at is not None:
        lines.append(
            ("ends", cell(f"{_moment(job.limit_at, context.now)} by its time limit{_warned(job, context.now)}"))
        )
    if live.planned is not None and job.started_at is not None and live.planned.source is not Source.LIMIT:
        end = job.started_at + timedelta(seconds=live.planned.seconds)
        lines.append(("planned", cell(f"{_moment(end, context.now)} {live.planned.source.value}", DIM)))
    if job.avoid_gpus:
        avoided = ", ".join(context.gpu_names.get(uuid, plain(uuid, 12)) for uuid in job.avoid_gpus)
        lines.append(("avoids", cell(f"GPU {avoided}: it failed there", AMBER)))
    return lines


def _foreseen(told: Told | None) -> datetime | None:
    """A start further away than the picture tells of."""
    return told.explanation.expected_start_at if told and told.explanation else None


def _warned(job: Job, now: datetime) -> str:
    """`, warned 11:59:00`: when it was sent the signal before its limit, or will be."""
    if job.warning_at is None:
        return ""
    warned_at = job.attempts[-1].warned_at
    return f", warned {second(warned_at, now)}" if warned_at else f", to be warned {second(job.warning_at, now)}"


def _wishes(job: Job, now: datetime) -> str:
    wishes = ["held"] if job.held else []
    wishes += ["cancel requested"] if job.cancel_requested and not job.state.is_terminal else []
    wishes += ["requeue requested"] if job.requeue_requested else []
    wishes += [f"not before {second(job.not_before, now)}"] if job.not_before else []
    return "".join(f"  {wish}" for wish in wishes)


def _priority_words(job: Job, now: datetime) -> str:
    words = str(job.priority)
    if job.priority != job.spec.priority:
        words += f" (submitted with {job.spec.priority})"
    return f"{words}, put on top {second(job.topped_at, now)}" if job.topped_at else words


def _by(job: Job) -> str:
    by = f" by {plain(job.submitted_by, 32)}" if job.submitted_by else ""
    return f"{by}, a run of recurring job {job.recurring}" if job.recurring else by


def _moment(at: datetime, now: datetime) -> str:
    """`2026-03-02 12:00:00 (3m10s ago)`."""
    ago = f"{format_duration(now - at)} ago" if at <= now else f"in {format_duration(at - now)}"
    return f"{in_full(at)} ({ago})"


def _attempts(job: Job, context: JobContext) -> list[Line]:
    return [("" if i else "attempts", _attempt(attempt, context)) for i, attempt in enumerate(reversed(job.attempts))]


def _attempt(attempt: Attempt, context: JobContext) -> Cell:
    began = attempt.started_at or attempt.claimed_at
    ran = attempt.ended_at - began if attempt.ended_at and began else None
    cause = plain(attempt.cause.text, 200) if attempt.cause else ""
    parts = [_gpus(attempt, context.gpu_names)]
    parts += [f"from {second(began, context.now)}"] if began else []
    parts += [f"ran {format_duration(ran)}"] if ran is not None else []
    exit_code = "" if attempt.exit_code is None else f"exit code {attempt.exit_code}"
    parts += [exit_code] if exit_code and exit_code != cause else []
    parts += ["free of charge"] if attempt.is_over and not attempt.charged else []
    parts += [plain(attempt.container_id, 20)] if attempt.container_id else []
    notes = "; ".join(plain(note, 200) for note in attempt.notes)
    return (
        (f"{attempt.number}  ", BLUE),
        (" · ".join(parts), PLAIN),
        (f" · {cause}" if cause else "", RED),
        (f" · {notes}" if notes else "", AMBER),
    )


def _gpus(attempt: Attempt, names: Mapping[str, str]) -> str:
    """`GPU 0,1`; of those that are listed no more, the beginning of their UUIDs."""
    listed = [names[uuid] for uuid in attempt.gpus if uuid in names]
    others = [plain(uuid, 12) for uuid in attempt.gpus if uuid not in names]
    words = ([f"GPU {','.join(listed)}"] if listed else []) + others
    return ", ".join(words) or "no GPU"


def _asked(job: Job) -> list[Line]:
    spec = job.spec
    request = spec.gpus
    wants = gpus_wanted(request)
    if request.devices:
        wants = ", ".join(plain(device, 50) for device in request.devices)
    wants += f" with {format_size(request.memory)} each" if request.memory else ""
    wants += ", shared with others" if request.share else ""
    wants += f" of model {plain(request.model, 40)}" if request.model else ""
    wants += f", driver capabilities {', '.join(request.capabilities)}" if request.capabilities else ""
    lines: list[Line] = [
        ("image", cell(plain(spec.image, 200)) if spec.image is not None else cell("none: a host process", DIM)),
        ("command", cell(shlex.join(plain(word, 400) for word in spec.command))),
        ("tenant", cell(plain(spec.tenant, 80))),
        ("GPUs", cell(wants)),
        ("limits", cell(_limits(job))),
    ]
    if spec.after or spec.after_any:
        after = [f"#{job_id} succeeds" for job_id in spec.after] + [f"#{job_id} ends" for job_id in spec.after_any]
        lines.append(("after", cell(", ".join(after))))
    return lines


def _limits(job: Job) -> str:
    spec = job.spec
    limit = format_duration(spec.time_limit) if spec.time_limit else "no time limit"
    words = f"{limit}, {_retries(job)}"
    words += f", only on {', '.join(spec.retry_on)}" if spec.retry_on else ""
    return words + (", preemptible" if spec.preemptible else "")


def _retries(job: Job) -> str:
    spec = job.spec
    if not spec.retries:
        return "no retries"
    told = f"{spec.retries} {'retry' if spec.retries == 1 else 'retries'}"
    used = max(0, min(spec.retries, job.charged_attempts - job.state.is_terminal))
    return f"{told} ({used} used), backoff {format_duration(spec.backoff)}"


def _options(job: Job) -> list[Line]:
    """Container options; values of the environment are masked."""
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
