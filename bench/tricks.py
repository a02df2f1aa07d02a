"""Gain of a tenant of a real trace that leaves limits out, or cuts its jobs into slices.

`python -m bench.tricks FOLDER`: FOLDER holds philly_8gpu_*.csv, which `bench.cuts` makes. `bench.gaming` plays more
tricks, on made-up traces through the whole scheduler.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from bench.order import cuts
from gputui.domain.policy.cluster_state import RunningJob
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.plan import Arrival, simulate
from gputui.domain.settings import PolicySettings
from gputui.replay.policies import plan
from gputui.replay.simulation import ask_of, empty_cluster
from gputui.replay.trace import HOUR, MAX_TIME, Ran, Site, TraceJob, prepare

SLICE = 4 * HOUR
TRICKSTERS = 5
"""Tenants of a cut that use a trick, one at a time: those with the most jobs longer than a slice."""
RUNS = 60
Waits: TypeAlias = Mapping[int, float]
"""Wait of each job of a trace in seconds, by its number."""


def honest(jobs: Sequence[TraceJob], site: Site, settings: PolicySettings) -> Waits:
    """Return the waits when all tenants submit their jobs as they are."""
    return {ran.job.number: ran.start - ran.job.submit for ran in plan(jobs, site, settings)}


def without_limits(jobs: Sequence[TraceJob], site: Site, settings: PolicySettings, tenant: str) -> Waits:
    """Return the waits of the tenant's jobs when it states no limits."""
    played = [replace(job, limit=MAX_TIME) if job.tenant == tenant else job for job in jobs]
    return {ran.job.number: ran.start - ran.job.submit for ran in plan(played, site, settings) if _of(ran, tenant)}


def in_slices(jobs: Sequence[TraceJob], site: Site, settings: PolicySettings, tenant: str) -> Waits:
    """Return the waits of the tenant's longer jobs when each slice is submitted as the one before ends."""
    mine = {job.number: job for job in jobs if job.tenant == tenant and job.duration > SLICE}
    pieces = {job.number: replace(job, duration=SLICE, limit=SLICE) if job.number in mine else job for job in jobs}
    left = {number: (job, job.duration - SLICE) for number, job in mine.items()}
    waits = dict[int, float]()

    def ended(run: RunningJob, at: float) -> Iterator[Arrival]:
        job, rest = left.pop(run.id, (None, 0.0))
        if job is not None and rest <= 0.0:
            waits[job.number] = at - job.submit - job.duration
        elif job is not None:
            number = len(pieces)
            pieces[number] = replace(job, number=number, submit=at, duration=min(SLICE, rest), limit=SLICE)
            left[number] = (job, rest - SLICE)
            yield arrival(pieces[number], site)

    cluster = empty_cluster(site, settings)
    coming = [arrival(job, site) for job in pieces.values()]
    for _ in simulate(cluster, 0.0, coming, lambda run: pieces[run.id].duration, ended=ended):
        pass
    return waits


def _of(ran: Ran, tenant: str) -> bool:
    return ran.job.tenant == tenant


Trick: TypeAlias = Callable[[Sequence[TraceJob], Site, PolicySettings, str], Waits]
TRICKS: Mapping[str, Trick] = {"limits left out": without_limits, "slices of 4 h": in_slices}


def gains(trick: Trick, trace: Sequence[TraceJob], settings: PolicySettings, load: float) -> Iterator[float]:
    """Yield a tenant's mean wait with the trick over that without it, for the tenants with the most long jobs."""
    site = Site(8)
    jobs = prepare(trace, site, load, "bucket")
    true = honest(jobs, site, settings)
    long_jobs = Counter(job.tenant for job in jobs if job.duration > SLICE)
    for tenant, _ in long_jobs.most_common(TRICKSTERS):
        found = trick(jobs, site, settings, tenant)
        before = sum(true[number] for number in found)
        if before:
            yield sum(found.values()) / before


def tricks(folder: Path) -> Iterator[str]:
    """Yield the table of tricks as Markdown."""
    yield "| trick, load 1.0 | runs | own wait: mean | median | better off |"
    yield "|---|---|---|---|---|"
    for name, trick in TRICKS.items():
        found: list[float] = []
        for _, trace in cuts(folder, 8):
            found += gains(trick, trace, PolicySettings(), 1.0)
        found = found[:RUNS]
        means = (statistics.fmean(found), statistics.median(found))
        better = sum(ratio < 1.0 for ratio in found) / len(found)
        yield f"| {name} | {len(found)} | " + " | ".join(f"{mean:.2f}" for mean in means) + f" | {better:.0%} |"


def arrival(job: TraceJob, site: Site) -> Arrival:
    """Return the job as submitted."""
    key = LaneKey(job.tenant, ask_of(site, job.gpus), job.priority, job.limit)
    return Arrival(job.submit, key, Waiting(job.submit, job.number))


def main() -> None:
    """Print the table."""
    for line in tricks(Path(sys.argv[1])):
        print(line, flush=True)


if __name__ == "__main__":
    main()
