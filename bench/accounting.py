"""Cost of accounting: `python -m bench.accounting [JOBS]`.

A year of so many jobs (100,000), each with the telemetry that an attempt on a GPU leaves: size of its history, and
time of the commands that read it. Processor time is told beside wall time, which a busy machine stretches.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

import msgspec

from bench._measure import machine
from bench.commands import compare
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.job import Attempt, BootTime, Job
from gputui.domain.job_spec import GpuRequest, JobSpec
from gputui.domain.state import JobState
from gputui.domain.telemetry import AttemptTelemetry, Spread, efficiency_of
from gputui.store import TinyJobStore
from gputui.store.codec import encode_job

COUNT, DAYS, TIMES, BUDGET = 100_000, 364, 5, 2.0
COMMANDS = {
    "report of a year": ("report", "--since", "-365d"),
    "report by day": ("report", "--since", "-365d", "--by", "day"),
    "report of 30 days": ("report",),
    "page of a year": ("report", "--since", "-365d", "--format", "html"),
    "history": ("history",),
    "history by a filter": ("history", "tenant:alice", "is:failed", "exit:9"),
}


def main() -> None:
    """Create the history of a year, measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    print(f"machine: {machine()}")
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as state:
        size = store_year(Path(state), count)
        print(f"{count:,} jobs of a year: {size / 1e6:.0f} MB of history, {size / count:.0f} bytes a job")
        program = [sys.executable, "-m", "gputui", "--state", state, "--probe", "sim:8"]
        environ = {**os.environ, "GPUTUI_SITE_CONFIG": ""}
        runs = compare({name: [*program, *words] for name, words in COMMANDS.items()}, TIMES, environ)
    for name, each in runs.items():
        wall, cpu = min(run.wall for run in each), min(run.cpu for run in each)
        print(f"  {name:<20} {wall:5.2f} s, processor {cpu:5.2f} s")
    print(f"budget for the report of a year: {BUDGET:.0f} s")


def store_year(directory: Path, count: int) -> int:
    """Write the history of a year up to now; return its bytes."""
    TinyJobStore(directory).close()
    by_end = sorted(jobs(count), key=lambda job: job.ended_at or job.submitted_at)
    size = 0
    for month, several in groupby(by_end, key=lambda job: f"{job.ended_at:%Y-%m}"):
        lines = [msgspec.json.encode({"id": job.id, "schema": 3, "job": encode_job(job)}) + b"\n" for job in several]
        data = b"".join(lines)
        (directory / f"history-{month}.jsonl").write_bytes(data)
        size += len(data)
    return size


def jobs(count: int) -> Iterator[Job]:
    """Yield jobs of five tenants on eight GPUs, of which every fifth fails."""
    chance = random.Random(1)
    first = datetime.now(UTC) - timedelta(days=DAYS)
    for job_id in range(1, count + 1):
        submitted = first + timedelta(days=(DAYS - 3) * job_id / count)
        started = submitted + timedelta(seconds=chance.expovariate(1 / 3000))
        ended = started + timedelta(seconds=min(2e5, chance.expovariate(1 / 7200)))
        code = chance.choice([None] * 16 + [CauseCode.NON_ZERO_EXIT, CauseCode.NON_ZERO_EXIT, CauseCode.CANCELLED])
        attempt = _attempt(chance, started, ended, Cause(code, "exit code 1") if code else None)
        yield _job(job_id, chance, submitted, attempt)


def _job(job_id: int, chance: random.Random, submitted: datetime, attempt: Attempt) -> Job:
    width = len(attempt.gpus)
    spec = JobSpec(
        image=f"registry.example.org/team/train:{job_id % 12}",
        command=("python", "train.py", "--lr", "1e-3", "--epochs", "10"),
        name=f"train-{job_id % 50}",
        tenant=chance.choice(["alice", "bob", "carol", "dan", "eve"]),
        gpus=GpuRequest(width, width),
        time_limit=timedelta(hours=60),
    )
    states = {None: JobState.COMPLETED, CauseCode.CANCELLED: JobState.CANCELLED}
    code = attempt.cause.code if attempt.cause else None
    return Job(
        job_id,
        spec,
        submitted,
        state=states.get(code, JobState.FAILED),
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        exit_code=attempt.exit_code,
        cause=attempt.cause,
        attempts=(attempt,),
        submitted_by=spec.tenant,
        announced_end_at=attempt.ended_at,
    )


def _attempt(chance: random.Random, started: datetime, ended: datetime, cause: Cause | None) -> Attempt:
    uuids = [f"GPU-{gpu:08x}-0000-4000-8000-000000000000" for gpu in range(8)]
    held = tuple(chance.sample(uuids, chance.choice([1, 1, 1, 2, 4])))
    seconds = (ended - started).total_seconds()
    told = _telemetry(chance, seconds, len(held))
    return Attempt(
        1,
        held,
        claimed_at=started,
        container_id=f"{chance.getrandbits(256):064x}",
        started_at=started,
        ended_at=ended,
        exit_code=int(cause is not None),
        cause=cause,
        log_path="logs/1/1.log",
        began=BootTime("b5e0ad3c-7b2c-4d1a-9d3e-0123456789ab", 12345.6),
        telemetry=told,
        efficiency=efficiency_of(told),
    )


def _telemetry(chance: random.Random, seconds: float, gpus: int) -> AttemptTelemetry:
    def spread(top: float) -> Spread:
        mean = chance.uniform(0.2, 0.7)
        return Spread(round(mean * top, 4), round(0.9 * top, 4), top)

    allocated = seconds * gpus
    return AttemptTelemetry(
        seconds=round(seconds * 0.99, 1),
        allocated=round(allocated, 3),
        known=round(allocated * 0.99, 3),
        busy=round(allocated * chance.random(), 3),
        idle=round(chance.uniform(0, 0.2), 4),
        utilization=spread(1.0),
        gpu_memory=spread(80.0 * 2**30),
        gpu_memory_total=80 * 2**30,
        power=spread(700.0),
        energy=round(allocated * 400, 1),
        temperature=spread(80.0),
        throttled=0.01,
        throttle=("power",),
        cpu=round(seconds * 4, 3),
        cpus=spread(16.0),
        memory=spread(64.0 * 2**30),
        io_read=chance.getrandbits(40),
        io_written=chance.getrandbits(36),
    )


if __name__ == "__main__":
    main()
