"""Migration of this server's waiting jobs to a cluster, once, whatever is killed in between.

Jobs are held and marked here, then submitted with the key of the mark, then cancelled here with a note. So a job never
can start in both queues, and a later run goes on with marked jobs: the cluster returns what it already has of a key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.action import Cancel
from gputui.domain.audit import Actor, AuditEntry, target_of, targets_of
from gputui.domain.cause import Cause, CauseCode
from gputui.domain.cluster import Capability, array_of, index_of
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError, GputuiError, InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.state import JobState
from gputui.engine.cluster.moves import JobMove, Mark, MigrationPlan, mark_of, unmarked
from gputui.engine.cluster.submissions import check_submission
from gputui.ports import Clock, Cluster, JobStore, Transaction

VERB = "migrate"
"""Verb of the audit log."""


class Migration(Struct, frozen=True):
    """Moves jobs of `store` to `cluster`."""

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
        plan = self._plan(chosen)
        self._mark(plan.moves)
        new_ids: dict[JobId, JobId] = {}
        moves = self._submitted(plan, new_ids)
        return self._settled(moves, new_ids)

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
        """Raise GputuiError for a job that the cluster cannot run."""
        if submission.spec.interactive is not None:
            raise InputError("a terminal here waits for it", where="--interactive")
        check_submission(submission, self.cluster.caps)
        if self.cluster.caps.has(Capability.TEST_ONLY):
            self.cluster.expected_start(replace(submission, spec=replace(submission.spec, after=(), after_any=())))

    def _mark(self, moves: Iterable[JobMove]) -> None:
        """Hold and mark the jobs that go; raises GputuiError if one has changed since it was planned."""
        with self.store.transaction() as transaction:
            for move in moves:
                for job in move.jobs if not move.why else ():
                    for now in transaction.chosen(job.ids):
                        if now != job:
                            hint = "run gputui migrate again"
                            raise GputuiError(f"job {now.shown_id} was changed meanwhile: nothing was moved", hint=hint)
                    if mark_of(job) is None:
                        marked = Mark(self.place, move.key, job.held, job.hold_reason).on(job)
                        self._put(transaction, job, marked, marked.hold_reason or "")

    def _submitted(self, plan: MigrationPlan, new_ids: dict[JobId, JobId]) -> list[JobMove]:
        """Submit the moves in their order; one that the cluster refuses stays, with those that wait for it.

        Adds the new ids to `new_ids`, by those on this server.
        """
        moves: list[JobMove] = []
        refused: set[JobId] = set()
        for move in plan.moves:
            if not move.why:
                awaited = [job for job in plan.live(move.awaited) if not refused.isdisjoint(job.ids)]
                move = self._tied(move, awaited[0]) if awaited else self._submit(plan, move, new_ids)
                if move.why:
                    refused |= move.ids
            moves.append(move)
        return moves

    def _tied(self, move: JobMove, awaited: Job) -> JobMove:
        return replace(move, why=f"it waits for job {awaited.shown_id}, which stays here")

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
        by_index = dict(zip(asked.array, _of_indices(found, asked.array), strict=True)) if asked.array else {}
        for job in move.jobs:
            each = [by_index[index] for index in job.indices] if by_index else list(found)
            new_ids |= dict(zip(job.ids, each, strict=True))
        return replace(move, new_ids=tuple(by_index.values()) or found)

    def _settled(self, moves: Iterable[JobMove], new_ids: Mapping[JobId, JobId]) -> tuple[JobMove, ...]:
        """Cancel here what the cluster has, and unmark what it refused, all at once."""
        settled = []
        with self.store.transaction() as transaction:
            for move in moves:
                if move.new_ids:
                    settled.append(self._cancelled_here(transaction, move, new_ids))
                else:
                    self._unmark(transaction, move)
                    settled.append(move)
            self._hold_dependents(transaction, settled)
        return tuple(settled)

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
        gone = [new_ids[job_id] for job in kept for job_id in job.ids]
        left = tuple(job_id for job_id in move.new_ids if job_id not in gone)
        return replace(move, new_ids=left, why=self._cancelled_there(kept[0], gone))

    def _cancelled_there(self, job: Job, new_ids: Collection[JobId]) -> str:
        engine = self.cluster.caps.engine
        try:
            self.cluster.act(Cancel(tuple(new_ids)))
        except ClusterRefusedError as error:
            return f"job {job.shown_id} was changed here meanwhile, and {engine} did not cancel it: {error.what}"
        return f"job {job.shown_id} was changed here meanwhile: cancelled in {engine}"

    def _unmark(self, transaction: Transaction, move: JobMove) -> None:
        """Give the jobs of a move back to this server, as they were."""
        for job in transaction.chosen(sorted(move.ids)):
            mark = mark_of(job)
            if mark is not None and mark.place == self.place:
                self._put(transaction, job, unmarked(job), f"stays: {move.why}")

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
        entry = AuditEntry(self.clock.now(), self.actor.uid, self.actor.user, VERB, target_of(before), was, words)
        transaction.audit(entry)


def note(engine: str, move: JobMove) -> str:
    """Return the note on a moved job."""
    return f"migrated to {engine} job {move.new_word}"


def _of_indices(found: Iterable[JobId], indices: Collection[int]) -> list[JobId]:
    """Return the ids of these elements; a cancelled one may be missing among those asked for now."""
    known = {index_of(job_id): job_id for job_id in found}
    return [known[index] for index in indices]


def _translated(plan: MigrationPlan, ids: Iterable[JobId], new_ids: Mapping[JobId, JobId]) -> tuple[JobId, ...]:
    """Return the dependencies in the cluster; those that are met are left out."""
    found: dict[JobId, None] = {}
    for job_id in ids:
        for job in plan.live((job_id,)):
            is_whole = plan.is_array(job_id)
            for new in (new_ids[each] for each in job.ids if each in new_ids):
                found[array_of(new) if is_whole else new] = None
    return tuple(found)
