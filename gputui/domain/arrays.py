"""Job arrays: waiting elements that are alike are one entry of a queue, and share a line in lists, as in squeue."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping, ValuesView
from functools import lru_cache
from itertools import accumulate
from types import MappingProxyType

from gputui.domain import runs
from gputui.domain.cluster import array_of
from gputui.domain.errors import InputError
from gputui.domain.job import MAX_INDICES, ArrayRef, Job
from gputui.domain.job_spec import JobId, Submission, own_id, shown_id, without_server
from gputui.domain.runs import Run, Runs, Spans, joined_spans, runs_of
from gputui.domain.state import JobState
from gputui.domain.text import listed


def likeness(job: Job) -> object:
    """Return what similar waiting elements of an array have in common, and no other job has."""
    if job.array is None or job.state is not JobState.PENDING:
        return job.id
    shown = (job.spec.name, job.spec.gpus, job.spec.time_limit)
    return (job.array.id, job.priority, job.held, job.hold_reason, job.cancel_requested, job.not_before, *shown)


def folded(
    jobs: Iterable[Job], *, unfold: bool = False, by: Callable[[Job], object] = likeness
) -> list[tuple[Job, ...]]:
    """Return the jobs in order, with similar waiting elements of an array grouped at the place of the first.

    With `unfold` each element is by itself. `by` is the same for jobs of one group.
    """
    if unfold:
        return [(job,) for job in jobs]
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        groups.setdefault(by(job), []).append(job)
    return [tuple(group) for group in groups.values()]


def unfolded(jobs: Iterable[Job]) -> Iterator[Job]:
    """Yield each job by itself: every element of an entry."""
    for job in jobs:
        if job.runs:
            yield from map(job.element, job.ids)
        else:
            yield job


def count(group: Iterable[Job]) -> int:
    return sum(job.count for job in group)


def elements_in_history(known: Collection[Job]) -> int:
    """Return how many elements have left the queue file, of an array of which these are all remaining entries.

    The ids of an array are consecutive from its own id on. Elements behind the last entry are not counted. Of a
    cluster's array, whose ids are others, none is known to have left.
    """
    array = next((job.array for job in known if job.array is not None), None)
    if array is None or any(array_of(own_id(job.id)) == own_id(array.id) for job in known):
        return 0
    return max(0, max(job.last_id for job in known) - array.id + 1 - count(known))


def id_word(group: tuple[Job, ...]) -> str:
    """Return `12`, `12_7`, or `12_[0-99999%8]` for elements of array 12 of which eight may run at a time."""
    first = group[0]
    if len(group) == 1 or first.array is None:
        return first.shown_id
    limit = f"%{first.array.limit}" if first.array.limit else ""
    return f"{shown_id(first.array.id)}_[{elements_word(group)}{limit}]"


def elements_word(group: Iterable[Job], longest: int | None = MAX_INDICES) -> str:
    """Return the indices of these elements of an array, `0-4,7,9-12`, or only the first if that is too long."""
    return runs.words(_by_index(_runs(group)), longest)


def indices_word(indices: Iterable[int]) -> str:
    """Return `0-4,7,9-12`; if that is too long, its beginning up to a comma, and `...`."""
    return runs.words(runs.runs_of(0, sorted(indices)), MAX_INDICES)


def _runs(group: Iterable[Job]) -> Runs:
    return tuple(run for job in group if job.array for run in job.runs or (Run(job.id, job.array.index, 1),))


@lru_cache(maxsize=64)
def _by_index(found: Runs) -> Runs:
    """Return the indices in as few runs as possible; ids of neighbours need not be consecutive."""
    if len(found) == 1:
        return found
    return runs.runs_of(0, sorted(index for run in found for index in run.indices))


class Entries(Mapping[JobId, Job]):
    """Entries by id, in the order of their ids; elements of arrays are found by their own ids as well.

    Iteration, `len`, `values` and `items` are about entries. `[id]`, `get` and `in` are about single jobs: the id of
    an entry, which is that of its first element, gives that element alone. `entry(id)` gives the entry around it.
    """

    __slots__ = ("_found", "_jobs", "_places", "_spans", "_with_runs")

    def __init__(self, jobs: Mapping[JobId, Job], with_runs: Iterable[Job] | None = None) -> None:
        """`jobs` are entries by id, in the order of their ids; the mapping must not change afterwards.

        `with_runs` are those of them that have runs, if known.
        """
        self._jobs = jobs
        self._with_runs = None if with_runs is None else tuple(with_runs)
        self._places: tuple[list[JobId], list[JobId], list[Job]] | None = None
        self._spans: Spans | None = None
        self._found: dict[JobId, Job] = {}

    def entry(self, job_id: JobId) -> Job | None:
        """Return the entry that contains a job.

        The job itself, or the elements of its array that wait with it; None if unknown.
        """
        job = self._jobs.get(job_id)
        return self._around(job_id) if job is None else job

    def overlapping(self, job: Job) -> Iterator[Job]:
        found: dict[JobId, Job] = {}
        starts, ends, entries = self._run_places()
        for run in job.runs or (Run(job.id, 0, 1),):
            place = max(bisect_right(starts, run.id) - 1, 0)
            while place < len(starts) and starts[place] < run.end:
                if ends[place] > run.id:
                    found[entries[place].id] = entries[place]
                place += 1
            if run.count <= len(self._jobs):
                alone = (self._jobs.get(job_id) for job_id in run.ids)
            else:
                alone = (job for job_id, job in self._jobs.items() if run.id <= job_id < run.end)
            found.update((job.id, job) for job in alone if job is not None and not job.runs)
        yield from found.values()

    @property
    def spans(self) -> Spans:
        if self._spans is None:
            alone = [(job_id, job_id + 1) for job_id, job in self._jobs.items() if not job.runs]
            self._spans = joined_spans((*alone, *((run.id, run.end) for job in self.with_runs for run in job.runs)))
        return self._spans

    @property
    def with_runs(self) -> tuple[Job, ...]:
        if self._with_runs is None:
            self._with_runs = tuple(job for job in self._jobs.values() if job.runs)
        return self._with_runs

    @property
    def count(self) -> int:
        return len(self._jobs) + sum(job.count - 1 for job in self.with_runs)

    @property
    def highest(self) -> JobId:
        alone = next(reversed(self._jobs), 0) if isinstance(self._jobs, dict) else max(self._jobs, default=0)
        return max(alone, max((job.runs[-1].end - 1 for job in self.with_runs), default=0))

    @property
    def by_id(self) -> Mapping[JobId, Job]:
        return MappingProxyType(self._jobs) if isinstance(self._jobs, dict) else self._jobs

    def __getitem__(self, job_id: JobId) -> Job:
        job = self._jobs.get(job_id)
        if job is not None and not job.runs:
            return job
        element = self._found.get(job_id)
        if element is None:
            entry = job or self._around(job_id)
            if entry is None:
                raise KeyError(job_id)
            element = self._found[job_id] = entry.element(job_id)
        return element

    def __contains__(self, job_id: object) -> bool:
        return isinstance(job_id, int) and (job_id in self._jobs or self._around(job_id) is not None)

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def values(self) -> ValuesView[Job]:
        return self._jobs.values()

    def items(self) -> ItemsView[JobId, Job]:
        return self._jobs.items()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Entries({dict(self.items())!r})"

    def _around(self, job_id: JobId) -> Job | None:
        starts, ends, entries = self._run_places()
        place = bisect_right(starts, job_id) - 1
        return entries[place] if place >= 0 and job_id < ends[place] else None

    def _run_places(self) -> tuple[list[JobId], list[JobId], list[Job]]:
        """Return the starts, ends and entries of all runs, side by side in the order of their ids."""
        if self._places is None:
            runs = sorted(
                ((run.id, run.end, job) for job in self.with_runs for run in job.runs), key=lambda each: each[:2]
            )
            self._places = [start for start, _, _ in runs], [end for _, end, _ in runs], [job for *_, job in runs]
        return self._places


def changes_of(entries: Iterable[Job], job: Job) -> dict[JobId, Job | None]:
    """Return the changes from putting a job into these entries: entries that share jobs with it lose them.

    The result maps entry ids to their new entries; None means removed.
    """
    changes: dict[JobId, Job | None] = {}
    ids = joined_spans((run.id, run.end) for run in job.runs or (Run(job.id, 0, 1),))
    for entry in entries:
        changes.setdefault(entry.id, None)
        left = entry.without(ids)
        if left is not None:
            changes[left.id] = left
    return {**changes, job.id: job}


def chosen(entries: Entries, ids: Iterable[JobId]) -> Iterator[Job | JobId]:
    """Yield the jobs with these ids, jobs of one entry together, in the order given.

    An id without a job is yielded as it is.
    """
    wanted = dict.fromkeys(ids)
    spans: Spans | None = None
    done: set[JobId] = set()
    for job_id in wanted:
        if job_id in done:
            continue
        entry = entries.entry(job_id)
        if entry is None or not entry.runs:
            yield job_id if entry is None else entry
            continue
        if spans is None:
            spans = joined_spans((each, each + 1) for each in wanted)
        wanted_part, _ = entry.divided(spans)
        assert wanted_part is not None
        done.update(wanted_part.ids)
        yield wanted_part


class ArrayPlaces(Mapping[int, JobId]):
    """Ids of the elements of an array by their indices."""

    __slots__ = ("_alone", "_runs")

    def __init__(self) -> None:
        self._alone: dict[int, JobId] = {}
        self._runs: list[Run] = []

    def add(self, runs: Runs) -> None:
        for run in runs:
            if run.count == 1:
                self._alone[run.index] = run.id
            else:
                self._runs.append(run)

    def __getitem__(self, index: int) -> JobId:
        if index in self._alone:
            return self._alone[index]
        for run in self._runs:
            indices = run.indices
            if index in indices:
                return run.id + indices.index(index)
        raise KeyError(index)

    def __iter__(self) -> Iterator[int]:
        yield from self._alone
        for run in self._runs:
            yield from run.indices

    def __len__(self) -> int:
        return len(self._alone) + sum(run.count for run in self._runs)


def places_of(jobs: Iterable[Job]) -> dict[JobId, ArrayPlaces]:
    """Return the ids of elements by array and index."""
    found: dict[JobId, ArrayPlaces] = {}
    for job in jobs:
        if job.array is not None:
            found.setdefault(job.array.id, ArrayPlaces()).add(job.runs or (Run(job.id, job.array.index, 1),))
    return found


class Names(Mapping[JobId, str]):
    """Names by id; iteration is over entries alone."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._entries = Entries({job.id: job for job in jobs})

    def __getitem__(self, job_id: JobId) -> str:
        if (job := self._entries.entry(job_id)) is None:
            raise KeyError(job_id)
        return job.name

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shown(self, job_id: JobId) -> str:
        """Return `7`, or `5_19` for an element of an array."""
        job = self._entries.get(job_id)
        return str(job_id) if job is None else job.shown_id


