"""Recount of a real run, from sources independent of the code under test.

When each container ran and how it ended is from the engine's events, its GPUs from its own line, what users and the
scheduler asked for from the lines of the audit log. The causes of the ends follow from these.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

COMPLETED = "Completed"
OUTCOMES = {COMPLETED: "completed", "Preempted": "preempted", "Cancelled": "cancelled"}
STATES = {COMPLETED: "COMPLETED", "Cancelled": "CANCELLED"}
NONE = "none"


class Ran(NamedTuple):
    """An attempt; times in seconds since the epoch."""

    job: int
    number: int
    tenant: str
    gpus: tuple[str, ...]
    start: float
    end: float
    cause: str
    inside: float
    """Seconds from the container's first line to its last: no more than the attempt took."""

    @property
    def seconds(self) -> float:
        """GPU-seconds."""
        return (self.end - self.start) * len(self.gpus)

    @property
    def outcome(self) -> str:
        return OUTCOMES.get(self.cause, "failed")


class Wait(NamedTuple):
    """Wait until the first start."""

    attempt: Ran
    seconds: float


class Sums(NamedTuple):
    """Figures of a group."""

    jobs: int
    attempts: int
    ended: Counter[str]
    seconds: dict[str, float]
    """GPU-seconds by outcome."""
    by_gpu: dict[str, float]
    waits: list[float]
    least: dict[str, float]
    """GPU-seconds by outcome that the containers themselves tell of."""
    counts: dict[str, float]
    """Attempts on each GPU, by their share in the group."""

    @property
    def spans(self) -> float:
        """Attempts, each counted once for each of its GPUs."""
        return sum(self.counts.values())

    @property
    def allocated(self) -> float:
        return sum(self.seconds.values())

    @property
    def wait_mean(self) -> float:
        return sum(self.waits) / len(self.waits)

    @property
    def wait_p95(self) -> float:
        return sorted(self.waits)[math.ceil(0.95 * len(self.waits)) - 1]


