"""Notifies the operator of events: on the screen, by the bell, and on the desktop, according to the settings."""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import Struct, field

from gputui.domain.arrays import count
from gputui.domain.conditions import pressing
from gputui.domain.errors import Blame, CauseCode
from gputui.domain.event import Event, ended, health_changes
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import ConsoleSettings
from gputui.domain.snapshot import EMPTY, Notice, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import plain, plural
from gputui.ports import Clock

AT_ONCE = 3
"""Maximum number of simultaneous ends that are reported singly; more are reported in one sentence."""
_QUIET = timedelta(seconds=20)
"""Time within which further ends are reported together."""
_SEVERITIES = {"job_failed": "warning", "gpu_sick": "error", "disk_low": "warning"}
_BAD = ("error", "warning")
_RANK = {"warning": 1, "error": 2}


class Notification(Struct, frozen=True):
    at: datetime
    severity: str
    """Severity of a notice: `error`, `warning` or `information`."""
    text: str
    is_told: bool = True
    """True if the operator is notified; the list of notices has it in any case."""

    @property
    def is_bad(self) -> bool:
        return self.severity in _BAD


class ChangeWatcher(Struct, eq=False):
    user: str
    mine_only: bool
    _before: Snapshot = EMPTY
    _ends: dict[JobId, datetime | None] = {}
    _troubles: dict[str, Notice] = {}
    _told_at: deque[datetime] = field(default_factory=deque)
    _waiting: list[Job] = []
    _together_at: datetime | None = None
    _failed: set[JobId] = set()
    _jobs: dict[JobId, Job] = {}

    def look(self, snapshot: Snapshot, now: datetime) -> list[Notification]:
        before, self._before = self._before, snapshot
        if snapshot is EMPTY:
            return []
        ends: list[Job] = []
        stops = []
        if snapshot.jobs is not before.jobs:
            all_over = [job for job in snapshot.jobs if job.ended_at is not None and job.state.is_terminal]
            ends = [job for job in all_over if self._ends.get(job.id) != job.ended_at]  # one run again ends again
            self._ends = {job.id: job.ended_at for job in all_over}
            known, self._jobs = self._jobs, {job.id: job for job in snapshot.jobs}
            pairs = ((known.get(job.id), job) for job in snapshot.jobs)
            told = [(_stop_words(was, job), job) for was, job in pairs if was is not None and was is not job]
            stops = [Notification(now, "warning", plain(text, 500), self._concerns(job)) for text, job in told if text]
        notices = pressing(snapshot, snapshot.taken_at)
        found = {notice.short or re.sub(r"\d+(\.\d+)?[a-z]*", "0", notice.text): notice for notice in notices}
        over, self._troubles = self._troubles, found
        if before is EMPTY:
            return []
        troubles = [Notification(now, n.severity, plain(n.text, 500)) for key, n in found.items() if key not in over]
        resolved = (f"resolved: {plain(notice.text, 400)}" for key, notice in over.items() if key not in found)
        troubles += [Notification(now, "information", text, is_told=False) for text in resolved]
        health = [_told(event) for event in health_changes(before.gpus, snapshot.gpus, now)]
        return [*troubles, *health, *stops, *self._of_ends(ends, snapshot, now)]

    def _of_ends(self, jobs: Sequence[Job], snapshot: Snapshot, now: datetime) -> list[Notification]:
        """Return every end for the log; few of them are told singly, the others together."""
        mine = [job for job in jobs if self._concerns(job)]
        ids = {job.array.id for job in mine if job.array is not None}
        elements: dict[JobId, list[Job]] = {}
        for job in snapshot.jobs if ids else ():
            if job.array is not None and job.array.id in ids:
                elements.setdefault(job.array.id, []).append(job)
        over = {array: own for array, own in elements.items() if all(job.state.is_terminal for job in own)}
        singly, together = self._parted(mine, over, now)
        each = [_told(ended(job), is_told=job in singly) for job in jobs]
        arrays = [_together(own, f"array {array} {own[0].spec.name}") for array, own in over.items()]
        self._failed -= over.keys()
        self._waiting += [job for job in together if job.array is None]
        if self._waiting and (self._together_at is None or now - self._together_at >= _QUIET):
            arrays.append(_together(self._waiting))
            self._waiting, self._together_at = [], now
        return [*each, *arrays]

    def _parted(self, jobs: Sequence[Job], over: Container[JobId], now: datetime) -> tuple[list[Job], list[Job]]:
        """Return the jobs whose ends are reported singly, and those reported together.

        Of an array, all but its first failure are reported together. An array that is `over` has its own sentence, so
        its first failure needs none.
        """
        while self._told_at and now - self._told_at[0] >= _QUIET:
            self._told_at.popleft()
        singly: list[Job] = []
        together: list[Job] = []
        alone = [job for job in jobs if job.array is None]
        for job in jobs:
            array = job.array.id if job.array is not None else None
            is_first = array is not None and array not in over and array not in self._failed
            is_failure = is_first and ended(job).name in _SEVERITIES
            if is_failure and array is not None:
                self._failed.add(array)
            fits = job.array is None and len(alone) + len(self._told_at) <= AT_ONCE
            (singly if fits or is_failure else together).append(job)
        self._told_at.extend(now for job in singly if job.array is None)
        return singly, together

    def _concerns(self, job: Job) -> bool:
        return not self.mine_only or self.user in {job.submitted_by, job.spec.tenant}


