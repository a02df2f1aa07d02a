"""Events that hooks are notified of: ends of jobs, sick and idle GPUs, lost nodes, a stuck queue, a full disk.

Also the changes of jobs between two snapshots. Every attempt stays in its job, so nothing is missed when a job starts
and ends between two ticks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from gputui.domain.gpu import GpuView, HealthCode
from gputui.domain.job import Attempt, Job
from gputui.domain.runs import words
from gputui.domain.snapshot import Node
from gputui.domain.state import JobState
from gputui.domain.text import format_duration, plain

_WELL = frozenset({HealthCode.OK, HealthCode.UNKNOWN})
_DRIVERS = ("GPU-", "MIG-")
"""Beginnings of the driver's UUIDs; the GPUs of a cluster are named by their nodes."""
_OF_STATE = {JobState.COMPLETED: "job_completed", JobState.CANCELLED: "job_cancelled"}

PAGE = "page"
"""Key of the data of a weekly report with the report as an HTML page."""


class Event(Struct, frozen=True):
    """An event that is sent to hooks once."""

    id: str
    """Identifier that stays the same when the event is sent again, so that receivers can ignore repeats."""
    name: str
    """Name of the event, from `settings.EVENTS`."""
    at: datetime
    text: str
    """Sentence that describes the event."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The job or the GPU, with the keys of `--json`."""

    @property
    def is_about_job(self) -> bool:
        return self.name.startswith("job_")

    def document(self, host: str) -> dict[str, Any]:
        """Return the JSON document that hooks receive; the page of a report is only for mail."""
        about = next((about for start, about in _ABOUT.items() if self.name.startswith(start)), "disk")
        head = {"id": self.id, "event": self.name, "at": self.at.isoformat(), "host": host, "text": self.text}
        return {**head, about: {key: value for key, value in self.data.items() if key != PAGE}}


_ABOUT = {"job_": "job", "gpus_": "job", "gpu_": "gpu", "node_": "node", "queue_": "queue", "weekly_": "report"}
"""Key of an event's data in its document, by the beginning of its name."""


def ended(job: Job) -> Event:
    which = f"{job.count} elements of array {job.array.id}" if job.runs and job.array else f"Job {job.shown_id}"
    called = f" {job.name}" if job.name else ""
    outcome = _OUTCOMES.get(job.state, f"is {job.state}")
    if job.runs:
        outcome = outcome.replace("was ", "were ", 1)
    ran = ""
    if job.ended_at and job.started_at:
        preposition = "in" if job.state is JobState.COMPLETED else "after"
        ran = f" {preposition} {format_duration(job.ended_at - job.started_at)}"
    why = f": {job.end_words}" if job.cause else ""
    sentence = plain(f"{which}{called} ({job.spec.tenant}) {outcome}{ran}{why}", 500)
    return Event(end_id(job), _OF_STATE.get(job.state, "job_failed"), job.end, sentence, _job_data(job))


def end_id(job: Job) -> str:
    return f"job-{job.id}-{job.end.timestamp():.6f}"


def untold(jobs: Iterable[Job], now: datetime, max_age: timedelta) -> Iterator[Job]:
    """Return the ended jobs that have not been announced and did not end too long ago."""
    for job in jobs:
        at = job.ended_at
        if at is not None and at != job.announced_end_at and job.state.is_terminal and now - at <= max_age:
            yield job


def health_changes(before: Iterable[GpuView], after: Iterable[GpuView], now: datetime) -> Iterator[Event]:
    """Return events for GPUs that became sick between two snapshots, and for those that recovered."""
    known = {view.gpu.uuid: view.health.code for view in before}
    for view in after:
        was, code = known.get(view.gpu.uuid, HealthCode.OK), view.health.code
        if code is HealthCode.UNKNOWN or (code is was):
            continue
        if code not in _WELL:
            yield _gpu_event("gpu_sick", view, now, view.health.text or str(code))
        elif was not in _WELL:
            yield _gpu_event("gpu_well", view, now, "is well again")


def _gpu_event(name: str, view: GpuView, now: datetime, words: str) -> Event:
    gpu = view.gpu
    data = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "state": str(view.state),
        "health": {"code": str(view.health.code), "text": view.health.text},
        "job_id": view.job_id,
    }
    model = f" ({gpu.model})" if gpu.model else ""
    named = gpu.index if gpu.uuid.startswith(_DRIVERS) else gpu.uuid
    text = plain(f"GPU {named}{model}: {words}", 300)
    return Event(f"gpu-{gpu.uuid}-{name}-{now.timestamp():.3f}", name, now, text, data)


def gpus_idle(job: Job, words: str, gpus: tuple[str, ...], since: datetime, now: datetime) -> Event:
    data = {**_job_data(job), "idle_gpus": list(gpus), "idle_since": since.isoformat()}
    key = f"idle-{job.id}-{job.attempts[-1].number}-{len(gpus)}-{since.timestamp():.0f}"
    return Event(key, "gpus_idle", now, plain(words, 300), data)


def node_changes(before: Iterable[Node], after: Iterable[Node], now: datetime) -> Iterator[Event]:
    was_down = {node.name: node.down for node in before}
    for node in after:
        was = was_down.get(node.name, "")
        if bool(was) == bool(node.down):
            continue
        name, words = ("node_down", node.down) if node.down else ("node_up", f"node {node.name} is up again")
        data = {"name": node.name, "why": node.down or None, "gpus": len(node.gpus)}
        yield Event(f"{name}-{node.name}-{now.timestamp():.3f}", name, now, plain(words, 300), data)


