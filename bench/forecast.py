"""Accuracy of forecasts: the first expected start of each job, compared with its real start.

`python -m bench.forecast [JOBS]` runs made-up traces with exact limits through the real scheduler on a virtual clock.
`python -m bench.forecast live [SCENARIOS]` runs scenarios of host jobs of some seconds through `gputui serve` on four
simulated GPUs: priorities, tenants, ranges, dependencies and arrays, every other one with a reservation.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from bench._measure import machine
from gputui import bootstrap
from gputui.config import resolve
from gputui.domain.settings import PolicySettings, Settings
from gputui.replay.trace import Site, TraceJob, generate, prepare
from tests.engine.virtual import VirtualServer

TRACES, JOBS, JOBS_AT_ONCE = 6, 300, 100
JOBS_OF_A_TRACE, DAYS_OF_A_TRACE = 2500, 28.0
SCENARIOS, JOBS_OF_A_SCENARIO = 10, 14
AT_ONCE = 5
"""Number of scenarios that run side by side."""
SPARE = 2.0
"""Seconds by which limits exceed the run times of a trace, so that no job is ended by its limit."""
TOGETHER = 0.5
"""Seconds within which two forecasts or starts count as simultaneous."""


class Told(NamedTuple):
    """Forecast and start of a job that had to wait. Times are seconds since the same moment."""

    submitted: float
    expected: float
    """First forecast."""
    started: float

    @property
    def error(self) -> float:
        """Return the seconds by which it started later than forecast."""
        return self.started - self.expected


class Quality(NamedTuple):
    """Errors of the forecasts of some jobs, in seconds; late is positive."""

    jobs: int
    mean: float
    p10: float
    median: float
    p90: float
    least: float
    most: float
    pairs: int
    """Pairs of jobs that waited at the same time."""
    in_order: int
    """Pairs that started in the order of their forecasts."""

    @classmethod
    def of(cls, runs: Sequence[Sequence[Told]]) -> Quality:
        """Return the quality of several runs; jobs are compared only within their run."""
        errors = sorted(told.error for run in runs for told in run)
        pairs = [pair for run in runs for pair in combinations(run, 2) if waited_together(*pair)]
        marks = [errors[min(len(errors) - 1, int(share * len(errors)))] for share in (0.1, 0.5, 0.9, 0.0, 1.0)]
        p10, median, p90, least, most = marks
        right = sum(is_in_order(*pair) for pair in pairs)
        return cls(len(errors), statistics.mean(errors), p10, median, p90, least, most, len(pairs), right)

    def __str__(self) -> str:
        share = 100 * self.in_order / self.pairs if self.pairs else math.nan
        return (
            f"{self.jobs} forecasts, error mean {self.mean:+.1f} s, p10 {self.p10:+.1f}, median {self.median:+.1f}, "
            f"p90 {self.p90:+.1f}, {self.least:+.1f}..{self.most:+.1f}; "
            f"{self.in_order} of {self.pairs} pairs ({share:.1f} %) in forecast order"
        )


def waited_together(one: Told, other: Told) -> bool:
    """Return whether both jobs waited at the same time."""
    return one.submitted < other.started and other.submitted < one.started


def is_in_order(one: Told, other: Told) -> bool:
    """Return whether the job that was forecast to start first did."""
    expected, started = other.expected - one.expected, other.started - one.started
    return abs(expected) < TOGETHER or abs(started) < TOGETHER or (expected > 0) == (started > 0)


def virtual(trace: Sequence[TraceJob], directory: Path, policy: PolicySettings | None = None) -> list[Told]:
    """Return forecasts and starts of the jobs of a trace with exact limits on eight GPUs."""
    settings = Settings(policy=replace(policy or PolicySettings(), forecast_jobs=len(trace)))
    server = VirtualServer(directory, 8, settings)
    came: dict[int, float] = {}

    def submit(job: TraceJob) -> None:
        work = max(1.0, job.duration)
        came[server.submit(work, job.gpus, work + SPARE, tenant=job.tenant, priority=job.priority)] = server.now

    for job in trace:
        server.at(job.submit, lambda job=job: submit(job))  # type: ignore[misc]
    server.run()
    return [Told(came[number], at, server.started[number]) for number, at in server.expected.items()]


def made_up(seed: int, jobs: int, load: float = 1.0) -> list[TraceJob]:
    """Return a trace for eight GPUs with exact limits, and with priorities of every class."""
    days = DAYS_OF_A_TRACE * jobs / JOBS_OF_A_TRACE
    rng = random.Random(seed)
    trace = prepare(generate(jobs, seed, widest=8, days=days), Site(8), load, "exact")
    return [dataclasses.replace(job, priority=rng.choice((10, 50, 50, 50, 50, 50, 90))) for job in trace]


def scenario(number: int) -> list[dict[str, Any]]:
    """Return the jobs of a scenario, as tables of a job file; `after` counts from the first of them."""
    rng = random.Random(number)
    jobs: list[dict[str, Any]] = []
    for place in range(JOBS_OF_A_SCENARIO):
        seconds = rng.randint(2, 9)
        job: dict[str, Any] = {
            "host": True,
            "command": ["sleep", str(seconds)],
            "time_limit": f"{seconds + 1}s",
            "gpus": rng.choice(("1", "1", "1", "2", "2", "4", "2-4", "1-2")),
            "tenant": rng.choice(("ann", "ben", "cat")),
            "priority": rng.choice((20, 50, 50, 50, 80)),
            "nice": rng.choice((0, 0, 0, 40)),
            "name": f"s{number}-{place}",
        }
        if place > 3 and rng.random() < 0.15:
            job["after"] = [rng.randint(0, place - 1)]
        if rng.random() < 0.1:
            job |= {"array": "0-2", "gpus": "1"}
        jobs.append(job)
    return jobs


def live(number: int) -> list[Told]:
    """Return forecasts and starts of the jobs of a scenario, run by its own scheduler."""
    with tempfile.TemporaryDirectory(prefix="gputui-forecast-") as folder:
        directory = Path(folder)
        (directory / "config.toml").write_text('[policy]\npatience = "2s"\npredict = false\n')
        known = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")
        environ = {key: value for key, value in os.environ.items() if key in known}
        environ |= {"GPUTUI_STATE": f"{directory}/state", "GPUTUI_CONFIG": f"{directory}/config.toml"}
        environ |= {"GPUTUI_PROBE": "sim:4", "GPUTUI_RUNTIME": "process"}
        with (directory / "serve.err").open("wb") as errors:
            serving = subprocess.Popen(
                [sys.executable, "-m", "gputui", "serve", "--wait", "30s"], env=environ, stdout=errors, stderr=errors
            )
        try:
            return _watched(number, directory, environ)
        finally:
            serving.send_signal(signal.SIGTERM)
            serving.wait(30)


def _watched(number: int, directory: Path, environ: dict[str, str]) -> list[Told]:
    if number % 2:
        window = ("--gpus", "2", "--start", "+8s", "--for", "10s", "--tenant", "ann")
        _gputui(environ, "reserve", "add", *window)
    _gputui(environ, "pause")
    _submit(directory, environ, scenario(number))
    _gputui(environ, "unpause")
    options = resolve(environ=environ)
    store = bootstrap.open_store(options)
    expected: dict[int, datetime] = {}
    try:
        deadline = time.monotonic() + 300
        while any(not job.state.is_terminal for job in store.jobs().values()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"scenario {number} did not end within five minutes")
            for job_id, at in bootstrap.current_snapshot(options, store).expected_starts.items():
                expected.setdefault(job_id, at)
            time.sleep(0.1)
        jobs = [store.get(job_id) for job_id in expected]
    finally:
        store.close()
    began = datetime.fromtimestamp(0, UTC)
    return [
        Told(*((at - began).total_seconds() for at in (job.submitted_at, expected[job.id], job.started_at)))
        for job in jobs
        if job.started_at is not None
    ]


def _gputui(environ: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-m", "gputui", *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"gputui {' '.join(words)}: {done.stderr}")
    return done.stdout


def _submit(directory: Path, environ: dict[str, str], jobs: Iterable[dict[str, Any]]) -> None:
    """Submit them one file at a time, so that later jobs can name the ids of earlier ones."""
    ids: list[int] = []
    for batch in _batches(list(jobs)):
        tables = []
        for job in batch:
            named = {**job, "after": [ids[place] for place in job["after"]]} if "after" in job else job
            tables.append("[[job]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in named.items()))
        path = directory / "jobs.toml"
        path.write_text("\n".join(tables))
        ids += _first_ids(batch, _gputui(environ, "submit", "-f", str(path)))


def _batches(jobs: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the jobs in order; one that names others, or is an array, has a batch of its own."""
    batch: list[dict[str, Any]] = []
    for job in jobs:
        if "after" in job or "array" in job:
            if batch:
                yield batch
            yield [job]
            batch = []
        else:
            batch.append(job)
    if batch:
        yield batch