def _stop_words(before: Job, job: Job) -> str:
    name = f"job {job.shown_id} {job.name}".rstrip()
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


def _told(event: Event, *, is_told: bool = True) -> Notification:
    return Notification(event.at, _SEVERITIES.get(event.name, "information"), event.text, is_told)


def _together(jobs: Iterable[Job], name: str = "") -> Notification:
    over = list(jobs)
    counts: Counter[str] = Counter()
    for job in over:
        counts[str(job.state)] += job.count
    severity = "warning" if any(_SEVERITIES.get(ended(job).name) for job in over) else "information"
    states = ", ".join(f"{number} {state}" for state, number in counts.most_common())
    at = max(job.ended_at for job in over if job.ended_at)
    who = f"{plain(name, 80)} ended" if name else f"{plural(count(over), 'job')} ended"
    return Notification(at, severity, f"{who}: {states}")


KEPT = 500
_TEXT = 200
"""Maximum number of characters of a desktop notification."""


class Screen(Protocol):
    def say(self, message: Notification) -> None: ...

    def bell(self) -> None: ...

    def send(self, sequence: str) -> None: ...


class Notifier:
    def __init__(self, screen: Screen, settings: ConsoleSettings, user: str, clock: Clock) -> None:
        self._screen = screen
        self._settings = settings
        self._clock = clock
        self._watcher = ChangeWatcher(user, mine_only=settings.notify_for == "mine")
        self.log: deque[Notification] = deque(maxlen=KEPT)
        """Notifications so far, the latest last."""

    def take(self, snapshot: Snapshot) -> None:
        news = self._watcher.look(snapshot, self._clock.now())
        self.log.extend(news)
        told = [happening for happening in news if happening.is_told]
        for happening in told:
            if _wanted(self._settings.desktop, happening):
                self._screen.send(desktop_sequence(happening.text))
        for happening in sorted(told, key=lambda each: _RANK.get(each.severity, 0)):  # the last one stays
            if _wanted(self._settings.toast, happening):
                self._screen.say(happening)
        if any(_wanted(self._settings.bell, happening) for happening in told):
            self._screen.bell()

    def note(self, severity: str, text: str) -> None:
        """Show a message, and add it to the log; one that is repeated stands there once."""
        message = Notification(self._clock.now(), severity, plain(text, 500), is_told=False)
        if self.log and (self.log[-1].severity, self.log[-1].text) == (severity, message.text):
            self.log.pop()
        self.log.append(message)
        self._screen.say(message)


def _wanted(choice: str, happening: Notification) -> bool:
    return choice == "all" or (choice == "failed" and happening.is_bad)


def desktop_sequence(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the sequence for a desktop notification; terminals without support ignore it.

    OSC 9 (iTerm2's, supported by WezTerm, Ghostty, kitty and others) or OSC 777 (urxvt's, supported by foot and VTE).
    The text begins with a name, never with a digit, which ConEmu and Windows Terminal would interpret as a command.
    """
    words = plain(text, _TEXT).replace(";", ",")
    by_777 = "VTE_VERSION" in environ or environ.get("TERM", "").startswith(("foot", "rxvt"))
    sequence = f"\x1b]777;notify;gputui;{words}\a" if by_777 else f"\x1b]9;gputui: {words}\a"
    if "TMUX" in environ:  # passed through if its allow-passthrough is on, dropped otherwise
        return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    if environ.get("TERM", "").startswith("screen"):
        return "\x1bP" + sequence + "\x1b\\"
    return sequence
