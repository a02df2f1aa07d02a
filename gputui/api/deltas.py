"""A snapshot as its differences from the one before, so that a big queue costs only what changes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from gputui.domain.decoding import decode_json
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import EMPTY, Controls, Leader, Node, Notice, Snapshot, Unreadable, Usage, WindowView
from gputui.domain.state import Reason

PART = 1024**2
"""Bytes of jobs in one update; over a slow connection each part shows that the owner answers."""


def _plain(value: object) -> dict[Any, Any] | list[Any]:
    """Return a read-only mapping as a dict, and what yields values as a list, which msgspec can encode."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise NotImplementedError(type(value).__name__)


json = msgspec.json.Encoder(enc_hook=_plain).encode
"""Encodes a value."""


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


def has_moved(before: datetime | None, at: datetime, now: datetime) -> bool:
    """Return whether an expected start has moved by so much that it is sent again."""
    return before is None or abs(at - before) > max(_STEADY, abs(at - now) * _SHARE)


def replaced(before: Sequence[JobId], after: Sequence[JobId]) -> tuple[int, int, tuple[JobId, ...]] | None:
    """Return the part of the order that has changed; None if nothing has."""
    if before == after:
        return None
    start = _alike(before, after)
    end = _alike(before[start:][::-1], after[start:][::-1])
    return start, len(before) - start - end, tuple(after[start : len(after) - end])


def _alike(one: Iterable[JobId], other: Iterable[JobId]) -> int:
    """Return how many ids at the beginning are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class SnapshotDecoder:
    """Puts the snapshots of a server together again; what it cannot read, it leaves out and names."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, Job] = {}
        self._lost: dict[JobId, str] = {}
        """Jobs that cannot be read, with the reason."""
        self._order: list[JobId] = []
        self._reasons: dict[JobId, Reason] = {}
        self._starts: dict[JobId, datetime] = {}
        self._snapshot = EMPTY
        self._own_unreadable = 0
        """Number of unreadable entries that the server reported itself."""
        self.unread: set[str] = set()
        """Names of fields that could not be read; a newer gputui sent them."""
        self._has_new_jobs = False

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
        self._take_reasons(update)
        if update.starts or update.no_start:
            self._starts = {**self._starts, **dict(update.starts)}
            _drop(self._starts, update.no_start)
        changed = self._fields(update)
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
                self._lose(raw, str(error))
            else:
                self._jobs[job.id] = job
                self._lost.pop(job.id, None)
        _drop(self._jobs, update.gone)
        _drop(self._lost, update.gone)

    def _lose(self, raw: Raw, why: str) -> None:
        """Leave out a job that another version wrote."""
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            job_id = decode_json(raw, _Numbered).id
            self._jobs.pop(job_id, None)
            self._lost[job_id] = why

    def _take_reasons(self, update: SnapshotUpdate) -> None:
        if not (update.reasons or update.no_reason):
            return
        reasons = dict(self._reasons)  # snapshots that were handed out keep theirs
        for raw, ids in update.reasons:
            with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                reasons |= dict.fromkeys(ids, decode_json(raw, Reason))
        _drop(reasons, update.no_reason)
        self._reasons = reasons

    def _fields(self, update: SnapshotUpdate) -> dict[str, Any]:
        found = {}
        for name, raw in update.fields.items():
            if name not in WHOLE:
                continue  # of a newer gputui
            try:
                found[name] = decode_json(raw, WHOLE[name])
                self.unread.discard(name)
            except (msgspec.MsgspecError, RecursionError):
                self.unread.add(name)
        return found


class _Numbered(msgspec.Struct):
    """The id of a job, whatever else it has."""

    id: JobId


def _drop(known: dict[JobId, T], ids: Iterable[JobId]) -> None:
    for job_id in ids:
        known.pop(job_id, None)
