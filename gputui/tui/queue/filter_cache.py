"""Cache of the jobs that match a filter, computed a few jobs at a time, since formatting 10,000 reasons takes long."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping
from itertools import islice

from gputui.domain.filter import EVERY_JOB, Filter, FilterSubject, searched_text
from gputui.domain.idle_gpus import idle_jobs
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import Reason
from gputui.tui.latest_worker import Throttle

AT_ONCE = 500
"""Number of jobs that are matched before anything is shown, however long it takes."""
_BLOCK = 50
"""Jobs between two checks of the time."""
_REST = 4.0
"""Pause before unchanged jobs are matched again, as a multiple of the time that it took."""


class Verdicts:
    """Result per job, valid until the job is matched again, because it, the filter or the time changed."""

    def __init__(self) -> None:
        self._filter: Filter = EVERY_JOB
        self._jobs: Mapping[JobId, Job] = {}
        self._snapshot: Snapshot = EMPTY
        self._idle: frozenset[JobId] = frozenset()
        self._shown: dict[JobId, tuple[Job, Job | None]] = {}
        """Matching part of each job; of an array entry, perhaps some elements; None if it does not match."""
        self._new: dict[JobId, None] = {}
        """New jobs without a result and changed jobs, in order."""
        self._old: list[JobId] = []
        """Jobs to be matched again; the next one last."""
        self._is_outdated = False
        """True if reasons or the time changed since these jobs were matched."""
        self._pace = Throttle(_REST)
        self._texts: dict[JobId, tuple[Job, Reason | None, str]] = {}

    def judge_by(self, wanted: Filter) -> None:
        """Set the filter; if it only adds words, jobs that did not match stay excluded."""
        is_narrower = wanted.text.startswith(self._filter.text) and self._filter.is_of_words and wanted.is_of_words
        self._shown = {job_id: kept for job_id, kept in self._shown.items() if is_narrower and not kept[1]}
        self._filter, self._new, self._old, self._is_outdated = wanted, {}, [], False
        self._pace = Throttle(_REST)
        if not wanted:
            self._texts = {}

    def take(self, snapshot: Snapshot, jobs: Mapping[JobId, Job]) -> None:
        """Receive a snapshot; results of missing jobs are dropped."""
        before, self._snapshot = self._snapshot, snapshot
        were_idle, self._idle = self._idle, idle_jobs(snapshot)
        if jobs is not self._jobs:
            self._jobs = jobs
            self._shown = {job_id: kept for job_id, kept in self._shown.items() if job_id in jobs}
            self._texts = {job_id: kept for job_id, kept in self._texts.items() if job_id in jobs}
        moves = self._filter.is_of_the_time or (self._filter.is_of_flags and self._idle != were_idle)
        moves |= self._filter.is_of_reasons and snapshot.reasons is not before.reasons
        self._is_outdated |= moves and bool(self._shown)

    def want(self, order: Iterable[JobId]) -> None:
        """Request results for these jobs, in this order, if they are new or changed."""
        self._new = dict.fromkeys(job_id for job_id in order if self._is_new(job_id))

    def _is_new(self, job_id: JobId) -> bool:
        known = self._shown.get(job_id)
        return known is None or known[0] is not self._jobs[job_id]

    @property
    def is_done(self) -> bool:
        """Return whether all jobs were matched."""
        may_rest = len(self._shown) > AT_ONCE and not self._pace.may_begin
        return not self._new and not self._old and (may_rest or not self._is_outdated)

    def step(self, seconds: float, least: int = 0) -> bool:
        """Match jobs for at most `seconds`, but at least `least` jobs; return whether the shown jobs changed."""
        deadline, changed, judged = time.monotonic() + seconds, False, 0
        while not self.is_done and (judged < least or time.monotonic() < deadline):
            for job_id in self._next():
                changed |= self._judge(job_id)
                judged += 1
            if self._pace.waits and not self._old:
                self._pace.end()
        return changed

    def _next(self) -> Iterable[JobId]:
        """Return a few jobs to be matched: new ones first."""
        if self._new:
            taken = list(islice(self._new, _BLOCK))
            for job_id in taken:
                del self._new[job_id]
            return taken
        if not self._old:
            self._is_outdated = False
            self._pace.begin()
            self._old = list(self._shown)
        taken, self._old = self._old[-_BLOCK:], self._old[:-_BLOCK]
        return (job_id for job_id in taken if job_id in self._jobs)

    def _judge(self, job_id: JobId) -> bool:
        job, before = self._jobs[job_id], self._shown.get(job_id)
        part = self._filter.part(self._seen(job))
        self._shown[job_id] = (job, part)
        return _ids(part) != _ids(before[1] if before else None)

    def _seen(self, job: Job) -> FilterSubject:
        if not self._filter.is_of_reasons:
            return FilterSubject(job, self._snapshot.taken_at, leaves_idle=job.id in self._idle)
        reason = self._snapshot.reasons.get(job.id)
        idle = job.id in self._idle
        return FilterSubject(job, self._snapshot.taken_at, reason, self._text(job, reason), leaves_idle=idle)

    def _text(self, job: Job, reason: Reason | None) -> str:
        """Return the text in which words are searched; built once for each version of a job."""
        known = self._texts.get(job.id)
        if known and known[0] is job and known[1] == reason:
            return known[2]
        self._texts[job.id] = (job, reason, searched_text(job, reason))
        return self._texts[job.id][2]

    def shown(self, among: Iterable[JobId], anyway: Container[JobId] = ()) -> list[Job]:
        """Return the known matches among them, for entries the matching part; and single jobs to show `anyway`."""
        known = (self._shown.get(job_id) for job_id in among)
        found = ((each[0], each[1]) for each in known if each is not None)
        return [part or job for job, part in found if part is not None or (job.id in anyway and not job.runs)]


def _ids(part: Job | None) -> object:
    """Return the identity of the shown part."""
    return part and (part.id, part.runs)
