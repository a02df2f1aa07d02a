"""Cost of `plan()`: 10,000 jobs waiting on 64 GPUs, its growth, and a whole trace replayed.

`python -m bench.plan [TRACE.csv]`: without a trace a synthetic one of the same size is replayed. All is CPU time of one
core. The first plan is one of a scheduler that knows no job yet; the next ones know the jobs that are still the same.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from bench._measure import machine
from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import Gpu, GpuState, GpuView, Health
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import GpuRequest, JobSpec
from gputui.domain.policy.plan import plan
from gputui.domain.policy.queue_order import OrderCache
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState
from gputui.replay.policies import POLICIES
from gputui.replay.trace import Site, generate, prepare, read

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
TENANTS = ("alice", "bob", "carol", "dan", "eve")
GPUS, BUSY = 64, 60
RANGES = tuple((low, high) for low in range(1, 8) for high in range(low + 1, 9))
CROWDS = ((10_000, 0), (10_000, 1000), (10_000, 2000), (0, 1000), (0, 2000), (0, 4000))
"""Jobs of a fixed number of GPUs, and with a range."""
MIXTURES = ((10_000, 5, 0), (10_000, 200, 0), (10_000, 200, 1000), (30_000, 200, 0))
"""Jobs of equal priority that all state different limits, their tenants, and jobs with a range."""
LIMIT = 0.1
"""Seconds for 10,000 jobs with ranges, or that are all different."""
COUNTS = (100, 1000, 10_000, 100_000)
GOAL = 0.05
"""Seconds for 10,000 jobs."""
JOBS_OF_PHILLY = 82_247
LIMITS = tuple(timedelta(hours=hours) for hours in (1, 4, 12, 24, 72))


def waiting(number: int) -> Job:
    """Return a waiting job of 1 to 8 GPUs."""
    width = 2 ** (number % 4)
    spec = JobSpec(
        image="busybox",
        name=f"train-{number}",
        tenant=TENANTS[number % 5],
        gpus=GpuRequest(width, width),
        priority=number % 101,
        time_limit=LIMITS[number % 5],
    )
    return Job(number, spec, NOW - timedelta(seconds=number % 86_400), priority=spec.priority)


def ranged(number: int, *, fresh: bool = False) -> Job:
    """Return a job that takes a range of GPUs: one of four; if `fresh`, it does not settle for the fewest yet."""
    low, high = RANGES[number % len(RANGES)]
    age = number % 2000 * 0.15 if fresh else number % 86_400
    spec = JobSpec(
        image="busybox",
        name=f"range-{number}",
        tenant=TENANTS[number % 5],
        gpus=GpuRequest(low, high),
        priority=number % 101,
        time_limit=LIMITS[number % 5] + timedelta(seconds=number),
    )
    return Job(10**7 + number, spec, NOW - timedelta(seconds=age), priority=spec.priority)


def different(number: int, tenants: int) -> Job:
    """Return a job of normal priority whose limit no other job states."""
    width = 2 ** (number % 4)
    spec = JobSpec(
        image="busybox",
        name=f"train-{number}",
        tenant=f"tenant-{number * 7919 % tenants}",
        gpus=GpuRequest(width, width),
        time_limit=timedelta(seconds=600 + 23 * number),
    )
    return Job(number, spec, NOW - timedelta(seconds=37 * number % 400_000))


def mixture_of(count: int, tenants: int, ranges: int = 0) -> Snapshot:
    """Return so many jobs that are all different, and jobs with ranges, on the nodes of `queue_of`."""
    base = queue_of(0, ranges)
    return replace(base, jobs=(*(different(number, tenants) for number in range(1, count + 1)), *base.jobs))


def running(number: int, gpu: Gpu) -> Job:
    """Return a job that holds one GPU."""
    started = NOW - timedelta(minutes=number)
    attempt = Attempt(1, (gpu.uuid,), claimed_at=started, started_at=started)
    spec = JobSpec(image="busybox", tenant=TENANTS[number % 5], gpus=GpuRequest(1, 1), time_limit=timedelta(days=1))
    return Job(10**6 + number, spec, started, JobState.RUNNING, started_at=started, attempts=(attempt,))


def queue_of(count: int, ranges: int = 0, *, fresh: bool = False) -> Snapshot:
    """Return so many jobs waiting on 8 nodes of 8 GPUs, nearly all of which are held."""
    gpus = [Gpu(f"GPU-{number:08d}", number % 8, "H100", 80 * 2**30) for number in range(GPUS)]
    states = [GpuState.ALLOCATED if number < BUSY else GpuState.FREE for number in range(GPUS)]
    rows = [GpuView(gpu, state, Health()) for gpu, state in zip(gpus, states, strict=True)]
    up = (RuntimeStatus("docker", True, "Docker"), RuntimeStatus("process", True, "host"))
    nodes = tuple(Node(f"n{node}", tuple(rows[8 * node : 8 * node + 8]), runtimes=up) for node in range(8))
    jobs = [running(number, gpu) for number, gpu in enumerate(gpus[:BUSY])]
    crowd = (ranged(number, fresh=fresh) for number in range(1, ranges + 1))
    return Snapshot(taken_at=NOW, nodes=nodes, jobs=(*map(waiting, range(1, count + 1)), *crowd, *jobs))


def plan_seconds(snapshot: Snapshot, known: OrderCache | None = None) -> list[float]:
    """Return the CPU time of each of many plans, sorted; without `known` each is a first plan."""
    taken = []
    gc.freeze()  # as the scheduler does once it has read its queue
    if known is not None:
        plan(snapshot, Settings(), NOW, known)
    for _ in range(15 if len(snapshot.jobs) < 15_000 else 5):
        begun = time.process_time()
        plan(snapshot, Settings(), NOW, known)
        taken.append(time.process_time() - begun)
    gc.unfreeze()
    return sorted(taken)


def growth(few: int, before: float, many: int, after: float) -> float:
    """Return the growth relative to n log n: 1 is equal, less is slower growth."""
    return math.log(after / before) / math.log(many * math.log(many) / (few * math.log(few)))


def replay_seconds(trace: Path | None, limits: str) -> tuple[int, float]:
    """Return the number of jobs and the CPU time of a replay on 64 GPUs at load 1.0."""
    site = Site(GPUS)
    jobs = prepare(read(trace)[0] if trace else generate(JOBS_OF_PHILLY), site, 1.0, limits)
    begun = time.process_time()
    count = sum(1 for _ in POLICIES["plan"](jobs, site))
    return count, time.process_time() - begun


def table(label: str, taken: Mapping[int, Sequence[float]]) -> None:
    """Return a row for each number of jobs."""
    before: tuple[int, float] | None = None
    for count, seconds in taken.items():
        exponent = f"(n log n)^{growth(*before, count, seconds[0]):.2f}" if before else ""
        least, middle = seconds[0] * 1000, statistics.median(seconds) * 1000
        print(
            f"  {label:>5}: {count:>7} waiting: least {least:7.1f} ms, median {middle:7.1f} ms {exponent}", flush=True
        )
        before = (count, seconds[0])


def main() -> None:
    """Measure and print everything."""
    print(machine())
    print(f"plan() on {GPUS} GPUs, {BUSY} of them held; goal {GOAL * 1000:.0f} ms at 10,000, growth of n log n at most")
    for label, known in (("first", lambda: None), ("next", OrderCache)):
        table(label, {count: plan_seconds(queue_of(count), known()) for count in COUNTS})
    for plain, ranges in CROWDS:
        for fresh in (False, True):
            taken = plan_seconds(queue_of(plain, ranges, fresh=fresh))
            words = "that take more for now" if fresh else "most of which settle for the fewest"
            print(
                f"  ranges: {plain:>7} plain, {ranges:>5} ranges {words}: least {taken[0] * 1000:.1f} ms, "
                f"median {statistics.median(taken) * 1000:.1f} ms",
                flush=True,
            )
    print(f"all different, one priority; goal {LIMIT * 1000:.0f} ms at 10,000")
    for label, known in (("first", lambda: None), ("next", OrderCache)):
        for count, tenants, ranges in MIXTURES:
            taken = plan_seconds(mixture_of(count, tenants, ranges), known())
            words = f"{label:>5}: {count:>7} limits, {tenants:>4} tenants, {ranges:>5} ranges"
            print(
                f"  {words}: least {taken[0] * 1000:.1f} ms, median {statistics.median(taken) * 1000:.1f} ms",
                flush=True,
            )
    trace = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for limits in ("bucket", "exact"):
        count, seconds = replay_seconds(trace, limits)
        print(f"replay of {count} jobs on {GPUS} GPUs, load 1.0, {limits} limits: {seconds:.1f} s, goal 60", flush=True)


if __name__ == "__main__":
    main()
