"""A year of one server: `python -m bench.year [--attempts 100000] [--seed 1] [--keep DIR]`.

Users' actions, starts, ends, telemetry and maintenance go through the real code into the real files, on a clock that is
turned by the hour; only the choice of GPUs and the containers are made up. Then figures of what is on the disk, of
commands, owner and console over it, and of the removal of what is too old, each beside its budget. Fails where one is
over it, or where history, audit log and report do not add up to what ran.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench import telemetry
from bench._measure import cpu_seconds, machine, measure, resident, tree
from bench.arrays import MB, PAINT, Found, ours
from bench.commands import compare
from bench.console import VISIBLE, at_home
from gputui.api.client import ApiClient
from gputui.api.wire import to_sockets
from gputui.domain.access import Actor
from gputui.domain.accounting import Period, account
from gputui.domain.action import Cancel, Hold, Release, SetPriority
from gputui.domain.container import ContainerRecord, ContainerState
from gputui.domain.errors import GputuiError, cause_of_exit
from gputui.domain.job import Job, Placement
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.kept_data import KeptData
from gputui.domain.settings import SchedulerSettings, StoreSettings
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.domain.telemetry import AttemptTelemetry, efficiency_of
from gputui.domain.telemetry_series import packed
from gputui.engine import telemetry_files
from gputui.engine.actions.actions import Actions
from gputui.engine.saved_logs import LogSweeper, kept, log_path
from gputui.engine.tick.start_protocol import FailureSigns, claimed, finished, running
from gputui.store import TinyJobStore
from gputui.store.history import line_files
from tests.factories import FakeClock, spec, uuid

GPUS = 32
DAYS = 364
LOOK = 3600
"""Seconds between two looks."""
SAMPLES = 200
"""Attempts that are really measured; each of the others has the telemetry of one as long as itself."""
TENANTS = ("alice", "bob", "carol", "dan", "eve", "frank")
WIDTHS = (1, 1, 1, 1, 2, 2, 4)
SWEEP = 25
"""Elements of an array; every hundredth submission is one."""
WAITING = 100
"""Held jobs at the end of the year."""
LOAD = 0.4
"""Share of the GPUs' time that jobs ask for."""
SPREAD = 1.3
"""Deviation of the logarithm of run times."""
OUTPUT = b"".join(b"step %5d  loss %.4f  42.1 samples/s\n" % (step, 3 / (step + 1)) for step in range(50))
"""Output of each attempt."""
MARK = "waits"
"""Name of the held jobs: must be on the screen."""
IDLE = 10
"""Seconds for which the idle owner is measured."""
BUDGETS = {
    "queue": 0.35,
    "queue -a": 1.0,
    "history": 0.5,
    "history tenant:alice is:failed exit:9": 2.5,
    "show 1": 1.5,
    "logs 1": 1.5,
    "report": 0.6,
    "report --since -365d": 2.0,
    "report --since -365d --by day": 2.0,
    "report --since -365d --format html": 5.0,
    "doctor": 5.0,
    "state verify": 20.0,
}
"""Commands without an owner, and the seconds that each may take."""
SERVED = {"queue": 0.25, "history": 0.5, "show 1": 1.5, "report --since -365d": 2.5}
"""The same for commands that the owner runs."""
SIZES = (
    ("queue", "queue and journal", 10),
    ("history", "history", 250),
    ("audit", "audit log", 50),
    ("directory", "directories of jobs", 500),
    (".log", "output", None),
    (".telemetry", "series", 200),
)
"""Kind, name and budget in MB of the files."""
AGE = timedelta(days=90)
"""Age above which the second part removes what is left of ended jobs."""
STEP_MOST = 0.35
"""Seconds that one step of the removal may take."""


class Truth(msgspec.Struct):
    """Sums of all that ran, as the containers know them."""

    attempts: int = 0
    seconds: float = 0.0
    """GPU-seconds."""
    ends: dict[str, int] = msgspec.field(default_factory=dict)
    submitted: int = 0
    asked: int = 0
    """Actions of users, each with a line of audit."""
    took: int = 0
    """Seconds that it took to play."""


