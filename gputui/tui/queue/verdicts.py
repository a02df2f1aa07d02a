"""Which jobs a filter shows, found out a little at a time: ten thousand sentences of why each waits take a while."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import islice

from gputui.domain.filter import EVERY_JOB, Filter, Seen, shown_text
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import Reason
from gputui.tui.newest import Pace

AT_ONCE = 500
"""So many jobs are judged before anything is shown, however long it takes."""
_BLOCK = 50
"""Jobs between two looks at the clock."""
_REST = 4.0
"""For so many times as long as it took, jobs that are as they were are not judged anew."""


class Verdicts:
    """What was found of a job holds until it is judged anew, because it or the filter changed or time went on."""

    def __init__(self) -> None:
        self._filter: Filter = EVERY_JOB
        self._jobs: Mapping[JobId, Job] = {}
        self._snapshot: Snapshot = EMPTY
        self._shown: dict[JobId, tuple[Job, bool]] = {}
        self._new: dict[JobId, None] = {}
        """Those of which nothing is known yet, or that changed; in their order."""
        self._old: list[JobId] = []
        """Those to be judged anew; the next one last."""
        self._is_outdated = False
        """Why jobs wait changed since those last were gone through, or time went on."""
        self._pace = Pace(_REST)
        self._texts: dict[JobId, tuple[Job, Reason | None, str]] = {}

    def judge_by(self, wanted: Filter) -> None:
        """Another filter; where it only adds words, what was left out stays so."""
        is_narrower = wanted.text.startswith(self._filter.text) and self._filter.is_of_words and wanted.is_of_words
        self._shown = {job_id: kept for job_id, kept in self._shown.items() if is_narrower and not kept[1]}
        self._filter, self._new, self._old, self._is_outdated = wanted, {}, [], False
        self._pace = Pace(_REST)
        if not wanted:
            self._texts = {}

    def take(self, snapshot: Snapshot, jobs: Mapping[JobId, Job]) -> None:
        """Another picture, of these jobs; others are forgotten."""
        before, self._snapshot = self._snapshot, snapshot
        if jobs is not self._jobs:
            self._jobs = jobs
            self._shown = {job_id: kept for job_id, kept in self._shown.items() if job_id in jobs}
            self._texts = {job_id: kept for job_id, kept in self._texts.items() if job_id in jobs}
        moves = self._filter.is_of_the_time or (self._filter.is_of_reasons and snapshot.reasons is not before.reasons)
        self._is_outdated |= moves and bool(self._shown)

    def want(self, order: Iterable[JobId]) -> None:
        """Judge these, in this order, where they are new or not what they were."""
        self._new = dict.fromkeys(job_id for job_id in order if self._is_new(job_id))

    def _is_new(self, job_id: JobId) -> bool:
        known = self._shown.get(job_id)
        return known is None or known[0] is not self._jobs[job_id]

    @property
    def is_done(self) -> bool:
        """Whether all were judged, and those that are as they were may rest a while."""
        may_rest = len(self._shown) > AT_ONCE and not self._pace.may_begin
        return not self._new and not self._old and (may_rest or not self._is_outdated)

    def step(self, seconds: float, least: int = 0) -> bool:
        """Judge jobs for so long at most, and at least so many; whether others are shown now."""
        deadline, changed, judged = time.monotonic() + seconds, False, 0
        while not self.is_done and (judged < least or time.monotonic() < deadline):
            for job_id in self._next():
                changed |= self._judge(job_id)
                judged += 1
            if self._pace.waits and not self._old:
                self._pace.end()
        return changed

    def _next(self) -> Iterable[JobId]:
        """A few to be judged: new ones first."""
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
        is_shown = self._filter.matches(self._seen(job))
        self._shown[job_id] = (job, is_shown)
        return is_shown != (before is not None and before[1])

    def _seen(self, job: Job) -> Seen:
        if not self._filter.is_of_reasons:
            return Seen(job, self._snapshot.taken_at)
        reason = self._snapshot.reasons.get(job.id)
        return Seen(job, self._snapshot.taken_at, reason, self._text(job, reason))

    def _text(self, job: Job, reason: Reason | None) -> str:
        """What single words are looked for in; made once for each version of a job."""
        known = self._texts.get(job.id)
        if known and known[0] is job and known[1] == reason:
            return known[2]
        self._texts[job.id] = (job, reason, shown_text(job, reason))
        return self._texts[job.id][2]

    def shown(self, among: Iterable[JobId]) -> list[JobId]:
        """Those of them that are shown, as far as is known."""
        known = self._shown
        return [job_id for job_id in among if job_id in known and known[job_id][1]]
