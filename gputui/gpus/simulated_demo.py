"""Simulated GPUs of the demo: one is used by a container of somebody else, one has a lower power limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from msgspec.structs import replace

from gputui.domain.container import ForeignContainer
from gputui.domain.gpu import GpuProcess, GpuSample
from gputui.domain.gpu_history import STEP, TakenStep, mean
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.gpus.simulated import SimulatedProbe

FOREIGN, DRAINED, CAPPED = 5, 6, 2
"""Indices of the GPU that somebody else uses, of the one that is drained, and of the one with a lower limit."""
_CAP = 0.65
"""Share of the board's power limit."""
_CONTAINER = "c4a01" + "5ea5ide" * 8 + "bad"


def furnish(probe: SimulatedProbe) -> tuple[ForeignContainer, ...]:
    """Put somebody else's container on a GPU, and cap another; return the containers. Few GPUs have neither."""
    gpus = probe.gpus
    if len(gpus) <= max(FOREIGN, DRAINED, CAPPED):
        return ()
    probe.cap(CAPPED, round(_CAP * (gpus[CAPPED].power_limit or 0)))
    memory = (gpus[FOREIGN].memory_total or 0) // 4
    command = "python -m ipykernel_launcher"
    probe.foreign(FOREIGN, GpuProcess(22_110, memory, "carol", command, _CONTAINER))
    image = "jupyter/pytorch:cuda12"
    return (ForeignContainer(_CONTAINER, "jupyter-carol", "carol", (gpus[FOREIGN].uuid,), image),)


def readings_of_past(probe: SimulatedProbe, jobs: Iterable[Job], since: datetime, now: datetime) -> Iterator[TakenStep]:
    """Yield the readings that these jobs, which have ended, would have left; `probe` is changed and of no other use."""
    known = tuple(jobs)
    at = since
    while at < now:
        probe.follow(_running(job) for job in known if _was_running(job, at))
        samples: dict[str, GpuSample] = dict(probe.reading_at(at).samples)
        yield TakenStep(at, {uuid: mean([sample]) for uuid, sample in samples.items()})
        at += STEP


def _was_running(job: Job, at: datetime) -> bool:
    return bool(job.started_at and job.ended_at and job.started_at <= at < job.ended_at)


def _running(job: Job) -> Job:
    """Return the job as it was while it ran."""
    attempt = replace(job.attempts[-1], ended_at=None, cause=None, exit_code=None)
    return job.evolve(attempts=(attempt,), ended_at=None, exit_code=None, cause=None, state=JobState.RUNNING)
