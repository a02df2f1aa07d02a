"""The cost of measuring jobs: `python -m bench.telemetry [JOBS [SECONDS]]`.

Share of a core with so many running jobs of one GPU each, which are read every second: readings of GPUs, control groups
(of this process, in the kernel's own files), files, idle GPUs. Then the size of a year of 100,000 attempts.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import msgspec
from msgspec.structs import replace

from gputui.domain.container import Consumption
from gputui.domain.gpu import GpuSample, ProbeReading
from gputui.domain.job import Attempt, BootTime, Job, JobSpec
from gputui.domain.settings import Settings
from gputui.domain.state import JobState
from gputui.domain.telemetry_tally import Tally, TallyRecord
from gputui.engine.files import telemetry_file
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.idle_gpus import IdleGpus
from gputui.engine.tick.observer import Observer
from gputui.engine.tick.snapshot_builder import QueueView
from gputui.engine.tick.telemetry import TelemetryRecorder
from gputui.runtime.consumption import MOUNT, ConsumptionReader

P = ParamSpec("P")
T = TypeVar("T")
BEGIN = datetime(2026, 3, 2, 12, tzinfo=UTC)
GIB = 1024**3
ATTEMPTS, SAMPLED = 100_000, 200
"""Attempts of a year, and those of them that are really measured."""
MEDIAN, SPREAD = 1800.0, 1.6
"""Median of their run times in seconds, and the deviation of its logarithm: a tenth takes more than four hours."""


class Inline(Executor):
    """Executor that works at once, so that the time of workers is counted too."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the function now."""
        future: Future[T] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Moment:
    """Clock that is set by hand."""

    time = BEGIN

    def now(self) -> datetime:
        """Return the time that was set."""
        return self.time


class OwnGroup:
    """Runtime whose containers are all this very process."""

    name = "docker"

    def __init__(self) -> None:
        self._reader = ConsumptionReader()
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        paths = [(line.split(":", 2)[1], line.split(":", 2)[2].lstrip("/")) for line in lines]
        trees = {"": MOUNT if (MOUNT / "cgroup.controllers").exists() else MOUNT / "unified"}
        self.folders = [str(trees.get(names, MOUNT / names) / path) for names, path in paths]

    def consumption(self, container_id: str) -> Consumption | None:
        """Return the use of this process's control groups."""
        return self._reader.of_groups(container_id, lambda: self.folders)


class Observed:
    """Observer of that runtime."""

    def __init__(self) -> None:
        self.runtime = OwnGroup()


def main() -> None:
    """Print the cost of a second, and the sizes."""
    jobs, seconds = [int(word) for word in (*sys.argv[1:], "64", "300")[:2]]
    with tempfile.TemporaryDirectory() as place:
        measure_time(Path(place), jobs, seconds)
    measure_space()


def measure_time(directory: Path, count: int, seconds: int) -> None:
    """Print the share of a core that `count` jobs cost."""
    jobs = tuple(map(running, range(1, count + 1)))
    clock, chosen = Moment(), random.Random(1)
    recorder = TelemetryRecorder(directory, "bench", lambda kind, name: Inline(), clock)
    context = cast("TickContext", Bench(recorder, jobs))
    watch = IdleGpus(context, lambda event, now: None)
    observers = {"docker": cast("Observer", Observed())}
    spent = {"measure": 0.0, "idle GPUs": 0.0}
    for second in range(1, seconds + 1):
        clock.time = BEGIN + timedelta(seconds=second)
        samples = {job.gpus[0]: sample(job.gpus[0], clock.time, chosen) for job in jobs}
        reading = ProbeReading(samples=samples, taken_at=clock.time)
        begun = time.process_time()
        recorder.update(jobs, observers, reading, clock.time)
        between = time.process_time()
        watch.enforce(clock.time, BootTime("bench", float(second)))
        spent["measure"] += between - begun
        spent["idle GPUs"] += time.process_time() - between
    for name, cpu in spent.items():
        share, each = cpu / seconds, cpu / seconds / count
        print(f"{name:<10} {count} jobs: {each * 1e6:6.1f} us a sample, {share * 1e3:6.2f} ms/s, {share:.3%} of a core")
    files = [path.stat().st_size for path in directory.rglob("*.telemetry")]
    print(f"{'saved':<10} {len(files)} files of {sum(files) / len(files):.0f} bytes, once a minute")


class Bench:
    """Parts of a tick's context that the watch over idle GPUs needs."""

    def __init__(self, recorder: TelemetryRecorder, jobs: tuple[Job, ...]) -> None:
        self.telemetry, self.settings = recorder, Settings()
        self.queue = QueueView(active=jobs)
        self.idle_since: dict[str, datetime] = {}


def running(number: int) -> Job:
    """Return a job that runs on a GPU of its own."""
    attempt = Attempt(1, (f"GPU-{number:08x}",), BEGIN, f"c{number}", BEGIN)
    spec = JobSpec(image="busybox", name="train", tenant="bench")
    return Job(number, spec, BEGIN, JobState.RUNNING, attempts=(attempt,), started_at=BEGIN)


def sample(uuid: str, at: datetime, chosen: random.Random) -> GpuSample:
    """Return a noisy reading of a Hopper GPU."""
    load = chosen.random()
    return GpuSample(
        uuid,
        at,
        utilization=round(load, 2),
        memory_used=int((40 + 30 * load) * GIB),
        memory_total=80 * GIB,
        temperature=round(40 + 40 * load),
        power=100 + 600 * load,
        throttle=("power cap",) if load > 0.9 else (),
        sm_activity=load * 0.8,
        memory_activity=load * 0.5,
        processes=(),
    )


def measure_space() -> None:
    """Print the size of a year: summaries in the history, and series in files of their own."""
    chosen = random.Random(2)
    series, summaries = [], []
    for number in range(SAMPLED):
        tally, length = attempt(chosen.lognormvariate(0.0, SPREAD) * MEDIAN, chosen)
        series.append(len(telemetry_file.encode_ended(f"{number:064x}", tally.series())))
        summary = replace(tally.summary(BEGIN.timestamp() + length) or sys.exit("nothing was read"))
        summaries.append(len(msgspec.json.encode(summary)))
    blocks = sum(-(-size // 4096) * 4096 for size in series)
    for name, total in (("summaries", sum(summaries)), ("series", sum(series)), ("series, blocks of 4 KiB", blocks)):
        print(f"{name:<24} {total / SAMPLED:7.0f} bytes each, {total / SAMPLED * ATTEMPTS / 1e6:6.0f} MB a year")
    print(f"{'largest series':<24} {max(series):7} bytes with 90 of its file's head")


def attempt(length: float, chosen: random.Random) -> tuple[Tally, float]:
    """Return the tally of an attempt that ran for so many seconds, read often enough for all its columns."""
    tally = Tally(TallyRecord(1, BEGIN.timestamp()))
    pause, at, work = min(30.0, max(1.0, length / 1000)), 0.0, 0.0
    while at + pause <= length:
        at += pause
        work += pause * chosen.random() * 4
        tally.add(sample("GPU-1", BEGIN + timedelta(seconds=at), chosen))
        used = Consumption(work, int(chosen.random() * 8 * GIB), 8 * GIB, int(work * 1e6), int(work * 1e5))
        tally.add_host(used, BEGIN.timestamp() + at)
    if not at:
        tally.add(sample("GPU-1", BEGIN + timedelta(seconds=length), chosen))
    return tally, length


if __name__ == "__main__":
    main()
