"""Events of the owner: the changes of its snapshots, to consoles whole, to scripts by kinds.

All subscribers are served by one thread, which looks at each snapshot once. What a subscriber gets is made from what
has changed since the number that he got last. So one who comes back with that number, or takes his events slowly, gets
what he missed as one change, and nothing is kept for him.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from gputui.api.deltas import KEPT, PART, ChangedJob, FieldTracker, SnapshotUpdate, Tracker
from gputui.api.http import AboutView, Focus, Outlet, Stream, StreamHello, own_json
from gputui.api.rights import Visibility
from gputui.domain.access import Caller
from gputui.domain.as_json import job_json
from gputui.domain.errors import InputError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.threads import Watcher

log = logging.getLogger(__name__)

KINDS = ("job", "gpu", "notice")
"""Kinds of events for scripts."""
SEND_EVERY = 0.25
"""Least seconds between two snapshots."""
COMMENT_EVERY = 5.0
"""Seconds after which a comment is sent if nothing else was."""
SILENT_AFTER = 10.0
"""Seconds without a snapshot after which the owner's scheduler counts as not responding, unless its ticks are rarer."""
_FULL = 2 * PART
"""Bytes that a client has not taken, from which on he gets nothing more before he has taken some."""
_RETRY_FULL = 0.05
_REST_AFTER = 60.0
"""Seconds without a subscriber after which the last snapshot is forgotten."""


class Occurrence(Struct, frozen=True):
    """An event for scripts; that of a job is encoded for each class of callers."""

    number: int
    kind: str
    data: Any
    job: Job | None = None


class _Audience(Struct, eq=False):
    caller: Caller
    fields: FieldTracker = field(default_factory=FieldTracker)
    frames: tuple[int, int, list[bytes]] | None = None
    """Frames of the changes between two numbers, for the next subscriber who needs the same."""


class _Subscriber(Struct, eq=False):
    """Client of a stream of events, and how far he has got."""

    stream: str
    caller: Caller
    outbox: Outlet
    kinds: frozenset[str]
    sent: int = -1
    """Number of the last change that he has."""
    rest: Iterator[bytes] | None = None
    """Frames that remain of a change that is too long to be sent at once."""
    sent_at: float = field(default_factory=time.monotonic)
    focus: str | None = None
    is_gone: bool = False

    def send(self, data: bytes) -> None:
        self.sent_at = time.monotonic()
        if not self.outbox.send(data):
            self.is_gone = True

    @property
    def is_full(self) -> bool:
        return self.outbox.waiting >= _FULL

    @property
    def takes_more(self) -> bool:
        return not self.is_gone and not self.is_full