class Year:
    """Server whose year is played; it ends now."""

    def __init__(self, directory: Path, attempts: int, seed: int, days: int = DAYS, samples: int = SAMPLES) -> None:
        self.begin = datetime.now(UTC).replace(microsecond=0) - timedelta(days=days)
        self.days = days
        self.directory = directory
        self.chance = random.Random(seed)
        self.clock = FakeClock(self.begin)
        self.store = TinyJobStore(directory)
        self.store.own()
        self.users = [Actions(self.store, self.clock, Actor(1000 + n, name)) for n, name in enumerate(TENANTS)]
        self.truth = Truth()
        self.settings = SchedulerSettings()
        mean = LOAD * GPUS * days * 86400 / attempts / (sum(WIDTHS) / len(WIDTHS))
        self.median = mean / math.exp(SPREAD**2 / 2)
        self.rate = attempts * 0.98 / days / (1 + 0.01 * (SWEEP - 1))
        """Submissions a day; some attempts are retries."""
        self.samples = sorted((self._sampled(self._length()) for _ in range(samples)), key=lambda each: each[0])
        self._running: dict[JobId, tuple[str, ...]] = {}
        self._free = [uuid(index) for index in range(GPUS)]
        self._ends: list[tuple[float, JobId, int]] = []
        self._waiting: list[tuple[JobId, int]] = []
        """Jobs and their numbers of GPUs."""

    @property
    def now(self) -> float:
        """Seconds since the year began."""
        return (self.clock.now() - self.begin).total_seconds()

    def play(self, told: Callable[[str], object]) -> None:
        """Play the year, and leave some held jobs."""
        month = 0
        while self.now < self.days * 86400:
            self.clock.advance(LOOK)
            self._end()
            if self.now < (self.days - 3) * 86400:
                self._users_act()
            self._start()
            self.store.maintain(self.clock.now())
            if self.now >= (month + 1) * self.days * 86400 / 12:
                month += 1
                told(f"month {month}: {self.truth.attempts:,} attempts, {resident(os.getpid()) / MB:.0f} MB")
        held = Submission(spec(1, name=MARK, tenant="alice"), held=True)
        self.users[0].act(SubmitJobs((held,) * WAITING))
        self.truth.submitted += WAITING
        self.truth.asked += WAITING
        self.store.disown()
        self.store.close()

    def _length(self) -> float:
        return min(self.chance.lognormvariate(math.log(self.median), SPREAD), 50 * 3600)

    def _sampled(self, length: float) -> tuple[float, AttemptTelemetry, str]:
        """Return length, summary and series of an attempt on one GPU that was read as often as a real one."""
        tally, length = telemetry.attempt(max(length, 2.0), self.chance)
        summary = tally.summary(telemetry.BEGIN.timestamp() + length)
        assert summary is not None
        return length, summary, packed(tally.series())

    def _end(self) -> None:
        """Record the ends of the last hour, in one transaction as a tick does."""
        ended = []
        with self.store.transaction() as transaction:
            while self._ends and self._ends[0][0] <= self.now:
                at, job_id, number = heappop(self._ends)
                job = transaction.get(job_id)
                if job.state is not JobState.RUNNING or job.attempts[-1].number != number:
                    continue  # it was cancelled
                job = self._ended(job, self.begin + timedelta(seconds=at))
                transaction.put(job)
                ended.append(job)
        for job in ended:
            self._free += self._running.pop(job.id)
            if job.state is JobState.PENDING:
                self._waiting.append((job.id, job.spec.gpus.minimum))

    def _ended(self, job: Job, at: datetime) -> Job:
        """Return the job after an end, with the files that its attempt leaves."""
        attempt = job.attempts[-1]
        assert attempt.started_at is not None
        assert attempt.container_id is not None
        seconds, gpus = (at - attempt.started_at).total_seconds(), len(attempt.gpus)
        code = 143 if job.cancel_requested else self.chance.choice((*[0] * 17, 1, 1, 137))
        place = bisect_left(self.samples, seconds, key=lambda each: each[0])
        length, summary, series = self.samples[min(place, len(self.samples) - 1)]
        sums = (summary.allocated, summary.known, summary.busy, summary.energy, summary.cpu)
        names = ("allocated", "known", "busy", "energy", "cpu")
        told = {
            name: round(value * gpus * seconds / length, 3) for name, value in zip(names, sums, strict=True) if value
        }
        summary = replace(summary, **told, seconds=round(seconds, 1))
        file = telemetry_files.TelemetryFile(attempt.container_id, series=series)
        telemetry_files.write(self.directory, job.id, attempt.number, msgspec.msgpack.encode(file), durably=False)
        log = self.directory / log_path(job.id, attempt.number)
        log.write_bytes(OUTPUT)
        for path in (log, log.with_suffix(".telemetry")):
            os.utime(path, (at.timestamp(), at.timestamp()))
        self.truth.seconds += seconds * gpus
        self.truth.ends[str(code)] = self.truth.ends.get(str(code), 0) + 1
        cause = cause_of_exit(code)
        record = ContainerRecord(
            attempt.container_id,
            job.id,
            attempt.number,
            ContainerState.EXITED,
            attempt.gpus,
            started_at=attempt.started_at,
            ended_at=at,
            exit_code=code,
            cause=cause,
        )
        job = job.with_attempt(telemetry=summary, efficiency=efficiency_of(summary))
        error = (
            FailureSigns(error="RuntimeError: CUDA error: an illegal memory access") if code == 1 else FailureSigns()
        )
        after = finished(job, record, self.clock.now(), self.settings, error)
        return after.evolve(announced_end_at=at) if after.state.is_terminal else after

    def _start(self) -> None:
        """Start waiting jobs in order: claims in one transaction, confirmations in another."""
        chosen, left = [], []
        for job_id, width in self._waiting:
            if width <= len(self._free):
                self._running[job_id] = tuple(self._free[:width])
                del self._free[:width]
                chosen.append(job_id)
            else:
                left.append((job_id, width))
        self._waiting = left
        now = self.clock.now()
        with self.store.transaction() as transaction:
            for job_id in chosen:
                transaction.put(claimed(transaction.get(job_id), Placement(job_id, self._running[job_id]), now))
        with self.store.transaction() as transaction:
            for job_id in chosen:
                job = transaction.get(job_id)
                name = f"{self.chance.getrandbits(256):064x}"
                transaction.put(running(job, name, now, began=self.clock.boot_time()))
                heappush(self._ends, (self.now + self._length(), job_id, job.attempts[-1].number))
        self.truth.attempts += len(chosen)

    def _users_act(self) -> None:
        """Submit what comes in this hour, more of it by day and on weekdays; now and then change a job."""
        hour, weekday = self.clock.now().hour, self.clock.now().weekday()
        share = (1.5 if 8 <= hour < 20 else 0.5) * (1.2 if weekday < 5 else 0.5)
        left = self.rate * LOOK / 86400 * share
        while self.chance.random() < left / (1 + left):
            who = self.chance.randrange(len(TENANTS))
            self._submit(self.users[who], TENANTS[who])
        if self._waiting and self.chance.random() < 0.3:
            [chosen], operator = [self.chance.choice(self._waiting)[0]], self.users[0]
            operator.act(Hold((chosen,)))
            operator.act(SetPriority((chosen,), 70 if self.store.get(chosen).priority == 60 else 60))
            operator.act(Release((chosen,)))
            self.truth.asked += 3
        if self._running and self.chance.random() < 0.1:
            job_id = self.chance.choice(list(self._running))
            self.users[0].act(Cancel((job_id,)))
            heappush(self._ends, (self.now + 10, job_id, self.store.get(job_id).attempts[-1].number))
            self.truth.asked += 1

    def _submit(self, actions: Actions, tenant: str) -> None:
        number = self.truth.submitted
        width = self.chance.choice(WIDTHS)
        wanted = spec(
            width,
            image=f"registry.example.org/team/train:{number % 12}",
            command=("python", "train.py", "--lr", f"{self.chance.uniform(1e-5, 1e-2):.1e}", "--epochs", "10"),
            name=f"train-{number % 50}",
            tenant=tenant,
            priority=self.chance.choice((40, 50, 50, 50)),
            time_limit=timedelta(hours=60),
            retries=self.chance.choice((0, 0, 0, 1)),
        )
        array = tuple(range(SWEEP)) if self.chance.random() < 0.01 else ()
        ids = actions.act(SubmitJobs((Submission(wanted, array=array),))).ids
        every = range(ids[0], ids[0] + (len(array) or 1))
        self._waiting += [(JobId(job_id), width) for job_id in every]
        self.truth.submitted += len(every)
        self.truth.asked += 1


