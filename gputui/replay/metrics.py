"""What a replay came to: the figures of a schedule, each defined in its own function."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

from gputui.replay.policies import Ran
from gputui.replay.trace import TraceJob

TAU = 60.0
"""Seconds: shorter jobs count as this long in a slowdown (Feitelson's bounded slowdown)."""
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
    """Of jobs of 4 GPUs and more; None: there are none."""
    starvation: float
    """The longest wait in times of the job's own limit."""
    fairness: float
    """Jain's index over the tenants' mean bounded slowdowns, inverted: 1 when all fare alike."""


def figures(ran: Sequence[Ran], gpus: int) -> Figures:
    """All of them."""
    waits = sorted(each.start - each.job.submit for each in ran)
    wide = sorted(each.start - each.job.submit for each in ran if each.job.gpus >= WIDE)
    return Figures(
        allocation_ratio=allocation_ratio(ran, gpus),
        wait_mean=math.fsum(waits) / len(waits),
        wait_p95=percentile(waits, 0.95),
        wait_max=waits[-1],
        bounded_slowdown_mean=math.fsum(bounded_slowdown(each) for each in ran) / len(ran),
        makespan=max(each.end for each in ran) - min(each.job.submit for each in ran),
        wide_wait_p95=percentile(wide, 0.95) if wide else None,
        starvation=max((each.start - each.job.submit) / max(each.job.limit, TAU) for each in ran),
        fairness=fairness(ran),
    )


def allocation_ratio(ran: Sequence[Ran], gpus: int) -> float:
    """A: GPU-seconds given to jobs up to the last submission, over all there were up to then."""
    last = max(each.job.submit for each in ran)
    given = math.fsum(each.gpus * max(0.0, min(each.end, last) - each.start) for each in ran if each.start < last)
    return given / (gpus * last) if last else 0.0


def allocation_bound(jobs: Sequence[TraceJob], gpus: int) -> float:
    """What no policy's A can exceed: all work that has come is done at once, as if it came in crumbs."""
    last = max(job.submit for job in jobs)
    at = waiting = done = 0.0
    for job in jobs:
        worked = min(waiting, gpus * (job.submit - at))
        at, waiting, done = job.submit, waiting - worked + job.duration * job.gpus, done + worked
    alone = math.fsum(job.gpus * min(job.duration, last - job.submit) for job in jobs)
    return min(done, alone) / (gpus * last) if last else 0.0


def mean_figures(several: Sequence[Figures]) -> Figures:
    """The mean of each figure; of those only that are there."""

    def mean(name: str) -> float | None:
        values = [getattr(each, name) for each in several if getattr(each, name) is not None]
        return math.fsum(values) / len(values) if values else None

    return Figures(**{field.name: mean(field.name) for field in fields(Figures)})  # type: ignore[arg-type]


def bounded_slowdown(ran: Ran) -> float:
    """Time from submission to end over run time, both of at least a minute."""
    return max(1.0, (ran.end - ran.job.submit) / max(ran.end - ran.start, TAU))


def fairness(ran: Sequence[Ran]) -> float:
    """Jain's index (sum x)^2 / (n sum x^2) over tenants' x = 1 / mean bounded slowdown."""
    by_tenant: dict[str, list[float]] = defaultdict(list)
    for each in ran:
        by_tenant[each.job.tenant].append(bounded_slowdown(each))
    shares = [len(slowdowns) / math.fsum(slowdowns) for slowdowns in by_tenant.values()]
    return math.fsum(shares) ** 2 / (len(shares) * math.fsum(share**2 for share in shares))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that this share of them does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