class EventHub:
    """Sends events to subscribers. Methods may be called from any thread, and block for no longer than a lock."""

    def __init__(
        self,
        latest: Callable[[], Snapshot],
        subscribe: Callable[[Callable[[Snapshot], None]], Callable[[], None]],
        sight: Visibility,
        focus: Callable[[str | None], object] = lambda _: None,
        *,
        term: str = "",
        patience: float = SILENT_AFTER,
    ) -> None:
        """`latest`, `subscribe` and `focus` are those of OwnerServices; a tick may take `patience` seconds.

        `term` is part of all ids of events, and another one for each owner; empty: one by chance.
        """
        self._latest = latest
        self._subscribe = subscribe
        self._sight = sight
        self._read_focus = focus
        self._first_term = term or os.urandom(6).hex()
        self._term = self._first_term
        self._rests = 0
        self._patience = patience
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._subscribers: dict[str, _Subscriber] = {}
        self._numbers = 0
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._news: Snapshot | None = None
        self._news_at = time.monotonic()
        self._reset()

    # called by handlers

    def stream(self, caller: Caller, about: AboutView, kinds: str = "", last_id: str = "") -> Stream:
        """Return the events for a caller: `kinds` with commas between, empty: whole snapshots as changes.

        `about` is the first message; `last_id` is the id of the last event that he has. Raises InputError.
        """
        wanted = frozenset(each for each in kinds.split(",") if each)
        if unknown := sorted(wanted - set(KINDS)):
            raise InputError(f"there is no kind {unknown[0][:40]!r}", where="kinds", hint=", ".join(KINDS))

        def open_stream(outbox: Outlet) -> Callable[[], object]:
            with self._lock:
                self._numbers += 1
                name = f"{self._first_term}-{self._numbers}"
                mine = _Subscriber(name, caller, outbox, wanted)
                if self._thread is None and not self._is_closed:
                    self._news = self._latest()
                    self._look()
                    self._thread = Watcher("events", self._run)
                    self._thread.start()
                # he goes on where he was, if that is known
                term, _, place = last_id.rpartition("-")
                is_number = place.isascii() and place.isdigit() and len(place) < 19
                is_known = term == self._term and is_number and self._tracker.knows(int(place))
                mine.sent = int(place) if is_known else self._tracker.number if wanted else -1
                number = f"{self._term}-{mine.sent}" if wanted else ""
                # what happens from now on is told
                mine.send(frame("hello", own_json(StreamHello(name, about)), number))
                if last_id and not is_known:
                    self._begin_anew(mine)
                self._subscribers[name] = mine
            self._wake.set()
            return lambda: self._leave(name)

        return Stream(open_stream)

    def focus(self, caller: Caller, wanted: Focus) -> None:
        """Have the throughput of a GPU read for as long as the stream lasts; raises NotFoundError for another's."""
        stream = wanted.stream
        with self._lock:
            mine = self._subscribers.get(stream)
            if mine is None or mine.caller.uid != caller.uid:
                raise NotFoundError("there is no such stream of events", where=stream[:80])
            self._subscribers[stream] = self._subscribers.pop(stream)  # the latest wish counts
            mine.focus = wanted.gpu
        self._tell_focus()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    # subscribers

    def _begin_anew(self, mine: _Subscriber) -> None:
        mine.sent, mine.rest = self._tracker.number if mine.kinds else -1, None
        mine.send(frame("reset", b"{}"))

    def _leave(self, name: str) -> None:
        with self._lock:
            mine = self._subscribers.pop(name, None)
        if mine is not None and mine.focus is not None:
            self._tell_focus()

    def _tell_focus(self) -> None:
        with self._lock:
            wanted = [each.focus for each in self._subscribers.values() if each.focus is not None]
        self._read_focus(wanted[-1] if wanted else None)

    # the thread

    def _run(self) -> None:
        def hear(snapshot: Snapshot) -> None:  # in the scheduler's thread
            self._news, self._news_at = snapshot, time.monotonic()
            self._wake.set()

        hear(self._latest())
        end = self._subscribe(hear)
        looked_at, alone_since = 0.0, time.monotonic()
        try:
            while not self._is_closed:
                with self._lock:
                    present = list(self._subscribers.values())
                if present:
                    alone_since = time.monotonic()
                elif time.monotonic() - alone_since > _REST_AFTER:  # forget everything, unless somebody has come
                    with self._lock:
                        if not self._subscribers:
                            self._thread = None
                            self._reset()
                            return
                try:
                    if time.monotonic() - looked_at >= SEND_EVERY and self._look():
                        looked_at = time.monotonic()
                    is_behind = self._serve(present)
                except Exception:  # a border: an owner goes on without events, and with those of the next snapshot
                    log.exception("events cannot be sent")
                    with self._lock:
                        self._reset()
                        for each in self._subscribers.values():
                            self._begin_anew(each)
                        self._news = self._latest()
                    is_behind = False
                # wait for a snapshot, which may be looked at at once, or later, or for a client who takes his events
                self._wake.wait(_RETRY_FULL if is_behind else 1.0)
                self._wake.clear()
                left = SEND_EVERY - (time.monotonic() - looked_at)
                if self._news is not None and not is_behind and left > 0:
                    time.sleep(left)
        finally:
            end()
        with self._lock:
            gone, self._subscribers = list(self._subscribers.values()), {}
        for each in gone:
            each.outbox.close()

    def _reset(self) -> None:
        self._rests += 1
        self._term = self._first_term if self._rests == 1 else f"{self._first_term}.{self._rests}"
        self._tracker = Tracker()
        self._audiences: dict[Hashable, _Audience] = {}
        self._shared: dict[str, bytes] = {}
        self._bytes: dict[tuple[JobId, bool], tuple[Job, bytes]] = {}
        self._occurrences: deque[Occurrence] = deque(maxlen=KEPT)

    def _look(self) -> bool:
        snapshot, self._news = self._news, None
        if snapshot is None:  # if the scheduler does not respond, the last one with the time since then
            silence, latest = time.monotonic() - self._news_at, self._tracker.snapshot
            if silence < self._patience or latest.leader is None:
                return False
            shown = timedelta(seconds=int(silence))
            snapshot = replace(latest, leader=replace(latest.leader, silent_for=shown))
        before = self._tracker.snapshot if self._tracker.number else None
        changed = self._tracker.take(snapshot)
        self._shared = {}
        if len(self._bytes) > 2 * len(snapshot.jobs) + 1000:
            present = self._tracker.present
            self._bytes = {key: value for key, value in self._bytes.items() if key[0] in present}
        if before is not None:
            for kind, data, job in _occurrences(before, snapshot, changed):
                self._occurrences.append(Occurrence(self._tracker.skip(), kind, data, job))
        return True

    def _serve(self, present: Iterable[_Subscriber]) -> bool:
        is_behind = False
        for each in present:
            if each.is_gone:
                self._leave(each.stream)
                continue
            while each.takes_more:
                if each.rest is None and each.sent < self._tracker.number:
                    each.rest, each.sent = self._lacking(each), self._tracker.number
                if each.rest is None:
                    break
                if (data := next(each.rest, None)) is not None:
                    each.send(data)
                else:
                    each.rest = None
            is_behind = is_behind or each.is_full
            if time.monotonic() - each.sent_at >= COMMENT_EVERY and not each.is_full:
                each.send(b":\n\n")
        return is_behind

    def _lacking(self, mine: _Subscriber) -> Iterator[bytes]:
        key = self._sight.class_of(mine.caller)
        if (audience := self._audiences.get(key)) is None:
            audience = self._audiences[key] = _Audience(mine.caller)
        if mine.kinds:
            return self._events_since(mine.sent, mine.kinds, audience)
        return iter(self._frames(audience, mine.sent))

    def _frames(self, audience: _Audience, number: int) -> Iterable[bytes]:
        """Return the frames that bring a client from that number to the present; short ones are made once."""
        upto = self._tracker.number
        if audience.frames is not None and audience.frames[:2] == (number, upto):
            return audience.frames[2]
        whole = self._tracker.snapshot
        # of the jobs only those that have changed are looked at
        seen = self._sight.snapshot(replace(whole, jobs=()), audience.caller)
        audience.fields.take(seen, upto, whole, self._shared)
        caller = audience.caller
        jobs, rest = self._tracker.since(number, lambda job, reason: self._sight.reason(job, reason, caller))
        made = self._parts(jobs, caller, replace(rest, fields=audience.fields.since(number)), upto)
        if number < 0 or len(jobs) > 1000:
            return made
        audience.frames = (number, upto, list(made))
        return audience.frames[2]

    def _parts(self, jobs: Iterable[Job], caller: Caller, last: SnapshotUpdate, number: int) -> Iterator[bytes]:
        """Yield frames of about a mebibyte: partial ones with jobs, then the rest, whose id the client keeps."""
        part: list[Raw] = []
        room = PART
        for job in jobs:
            shown = self._sight.job(job, caller)
            key = (job.id, shown is job)
            known = self._bytes.get(key)
            if known is None or known[0] is not shown:
                known = self._bytes[key] = (shown, own_json(shown))
            data = known[1]
            if part and room < len(data):
                yield frame("snapshot", own_json(SnapshotUpdate(jobs=tuple(part), is_partial=True)))
                part, room = [], PART
            part.append(Raw(data))
            room -= len(data)
        yield frame("snapshot", own_json(replace(last, jobs=tuple(part))), f"{self._term}-{number}")

    def _events_since(self, number: int, kinds: frozenset[str], audience: _Audience) -> Iterator[bytes]:
        sight, caller = self._sight, audience.caller
        for each in list(self._occurrences):
            if each.number <= number or each.kind not in kinds:
                continue
            data, job = each.data, each.job
            if job is not None:
                whole = self._tracker.snapshot
                reason = whole.reasons.get(job.id)
                reasons = {job.id: sight.reason(job, reason, caller)} if reason is not None else {}
                data = {**data, "job": job_json(sight.job(job, caller), replace(whole, reasons=reasons))}
            elif each.kind == "notice" and not sight.may_read_notice(data["severity"], data["text"], caller):
                continue
            yield frame(each.kind, msgspec.json.encode(data), f"{self._term}-{each.number}")