@contextmanager
def unsynced() -> Iterator[None]:
    """Leave the writing of files to the kernel: what is on the disk afterwards is the same."""
    real = os.fsync, os.fdatasync
    os.fsync = os.fdatasync = lambda fd: None
    try:
        yield
    finally:
        os.fsync, os.fdatasync = real


def main() -> None:
    """Play, measure and print."""
    options = _options()
    print(f"machine: {machine()}; {options.attempts:,} attempts, seed {options.seed}", file=sys.stderr)
    found = []
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as scratch, at_home(os.environ) as environ:
        place = options.keep or Path(scratch) / "year"
        truth = played(place, options.attempts, options.seed)
        print(f"{truth.attempts:,} attempts of {truth.submitted:,} jobs, played in {truth.took / 60:.0f} minutes")
        differences = differing(place / "state", truth)
        print(*differences or ["history, audit log and report add up to what ran"], sep="\n")
        for each in measured(place / "state", Path(scratch), truth, dict(environ) | {"GPUTUI_SITE_CONFIG": ""}):
            found.append(each)
            print(each.line(), flush=True)
    missed = [each.what for each in found if each.verdict.endswith("MISS")]
    sys.exit(f"over budget: {', '.join(missed)}" if missed else bool(differences))


def played(place: Path, attempts: int, seed: int) -> Truth:
    """Play a year into the directory `state` there, unless that was done before; return what ran."""
    told = place / "truth.json"
    if not told.exists():
        begun = time.monotonic()
        place.mkdir()
        with unsynced():
            year = Year(place / "state", attempts, seed)
            year.play(lambda words: print(words, file=sys.stderr, flush=True))
        year.truth.took = round(time.monotonic() - begun)
        told.write_bytes(msgspec.json.encode(year.truth))
    return msgspec.json.decode(told.read_bytes(), type=Truth)


