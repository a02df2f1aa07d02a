"""Which jobs the queue shows, in which order: worked out once for each picture and filter, not for each key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gputui.domain.errors import InputError
from gputui.domain.filter import EVERY_JOB, Filter, parse_filter
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui.queue.folding import Folds, RowKey, Rows, dependents_of, rows
from gputui.tui.queue.sorting import MOVING, Sorting, in_order
from gputui.tui.queue.sorting import Seen as Sortable
from gputui.tui.queue.verdicts import AT_ONCE, Verdicts


class QueueRows:
    """Keys in the order of the rows: those that run, those that wait in the order of their start, the ended ones."""

    def __init__(self) -> None:
        self.jobs: Mapping[JobId, Job] = {}
        self.keys: Sequence[RowKey] = ()
        self.positions: Mapping[RowKey, int] = {}
        self.arranged = Rows()
        self.sorting = Sorting()
        self.scores: Mapping[JobId, float] = {}
        self.filter = ""
        self.filter_fault: InputError | None = None
        """Why what was typed last is no filter; the one before it holds meanwhile."""
        self._filter: Filter = EVERY_JOB
        self.finished = True
        """Whether ended jobs are shown."""
        self.id_width = 0
        """Cells of the longest id; 0: of no element of an array."""
        self.sorts = 0
        """How often all jobs were gone through: what a test counts."""
        self._snapshot: Snapshot = EMPTY
        self._ordered: Sequence[JobId] = ()
        self._matching: Sequence[JobId] = ()
        self._folds = Folds()
        self._dependents: Mapping[JobId, list[JobId]] = {}
        self.active_elements: Counter[JobId] = Counter()
        """How many elements of each array run."""
        self._verdicts = Verdicts()

    @property
    def is_read(self) -> bool:
        """Whether there was a picture: until then nobody knows what waits."""
        return self._snapshot is not EMPTY

    def update(self, snapshot: Snapshot) -> None:
        """Show this picture."""
        before, self._snapshot = self._snapshot, snapshot
        if snapshot is before:
            return
        if snapshot.jobs is not before.jobs:
            self.jobs = {job.id: job for job in snapshot.jobs}
            self._dependents = dependents_of(snapshot.jobs)
        self._verdicts.take(snapshot, self.jobs)
        if snapshot.jobs is before.jobs and self._is_as_before(before):
            if self._filter:
                self._choose()
            return
        self._sort()

    def _is_as_before(self, before: Snapshot) -> bool:
        """Whether the same jobs are in the same order, by whatever they are sorted by."""
        now = self._snapshot
        if self.sorting.column in MOVING and now.expected_starts != before.expected_starts:
            return False
        return now.order == before.order

    def jobs_of(self, key: RowKey | None) -> tuple[Job, ...]:
        """The jobs of that row: one, or the elements that share it."""
        ids = () if key is None else self.arranged.groups.get(key, (key,))
        return tuple(self.jobs[job_id] for job_id in ids if job_id in self.jobs)

    def sort_by(self, sorting: Sorting) -> None:
        """Another order."""
        if sorting != self.sorting:
            self.sorting = sorting
            self._sort()

    def rank(self, scores: Mapping[JobId, float]) -> None:
        """Take in what is shown and sorted by as the score."""
        self.scores = scores
        if self.sorting.column == "score":
            self._sort()

    def fold(self, key: RowKey) -> RowKey | None:
        """Open what that row stands for, or close it; where the cursor goes. None: there is nothing to open."""
        group, job = self.arranged.groups.get(key), self.jobs.get(key)
        if group:
            self._folds.arrays.add(self._array_of(group[0]))
            self._arrange()
            return group[0]
        if job is None:
            return None
        if key in self._folds.parents or self._has_dependents(key):
            self._folds.parents ^= {key}
            self._arrange()
            return key
        return self._close_array(job)

    def fold_all(self) -> None:
        """Open everything; where everything is open, close it."""
        arrays = {job.array.id for job in self.jobs.values() if job.array and not job.state.is_terminal}
        parents = {parent for parent in self._dependents if parent in self.jobs}
        is_open = self._folds.arrays >= arrays and self._folds.parents >= parents
        self._folds = Folds() if is_open else Folds(arrays, parents)
        self._arrange()

    def _array_of(self, job_id: JobId) -> JobId:
        array = self.jobs[job_id].array
        return array.id if array else job_id

    def _has_dependents(self, job_id: JobId) -> bool:
        return any(child in self.jobs for child in self._dependents.get(job_id, ()))

    def _close_array(self, job: Job) -> RowKey | None:
        if job.array is None or job.array.id not in self._folds.arrays:
            return None
        self._folds.arrays.discard(job.array.id)
        self._arrange()
        return next((key for key, ids in self.arranged.groups.items() if job.id in ids), job.id)

    def show(self, *, filter: str | None = None, finished: bool | None = None) -> None:  # noqa: A002 - the word for it
        """Show only jobs that have the text in them, and ended ones or not."""
        if finished is not None and finished != self.finished:
            self.finished = finished
            self._sort()
        if filter is not None and filter != self.filter:
            self._filter_by(filter)

    def _filter_by(self, text: str) -> None:
        self.filter, self.filter_fault = text, None
        try:
            self._filter = parse_filter(text)
        except InputError as fault:
            self.filter_fault = fault
            return
        self._verdicts.judge_by(self._filter)
        self._choose()

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
        self.active_elements = Counter(job.array.id for job in active if job.array)
        self._ordered = [job.id for job in active] + self._in_order(waiting)
        if self.finished:
            self._ordered += _latest_first(ended)
        if not self.sorting.is_planned:
            self._ordered = in_order(self._ordered, self.jobs, self.sorting, Sortable.of(self._snapshot, self.scores))
        self._choose()

    def _in_order(self, waiting: list[Job]) -> list[JobId]:
        """As the plan has them; those it does not know yet come last, as they came."""
        left = {job.id for job in waiting}
        ordered = []
        for job_id in self._snapshot.order:
            if job_id in left:
                left.discard(job_id)
                ordered.append(job_id)
        return ordered + [job.id for job in waiting if job.id in left]

    def _choose(self) -> None:
        if self._filter:
            self._verdicts.want(self._ordered)
            self._verdicts.step(0, AT_ONCE)
        self.gather()

    @property
    def is_judged(self) -> bool:
        """Whether it is known of every job whether it is shown."""
        return not self._filter or self._verdicts.is_done

    def look(self, seconds: float) -> bool:
        """Find out more of which jobs are shown, for so long at most; whether `gather` has others."""
        return self._verdicts.step(seconds)

    def gather(self) -> None:
        """Show what was found so far."""
        self._matching = self._verdicts.shown(self._ordered) if self._filter else self._ordered
        self._arrange()

    def _arrange(self) -> None:
        self.arranged = rows(self._matching, self.jobs, self._folds, self._dependents)
        self.keys = self.arranged.keys
        self.positions = {key: row for row, key in enumerate(self.keys)}
        self.id_width = 0 if self.keys is self._matching else self._longest_id()

    def _longest_id(self) -> int:
        """Return the cells that the longest id of a row takes."""
        shown = (self.jobs.get(key) for key in self.keys)
        return max((len(job.shown_id) for job in shown if job is not None), default=0)

    @property
    def shown(self) -> Sequence[JobId]:
        """The jobs that are shown, those that share a row each."""
        return self._matching

    @property
    def parsed(self) -> Filter:
        """The filter in force."""
        return self._filter

    @property
    def matching(self) -> int:
        """How many jobs are shown, those that share a row counted each."""
        return len(self._matching)

    @property
    def known(self) -> int:
        """How many there are, shown or not; without ended ones where those are left out."""
        return len(self._ordered)


def _latest_first(ended: list[Job]) -> list[JobId]:
    ended.sort(key=lambda job: (job.ended_at or job.submitted_at, job.id), reverse=True)
    return [job.id for job in ended]
