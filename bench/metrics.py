"""Cost of a scrape at 64 GPUs, by the number of jobs and tenants, and of counting in a tick.

`python -m bench.metrics`. A first scrape is one after the queue has changed: it goes through all jobs. The times are
those of whole scrapes, over a loopback connection, as the client sees them, and the CPU time of counting.
"""

from __future__ import annotations

import http.client
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace
from prometheus_client import generate_latest

from bench._measure import machine
from bench.plan import BUSY, GPUS, NOW, running, waiting
from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import Gpu, GpuSample, GpuState, GpuView, Health, ProbeCode, ProbeStatus
from gputui.domain.job import Job
from gputui.domain.policy.plan import plan
from gputui.domain.settings import MetricsSettings, Settings
from gputui.domain.snapshot import Leader, Node, Snapshot
from gputui.metrics.exporter import Exporter

GOAL = 0.020
"""Seconds of a scrape with 10,000 jobs."""
SIZES = ((100, 5), (10_000, 5), (10_000, 200), (100_000, 200))
"""Waiting jobs, and tenants."""
REPEATS = 15
HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4",
    "Accept-Encoding": "gzip",
}
"""A request as Prometheus makes it."""


def snapshot_of(count: int, tenants: int) -> Snapshot:
    """Return so many waiting jobs beside those that hold 60 of 64 GPUs, with all readings, and their plan."""
    gpus = [
        Gpu(f"GPU-{number:08x}-0000-4000-8000-000000000000", number, "NVIDIA H100", 80 << 30) for number in range(GPUS)
    ]
    views = tuple(_view(gpu, 10**6 + number if number < BUSY else None) for number, gpu in enumerate(gpus))
    jobs = (
        *(_of_tenant(waiting(number), number % tenants) for number in range(BUSY + 1, BUSY + count + 1)),
        *(running(number, gpu) for number, gpu in enumerate(gpus[:BUSY])),
    )
    up = (RuntimeStatus("docker", True, "Docker"), RuntimeStatus("process", True, "host"))
    node = Node("gpu1", views, ProbeStatus(ProbeCode.OK, ""), "570.86", runtimes=up)
    leader = Leader(1, "gpu1", "root", "serve", NOW)
    snapshot = Snapshot(taken_at=NOW, nodes=(node,), jobs=jobs, leader=leader, leads_here=True)
    decided = plan(snapshot, Settings(), NOW)
    return replace(snapshot, order=decided.order, reasons=decided.reasons, fragmentation=decided.fragmentation)


def _of_tenant(job: Job, number: int) -> Job:
    return job.evolve(spec=replace(job.spec, tenant=f"tenant{number}"))


def _view(gpu: Gpu, job_id: int | None) -> GpuView:
    sample = GpuSample(
        gpu.uuid,
        NOW,
        utilization=0.9,
        memory_utilization=0.4,
        memory_used=70 << 30,
        memory_total=80 << 30,
        temperature=61.0,
        power=512.5,
        power_limit=700.0,
        sm_clock=1755,
        memory_clock=2619,
        throttle=("SwPowerCap",),
        processes=(),
        ecc_corrected=3,
        ecc_uncorrected=0,
    )
    state = GpuState.FREE if job_id is None else GpuState.ALLOCATED
    ids = () if job_id is None else (job_id,)
    return GpuView(gpu, state, Health(), sample=sample, job_id=job_id, job_ids=ids)


def scrape(address: tuple[str, int]) -> tuple[float, int]:
    """Return the seconds of a scrape, and its bytes."""
    begun = time.perf_counter()
    connection = http.client.HTTPConnection(*address)
    connection.request("GET", "/metrics", headers=HEADERS)
    size = len(connection.getresponse().read())
    connection.close()
    return time.perf_counter() - begun, size


def _seconds(work: Callable[[int], object]) -> float:
    """Return the median CPU time of some calls."""
    taken = []
    for number in range(REPEATS):
        begun = time.process_time()
        work(number)
        taken.append(time.process_time() - begun)
    return statistics.median(taken)


def measure(count: int, tenants: int) -> None:
    """Print a row."""
    snapshot = snapshot_of(count, tenants)
    settings = Settings(metrics=MetricsSettings(enabled=True, listen="0"))
    with tempfile.TemporaryDirectory() as state:
        exporter = Exporter(settings, Path(state), now=lambda: NOW)  # so that each tenant has all its counters
        exporter.published(snapshot)
        while (address := exporter.address) is None:
            time.sleep(0.01)
        first, again, size = [], [], 0
        jobs = list(snapshot.jobs)
        for number in range(REPEATS):
            jobs[number] = jobs[number].evolve(priority=number)
            exporter.published(replace(snapshot, jobs=tuple(jobs)))
            first.append(scrape(address)[0])
            seconds, size = scrape(address)
            again.append(seconds)
        changed = [replace(snapshot, jobs=tuple(jobs[number:] + jobs[:number])) for number in range(REPEATS)]
        page = _seconds(lambda _: generate_latest(exporter.registry))
        counting, same = (
            _seconds(lambda number: exporter.published(changed[number])),
            _seconds(lambda _: exporter.published(snapshot)),
        )
        exporter.close()
    rows = {"first": first, "again": again}
    words = ", ".join(
        f"{name} least {min(rows[name]) * 1000:5.1f} median {statistics.median(rows[name]) * 1000:5.1f} ms"
        for name in rows
    )
    print(
        f"  {count:>7} jobs, {tenants:>4} tenants: {words}, CPU {page * 1000:.1f}; {size / 1024:.0f} KiB; "
        f"counting {counting * 1000:.2f} ms a tick with changes, {same * 1000:.2f} without",
        flush=True,
    )


def main() -> None:
    """Print it all."""
    print(machine())
    print(f"a scrape at {GPUS} GPUs; goal {GOAL * 1000:.0f} ms at 10,000 jobs")
    for count, tenants in SIZES:
        measure(count, tenants)


if __name__ == "__main__":
    main()
