"""What a face may ask for. Each wish is written into the store, audited; only the scheduler acts on it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from gputui.domain.audit import Actor, AuditEntry
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.gpu import Drain, Gpu
from gputui.domain.job import ArrayRef, Job, JobId, JobSpec, Submission
from gputui.domain.numbering import numbered
from gputui.domain.policy.dependency import has_failed
from gputui.domain.settings import PolicySettings, SchedulerSettings, Window
from gputui.domain.snapshot import Controls
from gputui.domain.state import JobState
from gputui.engine.bounds import check_priority, limited
from gputui.engine.edits import EditWishes
from gputui.engine.permissions import Permissions
from gputui.engine.quota import check_within, submit_within
from gputui.engine.recurring_wishes import RecurringWishes
from gputui.engine.reservations import Reservations
from gputui.engine.undo import DrainChange, JobChange, PauseChange, WishedChange, can_be_undone
from gputui.ports import Clock, JobStore, Transaction

MAX_ARRAY = 100_000
_TOLD_EVERY = 100
T = TypeVar("T")
DEFAULT_SETTINGS = SchedulerSettings()
DEFAULT_POLICY = PolicySettings()


class Actions(EditWishes, RecurringWishes):
    """The wishes of one actor. Every method blocks on disk, and is all or nothing over the ids it is given."""

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        actor: Actor,
        settings: SchedulerSettings = DEFAULT_SETTINGS,
        policy: PolicySettings = DEFAULT_POLICY,
        permissions: Permissions | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._actor = actor
        self._settings = settings
        self._policy = policy
        self._permissions = permissions
        self.on_change: Callable[[WishedChange], None] = lambda change: None
        """Hears, within the transaction, of what can be taken back."""
        self.on_progress: Callable[[int, int], None] = lambda done, total: None
        """Hears now and then how many of how many jobs are done; where it raises, nothing is."""

    def submit(self, submissions: Iterable[Submission], *, recurring: JobId | None = None) -> tuple[JobId, ...]:
        """Put jobs into the queue; their ids, in order, one for each element of an array.

        `recurring` is what submits them, if that is not a person.
        """
        jobs = self._jobs(submissions, recurring)
        if recurring is None:  # of a recurring job whoever added it has vouched
            jobs = self._vouched(jobs)
        return submit_within(self._store, jobs, self._actor, self._policy) if jobs else ()

    def _vouched(self, jobs: list[Job]) -> list[Job]:
        """The jobs with proof of who wants them run, one for all elements of an array."""
        specs = {id(job.spec): job.spec for job in jobs}
        vouched = {key: self._store.vouch(spec, self._actor.uid) for key, spec in specs.items()}
        return [job if vouched[id(job.spec)] is job.spec else job.evolve(spec=vouched[id(job.spec)]) for job in jobs]

    def rehearse(self, submissions: Iterable[Submission]) -> tuple[Job, ...]:
        """The jobs that `submit` would put into the queue, under ids that they may get; raises what it would raise."""
        jobs = self._jobs(submissions, None)
        check_within(self._store, jobs, self._policy)
        return tuple(numbered(jobs, max(self._store.jobs(), default=0) + 1))

    def _jobs(self, submissions: Iterable[Submission], recurring: JobId | None) -> list[Job]:
        """What is submitted, without ids yet."""
        now = self._clock.now()
        jobs: list[Job] = []
        for submission in submissions:
            if self._permissions:
                self._permissions.check_leader(submission.spec, self._actor.uid)
            spec = self._waiting_for(self._within_limits(submission.spec))
            first = -len(jobs) - 1
            job = Job(
                id=0,
                spec=spec,
                submitted_at=now,
                priority=spec.priority,
                held=submission.held,
                submitted_by=self._actor.user,
                recurring=recurring,
            )
            if len(submission.array) > MAX_ARRAY:
                raise InputError(f"an array has at most {MAX_ARRAY} elements", where="--array")
            if submission.array:
                limit = submission.array_limit
                indices = self._counted(submission.array)
                jobs += [job.evolve(array=ArrayRef(first, index, limit)) for index in indices]
            else:
                jobs.append(job)
        return jobs

    def _waiting_for(self, spec: JobSpec) -> JobSpec:
        """The spec, which names those elements of an array that failed and are in history, where no tick sees them.

        Refuses to wait for jobs that do not exist. A new job has no id yet, so no cycle can be made.
        """
        for job_id in spec.after_any:
            self._store.get(job_id)
        after = [self._store.get(job_id) for job_id in spec.after]
        arrays = {job.id for job in after if job.array and job.array.id == job.id}
        if not arrays:
            return spec
        failed = (job for job in self._store.history() if job.array and job.array.id in arrays and has_failed(job))
        return replace(spec, after=(*spec.after, *(job.id for job in itertools.islice(failed, 1))))

    def cancel(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Wish that jobs end, or never start. Ids of those for which that was news."""
        return self._each(ids, "cancel", _cancel)

    def hold(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Keep waiting jobs from starting."""
        return self._each(ids, "hold", _hold)

    def release(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Let held jobs start again."""
        now = self._clock.now()
        return self._each(ids, "release", lambda job: _release(job, now))

    def requeue(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Run jobs again: a running one is stopped first. Their age in the queue is kept."""
        return self._each(ids, "requeue", _requeue)

    def set_priority(self, ids: Iterable[JobId], value: int) -> tuple[JobId, ...]:
        """Set the priority, 0 to 100."""
        check_priority(value)
        return self._each(ids, "priority", lambda job: job.prioritised(value))

    def add_priority(self, ids: Iterable[JobId], delta: int) -> tuple[JobId, ...]:
        """Raise or lower the priority, staying within 0 to 100."""
        return self._each(ids, "priority", lambda job: job.prioritised(delta, relative=True))

    def top(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Put waiting jobs at the head of the queue, before all that were put there earlier."""
        now = self._clock.now()
        return self._each(ids, "top", lambda job: job.evolve(topped_at=now))

    def drain(self, uuids: Iterable[str], reason: str) -> None:
        """Let no further job start on these GPUs."""
        drain = Drain(reason=reason, by=self._actor.user, at=self._clock.now())
        self._change_drains("drain", uuids, drain)

    def resume(self, uuids: Iterable[str]) -> None:
        """Let jobs start on these GPUs again; Xids that they reported until now are forgiven."""
        self._change_drains("resume", uuids, None)

    def pause(self, reason: str = "") -> None:
        """Start no further job anywhere; running ones go on."""
        self._change_controls("pause", lambda c: _evolved(c, True, reason, self._actor.user))

    def unpause(self) -> None:
        """Start jobs again."""
        self._change_controls("unpause", lambda c: _evolved(c, False, "", ""))

    def undo(self, changes: Iterable[WishedChange]) -> list[tuple[WishedChange, str]]:
        """Take these back, latest first; with each why it was not, or nothing."""
        done = []
        with self._store.transaction() as transaction:
            for change in self._counted(list(changes)[::-1]):
                refusal = change.revert(transaction)
                if not refusal:
                    self._audit(transaction, f"undo {change.verb}", change.target, "", change.done)
                done.append((change, refusal))
        return done

    def _note(self, change: WishedChange) -> None:
        if can_be_undone(change):
            self.on_change(change)

    def reserve(self, window: Window, gpus: Iterable[Gpu]) -> Window:
        """Keep GPUs, of those that exist, for somebody; the window, named if it had no name."""
        return Reservations(self._store, self._clock, self._actor, self._policy).add(window, gpus)

    def remove_reservation(self, name: str) -> None:
        """Give up a reservation that was added by a command."""
        Reservations(self._store, self._clock, self._actor, self._policy).remove(name)

    def _still_vouched(self, before: JobSpec, after: JobSpec) -> JobSpec:
        """The edited spec, with a new proof where what it runs was changed; that is for its submitter alone."""
        if not before.warrant or after.runs_as_much_as(before):
            return after
        if before.warrant.partition("/")[0] != str(self._actor.uid):
            raise GputuiError("only its submitter can change what it runs", hint="clone it, and cancel this one")
        return self._store.vouch(after, self._actor.uid)

    def _within_limits(self, spec: JobSpec) -> JobSpec:
        if self._permissions:
            self._permissions.check(spec, self._actor.uid)
        return limited(spec, self._settings)

    def _check(self, spec: JobSpec) -> None:
        self._waiting_for(self._within_limits(spec))

    def _each(self, ids: Iterable[JobId], verb: str, change: Callable[[Job], Job]) -> tuple[JobId, ...]:
        changed = []
        with self._store.transaction() as transaction:
            for job_id in self._counted(tuple(dict.fromkeys(ids))):
                before = transaction.get(job_id)
                after = change(before)
                if after != before:
                    transaction.put(after)
                    self._audit(transaction, verb, f"job {job_id}", _wishes(before), _wishes(after))
                    self._note(JobChange(verb, before, after))
                    changed.append(job_id)
        return tuple(changed)

    def _counted(self, items: Sequence[T]) -> Iterator[T]:
        """These, with a word now and then on how far it is."""
        for number, item in enumerate(items):
            if number % _TOLD_EVERY == 0:
                self.on_progress(number, len(items))
            yield item

    def _change_drains(self, verb: str, uuids: Iterable[str], drain: Drain | None) -> None:
        """Drain these GPUs; with None, resume them."""
        now = self._now()
        with self._store.transaction() as transaction:
            controls = transaction.controls()
            drains, resumed = dict(controls.drains), dict(controls.resumed)
            for uuid in dict.fromkeys(uuids):
                word, before = _drain_word(drains, uuid), drains.pop(uuid, None)
                if drain is not None:
                    drains[uuid] = drain
                else:
                    resumed[uuid] = now
                self._audit(transaction, verb, uuid, word, _drain_word(drains, uuid))
                self._note(DrainChange(verb, uuid, before, drain))
            transaction.set_controls(replace(controls, drains=drains, resumed=resumed))

    def _change_controls(self, verb: str, change: Callable[[Controls], Controls]) -> None:
        with self._store.transaction() as transaction:
            before = transaction.controls()
            after = change(before)
            transaction.set_controls(after)
            self._audit(transaction, verb, "scheduler", _pause_word(before), _pause_word(after))
            self._note(PauseChange(verb, before, after))

    def _now(self) -> datetime:
        return self._clock.now()

    def _audit(self, transaction: Transaction, verb: str, target: str, before: str, after: str) -> None:
        actor = self._actor
        transaction.audit(AuditEntry(self._clock.now(), actor.uid, actor.user, verb, target, before, after))


def find_gpu(uuids: Sequence[str], name: str) -> str:
    """The UUID meant by an index, a UUID or its unambiguous beginning; raises NotFoundError.

    `uuids` are in the order of their indices.
    """
    if name.isascii() and name.isdigit() and int(name) < len(uuids):
        return uuids[int(name)]
    matches = [uuid for uuid in uuids if uuid == name or (len(name) >= 6 and uuid.startswith(name))]
    if len(matches) != 1:
        raise NotFoundError(f"no GPU {name!r}" if not matches else f"{name!r} begins the UUID of several GPUs")
    return matches[0]


def _cancel(job: Job) -> Job:
    if job.state.is_terminal:
        return job
    return job.evolve(cancel_requested=True, requeue_requested=False)


def _hold(job: Job) -> Job:
    if job.state is not JobState.PENDING:
        raise GputuiError(
            f"job {job.shown_id} is {job.state}: only a waiting job can be held", hint="cancel or requeue it"
        )
    return job.evolve(held=True, hold_reason=None)


def _release(job: Job, now: datetime) -> Job:
    """Release the job, and its image and tenant should the fast-failure guard have paused them.

    The job may use the GPUs that failed it again: a user who releases it has had them repaired, or wants a new try.
    """
    job = job.evolve(avoid_gpus=())
    if job.state is not JobState.PENDING:
        return job.evolve(held=False, hold_reason=None)
    return job.evolve(held=False, hold_reason=None, released_at=now)


def _requeue(job: Job) -> Job:
    if job.state is JobState.PENDING:
        raise GputuiError(f"job {job.shown_id} is waiting already")
    return job.evolve(requeue_requested=True, cancel_requested=False)


def _wishes(job: Job) -> str:
    wishes = [f"priority {job.priority}"]
    wishes += ["held"] if job.held else []
    wishes += [f"released {job.released_at.isoformat()}"] if job.released_at else []
    wishes += ["cancel requested"] if job.cancel_requested else []
    wishes += ["requeue requested"] if job.requeue_requested else []
    wishes += [f"topped {job.topped_at.isoformat()}"] if job.topped_at else []
    return f"{job.state}: " + ", ".join(wishes)


def _drain_word(drains: Mapping[str, Drain], uuid: str) -> str:
    return f"drained: {drains[uuid].reason}" if uuid in drains else "in use"


def _evolved(controls: Controls, paused: bool, reason: str, by: str) -> Controls:
    return replace(controls, paused=paused, pause_reason=reason, paused_by=by)


def _pause_word(controls: Controls) -> str:
    return f"paused: {controls.pause_reason}" if controls.paused else "dispatching"
