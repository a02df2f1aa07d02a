"""A snapshot as its differences from the one before, so that a big queue costs only what changes.

`SnapshotDecoder` puts it together again; `Tracker` finds what has changed since any of the last few thousand snapshots,
with one scan of each.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from gputui.api.http import own_json
from gputui.domain.decoding import decode_json
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import EMPTY, Controls, Leader, Node, Notice, Snapshot, Unreadable, Usage, WindowView
from gputui.domain.state import Reason

PART = 1024**2
"""Bytes of jobs in one update; over a slow connection each part shows that the owner answers."""


class SnapshotUpdate(Struct, frozen=True, omit_defaults=True):
    """Changes of a server's snapshot since its last update."""

    fields: Mapping[str, Raw] = field(default_factory=dict)
    """Changed fields that are sent whole, by name."""
    jobs: tuple[Raw, ...] = ()
    """Jobs that are new or have changed."""
    gone: tuple[JobId, ...] = ()
    """Jobs that are no longer in it."""
    order: tuple[int, int, tuple[JobId, ...]] | None = None
    """Change of the order of waiting jobs: from that place on, that many are replaced by these."""
    reasons: tuple[tuple[Raw, tuple[JobId, ...]], ...] = ()
    """Reasons that are new, each with its jobs."""
    no_reason: tuple[JobId, ...] = ()
    starts: tuple[tuple[JobId, datetime], ...] = ()
    """Expected starts that have moved."""
    no_start: tuple[JobId, ...] = ()
    is_partial: bool = False
    """True if more jobs of the same snapshot follow."""


T = TypeVar("T")
WHOLE: Mapping[str, Any] = {
    "nodes": tuple[Node, ...],
    "controls": Controls,
    "leader": Leader | None,
    "progress": dict[JobId, str],
    "notices": tuple[Notice, ...],
    "unreadable": tuple[Unreadable, ...],
    "usage": Usage,
    "recurring": tuple[RecurringJob, ...],
    "windows": tuple[WindowView, ...],
    "fragmentation": int,
}
"""Fields of a snapshot that are sent whole, with their types."""
_STEADY = timedelta(seconds=1)
_SHARE = 0.02
"""An expected start is sent again if it has moved by more than a second and by this share of the time until then."""


def replaced(before: Sequence[JobId], after: Sequence[JobId]) -> tuple[int, int, tuple[JobId, ...]] | None:
    """Return the part of the order that has changed; None if nothing has."""
    if before == after:
        return None
    start = _alike(before, after)
    end = _alike(before[start:][::-1], after[start:][::-1])
    return start, len(before) - start - end, tuple(after[start : len(after) - end])


