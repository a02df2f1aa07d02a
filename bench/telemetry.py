"""The cost of measuring jobs: `python -m bench.telemetry [JOBS [SECONDS]]`.

Share of a core with so many running jobs of one GPU each, which are read every second, on 8 and on 64 GPUs: the probe
process with a stand-in for NVML that takes its time as hardware does, the thread that takes its readings over, control
groups (of this process, in the kernel's own files), files, idle GPUs. The stand-in takes its time asleep, and each time
costs the kernel a change of tasks; so the probe is also measured with one that takes none. Then the size of a year of
100,000 attempts. Fails where the total is over the budget: on 8 GPUs with a driver that takes its time, on 64 with one
that takes none, because there each sleep of the stand-in would count.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import msgspec
from msgspec.structs import replace

from bench._measure import cpu_seconds, machine
from bench._standin import sleepers
from gputui.bootstrap import SystemClock
from gputui.domain.gpu import GpuSample, ProbeReading
from gputui.domain.idle_gpus import IdleSpells
from gputui.domain.job import Attempt, BootTime, Job
from gputui.domain.job_spec import JobSpec
from gputui.domain.settings import GpuSettings, Settings
from gputui.domain.state import JobState
from gputui.domain.telemetry import Consumption
from gputui.domain.telemetry_series import Tally, TallyRecord, packed
from gputui.engine import telemetry_files
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.snapshot_builder import QueueView
from gputui.engine.tick.stops import IdleGpus
from gputui.engine.tick.workers import Observer, TelemetryRecorder
from gputui.gpus.supervisor import NvmlProbe
from gputui.runtime.cgroups import MOUNT, ConsumptionReader
from tests.gpus.standin import LIKE_HARDWARE, StandIn

P = ParamSpec("P")
T = TypeVar("T")
BEGIN = datetime(2026, 3, 2, 12, tzinfo=UTC)
GIB = 1024**3
AT_MOST = 0.008
"""Budget of a second, in seconds of a core."""
SETTLED, PROBED = 5.0, 30.0
"""Seconds before the probe is measured, and for which it is."""
YOUNG = 100
"""Seconds for which control groups are read more often than every ten."""
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
    print(machine())
    judged = []
    for gpus in (8, 64):
        with tempfile.TemporaryDirectory() as place:
            spent = measure_probe(Path(place), gpus, jobs, LIKE_HARDWARE)
            bare = sum(measure_probe(Path(place), gpus, jobs, ()).values()) - sum(spent.values())
            spent |= measure_time(Path(place), gpus, jobs, seconds)
        total = sum(spent.values())
        judged.append(total if gpus == 8 else total + bare)
        for name, cpu in {**spent, "total": total, "total, driver at once": total + bare}.items():
            print(f"{gpus:2} GPUs, {jobs} jobs  {name:<21} {cpu * 1e3:6.2f} ms/s, {cpu:.3%} of a core")
    measure_space()
    print(f"at most {AT_MOST:.1%} of a core: {', '.join(f'{total:.2%}' for total in judged)}")
    sys.exit(max(judged) > AT_MOST)


def measure_probe(directory: Path, gpus: int, jobs: int, latencies: Iterable[str]) -> dict[str, float]:
    """Return the CPU-seconds a second of the probe process and of the thread that reads it, with a process per job."""
    standin = StandIn(directory / "nvml")
    with sleepers(jobs) as pids:
        held = (f"gpu {number % gpus} process {pid} {GIB} C" for number, pid in enumerate(pids))
        standin.write(*latencies, *held, gpus=gpus)
        os.environ.update(standin.environment)
        probe = NvmlProbe(GpuSettings(), SystemClock())
        try:
            came = threading.Event()
            probe.subscribe(lambda reading: came.set() if len(reading.samples) == gpus else None)
            probe.start()
            if not came.wait(60) or probe.pid is None:
                sys.exit(f"{gpus} GPUs were not read within a minute: {probe.latest().status.text}")
            time.sleep(SETTLED)
            begun, child, own = time.monotonic(), cpu_seconds(probe.pid), time.process_time()
            time.sleep(PROBED)
            lasted = time.monotonic() - begun
            spent = {
                "probe": (cpu_seconds(probe.pid) - child) / lasted,
                "its readings": (time.process_time() - own) / lasted,
            }
        finally:
            probe.close()
    return spent


def measure_time(directory: Path, gpus: int, count: int, seconds: int) -> dict[str, float]:
    """Return the CPU-seconds a second that `count` jobs cost, after their first minutes; print what these cost."""
    jobs = tuple(running(number, gpus) for number in range(1, count + 1))
    clock, chosen = Moment(), random.Random(1)
    recorder = TelemetryRecorder(directory, "bench", lambda kind, name: Inline(), clock)
    context = cast("TickContext", Bench(recorder, jobs))
    watch = IdleGpus(context, lambda event, now: None, IdleSpells(context.settings.scheduler.idle_gpus_end))
    observers = {"docker": cast("Observer", Observed())}
    spent = {"young jobs": 0.0, "jobs": 0.0, "idle GPUs": 0.0}
    for second in range(1, YOUNG + seconds + 1):
        clock.time = BEGIN + timedelta(seconds=second)
        samples = {job.gpus[0]: sample(job.gpus[0], clock.time, chosen) for job in jobs}
        reading = ProbeReading(samples=samples, taken_at=clock.time)
        begun = time.process_time()
        recorder.update(jobs, observers, reading, clock.time)
        between = time.process_time()
        watch.enforce(clock.time, BootTime("bench", float(second)))
        spent["jobs" if second > YOUNG else "young jobs"] += between - begun
        spent["idle GPUs"] += time.process_time() - between
    files = [path.stat().st_size for path in directory.rglob("*.telemetry")]
    print(f"{len(files)} files of {sum(files) / len(files):.0f} bytes are saved once a minute")
    print(f"{gpus:2} GPUs, {count} jobs  in their first {YOUNG} s: {spent['young jobs'] / YOUNG:.3%} of a core")
    return {"jobs": spent["jobs"] / seconds, "idle GPUs": spent["idle GPUs"] / (YOUNG + seconds)}


class Bench:
    """Parts of a tick's context that the watch over idle GPUs needs."""

    def __init__(self, recorder: TelemetryRecorder, jobs: tuple[Job, ...]) -> None:
        self.telemetry, self.settings = recorder, Settings()
        self.queue = QueueView(active=jobs)
        self.idle_since: dict[str, datetime] = {}


def running(number: int, gpus: int) -> Job:
    """Return a job that runs on one GPU, of its own if there are enough."""
    attempt = Attempt(1, (f"GPU-{number % gpus:08x}",), BEGIN, f"c{number}", BEGIN)
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
        file = telemetry_files.TelemetryFile(f"{number:064x}", series=packed(tally.series()))
        series.append(len(msgspec.msgpack.encode(file)))
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