def queue_stuck(words: str, since: datetime, now: datetime) -> Event:
    data = {"since": since.isoformat(), "why": words}
    return Event(f"queue-{since.timestamp():.0f}", "queue_stuck", now, plain(words, 300), data)


def disk_low(path: str, left: int, words: str, now: datetime) -> Event:
    return Event(f"disk-{now.timestamp():.3f}", "disk_low", now, words, {"path": path, "free": left})


def weekly_report(report: Mapping[str, Any], at: datetime) -> Event:
    """Return the event for the report of the last week, with its `report`, its `table` and its `page`."""
    hours = report["report"]["total"]["gpu_hours"]
    text = f"Weekly report: {hours:,.1f} GPU-hours, {report['report']['total']['jobs']:,} jobs"
    return Event(f"report-{at.isoformat()}", "weekly_report", at, text, report)


_OUTCOMES = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.TIMEOUT: "timed out",
    JobState.OUT_OF_MEMORY: "ran out of memory",
}


def _job_data(job: Job) -> dict[str, Any]:
    spec = job.spec
    return {
        "id": job.id,
        "count": job.count,
        "array": {"id": job.array.id, "indices": words(job.runs) or str(job.array.index)} if job.array else None,
        "name": job.name,
        "comment": spec.comment,
        "state": str(job.state),
        "tenant": spec.tenant,
        "submitted_by": job.submitted_by,
        "image": spec.image,
        "command": list(spec.command),
        "labels": dict(spec.options.labels),
        "submitted_at": job.submitted_at.isoformat(),
        "started_at": job.started_at.isoformat() if job.started_at else None,
        "ended_at": job.ended_at.isoformat() if job.ended_at else None,
        "exit_code": job.exit_code,
        "cause": {"code": str(job.cause.code), "text": job.cause.text} if job.cause else None,
        "error": (job.attempt.error or None) if job.attempt else None,
        "attempts": [
            {
                "number": attempt.number,
                "gpus": list(attempt.gpus),
                "exit_code": attempt.exit_code,
                "error": attempt.error or None,
                "efficiency": asdict(attempt.efficiency) if attempt.efficiency else None,
                "log_path": attempt.log_path,
            }
            for attempt in job.attempts
        ],
    }


class Change(Struct, frozen=True):
    """Change of one job, or of elements of an array together."""

    job: Job
    submitted: int = 0
    """Number of jobs that are new in the queue."""
    ended: int = 0
    """Number of jobs that ended and are not retried."""
    started: tuple[Attempt, ...] = ()
    over: tuple[Attempt, ...] = ()
    """Attempts that ended."""


class Update(Struct, frozen=True):
    """Difference between two snapshots."""

    came: tuple[Job, ...] = ()
    gone: tuple[Job, ...] = ()
    """Jobs and entries as they are now, and as they were; unchanged ones are in neither."""
    changes: tuple[Change, ...] = ()


NOTHING = Update()


class JobChanges:
    """Compares each snapshot's jobs with those of the previous one. Unchanged jobs are the same objects."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        """`jobs` are those of the queue at the beginning; earlier events do not count as changes."""
        self._objects = {id(job): job for job in jobs}
        self.jobs = {job.id: job for job in self._objects.values()}
        """Jobs of the last snapshot by id; entries of arrays by that of their first element."""
        self._highest = max((job.last_id for job in self.jobs.values()), default=0)
        self._seen: object = None

    def update(self, jobs: tuple[Job, ...]) -> Update:
        if jobs is self._seen:
            return NOTHING
        before, now = self._objects, dict(zip(map(id, jobs), jobs, strict=True))
        came = tuple(sorted((now[key] for key in now.keys() - before.keys()), key=lambda job: job.id))
        gone = tuple(before[key] for key in before.keys() - now.keys())
        changes = tuple(change for job in came if (change := self._change(job, gone)) is not None)
        for job in gone:
            self.jobs.pop(job.id, None)
        self.jobs.update((job.id, job) for job in came)
        self._highest = max(self._highest, max((job.last_id for job in came), default=0))
        self._objects, self._seen = now, jobs
        return Update(came, gone, changes)

    def _change(self, job: Job, gone: Iterable[Job]) -> Change | None:
        old = self.jobs.get(job.id)
        is_new = old is None and job.id > self._highest
        if old is None and not is_new:
            old = next((entry for entry in gone if entry.runs and entry.has(job.id)), None)
            if old is None:
                return None
        was_over = old is not None and old.state.is_terminal and old.next_attempt == job.next_attempt
        has_ended = job.state.is_terminal and not was_over
        return Change(
            job,
            submitted=job.count if is_new else 0,
            ended=job.count if has_ended else 0,
            started=tuple(_newly(old, job, "started_at")),
            over=tuple(_newly(old, job, "ended_at")),
        )


def _newly(old: Job | None, job: Job, field: str) -> Iterator[Attempt]:
    known = {attempt.number for attempt in old.attempts if getattr(attempt, field)} if old else set()
    return (attempt for attempt in job.attempts if getattr(attempt, field) and attempt.number not in known)