def _first_ids(batch: Sequence[dict[str, Any]], printed: str) -> list[int]:
    """Return the id of each job, of an array its first."""
    found = [int(line.split()[0].rstrip(":")) for line in printed.splitlines()]
    return found[:1] if len(batch) == 1 else found


def main() -> None:
    print(machine())
    words = sys.argv[1:]
    if words[:1] == ["live"]:
        numbers = range(int(words[1]) if len(words) > 1 else SCENARIOS)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = list(pool.map(live, numbers))
        for number, run in zip(numbers, runs, strict=True):
            print(f"scenario {number}: {Quality.of([run])}")
        print(f"live:     {Quality.of(runs)}")
        return
    jobs = int(words[0]) if words else JOBS
    traces = [made_up(seed, jobs) for seed in range(TRACES)]
    at_once = [[dataclasses.replace(job, submit=0.0) for job in trace[:JOBS_AT_ONCE]] for trace in traces]
    for how, several in (("all at once", at_once), ("as they come", traces)):
        with tempfile.TemporaryDirectory() as folder:
            runs = [virtual(trace, Path(folder) / str(number)) for number, trace in enumerate(several)]
        print(f"virtual, {TRACES} traces with exact limits, {how}: {Quality.of(runs)}")


if __name__ == "__main__":
    main()
