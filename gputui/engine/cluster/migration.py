"""Migration of this server's waiting jobs to a cluster, once, whatever is killed in between.

A plan says which jobs go, in which order, and why others stay. Those are held and marked here, then submitted with the
key of the mark, then cancelled here with a note. So a job never can start in both queues, and a later run goes on with
marked jobs: the cluster returns what it already has of a key.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from graphlib import TopologicalSorter

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain import arrays
from gputui.domain.access import Actor, AuditEntry, targets_of
from gputui.domain.action import Cancel
from gputui.domain.cluster import Capability, array_of, index_of
from gputui.domain.errors import Cause, CauseCode, ClusterRefusedError, ClusterUnavailableError, GputuiError, InputError
from gputui.domain.job import Job, grouped, submission_of
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.policy.waits import Dependencies
from gputui.domain.state import JobState
from gputui.ports import Clock, Cluster, JobStore, Transaction

VERB = "migrate"
"""Verb of the audit log."""
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
        held = "; was held" if self.held else ""
        reason = f": {self.reason}" if self.held and self.reason else ""
        return job.evolve(held=True, hold_reason=f"being moved to {self.place} as {self.key}{held}{reason}")


def mark_of(job: Job) -> Mark | None:
    """Return the mark of a waiting job; None if it has none."""
    match = _MARK.fullmatch(job.hold_reason or "") if job.held and job.state is JobState.PENDING else None
    return Mark(match["place"], match["key"], bool(match["held"]), match["reason"]) if match else None


def unmarked(job: Job) -> Job:
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
    """Ids of the jobs in the cluster, in the order of `indices`."""

    @property
    def submission(self) -> Submission:
        return submission_of(map(unmarked, self.jobs))

    @property
    def ids(self) -> frozenset[JobId]:
        return frozenset(job_id for job in self.jobs for job_id in job.ids)

    @property
    def words(self) -> str:
        return arrays.id_word(self.jobs)

    @property
    def new_word(self) -> str:
        first = self.new_ids[:1]
        return str(array_of(*first) if self.jobs[0].array else first[0]) if first else ""

    @property
    def new_indices(self) -> tuple[int, ...]:
        return tuple(map(index_of, self.new_ids)) if self.jobs[0].array else ()

    @property
    def awaited(self) -> tuple[JobId, ...]:
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
        unmoved = [job for job in self._all if mark_of(job) is None]
        if chosen is None:
            asked = [job for job in unmoved if job.state is JobState.PENDING]
        else:
            asked = [part for job in unmoved if (part := job.divided(set(chosen).intersection(job.ids))[0])]
        found = [JobMove(group, key(group[0])) for group in grouped(asked)]
        moves = self._consistent([*self._interrupted(), *(replace(move, why=self._refusal(move)) for move in found)])
        numbers = {job_id: number for number, move in enumerate(moves) for job_id in move.ids}
        order: TopologicalSorter[int] = TopologicalSorter()
        for number, move in enumerate(moves):
            awaited = {numbers[job_id] for job in self.live(move.awaited) for job_id in job.ids if job_id in numbers}
            order.add(number, *sorted(awaited - {number}))
        self.moves = tuple(moves[number] for number in order.static_order())
        """Moves in the order of submission: each after those that it waits for."""

    def _interrupted(self) -> Iterator[JobMove]:
        groups: dict[Mark, list[Job]] = {}
        for job in self._all:
            if mark := mark_of(job):
                groups.setdefault(Mark(mark.place, mark.key), []).append(job)
        for mark, group in groups.items():
            other = f"its move to {mark.place} was interrupted: migrate there first"
            yield JobMove(tuple(group), mark.key, "" if mark.place == self._place else other)

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
            waiting: dict[JobId, Job] = {}  # those that do not go, by each going job that they wait for
            for job in self._all:
                awaited = (*job.spec.after, *job.spec.after_any)
                if job.state is JobState.PENDING and awaited and not going.issuperset(job.ids):
                    waiting |= {job_id: job for other in self.live(awaited) for job_id in other.ids}
            found = [move if move.why else replace(move, why=self._tie(move, going, waiting)) for move in moves]
            if found == moves:
                return found
            moves = found

    def _tie(self, move: JobMove, going: frozenset[JobId], waiting: Mapping[JobId, Job]) -> str:
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


class Migration(Struct, frozen=True):
    store: JobStore
    cluster: Cluster
    place: str
    """The cluster, as `cluster.engine` names it."""
    clock: Clock
    actor: Actor

    def plan(self, chosen: Collection[JobId] | None) -> tuple[JobMove, ...]:
        """Return what `run` would move, and why the others stay; changes nothing."""
        return self._plan(chosen).moves

    def run(self, chosen: Collection[JobId] | None) -> tuple[JobMove, ...]:
        """Move the chosen jobs, None for all waiting ones, and those whose move was interrupted.

        Raises ClusterUnavailableError if the cluster stops answering: jobs then stay marked, and a later run goes on.
        """
        plan, new_ids = self._plan(chosen), dict[JobId, JobId]()
        with self.store.transaction() as transaction:
            for move in plan.moves:
                for job in move.jobs if not move.why else ():
                    for now in transaction.chosen(job.ids):
                        if now != job:
                            hint = "run gputui migrate again"
                            raise GputuiError(f"job {now.shown_id} was changed meanwhile: nothing was moved", hint=hint)
                    if mark_of(job) is None:
                        marked = Mark(self.place, move.key, job.held, job.hold_reason).on(job)
                        self._put(transaction, job, marked, marked.hold_reason or "")
        return self._finish(self._submitted(plan, new_ids), new_ids)

    def _plan(self, chosen: Collection[JobId] | None) -> MigrationPlan:
        earlier = Counter(
            entry.target
            for entry in self.store.audit_log()
            if entry.verb == VERB and entry.after.startswith("migrated to ")
        )

        def key(job: Job) -> str:
            again = sum(earlier[target] for target in targets_of(job))
            return f"{self.store.store_id}-{job.id}" + (f"-{again + 1}" if again else "")

        return MigrationPlan(self.store.jobs(), chosen, self.place, self.actor.user, key, self._check)

    def _check(self, submission: Submission) -> None:
        if submission.spec.interactive is not None:
            raise InputError("a terminal here waits for it", where="--interactive")
        self.cluster.caps.check_submission(submission)
        if self.cluster.caps.has(Capability.TEST_ONLY):
            self.cluster.expected_start(replace(submission, spec=replace(submission.spec, after=(), after_any=())))

    def _submitted(self, plan: MigrationPlan, new_ids: dict[JobId, JobId]) -> list[JobMove]:
        """Submit the moves in their order; one that the cluster refuses stays, with those that wait for it.

        Adds the new ids to `new_ids`, by those on this server.
        """
        moves: list[JobMove] = []
        refused: set[JobId] = set()
        for move in plan.moves:
            if not move.why:
                awaited = [job for job in plan.live(move.awaited) if not refused.isdisjoint(job.ids)]
                if awaited:
                    move = replace(move, why=f"it waits for job {awaited[0].shown_id}, which stays here")
                else:
                    move = self._submit(plan, move, new_ids)
                if move.why:
                    refused |= move.ids
            moves.append(move)
        return moves

    def _submit(self, plan: MigrationPlan, move: JobMove, new_ids: dict[JobId, JobId]) -> JobMove:
        submission = move.submission
        spec = submission.spec
        after, after_any = (_translated(plan, ids, new_ids) for ids in (spec.after, spec.after_any))
        asked = replace(submission, spec=replace(spec, after=after, after_any=after_any))
        try:
            found = self.cluster.submit((asked,), move.key)
        except ClusterUnavailableError as error:
            hint = "the jobs are held here: run gputui migrate again, which submits none twice"
            what = f"{error.what}: the move was interrupted"
            raise ClusterUnavailableError(what, where=error.where, hint=hint) from error
        except GputuiError as error:
            return replace(move, why=str(error))
        known = {index_of(job_id): job_id for job_id in found} if asked.array else {}
        by_index = {index: known[index] for index in asked.array or ()}  # the cancelled may be among the found
        for job in move.jobs:
            each = [by_index[index] for index in job.indices] if by_index else list(found)
            new_ids |= dict(zip(job.ids, each, strict=True))
        return replace(move, new_ids=tuple(by_index.values()) or found)

    def _finish(self, moves: Iterable[JobMove], new_ids: Mapping[JobId, JobId]) -> tuple[JobMove, ...]:
        """Cancel here what the cluster has, and unmark what it refused, all at once."""
        finished = []
        with self.store.transaction() as transaction:
            for move in moves:
                if move.new_ids:
                    finished.append(self._cancelled_here(transaction, move, new_ids))
                else:
                    for job in transaction.chosen(sorted(move.ids)):  # they are this server's again, as they were
                        mark = mark_of(job)
                        if mark is not None and mark.place == self.place:
                            self._put(transaction, job, unmarked(job), f"stays: {move.why}")
                    finished.append(move)
            self._hold_dependents(transaction, finished)
        return tuple(finished)

    def _cancelled_here(self, transaction: Transaction, move: JobMove, new_ids: Mapping[JobId, JobId]) -> JobMove:
        """Cancel the jobs of a move; those that were released, started or cancelled here meanwhile, there."""
        text = note(self.cluster.caps.engine, move)
        cause, kept = Cause(CauseCode.CANCELLED, text), []
        for job in list(transaction.chosen(sorted(move.ids))):
            if job.cause is not None and job.cause.text == text:
                continue  # another run was faster
            if job.state is not JobState.PENDING or job.cancel_requested:
                kept.append(job)
                continue
            changes = {"cause": cause, "ended_at": self.clock.now(), "cancelled_by": self.actor.user}
            self._put(transaction, job, job.unheld().to(JobState.CANCELLED, **changes), text)
        if not kept:
            return move
        gone = tuple(new_ids[job_id] for job in kept for job_id in job.ids)
        why = f"job {kept[0].shown_id} was changed here meanwhile"
        try:
            self.cluster.act(Cancel(gone))
            why += f": cancelled in {self.cluster.caps.engine}"
        except ClusterRefusedError as error:
            why += f", and {self.cluster.caps.engine} did not cancel it: {error.what}"
        return replace(move, new_ids=tuple(job_id for job_id in move.new_ids if job_id not in gone), why=why)

    def _hold_dependents(self, transaction: Transaction, moves: Iterable[JobMove]) -> None:
        """Hold jobs that stay and wait for ones that went: as cancelled jobs those would end them."""
        words = {job_id: move.new_word for move in moves if move.new_ids for job_id in move.ids}
        for job in list(transaction.jobs().values()):
            spec = job.spec
            gone = [job_id for job_id in (*spec.after, *spec.after_any) if job_id in words]
            if job.state is not JobState.PENDING or not gone:
                continue
            after, after_any = (tuple(i for i in ids if i not in words) for ids in (spec.after, spec.after_any))
            which = ", ".join(dict.fromkeys(words[job_id] for job_id in gone))
            reason = f"waits for {self.cluster.caps.engine} job {which}: release it once that has ended"
            after_move = job.evolve(spec=replace(spec, after=after, after_any=after_any), held=True, hold_reason=reason)
            self._put(transaction, job, after_move, reason)

    def _put(self, transaction: Transaction, before: Job, after: Job, words: str) -> None:
        transaction.put(after)
        was = f"{before.state}: {before.hold_reason or 'held'}" if before.held else str(before.state)
        entry = AuditEntry(self.clock.now(), self.actor.uid, self.actor.user, VERB, before.target, was, words)
        transaction.audit(entry)


def note(engine: str, move: JobMove) -> str:
    return f"migrated to {engine} job {move.new_word}"


def _translated(plan: MigrationPlan, ids: Iterable[JobId], new_ids: Mapping[JobId, JobId]) -> tuple[JobId, ...]:
    """Return the dependencies in the cluster; those that are met are left out."""
    found: dict[JobId, None] = {}
    for job_id in ids:
        for job in plan.live((job_id,)):
            is_whole = plan.is_array(job_id)
            for new in (new_ids[each] for each in job.ids if each in new_ids):
                found[array_of(new) if is_whole else new] = None
    return tuple(found)