MOST_RUNS = 256
"""Maximum number of runs of an entry.

Random indices are divided into several entries, because a start rewrites an entry as a whole.
"""


def new_entries(job: Job, submission: Submission, place: int) -> list[Job]:
    """Return the new entries of a submission: the job, or an entry for all elements of its array.

    `place` is the number of jobs before it among those submitted together.
    """
    if not submission.array:
        return [job]
    runs = runs_of(0, submission.array)
    parts = [runs[start : start + MOST_RUNS] for start in range(0, len(runs), MOST_RUNS)]
    entries = []
    for part in parts:
        whole = job.evolve(array=ArrayRef(-place - 1, part[0].index, submission.array_limit))
        entries.append(whole.with_runs(tuple(run._replace(id=run.id - part[0].id) for run in part)).evolve(id=0))
    return entries


def numbered(jobs: Iterable[Job], next_id: JobId) -> list[Job]:
    """Return the jobs with consecutive ids; array references to a place among them become ids.

    The runs of a new entry begin at 0.
    """
    batch = list(jobs)
    *places, count = [0, *accumulate(job.count for job in batch)]
    found = []
    for job, place in zip(batch, places, strict=True):
        moved = tuple(run._replace(id=run.id + next_id + place) for run in job.runs)
        array = job.array
        if array is not None and array.id < 0:
            begin = -array.id - 1
            if begin >= count:
                raise InputError(f"an array begins at place {begin} of {count} jobs", where="array")
            array = ArrayRef(next_id + begin, array.index, array.limit)
        found.append(job.evolve(id=next_id + place, runs=moved, array=array))
    return found