def frame(event: str, data: bytes, number: str = "") -> bytes:
    """Return an event as the stream has it; `data` has no line breaks."""
    told = f"id: {number}\n" if number else ""
    return f"event: {event}\n{told}data: ".encode() + data + b"\n\n"


def _occurrences(
    before: Snapshot, after: Snapshot, changed: Iterable[ChangedJob]
) -> Iterator[tuple[str, dict[str, Any], Job | None]]:
    """Yield the kind and the data of what scripts are told, and the job that it is about."""
    for each in changed:
        was: JobState | None = each.before.state if each.before is not None else None
        if was is not each.after.state:
            told = {"id": each.after.id, "before": None if was is None else str(was), "after": str(each.after.state)}
            yield "job", told, each.after
    known = {view.gpu.uuid: view for view in before.gpus}
    for view in after.gpus:
        earlier = known.get(view.gpu.uuid)
        told = _gpu_data(view)
        if earlier is None or _gpu_data(earlier) != told:
            yield "gpu", told, None
    shown = {notice.text for notice in before.notices}
    for notice in after.notices:
        if notice.text not in shown:
            yield "notice", {"severity": notice.severity, "text": notice.text, "halts": notice.halts}, None


def _gpu_data(view: Any) -> dict[str, Any]:
    return {
        "uuid": view.gpu.uuid,
        "index": view.gpu.index,
        "state": str(view.state),
        "health": {"code": str(view.health.code), "text": view.health.text},
        "job_ids": list(view.job_ids),
    }
