"""Which jobs the queue shows, in which order: worked out once for each picture and filter, not for each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gputui.domain.errors import InputError
from gputui.domain.filter import EVERY_JOB, Filter, Seen, parse_filter, shown_text
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import Reason


class QueueRows:
    """Ids in the order of the rows: those that run, those that wait in the order of their start, the ended ones."""

    def __init__(self) -> None:
        self.jobs: Mapping[JobId, Job] = {}
        self.keys: Sequence[JobId] = ()
        self.positions: Mapping[JobId, int] = {}
        self.filter = ""
        self.filter_fault: InputError | None = None
        """Why what was typed last is no filter; the one before it holds meanwhile."""
        self._filter: Filter = EVERY_JOB
        self.finished = True
        """Whether ended jobs are shown."""
        self.sorts = 0
        """How often all jobs were gone through: what a test counts."""
        self._snapshot: Snapshot = EMPTY
        self._ordered: Sequence[JobId] = ()
        self._texts: dict[JobId, tuple[Job, Reason | None, str]] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Show this picture."""
        before, self._snapshot = self._snapshot, snapshot
        if snapshot is before:
            return
        if snapshot.jobs is not before.jobs:
            self.jobs = {job.id: job for job in snapshot.jobs}
            self._forget_texts()
        elif snapshot.order == before.order and (not self._filter or snapshot.reasons == before.reasons):
            if self._filter.is_of_the_time:
                self._choose(self._ordered)
            return
        self._sort()

    def _forget_texts(self) -> None:
        """Of jobs that have left the queue file."""
        if len(self._texts) > 2 * len(self.jobs):
            self._texts = {job_id: kept for job_id, kept in self._texts.items() if job_id in self.jobs}

    def show(self, *, filter: str | None = None, finished: bool | None = None) -> None:  # noqa: A002 - the word for it
        """Show only jobs that have the text in them, and ended ones or not."""
        if finished is not None and finished != self.finished:
            self.finished = finished
            self._sort()
        if filter is not None and filter != self.filter:
            self._filter_by(filter)

    def _filter_by(self, text: str) -> None:
        before, self.filter, self.filter_fault = self._filter, text, None
        try:
            self._filter = parse_filter(text)
        except InputError as fault:
            self.filter_fault = fault
            return
        narrower = text.startswith(before.text) and before.is_of_words and self._filter.is_of_words
        self._choose(self.keys if narrower else self._ordered)

    def _sort(self) -> None:
        self.sorts += 1
        active, waiting, ended = [], [], []
        for job in self.jobs.values():
            if job.state.is_active:
                active.append(job)
            elif job.state.is_terminal:
                ended.append(job)
            else:
                waiting.append(job)
        self._ordered = [job.id for job in active] + self._in_order(waiting)
        if self.finished:
            self._ordered += _latest_first(ended)
        self._choose(self._ordered)

    def _in_order(self, waiting: list[Job]) -> list[JobId]:
        """As the plan has them; those it does not know yet come last, as they came."""
        left = {job.id for job in waiting}
        ordered = []
        for job_id in self._snapshot.order:
            if job_id in left:
                left.discard(job_id)
                ordered.append(job_id)
        return ordered + [job.id for job in waiting if job.id in left]

    def _choose(self, among: Sequence[JobId]) -> None:
        self.keys = [job_id for job_id in among if self._is_shown(job_id)] if self._filter else among
        self.positions = {job_id: row for row, job_id in enumerate(self.keys)}

    def _is_shown(self, job_id: JobId) -> bool:
        job, reason = self.jobs[job_id], self._snapshot.reasons.get(job_id)
        return self._filter.matches(Seen(job, self._snapshot.taken_at, reason, self._text(job, reason)))

    def _text(self, job: Job, reason: Reason | None) -> str:
        """What single words are looked for in; made once for each version of a job."""
        known = self._texts.get(job.id)
        if known and known[0] is job and known[1] == reason:
            return known[2]
        self._texts[job.id] = (job, reason, shown_text(job, reason))
        return self._texts[job.id][2]


def _latest_first(ended: list[Job]) -> list[JobId]:
    ended.sort(key=lambda job: (job.ended_at or job.submitted_at, job.id), reverse=True)
    return [job.id for job in ended]
