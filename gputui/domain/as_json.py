"""Objects of the queue as JSON, for `--json` and for programs. They rely on the keys; docs/cli.md documents them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from gputui.domain import arrays
from gputui.domain.access import AuditEntry
from gputui.domain.errors import Cause
from gputui.domain.gpu import GpuView, HostSample
from gputui.domain.job import Attempt, Job, element_spec, sweep_values
from gputui.domain.job_spec import JobSpec
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import EMPTY, Snapshot

if TYPE_CHECKING:
    from gputui.domain.policy.whatif import Explanation
    from gputui.domain.telemetry_series import Measured

MASK = "***"
"""Placeholder for every value of a job's environment."""
Json = dict[str, Any]


def json_text(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """Return an object over several lines, an array with one element a line; ASCII: no terminal acts on it."""
    import json  # tables do not need it

    if isinstance(value, Mapping):
        return json.dumps(value, indent=2)
    return "".join(array_parts(value))


def array_parts(values: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the text of an array as its elements become known."""
    import json

    comma = ""
    yield "["
    for value in values:
        yield f"{comma}\n{json.dumps(value)}"
        comma = ","
    yield "\n]"


def job_json(job: Job, snapshot: Snapshot = EMPTY) -> Json:
    spec, reason, array = element_spec(job), snapshot.reasons.get(job.id), job.array
    place: Json | None = None
    if array:  # for waiting elements that are one entry, with their indices
        place = {"id": array.id, "index": array.index, "limit": array.limit, "count": job.count}
        place["indices"] = arrays.elements_word((job,), None)
    return {
        "id": job.id,
        **attributes(spec, "name comment"),
        "state": str(job.state),
        "reason": {"code": str(reason.code), "text": reason.text} if reason else None,
        "tenant": spec.tenant,
        "priority": job.priority,
        **attributes(spec, "image command"),
        **_wanted(spec),
        "held": job.held,
        "held_by": job.held_by or None,
        **attributes(job, "held_at hold_reason"),
        "priority_by": job.ranked_by or None,
        **attributes(job, "submitted_at started_at ended_at"),
        "expected_start_at": _time(snapshot.expected_starts.get(job.id)),
        "time_limit": _value(spec.time_limit),
        **attributes(job, "limit_at warning_at exit_code"),
        "labels": dict(spec.options.labels),
        "attempts": [_attempt(attempt) for attempt in job.attempts],
        **_cause(job.cause),
        "error": (job.attempt.error or None) if job.attempt else None,
        "submitted_by": job.submitted_by,
        "recurring_id": job.recurring,
        "suspended": job.suspended,
        "suspended_by": job.suspended_by or None,
        **attributes(job, "cancel_requested requeue_requested topped_at"),
        "beside": job.placed.past if job.placed else None,
        "not_before": _time(job.not_before),
        "progress": snapshot.progress.get(job.id),
        "array": place,
        "sweep": dict(sweep_values(job) or job.spec.sweep) or None,
    }


def job_detail_json(
    job: Job, snapshot: Snapshot, audit: Sequence[AuditEntry], measured: Mapping[int, Measured] = MappingProxyType({})
) -> Json:
    """Return a job as JSON, with its submission, its audit entries, and the telemetry of its attempts by number."""
    attempts = [measured_attempt(attempt, measured.get(attempt.number)) for attempt in job.attempts]
    recorded: list[Json] = []
    for entry in audit:  # without the key of its request, and without the program that asked, if there was none
        hidden = {"key"} if entry.via else {"key", "via"}
        known = {name: value for name, value in asdict(entry).items() if name not in hidden}
        recorded.append({**known, "at": _value(entry.at)})
    about = {"attempts": attempts, "spec": _spec(job.spec), "avoid_gpus": list(job.avoid_gpus), "audit": recorded}
    return {**job_json(job, snapshot), **about}


def measured_attempt(attempt: Attempt, found: Measured | None) -> Json:
    """Return an attempt with its telemetry (up to now if it is running) and its readings over time."""
    series = found.series if found else None
    readings = (
        {name: [None if mean is None else round(mean, 4) for mean in means] for name, means in series.means.items()}
        if series
        else {}
    )
    over_time = series and {"begin": series.begin, "width": series.width, "end": series.end, "readings": readings}
    summary = found.summary if found else attempt.telemetry
    return {**_attempt(attempt), "telemetry": msgspec.to_builtins(summary), "series": over_time}


def recurring_json(entry: RecurringJob) -> Json:
    submission, spec = entry.submission, entry.submission.spec
    return {
        **attributes(entry, "id name expression"),
        "time_zone": entry.zone,
        "missed": str(entry.missed),
        "overlap": str(entry.overlap),
        "paused": entry.paused,
        "next_run_at": None if entry.paused else _value(entry.next_at),
        "last_run_at": _value(entry.last_at),
        "last_job_id": entry.last_job_id,
        "skipped": attributes(entry.skipped, "at why") if entry.skipped else None,
        **attributes(entry, "added_at added_by"),
        "submits": {
            **attributes(spec, "name tenant priority image command"),
            **_wanted(spec),
            "time_limit": _value(spec.time_limit),
            **attributes(submission, "held array array_limit"),
            "spec": _spec(spec),
        },
    }


def explanation_json(job: Job, found: Explanation) -> Json:
    from gputui.domain.policy.cluster_state import fair_share_factor

    terms = found.terms
    score = {"total": terms.total, "level": terms.level, "promoted": terms.is_promoted}
    return {
        "id": job.id,
        "reason": {"code": str(found.reason.code), "text": found.reason.text} if found.reason else None,
        **attributes(found, "position waiting waits_for"),
        "expected_start_at": found.expected_start_at.isoformat() if found.expected_start_at else None,
        "certainty": found.certainty,
        "score": {**score, **attributes(terms, "waited planned expansion credited age")},
        "fair_share": fair_share_factor(found.used),
        "planned_duration": found.planned.total_seconds(),
        "topped_at": job.topped_at.isoformat() if job.topped_at else None,
    }


def _attempt(attempt: Attempt) -> Json:
    times = "container_id claimed_at started_at warned_at suspended_at preempted_at preempted_by ended_at exit_code"
    return {
        **attributes(attempt, "number gpus gpu_count"),
        "node": attempt.node or None,
        **attributes(attempt, times),
        **_cause(attempt.cause),
        "error": attempt.error or None,
        "efficiency": asdict(attempt.efficiency) if attempt.efficiency else None,
        "telemetry": msgspec.to_builtins(attempt.telemetry),
        **attributes(attempt, "log_path charged gpu_share notes"),
        "ports": [{**asdict(port), "ssh": port.ssh(platform.node())} for port in attempt.ports],
    }


def _wanted(spec: JobSpec) -> Json:
    return {"gpus_min": spec.gpus.minimum, "gpus_max": None if spec.gpus.everything else spec.gpus.maximum}


def _cause(cause: Cause | None) -> Json:
    return {"cause": cause.text if cause else None, "cause_code": str(cause.code) if cause else None}


def _spec(spec: JobSpec) -> Json:
    options, gpus = spec.options, spec.gpus
    return {
        "host": spec.is_host,
        **attributes(spec, "nice retries retry_on"),
        "warning": {"signal": spec.warning.number, "before": _value(spec.warning.before)} if spec.warning else None,
        "gpu_memory_step": spec.gpu_memory_step,
        "idle_timeout": _value(spec.idle_timeout) if spec.idle_timeout else None,
        "interactive": {"stdin": spec.interactive.stdin, "tty": spec.interactive.tty} if spec.interactive else None,
        **attributes(spec, "backoff after after_any begin_at preemptible"),
        "gpu_devices": list(gpus.devices),
        "gpu_all": gpus.everything,
        "gpu_memory": gpus.memory,
        "share": gpus.share,
        "gpu_model": gpus.model,
        "gpu_capabilities": list(gpus.capabilities),
        **{name: _value(value) for name, value in asdict(options).items()},
        "env": dict.fromkeys((name for name, _ in options.env), MASK),
        "labels": dict(options.labels),
    }


def gpu_json(view: GpuView) -> Json:
    gpu, sample = view.gpu, view.current
    return {
        "uuid": gpu.shown_uuid,
        "index": gpu.index,
        "model": gpu.model,
        "state": str(view.state),
        "why": view.why or None,
        "health": {"code": str(view.health.code), "text": view.health.text},
        **attributes(view, "job_id job_ids trespassers"),
        "sharers": [asdict(sharer) for sharer in view.sharers],
        "closed": view.closed or None,
        "holders": [(asdict(holder) | {"since": _value(holder.since)}) for holder in view.holders],
        "memory_total": (sample.memory_total if sample else None) or gpu.memory_total,
        "memory_used": sample.memory_used if sample else None,
        "unified": gpu.unified,
        **{name: getattr(sample, name, None) for name in ("utilization", "temperature", "power")},
        "power_limit": sample.power_limit if sample and sample.power_limit is not None else gpu.power_limit,
        **attributes(view, "age idle_since"),
        "drain": {**asdict(view.drain), "at": _value(view.drain.at)} if view.drain else None,
    }


def host_json(host: HostSample | None) -> Json | None:
    if host is None:
        return None
    disks = [{**asdict(disk), "full_in": _value(disk.full_in)} for disk in host.disks]
    return {**asdict(host), "sampled_at": _value(host.sampled_at), "disks": disks}


def attributes(subject: Struct, names: str) -> Json:
    """Return the attributes of these names: times in ISO 8601, durations in seconds, tuples as arrays."""
    return {name: _value(getattr(subject, name)) for name in names.split()}


def _value(value: Any) -> Any:
    written = _WRITTEN.get(type(value))
    return written(value) if written else value


def _time(at: datetime | None) -> str | None:
    return at.isoformat().replace("+00:00", "Z") if at else None


_WRITTEN: Mapping[type, Callable[[Any], Any]] = {datetime: _time, timedelta: timedelta.total_seconds, tuple: list}
