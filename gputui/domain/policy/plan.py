"""What starts now, and why each other job waits: one pure function for the scheduler and for every forecast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gputui.domain.gpu import Gpu, GpuState, GpuView
from gputui.domain.job import GpuRequest, Job, JobId, Placement
from gputui.domain.policy.order import rank
from gputui.domain.policy.place import place, suitable, wanted
from gputui.domain.policy.waits import Situation, gate
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, PendingReason, Reason
from gputui.domain.units import format_size, plural


@dataclass(frozen=True)
class Plan:
    """The outcome of one look at everything."""

    starts: tuple[Placement, ...] = ()
    order: tuple[JobId, ...] = ()
    """All waiting jobs, first to start first."""
    reasons: Mapping[JobId, Reason] = field(default_factory=dict)
    """Why each job waits that does not start now."""
    reservations: tuple[Placement, ...] = ()
    """GPUs kept for jobs that cannot start yet."""
    forecast: Mapping[JobId, datetime] = field(default_factory=dict)
    """When each is expected to start, where that is known."""


def plan(snapshot: Snapshot, settings: Settings, now: datetime) -> Plan:
    """Give free GPUs to waiting jobs: in order, each the first that fit, passing over those that do not fit yet."""
    waiting = sorted((job for job in snapshot.jobs if job.state is JobState.PENDING), key=rank)
    situation = Situation.of(snapshot, settings.scheduler, now)
    counts = _Counts.of(snapshot.gpus)
    free = [view.gpu for view in snapshot.gpus if view.state is GpuState.FREE]
    in_words = counts.others(len(free))
    starts: list[Placement] = []
    reasons: dict[JobId, Reason] = {}
    blocked = 0
    for job in waiting:
        if reason := gate(job, situation):
            reasons[job.id] = reason
            continue
        gpus = place(job, free, len(counts.gpus))
        if gpus is None:
            reasons[job.id] = _reason(job, counts, in_words, blocked)
            blocked += 1
            continue
        starts.append(Placement(job.id, gpus))
        situation.count(job)
        free = [gpu for gpu in free if gpu.uuid not in gpus]
        in_words = counts.others(len(free))
    return Plan(tuple(starts), tuple(job.id for job in waiting), reasons)


@dataclass(frozen=True)
class _Counts:
    """The GPUs in numbers, and sentences already made: thousands of jobs ask for the same few things."""

    gpus: tuple[Gpu, ...]
    by_state: Counter[GpuState]
    no_reading: str
    needs: dict[tuple[GpuRequest, tuple[str, ...]], str]

    @classmethod
    def of(cls, rows: tuple[GpuView, ...]) -> _Counts:
        gpus = tuple(row.gpu for row in rows if not row.gpu.mig_enabled)
        unknown = next((row.why for row in rows if row.state is GpuState.UNKNOWN), "")
        return cls(gpus, Counter(row.state for row in rows), unknown, {})

    def others(self, free: int) -> str:
        """`3 free, 4 held by jobs, 1 drained`."""
        counts = [f"{self.by_state[state]} {word}" for state, word in _IN_WORDS.items() if self.by_state[state]]
        return ", ".join((f"{free} free", *counts))

    def needs_of(self, job: Job) -> str:
        """`2 GPUs of model H100 with 40G`."""
        key = (job.spec.gpus, job.avoid_gpus)
        if key not in self.needs:
            self.needs[key] = _needs(job, self.gpus)
        return self.needs[key]


_IN_WORDS = {
    GpuState.ALLOCATED: "held by jobs",
    GpuState.FOREIGN: "used by others",
    GpuState.DRAINED: "drained",
    GpuState.UNKNOWN: "unknown",
}


def _reason(job: Job, counts: _Counts, free: str, blocked: int) -> Reason:
    if not counts.gpus or counts.by_state[GpuState.UNKNOWN] == len(counts.gpus):
        return Reason(
            PendingReason.NODE_UNKNOWN, f"no GPU can be judged free: {counts.no_reading or 'no GPU is known'}"
        )
    text = f"needs {counts.needs_of(job)}: {free}"
    if blocked:
        return Reason(PendingReason.PRIORITY, f"{plural(blocked, 'job')} ahead of it; {text}")
    return Reason(PendingReason.RESOURCES, text)


def _needs(job: Job, gpus: tuple[Gpu, ...]) -> str:
    request = job.spec.gpus
    fewest, _ = wanted(job, len(gpus))
    words = [plural(fewest, "GPU")]
    words += [f"of model {request.model}"] if request.model else []
    words += [f"with {format_size(request.memory)}"] if request.memory else []
    words += [f"among {', '.join(request.devices)}"] if request.devices else []
    fitting = len(suitable(job, gpus))
    words += [f"(only {fitting} here ever fit)"] if fitting < fewest else []
    return " ".join(words)