LEAST_LONG = 10**9
"""Least number that is shortened; those of one machine and of Slurm stay below."""
_LEAST_DIGITS, _LEAST_TYPED = 6, 4
"""Digits that are shown at least, and that name a job at least."""
_NAMED = 3


def number_of(job: Job) -> JobId:
    return own_id(job.array.id if job.array else job.id)


def digits_for(jobs: Iterable[Job]) -> int:
    """Return how many first digits tell the numbers of jobs apart; 0 if these are short."""
    numbers = {number for job in jobs if (number := number_of(job)) >= LEAST_LONG}
    if not numbers:
        return 0
    texts = list(map(str, numbers))
    return next((n for n in range(_LEAST_DIGITS, max(map(len, texts))) if len({t[:n] for t in texts}) == len(texts)), 0)


def short_id(job: Job, digits: int) -> str:
    """Return the displayed id without its server, its number shortened to so many digits; 0: not."""
    shown = without_server(job.shown_id)
    number, mark, index = shown.partition("_")
    return f"{number[:digits]}{mark}{index}" if digits and len(number) > digits else shown


def begun_by(typed: JobId, jobs: Iterable[Job]) -> Job | None:
    """Return the job, or a job of the array, whose long number begins with these digits; None if there is none.

    Raises InputError if several do.
    """
    text = str(typed)
    if len(text) < _LEAST_TYPED:
        return None
    found: dict[JobId, Job] = {}
    for job in jobs:
        number = number_of(job)
        if number >= LEAST_LONG and str(number).startswith(text):
            found.setdefault(number, job)
    if len(found) > 1:
        names = [*map(str, sorted(found)[:_NAMED]), *(["others"] if len(found) > _NAMED else [])]
        raise InputError(f"several jobs begin with {typed}", where="ID", hint=f"write more digits: {listed(names)}")
    return next(iter(found.values()), None)