def differing(state: Path, truth: Truth) -> list[str]:
    """Return sentences about what differs between the records and what ran."""
    store = TinyJobStore(state)
    try:
        ids = Counter(job_id for jobs in (store.past(), store.jobs().values()) for job in jobs for job_id in job.ids)
        whole = Period(datetime(2000, 1, 1, tzinfo=UTC), datetime.now(UTC))
        sums = account(store.records(), whole, "tenant", whole.until).total
        asked = sum(1 for _ in store.audit_log())
    finally:
        store.close()
    pairs = {
        "jobs": (len(ids), truth.submitted),
        "the highest number of records of a job": (max(ids.values()), 1),
        "attempts in the report": (sums.attempts, truth.attempts),
        "GPU-seconds in the report": (round(sums.allocated), round(truth.seconds)),
        "actions in the audit log": (asked, truth.asked),
    }
    return [f"{what}: {found}, not {real}" for what, (found, real) in pairs.items() if found != real]


def measured(state: Path, scratch: Path, truth: Truth, environ: dict[str, str]) -> Iterator[Found]:
    """Yield the figures: sizes, commands, owner, console, retention."""
    yield from _sizes(state, truth.attempts)
    yield from _commands(state, environ, BUDGETS, "")
    yield from _console(state, environ, "console that schedules")
    with _served(state, environ) as (pid, began):
        yield Found("serve: seconds until it answers", began, "s", 2.0)
        time.sleep(5)
        before, at = cpu_seconds(pid), time.monotonic()
        time.sleep(IDLE)
        yield Found("serve: of a core while idle", (cpu_seconds(pid) - before) / (time.monotonic() - at) * 100, "%", 3)
        yield Found("serve: memory", sum(map(resident, tree(pid))) / MB, "MB", 100)
        yield from _commands(state, environ, SERVED, ", served", times=2)
        yield Found("serve: memory after these", sum(map(resident, tree(pid))) / MB, "MB", 150)
        yield from _console(state, environ, "console beside it")
    copy = scratch / "copy"
    shutil.copytree(state, copy, ignore=shutil.ignore_patterns("*.sock"))
    yield from retention(copy)


