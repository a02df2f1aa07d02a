"""The figures of a schedule, each defined in its own function."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

from gputui.domain.job_spec import CLASSES, whole_class
from gputui.replay.trace import Ran, TraceJob

TAU = 60.0
"""Minimum seconds of a job in a slowdown (Feitelson's bounded slowdown)."""
WIDE = 4


@dataclass(frozen=True)
class Figures:
    """The figures of one schedule; times are seconds."""

    allocation_ratio: float
    wait_mean: float
    wait_p95: float
    wait_max: float
    bounded_slowdown_mean: float
    makespan: float
    wide_wait_p95: float | None
    """95th percentile of the wait of jobs with 4 GPUs and more; None: there are none."""
    starvation: float
    """The longest wait in multiples of the job's own limit."""
    fairness: float
    """Jain's index over the inverses of the tenants' mean bounded slowdowns: 1 if all are equal."""
    worst_tenant_wait_mean: float
    """The mean wait of the tenant with the longest one."""
    wait_mean_high: float | None
    """Mean wait of jobs of priority 75 to 100; None: there are none."""
    wait_mean_normal: float | None
    """Mean wait of jobs of priority 26 to 74."""
    wait_mean_low: float | None
    """Mean wait of jobs of priority 0 to 25."""
    preemptions: float
    """Number of preemptions; the mean over several schedules."""
    gpu_seconds_lost: float
    """GPU-seconds of preempted runs, which had to be repeated."""


def figures(ran: Sequence[Ran], gpus: int) -> Figures:
    """Return all figures of a schedule on that many GPUs; the schedule must not be empty."""
    waits = sorted(map(wait, ran))
    wide = sorted(wait(each) for each in ran if each.job.gpus >= WIDE)
    low, normal, high = (wait_of_class(ran, grade) for grade in range(len(CLASSES)))
    return Figures(
        allocation_ratio=allocation_ratio(ran, gpus),
        wait_mean=math.fsum(waits) / len(waits),
        wait_p95=percentile(waits, 0.95),
        wait_max=waits[-1],
        bounded_slowdown_mean=math.fsum(bounded_slowdown(each) for each in ran) / len(ran),
        makespan=max(each.end for each in ran) - min(each.job.submit for each in ran),
        wide_wait_p95=percentile(wide, 0.95) if wide else None,
        starvation=max(wait(each) / max(each.job.limit, TAU) for each in ran),
        fairness=fairness(ran),
        worst_tenant_wait_mean=worst_tenant_wait_mean(ran),
        wait_mean_high=high,
        wait_mean_normal=normal,
        wait_mean_low=low,
        preemptions=sum(each.preemptions for each in ran),
        gpu_seconds_lost=math.fsum(each.lost for each in ran),
    )


def wait(ran: Ran) -> float:
    """Return the seconds from submission to the start of the completed run; preempted runs are part of the wait."""
    return ran.start - ran.job.submit


def wait_of_class(ran: Sequence[Ran], grade: int) -> float | None:
    """Return the mean wait of the jobs of a class, 0 for low to 2 for high; None: there are none."""
    waits = [wait(each) for each in ran if whole_class(each.job.priority) == grade]
    return math.fsum(waits) / len(waits) if waits else None


def worst_tenant_wait_mean(ran: Sequence[Ran]) -> float:
    """Return the longest of the tenants' mean waits, in seconds."""
    by_tenant: dict[str, list[float]] = defaultdict(list)
    for each in ran:
        by_tenant[each.job.tenant].append(wait(each))
    return max(math.fsum(waits) / len(waits) for waits in by_tenant.values())


def allocation_ratio(ran: Sequence[Ran], gpus: int) -> float:
    """Return A: GPU-seconds given to jobs up to the last submission, over all available ones; without lost work."""
    last = max(each.job.submit for each in ran)
    given = math.fsum(each.gpus * max(0.0, min(each.end, last) - each.start) for each in ran if each.start < last)
    return given / (gpus * last) if last else 0.0


def allocation_bound(jobs: Sequence[TraceJob], gpus: int) -> float:
    """Return an upper bound of every policy's A.

    All submitted work is done at once, as if it were infinitely divisible.
    """
    last = max(job.submit for job in jobs)
    at = waiting = done = 0.0
    for job in jobs:
        worked = min(waiting, gpus * (job.submit - at))
        at, waiting, done = job.submit, waiting - worked + job.duration * job.gpus, done + worked
    alone = math.fsum(job.gpus * min(job.duration, last - job.submit) for job in jobs)
    return min(done, alone) / (gpus * last) if last else 0.0


def mean_figures(several: Sequence[Figures]) -> Figures:
    """Return the mean of each figure over the schedules that have it."""

    def mean(name: str) -> float | None:
        values = [getattr(each, name) for each in several if getattr(each, name) is not None]
        return math.fsum(values) / len(values) if values else None

    return Figures(**{field.name: mean(field.name) for field in fields(Figures)})  # type: ignore[arg-type]


def bounded_slowdown(ran: Ran) -> float:
    """Return the time from submission to end over the run time, both of at least a minute."""
    return max(1.0, (ran.end - ran.job.submit) / max(ran.end - ran.start, TAU))


def fairness(ran: Sequence[Ran]) -> float:
    """Return Jain's index (sum x)^2 / (n sum x^2) over tenants' x = 1 / mean bounded slowdown."""
    by_tenant: dict[str, list[float]] = defaultdict(list)
    for each in ran:
        by_tenant[each.job.tenant].append(bounded_slowdown(each))
    shares = [len(slowdowns) / math.fsum(slowdowns) for slowdowns in by_tenant.values()]
    return math.fsum(shares) ** 2 / (len(shares) * math.fsum(share**2 for share in shares))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that is not exceeded by this share of them."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