def _alike(one: Iterable[JobId], other: Iterable[JobId]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class SnapshotDecoder(Struct, eq=False):
    """Puts the snapshots of a server together again; what it cannot read, it leaves out and names."""

    _jobs: dict[JobId, Job] = field(default_factory=dict)
    _lost: dict[JobId, str] = field(default_factory=dict)
    """Jobs that cannot be read, with the reason."""
    _order: list[JobId] = field(default_factory=list)
    _reasons: dict[JobId, Reason] = field(default_factory=dict)
    _starts: dict[JobId, datetime] = field(default_factory=dict)
    _snapshot: Snapshot = EMPTY
    _own_unreadable: int = 0
    """Number of unreadable entries that the server reported itself."""
    unread: set[str] = field(default_factory=set)
    """Names of fields that could not be read; a newer gputui sent them."""
    _has_new_jobs: bool = False

    def take(self, update: SnapshotUpdate, now: datetime) -> Snapshot:
        """Return the snapshot after the update; `now` is the time here, since the server's clock may be wrong.

        After a partial update it is still the one of before.
        """
        jobs = self._snapshot.jobs
        if update.jobs or update.gone:
            self._take_jobs(update)
            self._has_new_jobs = True
        if update.is_partial:
            return self._snapshot
        if self._has_new_jobs:
            jobs = tuple(self._jobs[job_id] for job_id in sorted(self._jobs))
            self._has_new_jobs = False
        if update.order is not None:
            start, count, ids = update.order
            self._order[start : start + count] = ids
        if update.reasons or update.no_reason:
            self._reasons = dict(self._reasons)  # snapshots that were handed out keep theirs
            for raw, ids in update.reasons:
                with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                    self._reasons |= dict.fromkeys(ids, decode_json(raw, Reason))
            _drop(self._reasons, update.no_reason)
        if update.starts or update.no_start:
            self._starts = {**self._starts, **dict(update.starts)}
            _drop(self._starts, update.no_start)
        changed: dict[str, Any] = {}
        for name in update.fields.keys() & WHOLE.keys():  # others are of a newer gputui
            try:
                changed[name] = decode_json(update.fields[name], WHOLE[name])
                self.unread.discard(name)
            except (msgspec.MsgspecError, RecursionError):
                self.unread.add(name)
        unreadable = changed.pop("unreadable", self._snapshot.unreadable[: self._own_unreadable])
        self._own_unreadable = len(unreadable)
        self._snapshot = replace(
            self._snapshot,
            taken_at=now,
            jobs=jobs,
            order=tuple(self._order) if update.order is not None else self._snapshot.order,
            reasons=self._reasons,
            expected_starts=self._starts,
            unreadable=(*unreadable, *(Unreadable("job", str(key), why) for key, why in self._lost.items())),
            **changed,
        )
        return self._snapshot

    def _take_jobs(self, update: SnapshotUpdate) -> None:
        for raw in update.jobs:
            try:
                job = decode_json(raw, Job)
            except (msgspec.MsgspecError, RecursionError) as error:
                with contextlib.suppress(msgspec.MsgspecError, RecursionError):  # another version wrote it
                    job_id = decode_json(raw, _Numbered).id
                    self._jobs.pop(job_id, None)
                    self._lost[job_id] = str(error)
            else:
                self._jobs[job.id] = job
                self._lost.pop(job.id, None)
        _drop(self._jobs, update.gone)
        _drop(self._lost, update.gone)


class _Numbered(msgspec.Struct):
    id: JobId


def _drop(known: dict[JobId, T], ids: Iterable[JobId]) -> None:
    for job_id in ids:
        known.pop(job_id, None)


KEPT = 4096
"""Numbers back to which changes are known."""
_ALL = 1 << 30
"""Count that replaces an order to its end."""
V = TypeVar("V")


class ChangedJob(Struct, frozen=True):
    before: Job | None
    after: Job


class _Ledger(Struct, Generic[V], eq=False):
    """Values by job, with the number at which each came or went."""

    values: dict[JobId, V] = field(default_factory=dict)
    _at: dict[JobId, int] = field(default_factory=dict)
    _gone: deque[tuple[int, JobId]] = field(default_factory=deque)

    def take(self, values: Mapping[JobId, V], number: int) -> None:
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


class Tracker(Struct, eq=False):
    """Keeps the last snapshot, and since when each part of it is as it is. For one thread."""

    number: int = 0
    """Number of the last change."""
    snapshot: Snapshot = EMPTY
    _last: int = 0
    _before: int = -1
    """Numbers of the last snapshot and of the one before it."""
    _jobs: _Ledger[Job] = field(default_factory=_Ledger)
    _order: tuple[int, Sequence[JobId]] = (0, ())
    _step: tuple[int, int, tuple[JobId, ...]] | None = None
    """Last change of the order, which is that since the number before."""
    _reasons: _Ledger[Reason] = field(default_factory=_Ledger)
    _starts: _Ledger[Any] = field(default_factory=_Ledger)

    def take(self, snapshot: Snapshot) -> list[ChangedJob]:
        self._before, self._last = self._last, self.skip()
        number, now, known = self.number, snapshot.taken_at, self._jobs.values
        changed = [ChangedJob(known.get(job.id), job) for job in snapshot.jobs if known.get(job.id) is not job]
        changed = [each for each in changed if each.before != each.after]
        if changed or len(known) != len(snapshot.jobs):
            self._jobs.take({job.id: job for job in snapshot.jobs}, number)
        self._reasons.take(snapshot.reasons, number)
        starts, steady = self._starts.values, {}
        for key, at in snapshot.expected_starts.items():
            before = starts.get(key)
            if before is None or (before != at and abs(at - before) > max(_STEADY, abs(at - now) * _SHARE)):
                before = at
            steady[key] = before
        self._starts.take(steady, number)
        self._step = replaced(self._order[1], snapshot.order)
        if self._step is not None:
            self._order = (number, snapshot.order)
        self.snapshot = snapshot
        return changed

    @property
    def present(self) -> Mapping[JobId, Job]:
        return self._jobs.values

    def skip(self) -> int:
        """Take a number for something else; return it."""
        self.number += 1
        return self.number

    def knows(self, number: int) -> bool:
        """Return whether the changes since a number are known."""
        return self.number - KEPT <= number <= self.number

    def since(self, number: int, see: Callable[[Job, Reason], Reason]) -> tuple[Sequence[Job], SnapshotUpdate]:
        """Return the jobs that have come since a number, and what else has changed but for fields; -1: everything.

        `see` returns the reason of a job as the receiver may see it.
        """
        jobs, gone = self._jobs.since(number, self.number)
        reasons, no_reason = self._reasons.since(number, self.number)
        starts, no_start = self._starts.since(number, self.number)
        order = None
        if self._order[0] > number:
            order = self._step if number >= self._before else (0, _ALL, tuple(self._order[1]))
        present, ids_of = self._jobs.values, dict[Reason, list[JobId]]()
        for job_id, reason in reasons.items():
            if job_id in present:
                ids_of.setdefault(see(present[job_id], reason), []).append(job_id)
        told = tuple((Raw(own_json(each)), tuple(ids)) for each, ids in ids_of.items())
        moved = tuple(starts.items()), no_start
        return list(jobs.values()), SnapshotUpdate({}, (), gone, order, told, no_reason, *moved)


class FieldTracker(Struct, eq=False):
    """The fields of a snapshot that are sent whole, as one class of callers sees them, and since when."""

    _known: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    _number: int = -1

    def take(self, seen: Snapshot, number: int, whole: Snapshot, encoded: dict[str, bytes]) -> None:
        """Take the fields of a snapshot, of which `encoded` has the bytes of those that all see alike, by name."""
        if number == self._number:
            return
        self._number = number
        for name in WHOLE:
            value = getattr(seen, name)
            if value is not getattr(whole, name):
                data = own_json(value)
            elif (data := encoded.get(name, b"")) == b"":
                data = encoded[name] = own_json(value)
            if name not in self._known or self._known[name][1] != data:
                self._known[name] = (number, data)

    def since(self, number: int) -> dict[str, Raw]:
        return {name: Raw(data) for name, (at, data) in self._known.items() if at > number}