def _kind(path: Path) -> str:
    if path.parent.name == "logs":
        return "directory"
    return path.suffix if path.parent.parent.name == "logs" else re.split("[-.]", path.name)[0]


def _sizes(state: Path, attempts: int) -> Iterator[Found]:
    kinds: dict[str, list[os.stat_result]] = {}
    for path in state.rglob("*"):
        kinds.setdefault(_kind(path), []).append(path.lstat())
    for kind, name, most in SIZES:
        size = sum(status.st_size for status in kinds[kind]) / MB
        yield Found(f"{name}: {size / attempts * MB:,.0f} bytes an attempt", size, "MB", most)
    blocks = sum(status.st_blocks for statuses in kinds.values() for status in statuses) * 512
    count = sum(map(len, kinds.values()))
    yield Found(f"all on the disk: {count:,} files and directories", blocks / MB, "MB", 1800)


def _commands(
    state: Path, environ: dict[str, str], budgets: Mapping[str, float], where: str, times: int = 5
) -> Iterator[Found]:
    runs = compare({words: ours(str(state), *words.split()) for words in budgets}, times, environ)
    for words, each in runs.items():
        cpu = min(run.cpu for run in each)
        yield Found(f"{words}{where}", min(run.wall for run in each), "s", budgets[words], cpu)


def _console(state: Path, environ: dict[str, str], name: str) -> Iterator[Found]:
    runs = [
        measure(ours(str(state)), environ, seconds=seconds, settle=2, characters=VISIBLE, marker=MARK)
        for seconds in (0, 0, 5)
    ]
    yield Found(f"{name}: first paint", min(run.first_paint for run in runs), "s", PAINT)
    yield Found(f"{name}: jobs shown", min(run.first_content for run in runs), "s", 1.5)
    yield Found(f"{name}: memory of its tree", runs[-1].resident / MB, "MB", 250)


@contextmanager
def _served(state: Path, environ: dict[str, str]) -> Iterator[tuple[int, float]]:
    """Run `serve`; yield its process id, and the seconds until it answered."""
    begun = time.monotonic()
    with subprocess.Popen(ours(str(state), "serve"), env=environ, stderr=subprocess.DEVNULL) as process:
        try:
            while not _answers(state):
                if process.poll() is not None or time.monotonic() - begun > 60:
                    sys.exit("serve does not answer")
                time.sleep(0.01)
            yield process.pid, time.monotonic() - begun
        finally:
            process.terminate()


def _answers(state: Path) -> bool:
    try:
        return bool(ApiClient(to_sockets([state / "api.sock"])).request("GET", "/v1/about"))
    except GputuiError:
        return False


def retention(state: Path) -> Iterator[Found]:
    """Remove what is older than AGE, as the scheduler does, in the steps that it takes every ten seconds."""
    settings = StoreSettings(logs_max_age=AGE, telemetry_max_age=AGE, history_max_age=AGE, audit_max_age=AGE)
    now = datetime.now(UTC)
    store = TinyJobStore(state, settings)
    recent = Period(now - AGE + timedelta(days=8), now)
    before = account(store.records(), recent, "tenant", now).total
    sweeper, longest, steps = LogSweeper(state, settings, store), 0.0, 0
    while any(data.is_over(now, timedelta(days=2)) for data in _kept(state, settings)) or steps % 50:
        begun = time.monotonic()
        store.maintain(now)
        sweeper.step(now)
        longest, steps = max(longest, time.monotonic() - begun), steps + 1
        if steps > 2000:
            sys.exit("what is too old is not removed")
    after = account(store.records(), recent, "tenant", now).total
    store.close()
    yield Found("removal of what is older than 90 days", steps * 10 / 60, "min", 60)
    yield Found("its longest step", longest, "s", STEP_MOST)
    yield Found("difference of the report's GPU-hours after it", abs(after.allocated - before.allocated) / 3600, "h", 0)


def _kept(state: Path, settings: StoreSettings) -> list[KeptData]:
    return [*kept(state, settings, 60), *(files.kept() for files in line_files(state, settings))]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.year", description=__doc__)
    parser.add_argument("--attempts", type=int, default=100_000, help="attempts of the year, more or less")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="directory of the year, which stays and is not played again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
