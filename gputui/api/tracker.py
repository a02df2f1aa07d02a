"""What has changed in the queue since any of its last few thousand snapshots, found with one scan of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Raw, Struct

from gputui.api.deltas import WHOLE, SnapshotUpdate, has_moved, json, replaced
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import Reason

KEPT = 4096
"""Numbers back to which changes are known."""
_ALL = 1 << 30
"""Count that replaces an order to its end."""
V = TypeVar("V")


class ChangedJob(Struct, frozen=True):
    """A job that is new or has changed."""

    before: Job | None
    after: Job


class _Ledger(Generic[V]):
    """Values by job, with the number at which each came or went."""

    def __init__(self) -> None:
        self.values: dict[JobId, V] = {}
        self._at: dict[JobId, int] = {}
        self._gone: deque[tuple[int, JobId]] = deque()

    def take(self, values: Mapping[JobId, V], number: int) -> None:
        """Note what differs from the values before."""
        known = self.values
        news = {key: value for key, value in values.items() if known.get(key) is not value}
        news = {key: value for key, value in news.items() if known.get(key) != value}
        if len(known) + len(news.keys() - known.keys()) > len(values):
            for key in known.keys() - values.keys():
                del known[key], self._at[key]
                self._gone.append((number, key))
        known.update(news)
        self._at.update(dict.fromkeys(news, number))
        while self._gone and self._gone[0][0] <= number - KEPT:
            self._gone.popleft()

    def since(self, number: int, upto: int) -> tuple[dict[JobId, V], tuple[JobId, ...]]:
        """Return the values that have come since a number, and the keys that have gone; `upto` is the present one."""
        if number >= upto:
            return {}, ()
        values = self.values
        if number < 0:
            return dict(values), ()
        gone = {key: None for at, key in self._gone if at > number and key not in values}
        return {key: values[key] for key, at in self._at.items() if at > number}, tuple(gone)


class QueueChanges(Struct, frozen=True):
    """Changes of the queue since a number, the same for every caller; fields of the snapshot are not among them."""

    jobs: Sequence[Job]
    gone: tuple[JobId, ...] = ()
    order: tuple[int, int, tuple[JobId, ...]] | None = None
    reasons: Mapping[JobId, Reason] = {}
    no_reason: tuple[JobId, ...] = ()
    starts: tuple[tuple[JobId, Any], ...] = ()
    no_start: tuple[JobId, ...] = ()

    def update(self, jobs: Iterable[Raw], fields: Mapping[str, Raw], reasons: Mapping[JobId, Reason]) -> SnapshotUpdate:
        """Return them as a message, with the jobs, fields and reasons as a caller sees them."""
        return SnapshotUpdate(
            fields,
            tuple(jobs),
            self.gone,
            self.order,
            _grouped(reasons),
            self.no_reason,
            self.starts,
            self.no_start,
        )


class Tracker:
    """Keeps the last snapshot, and since when each part of it is as it is. For one thread."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the last change."""
        self.snapshot: Snapshot = EMPTY
        self._last, self._before = 0, -1
        """Numbers of the last snapshot and of the one before it."""
        self._jobs = _Ledger[Job]()
        self._order: tuple[int, Sequence[JobId]] = (0, ())
        self._step: tuple[int, int, tuple[JobId, ...]] | None = None
        """Last change of the order, which is that since the number before."""
        self._reasons = _Ledger[Reason]()
        self._starts = _Ledger[Any]()

    def take(self, snapshot: Snapshot) -> list[ChangedJob]:
        """Take the next snapshot under the next number; return the jobs that have changed."""
        self._before, self._last = self._last, self.skip()
        number, now, known = self.number, snapshot.taken_at, self._jobs.values
        changed = [ChangedJob(known.get(job.id), job) for job in snapshot.jobs if known.get(job.id) is not job]
        changed = [each for each in changed if each.before != each.after]
        if changed or len(known) != len(snapshot.jobs):
            self._jobs.take({job.id: job for job in snapshot.jobs}, number)
        self._reasons.take(snapshot.reasons, number)
        starts = self._starts.values
        steady = {
            key: at if (before := starts.get(key)) != at and has_moved(before, at, now) else before
            for key, at in snapshot.expected_starts.items()
        }
        self._starts.take(steady, number)
        self._step = replaced(self._order[1], snapshot.order)
        if self._step is not None:
            self._order = (number, snapshot.order)
        self.snapshot = snapshot
        return changed

    @property
    def present(self) -> Mapping[JobId, Job]:
        """The jobs of the last snapshot by id."""
        return self._jobs.values

    def skip(self) -> int:
        """Take a number for something else; return it."""
        self.number += 1
        return self.number

    def knows(self, number: int) -> bool:
        """Return whether the changes since a number are known."""
        return self.number - KEPT <= number <= self.number

    def since(self, number: int) -> QueueChanges:
        """Return the changes since a number; -1: everything."""
        jobs, gone = self._jobs.since(number, self.number)
        reasons, no_reason = self._reasons.since(number, self.number)
        starts, no_start = self._starts.since(number, self.number)
        order = None
        if self._order[0] > number:
            order = self._step if number >= self._before else (0, _ALL, tuple(self._order[1]))
        return QueueChanges(list(jobs.values()), gone, order, reasons, no_reason, tuple(starts.items()), no_start)


def _grouped(reasons: Mapping[JobId, Reason]) -> tuple[tuple[Raw, tuple[JobId, ...]], ...]:
    """Return each reason once, with its jobs."""
    jobs_of: dict[Reason, list[JobId]] = {}
    for job_id, reason in reasons.items():
        jobs_of.setdefault(reason, []).append(job_id)
    return tuple((Raw(json(each)), tuple(ids)) for each, ids in jobs_of.items())


class FieldTracker:
    """The fields of a snapshot that are sent whole, as one class of callers sees them, and since when."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, bytes]] = {}
        self._number = -1

    def take(self, seen: Snapshot, number: int, whole: Snapshot, encoded: dict[str, bytes]) -> None:
        """Take the fields of a snapshot, of which `encoded` has the bytes of those that all see alike, by name."""
        if number == self._number:
            return
        self._number = number
        for name in WHOLE:
            value = getattr(seen, name)
            if value is not getattr(whole, name):
                data = json(value)
            elif (data := encoded.get(name, b"")) == b"":
                data = encoded[name] = json(value)
            if name not in self._known or self._known[name][1] != data:
                self._known[name] = (number, data)

    def since(self, number: int) -> dict[str, Raw]:
        return {name: Raw(data) for name, (at, data) in self._known.items() if at > number}