class Recount:
    """The attempts, waits and ends of a run."""

    def __init__(self, state: Path, runs: Iterable[str], events: list[dict[str, Any]], lost: tuple[str, float, float]):
        asked = list(_audit(state))
        self.submitted = {each.job: each.at for each in asked if each.verb == "submit"}
        self._preempted = [each for each in asked if each.verb == "preempt" and each.before == "RUNNING"]
        lines: dict[str, list[list[str]]] = {}
        for line in runs:
            lines.setdefault(line.split()[0], []).append(line.split())
        self._lost = lost
        created = (each["Actor"]["Attributes"] for each in events if each["Action"] == "create")
        self.created = sum("gputui.job" in labels for labels in created)  # building an image creates containers, too
        self.ran = sorted(self._attempts(events, lines), key=lambda each: (each.job, each.number))
        tenants = {each.job: each.tenant for each in self.ran}
        self.tenants = {job: tenants.get(job) or _tenant_of(state, job) for job in self.submitted}

    def _attempts(self, events: list[dict[str, Any]], lines: Mapping[str, list[list[str]]]) -> Iterable[Ran]:
        begins: dict[str, float] = {}
        for event in sorted(events, key=lambda event: event["timeNano"]):
            words, at = event["Actor"]["Attributes"], event["timeNano"] / 1e9
            if event["Action"] == "start":
                begins[event["Actor"]["ID"]] = at
            if event["Action"] == "die":
                job, number = int(words["gputui.job"]), int(words["gputui.attempt"])
                told = lines.get(f"{words['gputui.store']}:{job}:{number}")  # None: ended before its first line
                own = tuple((told[0][1] if told else words["gputui.gpus"]).split(","))
                inside = float(told[-1][2]) - float(told[0][2]) if told else 0.0
                start = begins.pop(event["Actor"]["ID"])
                cause = self._cause(job, own, (start, at), int(words["exitCode"]))
                yield Ran(job, number, words["user"], own, start, at, cause, inside)

    def _cause(self, job: int, gpus: tuple[str, ...], span: tuple[float, float], code: int) -> str:
        """Return the cause of an attempt's end: exit codes of signals are those of a stopped container."""
        if code not in {137, 143}:
            return "NonZeroExit" if code else COMPLETED
        uuid, since, until = self._lost
        if uuid in gpus and since <= span[1] <= until:
            return "GpuLost"
        is_preempted = any(each.job == job and span[0] <= each.at <= span[1] for each in self._preempted)
        return "Preempted" if is_preempted else "Cancelled"

    def last(self, job: int) -> Ran | None:
        """Return its last attempt."""
        return max((each for each in self.ran if each.job == job), key=lambda each: each.number, default=None)

    def end_of(self, job: int) -> str:
        """Return the cause of the job's end."""
        last = self.last(job)
        return last.cause if last else "Cancelled"

    def state_of(self, job: int) -> str:
        return STATES.get(self.end_of(job), "FAILED")

    def states(self) -> Counter[tuple[str, str]]:
        """Return how many jobs of each tenant ended in each state."""
        return Counter((self.tenants[job], self.state_of(job)) for job in self.submitted)

    def retries(self) -> Counter[str]:
        """Return the failed attempts after which the job was tried again, by cause."""
        return Counter(each.cause for each in self.ran if each.cause != "Preempted" and each is not self.last(each.job))

    def waits(self) -> list[Wait]:
        return [Wait(each, each.start - self.submitted[each.job]) for each in self.ran if each.number == 1]

    def holding(self, at: float) -> list[Ran]:
        """Return the attempts that ran at that time."""
        return [each for each in self.ran if each.start <= at < each.end]

    def sums(self, belongs: Callable[[int, Ran | None], float]) -> Sums:
        """Return the figures of a group, from the share of each attempt in it and the jobs in it that never ran."""
        chosen = [(each, share) for each in self.ran if (share := belongs(each.job, each))]
        ends = [job for job in self.submitted if belongs(job, self.last(job))]
        seconds: defaultdict[str, float] = defaultdict(float)
        least: defaultdict[str, float] = defaultdict(float)
        by_gpu: defaultdict[str, float] = defaultdict(float)
        counts: defaultdict[str, float] = defaultdict(float)
        for each, share in chosen:
            seconds[each.outcome] += each.seconds * share
            least[each.outcome] += each.inside * len(each.gpus) * share
            for uuid in each.gpus:
                by_gpu[uuid] += (each.end - each.start) * share
                counts[uuid] += share
        ended = Counter(self.state_of(job).lower() for job in ends)
        waits = [wait.seconds for wait in self.waits() if belongs(wait.attempt.job, wait.attempt)]
        jobs = {each.job for each, _ in chosen} | set(ends)
        return Sums(len(jobs), len(chosen), ended, dict(seconds), dict(by_gpu), waits, dict(least), dict(counts))

    def grouped(self, by: str) -> dict[str, Sums]:
        """Return the figures by tenant, cause or GPU."""
        if by == "gpu":
            groups = {uuid: self._of_gpu(uuid) for each in self.ran for uuid in each.gpus}
            return groups | {NONE: self.sums(lambda _, ran: ran is None)}
        names = set(self.tenants.values()) if by == "tenant" else {_word(each.cause) for each in self.ran}
        return {name: self.sums(partial(self._is_in, by, name)) for name in names}

    def _is_in(self, by: str, name: str, job: int, ran: Ran | None) -> bool:
        return name == (self.tenants[job] if by == "tenant" else _word(ran.cause if ran else "Cancelled"))

    def _of_gpu(self, uuid: str) -> Sums:
        """Return the figures of a GPU: measured ones are divided evenly over the GPUs of an attempt."""
        return self.sums(lambda _, ran: 1 / len(ran.gpus) if ran and uuid in ran.gpus else 0)


def _word(cause: str) -> str:
    return "completed" if cause == COMPLETED else cause


class Asked(NamedTuple):
    """Line of the audit log about a job."""

    verb: str
    job: int
    at: float
    before: str


def _audit(state: Path) -> Iterator[Asked]:
    """Yield the requests about jobs."""
    lines = [line for path in sorted(state.glob("audit-*.jsonl")) for line in path.read_text().splitlines()]
    for entry in map(json.loads, lines):
        kind, _, number = entry["target"].partition(" ")
        if kind == "job":
            at = datetime.fromisoformat(entry["at"]).timestamp()
            yield Asked(entry["verb"], int(number), at, entry["before"])


def journal(state: Path) -> dict[int, dict[str, Any]]:
    """Return the last document of each job in the queue's files, read as plain JSON."""
    found: dict[int, dict[str, Any]] = {}
    snapshot = state / "queue.json"
    if snapshot.exists():
        found |= {int(key): value for key, value in json.loads(snapshot.read_text()).get("jobs", {}).items()}
    for path in sorted(state.glob("queue.json.wal.*")):
        for line in path.read_text().splitlines():
            changes = json.loads(line.split(" ", 2)[2])["t"].get("jobs", {})
            found |= {int(key): value for key, value in changes.items()}
    return found


def _tenant_of(state: Path, job: int) -> str:
    """Return the tenant of a job that never ran, which only the journal names."""
    tenant: str = journal(state)[job]["spec"]["tenant"]
    return tenant
