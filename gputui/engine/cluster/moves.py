"""Plan of a migration: which waiting jobs of this server go to a cluster, in which order, and why others stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from graphlib import TopologicalSorter

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain import arrays
from gputui.domain.cluster import array_of, index_of
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError, GputuiError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.policy.dependency import Dependencies
from gputui.domain.resubmission import grouped, submission_of
from gputui.domain.state import JobState

_MARK = re.compile(
    r"being moved to (?P<place>\S+) as (?P<key>[\w.-]+)(?P<held>; was held(?:: (?P<reason>.*))?)?", re.DOTALL
)


class Mark(Struct, frozen=True):
    """Note on a waiting job, kept as the reason of its hold, while it is moved.

    It is written before the cluster gets the job, so that the job cannot start here and a later run goes on.
    """

    place: str
    """The cluster, as `cluster.engine` names it."""
    key: str
    """Key of the submission."""
    held: bool = False
    """True if the job was held before."""
    reason: str | None = None
    """Reason of that hold."""

    def on(self, job: Job) -> Job:
        """Return the job with this mark."""
        held = "; was held" if self.held else ""
        reason = f": {self.reason}" if self.held and self.reason else ""
        return job.evolve(held=True, hold_reason=f"being moved to {self.place} as {self.key}{held}{reason}")


def mark_of(job: Job) -> Mark | None:
    """Return the mark of a waiting job; None if it has none."""
    match = _MARK.fullmatch(job.hold_reason or "") if job.held and job.state is JobState.PENDING else None
    return Mark(match["place"], match["key"], bool(match["held"]), match["reason"]) if match else None


def unmarked(job: Job) -> Job:
    """Return the job as it was before it was marked."""
    mark = mark_of(job)
    if mark is None:
        return job
    return job.evolve(hold_reason=mark.reason) if mark.held else job.unheld()


class JobMove(Struct, frozen=True):
    """A job, or elements of an array that are submitted together."""

    jobs: tuple[Job, ...]
    key: str
    why: str = ""
    """Reason why they stay; empty: they go."""
    new_ids: tuple[JobId, ...] = ()
    """Their ids in the cluster, in the order of `indices`."""

    @property
    def submission(self) -> Submission:
        """The submission, with the dependencies of this server."""
        return submission_of(map(unmarked, self.jobs))

    @property
    def ids(self) -> frozenset[JobId]:
        """Ids of its jobs on this server."""
        return frozenset(job_id for job in self.jobs for job_id in job.ids)

    @property
    def words(self) -> str:
        """The displayed id: `7`, `5_[0-9]`."""
        return arrays.id_word(self.jobs)

    @property
    def new_word(self) -> str:
        """Id of the job or the array in the cluster; empty if it stays."""
        if not self.new_ids:
            return ""
        return str(array_of(self.new_ids[0]) if self._is_array else self.new_ids[0])

    @property
    def new_indices(self) -> tuple[int, ...]:
        """Indices of the elements that the cluster has; empty unless they are of an array."""
        return tuple(map(index_of, self.new_ids)) if self._is_array else ()

    @property
    def _is_array(self) -> bool:
        return self.jobs[0].array is not None

    @property
    def awaited(self) -> tuple[JobId, ...]:
        """Ids of jobs and arrays that it waits for."""
        spec = self.jobs[0].spec
        return (*spec.after, *spec.after_any)


class MigrationPlan:
    """Plan of a migration, from the jobs of one moment."""

    def __init__(
        self,
        jobs: Mapping[JobId, Job],
        chosen: Collection[JobId] | None,
        place: str,
        user: str,
        key: Callable[[Job], str],
        check: Callable[[Submission], None],
    ) -> None:
        """`chosen` None: all waiting jobs. `check` raises GputuiError for a job that the cluster cannot run."""
        self._jobs = jobs
        self._all = tuple(jobs.values())
        self._place = place
        self._user = user
        self._check = check
        self._dependencies = Dependencies.of(self._all)
        moves = [self._checked(JobMove(group, key(group[0]))) for group in grouped(self._chosen(chosen))]
        self.moves = self._ordered(self._consistent([*self._interrupted(), *moves]))
        """Moves in the order of submission: each after those that it waits for."""

    def _chosen(self, chosen: Collection[JobId] | None) -> Iterator[Job]:
        for job in self._all:
            if chosen is None:
                if job.state is JobState.PENDING and mark_of(job) is None:
                    yield job
            elif mark_of(job) is None and (part := job.divided(set(chosen).intersection(job.ids))[0]):
                yield part

    def _interrupted(self) -> Iterator[JobMove]:
        """Yield the moves that an earlier run began."""
        groups: dict[Mark, list[Job]] = {}
        for job in self._all:
            if mark := mark_of(job):
                groups.setdefault(Mark(mark.place, mark.key), []).append(job)
        for mark, group in groups.items():
            other = f"its move to {mark.place} was interrupted: migrate there first"
            yield JobMove(tuple(group), mark.key, "" if mark.place == self._place else other)

    def _checked(self, move: JobMove) -> JobMove:
        return replace(move, why=self._refusal(move))

    def _refusal(self, move: JobMove) -> str:
        job = move.jobs[0]
        if job.state is not JobState.PENDING:
            return f"it is {job.state}"
        if job.cancel_requested:
            return "it is being cancelled"
        if job.submitted_by not in {"", self._user}:
            return f"{job.submitted_by} submitted it"
        if never := self._dependencies.never_met(job):
            return never
        try:
            self._check(move.submission)
        except ClusterUnavailableError:
            raise
        except ClusterRefusedError as error:
            return error.what
        except GputuiError as error:
            return str(error)
        return ""

    def _consistent(self, moves: list[JobMove]) -> list[JobMove]:
        """Let jobs stay that wait for ones that stay, and ones that those wait for."""
        while True:
            going = frozenset(job_id for move in moves if not move.why for job_id in move.ids)
            waiting = self._waiting_for(going)
            found = [move if move.why else replace(move, why=self._tie(move, going, waiting)) for move in moves]
            if found == moves:
                return found
            moves = found

    def _tie(self, move: JobMove, going: frozenset[JobId], waiting: Mapping[JobId, Job]) -> str:
        """Return what ties a move to this server."""
        if mark_of(move.jobs[0]):
            return ""
        for job in self.live(move.awaited):
            if not going.issuperset(job.ids):
                state = "stays" if job.state is JobState.PENDING else f"is {job.state}"
                return f"it waits for job {job.shown_id}, which {state} here"
        for job_id in sorted(move.ids):
            if job_id in waiting:
                return f"job {waiting[job_id].shown_id}, which stays here, waits for it"
        return ""

    def _waiting_for(self, going: frozenset[JobId]) -> dict[JobId, Job]:
        """Return waiting jobs that do not go, by each going job that they wait for."""
        found: dict[JobId, Job] = {}
        for job in self._all:
            spec = job.spec
            if job.state is not JobState.PENDING or not (spec.after or spec.after_any) or going.issuperset(job.ids):
                continue
            for other in self.live((*spec.after, *spec.after_any)):
                found |= dict.fromkeys(other.ids, job)
        return found

    def is_array(self, job_id: JobId) -> bool:
        """Return whether jobs that wait for this id wait for a whole array."""
        return job_id in self._dependencies.arrays

    def live(self, ids: Iterable[JobId]) -> Iterator[Job]:
        """Yield the jobs of these ids that have not ended; an array's id stands for its elements."""
        for job_id in ids:
            if self.is_array(job_id):
                known = (job for job in self._all if job.array and job.array.id == job_id)
                yield from (job for job in known if not job.state.is_terminal)
            elif (job := self._jobs.get(job_id)) and not job.state.is_terminal:
                yield job

    def _ordered(self, moves: list[JobMove]) -> tuple[JobMove, ...]:
        place = {job_id: number for number, move in enumerate(moves) for job_id in move.ids}
        order: TopologicalSorter[int] = TopologicalSorter()
        for number, move in enumerate(moves):
            awaited = {place[job_id] for job in self.live(move.awaited) for job_id in job.ids if job_id in place}
            order.add(number, *sorted(awaited - {number}))
        return tuple(moves[number] for number in order.static_order())
