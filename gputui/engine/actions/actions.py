"""Actions of users and operators, as commands and the console call them.

An action is written into the store and audited in one transaction. Only the scheduler carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain

from msgspec.structs import replace

from gputui.domain.audit import Actor
from gputui.domain.edit import Edit
from gputui.domain.entries import numbered
from gputui.domain.gpu import Drain, Gpu
from gputui.domain.job import Job, Placing
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import PolicySettings, SchedulerSettings, Window
from gputui.domain.snapshot import Controls
from gputui.engine.actions import job_changes, running_jobs
from gputui.engine.actions.admission import Admission
from gputui.engine.actions.context import ActionContext
from gputui.engine.actions.controls import change_drains, change_pause
from gputui.engine.actions.edits import Edits
from gputui.engine.actions.job_changes import change_jobs
from gputui.engine.actions.limits import check_priority, check_within, submit_within
from gputui.engine.actions.permissions import UserPermissions
from gputui.engine.actions.recurring import RecurringActions
from gputui.engine.actions.reservations import Reservations
from gputui.engine.actions.undo import UndoableChange
from gputui.ports import Clock, JobStore

DEFAULT_SETTINGS = SchedulerSettings()
DEFAULT_POLICY = PolicySettings()


class Actions:
    """Actions of one actor. Every method blocks on disk, and applies to all of its ids or none.

    Methods that return ids return those of the changed jobs.
    """

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        actor: Actor,
        settings: SchedulerSettings = DEFAULT_SETTINGS,
        policy: PolicySettings = DEFAULT_POLICY,
        permissions: UserPermissions | None = None,
    ) -> None:
        self.on_change: Callable[[UndoableChange], None] = lambda change: None
        """Called in the transaction with each change that can be undone."""
        self.on_progress: Callable[[int, int], None] = lambda done, total: None
        """Called now and then with the number of finished jobs and the total; an exception undoes the action."""
        self._context = context = ActionContext(
            store,
            clock,
            actor,
            settings,
            policy,
            permissions,
            on_change=lambda change: self.on_change(change),
            on_progress=lambda done, total: self.on_progress(done, total),
        )
        self._admission = admission = Admission(context)
        self._edits = Edits(context, admission)
        self._recurring = RecurringActions(context, admission)
        self._reservations = Reservations(store, clock, actor, policy)

    def at(self, server: str) -> Actions:
        """Return these actions: there is one queue."""
        del server
        return self

    def submit(self, submissions: Iterable[Submission], *, recurring: JobId | None = None) -> tuple[JobId, ...]:
        """Put jobs into the queue; return their ids, in order, one for each element of an array.

        `recurring` is the id of the recurring job that submits them, if one does.
        """
        context, admission = self._context, self._admission
        jobs = admission.new_jobs(submissions, recurring)
        if recurring is None:  # the submitter of a recurring job was verified when it was added
            jobs = admission.vouched(jobs)
        if not jobs:
            return ()

        def check(controls: Controls) -> None:
            if recurring is None:
                admission.check_caps(jobs, controls)

        ids = submit_within(context.store, jobs, context.actor, context.policy, check)
        return tuple(chain.from_iterable(range(first, first + job.count) for first, job in zip(ids, jobs, strict=True)))

    def rehearse(self, submissions: Iterable[Submission]) -> tuple[Job, ...]:
        """Return the jobs that `submit` would put into the queue, with provisional ids; raises the same errors."""
        store, jobs = self._context.store, self._admission.new_jobs(submissions, None)
        self._admission.check_caps(jobs, store.controls())
        check_within(store, jobs, self._context.policy)
        return tuple(numbered(jobs, store.jobs().highest + 1))

    def edit(self, job_id: JobId, edit: Edit, seen: Job | None = None) -> bool:
        """Edit a waiting job, or the time limit of a running one; return whether that changed anything.

        Its wait starts again if it asks for more. `seen` is the job as the editor showed it: a job that has changed
        since then is not edited.
        """
        return bool(self.edit_all((job_id,), edit, seen))

    def edit_all(self, ids: Iterable[JobId], edit: Edit, seen: Job | None = None) -> tuple[JobId, ...]:
        """Edit several jobs, elements of one entry together."""
        return self._edits.apply(ids, edit, seen)

    def rehearse_edit(self, job_id: JobId, edit: Edit) -> Job:
        """Return the job as `edit` would leave it; raises the same errors."""
        return self._edits.rehearse(job_id, edit)

    def cancel(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Request that jobs end, or never start."""
        change = partial(job_changes.cancelled, by=self._context.actor.user)
        return change_jobs(self._context, ids, "cancel", change)

    def hold(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Keep waiting jobs from starting."""
        change = partial(job_changes.held, by=self._context.actor.user, at=self._context.now())
        return change_jobs(self._context, ids, "hold", change)

    def release(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Release held jobs."""
        return change_jobs(self._context, ids, "release", partial(job_changes.released, now=self._context.now()))

    def requeue(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Run jobs again: a running one is stopped first. Only an operator's requeue keeps their wait.

        Otherwise members of a shared queue could divide a long job into parts, each with the wait of all before it.
        """
        keeps_wait = self._context.may_operate
        return change_jobs(self._context, ids, "requeue", partial(job_changes.requeued, keeps_wait=keeps_wait))

    def signal(self, ids: Iterable[JobId], number: int) -> tuple[JobId, ...]:
        """Send running jobs a signal; allowed to their submitters and operators."""
        change = partial(running_jobs.signalled, self._context, number=number)
        return change_jobs(self._context, ids, "signal", change)

    def suspend(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Stop the processes of running jobs, which keep their GPUs; allowed to submitters and operators."""
        return change_jobs(self._context, ids, "suspend", partial(running_jobs.suspended, self._context))

    def unsuspend(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Continue suspended jobs."""
        return change_jobs(self._context, ids, "unsuspend", partial(running_jobs.unsuspended, self._context))

    def set_priority(self, ids: Iterable[JobId], value: int) -> tuple[JobId, ...]:
        """Set the priority, 0 to 100."""
        check_priority(value)
        return change_jobs(self._context, ids, "priority", self._ranked(lambda job: job.prioritised(value)))

    def add_priority(self, ids: Iterable[JobId], delta: int) -> tuple[JobId, ...]:
        """Raise or lower the priority, within 0 to 100."""
        return change_jobs(
            self._context, ids, "priority", self._ranked(lambda job: job.prioritised(delta, relative=True))
        )

    def _ranked(self, change: Callable[[Job], Job]) -> Callable[[Job], Job]:
        """Return the change of priority or place, with the actor recorded."""
        by = self._context.actor.user
        return lambda job: job_changes.ranked(job, change(job), by)

    def rehearse_priority(self, ids: Iterable[JobId], value: int, *, relative: bool, top: bool) -> None:
        """Raise the errors that `set_priority`, `add_priority` or `top` would raise for these jobs."""
        store, now = self._context.store, self._context.now()
        caps = self._context.caps(store.controls())
        if not (relative or top):
            check_priority(value)
        for job in map(store.get, ids):
            caps.check(job, job.topped(now) if top else job.prioritised(value, relative=relative))

    def top(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Put waiting jobs at the head of the queue, before all that were put there earlier."""
        now = self._context.now()
        return change_jobs(self._context, ids, "top", self._ranked(lambda job: job.topped(now)))

    def place(self, places: Iterable[Placing]) -> tuple[JobId, ...]:
        """Put waiting jobs beside others, with these jobs' priority and rank."""
        by = self._context.actor.user
        with self._context.store.transaction():
            moved = [
                change_jobs(self._context, each.ids, "move", partial(job_changes.moved, placed=each.placed, by=by))
                for each in places
            ]
        return tuple(chain.from_iterable(moved))

    def drain(self, uuids: Iterable[str], reason: str) -> None:
        """Stop further starts on these GPUs."""
        drain = Drain(reason=reason, by=self._context.actor.user, at=self._context.now())
        change_drains(self._context, "drain", uuids, drain)

    def resume(self, uuids: Iterable[str]) -> None:
        """Resume starts on these GPUs; Xid errors that they reported until now are cleared."""
        change_drains(self._context, "resume", uuids, None)

    def pause(self, reason: str = "") -> None:
        """Start no further job anywhere; running ones continue."""
        by, at = self._context.actor.user, self._context.now()
        change_pause(
            self._context,
            "pause",
            lambda controls: replace(controls, paused=True, pause_reason=reason, paused_by=by, paused_at=at),
        )

    def unpause(self) -> None:
        """End the pause: jobs start again."""
        change_pause(
            self._context,
            "unpause",
            lambda controls: replace(controls, paused=False, pause_reason="", paused_by="", paused_at=None),
        )

    def undo(self, changes: Iterable[UndoableChange]) -> list[tuple[UndoableChange, str]]:
        """Undo the changes, latest first; return each with the reason why it was not undone, empty if it was."""
        context, done = self._context, []
        with context.store.transaction() as transaction:
            latest_first = list(changes)[::-1]
            for change in context.with_progress(latest_first, len(latest_first)):
                refusal = change.revert(transaction, context.now())
                if not refusal:
                    context.audit(transaction, f"undo {change.verb}", change.target, "", change.done)
                done.append((change, refusal))
        return done

    def reserve(self, window: Window, gpus: Iterable[Gpu]) -> Window:
        """Reserve some of these GPUs; return the reservation, with a name if it had none."""
        return self._reservations.add(window, gpus)

    def remove_reservation(self, name: str) -> None:
        """Remove a reservation that was added by an action."""
        self._reservations.remove(name)

    def add_recurring(self, recurrence: Recurrence, submission: Submission) -> JobId:
        """Submit a job whenever the cron expression is due; return the id of the recurring job."""
        return self._recurring.add(recurrence, submission)

    def remove_recurring(self, ids: Iterable[JobId]) -> None:
        """Remove recurring jobs. Jobs that they have submitted stay."""
        self._recurring.remove(ids)

    def pause_recurring(self, ids: Iterable[JobId]) -> None:
        """Pause these recurring jobs until they are resumed."""
        self._recurring.set_paused(ids, "pause", paused=True)

    def resume_recurring(self, ids: Iterable[JobId]) -> None:
        """Resume these recurring jobs. Runs that were due meanwhile are not made up."""
        self._recurring.set_paused(ids, "resume", paused=False)
