"""What happened between two pictures, that an operator would want to hear of."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gputui.domain.cause import Blame, CauseCode
from gputui.domain.event import Event, ended, health_changes
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import EMPTY, Notice, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.tui.present.status import pressing

AT_ONCE = 3
"""More jobs than this that end within a moment are told of in one sentence."""
_QUIET = timedelta(seconds=20)
"""The moment."""
_SEVERITIES = {"job_failed": "error", "gpu_sick": "error", "disk_low": "warning"}
_BAD = ("error", "warning")


@dataclass(frozen=True)
class Happening:
    """Something that happened, as it is told."""

    at: datetime
    severity: str
    """As of notices: `error`, `warning` or `information`."""
    text: str
    is_told: bool = True
    """Whether it is worth a word when it happens; the log has it in any case."""

    @property
    def is_bad(self) -> bool:
        """Whether something went wrong."""
        return self.severity in _BAD


class Watcher:
    """Looks at one picture after the other. What is so already in the first one is no news."""

    def __init__(self, user: str, *, mine_only: bool) -> None:
        self._user = user
        self._mine_only = mine_only
        self._before = EMPTY
        self._ends: dict[JobId, datetime | None] = {}
        self._troubles: dict[str, Notice] = {}
        self._told_at: deque[datetime] = deque()
        """When ends were told lately."""
        self._waiting: list[Job] = []
        """Ends that are to be told together."""
        self._together_at: datetime | None = None
        """When ends were told together last."""
        self._failed: set[JobId] = set()
        """Arrays of which a failure was told."""
        self._jobs: dict[JobId, Job] = {}
        """Notices of the snapshot before."""

    def look(self, snapshot: Snapshot, now: datetime) -> list[Happening]:
        """What is new, in the order in which it is told."""
        before, self._before = self._before, snapshot
        if snapshot is EMPTY:
            return []
        is_changed = snapshot.jobs is not before.jobs
        ends = self._new_ends(snapshot) if is_changed else []
        stops = self._new_stops(snapshot, now) if is_changed else []
        troubles = self._new_troubles(snapshot, now)
        if before is EMPTY:
            return []
        health = [_told(event) for event in health_changes(before.gpus, snapshot.gpus, now)]
        return [*troubles, *health, *stops, *self._of_ends(ends, snapshot, now)]

    def _new_ends(self, snapshot: Snapshot) -> list[Job]:
        """Jobs that have ended since the picture before; one that is run again may do so again."""
        known = self._ends
        over = [job for job in snapshot.jobs if job.ended_at is not None and job.state.is_terminal]
        self._ends = {job.id: job.ended_at for job in over}
        return [job for job in over if known.get(job.id) != job.ended_at]

    def _new_stops(self, snapshot: Snapshot, now: datetime) -> list[Happening]:
        """Return which jobs are stopped because of their GPU, and which go back to the queue without blame."""
        known, self._jobs = self._jobs, {job.id: job for job in snapshot.jobs}
        found = []
        for job in snapshot.jobs:
            before = known.get(job.id)
            if before is not None and before is not job and (words := _stop_words(before, job)):
                found.append(Happening(now, "warning", plain(words, 500), self._concerns(job)))
        return found

    def _of_ends(self, jobs: Sequence[Job], snapshot: Snapshot, now: datetime) -> list[Happening]:
        """Return every end for the log; few of them are told singly, the others together."""
        singly, together = self._parted([job for job in jobs if self._concerns(job)], now)
        each = [_told(ended(job), is_told=job in singly) for job in jobs]
        arrays = self._arrays_over(together, snapshot)
        self._waiting += [job for job in together if job.array is None]
        if self._waiting and (self._together_at is None or now - self._together_at >= _QUIET):
            arrays.append(_together(self._waiting))
            self._waiting, self._together_at = [], now
        return [*each, *arrays]

    def _parted(self, jobs: Sequence[Job], now: datetime) -> tuple[list[Job], list[Job]]:
        """Return the jobs whose end is told singly, and those told together: of an array, all but its first failure."""
        while self._told_at and now - self._told_at[0] >= _QUIET:
            self._told_at.popleft()
        singly: list[Job] = []
        together: list[Job] = []
        alone = [job for job in jobs if job.array is None]
        for job in jobs:
            is_failure = job.array is not None and job.array.id not in self._failed and _is_bad(job)
            if is_failure and job.array is not None:
                self._failed.add(job.array.id)
            fits = job.array is None and len(alone) + len(self._told_at) <= AT_ONCE
            (singly if fits or is_failure else together).append(job)
        self._told_at.extend(now for job in singly if job.array is None)
        return singly, together

    def _arrays_over(self, jobs: Iterable[Job], snapshot: Snapshot) -> list[Happening]:
        """Return a sentence for each array of which an element ended, and none is left."""
        ids = {job.array.id for job in jobs if job.array is not None}
        if not ids:
            return []
        elements: dict[JobId, list[Job]] = {}
        for job in snapshot.jobs:
            if job.array is not None and job.array.id in ids:
                elements.setdefault(job.array.id, []).append(job)
        over = [jobs for jobs in elements.values() if all(job.state.is_terminal for job in jobs)]
        self._failed -= {jobs[0].array.id for jobs in over if jobs[0].array}
        return [_together(jobs, f"array {jobs[0].array.id} {jobs[0].spec.name}") for jobs in over if jobs[0].array]

    def _concerns(self, job: Job) -> bool:
        return not self._mine_only or self._user in {job.submitted_by, job.spec.tenant}

    def _new_troubles(self, snapshot: Snapshot, now: datetime) -> list[Happening]:
        """What presses and did not before, and what presses no more; figures in it may change."""
        known, self._troubles = (
            self._troubles,
            {_kind(notice): notice for notice in pressing(snapshot, snapshot.taken_at)},
        )
        new = [Happening(now, n.severity, plain(n.text, 500)) for key, n in self._troubles.items() if key not in known]
        over = [notice for key, notice in known.items() if key not in self._troubles]
        return [*new, *(Happening(now, "information", f"over: {plain(n.text, 400)}", is_told=False) for n in over)]


def _stop_words(before: Job, job: Job) -> str:
    """Return that the job is being stopped for a lost GPU, or is queued again through no fault of its own."""
    name = f"job {job.shown_id} {job.spec.name}".rstrip()
    stopping = job.stopping
    if stopping is not None and before.stopping is None and stopping.cause.code is CauseCode.GPU_LOST:
        return f"{name} of {job.spec.tenant} is being stopped, its GPU is lost: {stopping.cause.text}"
    last = job.attempts[-1] if job.attempts else None
    if job.state is not JobState.PENDING or last is None or not last.is_over or last.cause is None:
        return ""
    was_over = any(attempt.number == last.number and attempt.is_over for attempt in before.attempts)
    if was_over or last.cause.blame is not Blame.INFRASTRUCTURE or last.cause.code is CauseCode.PREEMPTED:
        return ""
    return f"{name} of {job.spec.tenant} was stopped and is queued again, free of charge: {last.cause.text}"


def _kind(notice: Notice) -> str:
    return re.sub(r"\d+(\.\d+)?[a-z]*", "0", notice.text)


def _told(event: Event, *, is_told: bool = True) -> Happening:
    return Happening(event.at, _SEVERITIES.get(event.name, "information"), event.text, is_told)


def _is_bad(job: Job) -> bool:
    return _SEVERITIES.get(ended(job).name) is not None


def _together(jobs: Iterable[Job], name: str = "") -> Happening:
    """Return many ends in one sentence."""
    over = list(jobs)
    counts = Counter(str(job.state) for job in over)
    severity = "error" if any(_SEVERITIES.get(ended(job).name) for job in over) else "information"
    states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    at = max(job.ended_at for job in over if job.ended_at)
    who = f"{plain(name, 80)} ended" if name else f"{plural(len(over), 'job')} ended"
    return Happening(at, severity, f"{who}: {states}")
