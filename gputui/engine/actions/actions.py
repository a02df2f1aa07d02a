"""Actions of users and operators, as commands and the console ask for them.

An action is written into the store and audited in one transaction. Only the scheduler carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from gputui.domain.action import (
    Action,
    AddRecurring,
    Done,
    JobAction,
    PauseRecurring,
    PlaceJobs,
    RemoveRecurring,
    ReserveGpus,
    ResumeRecurring,
    SubmitJobs,
)
from gputui.domain.job_spec import JobId, Submission
from gputui.engine.actions.context import (
    REPORT_EVERY,
    ActionContext,
    Progress,
    UndoableChange,
    check_action,
    check_undo,
)


class Actions(ActionContext, eq=False, dict=True):
    """Actions of one actor, who is their context. Methods block on disk, and import what they need."""

    def act(self, action: Action, *, server: str = "", on_progress: Progress | None = None) -> Done:
        """See `Performer.act`; there is one queue, whatever the name of the server."""
        del server
        check_action(self.caller, action)
        context = replace(self, on_progress=on_progress) if on_progress else self
        if isinstance(action, SubmitJobs):
            from gputui.engine.actions.admission import submit

            return submit(context, action.submissions)
        if isinstance(action, JobAction | PlaceJobs):
            from gputui.engine.actions.job_changes import change_jobs

            return change_jobs(context, action)
        if isinstance(action, AddRecurring | PauseRecurring | ResumeRecurring | RemoveRecurring):
            from gputui.engine.actions.recurring import change_recurring

            return change_recurring(context, action)
        from gputui.engine.actions.controls import change_controls

        return change_controls(context, action)

    def foresee(self, action: Action) -> Done:
        """Return what `act` would do; of actions about anything else than jobs and reservations nothing is known."""
        check_action(self.caller, action)
        if isinstance(action, SubmitJobs):
            from gputui.engine.actions import admission

            return admission.foreseen(self, action.submissions)
        if isinstance(action, JobAction | PlaceJobs):
            from gputui.engine.actions import job_changes

            return job_changes.foreseen(self, action)
        if isinstance(action, ReserveGpus):
            from gputui.engine.actions import controls

            return controls.foreseen(self, action)
        return Done()

    def submit_run(self, recurring: JobId, submission: Submission) -> tuple[JobId, ...]:
        """Submit a run of a recurring job; return the ids of its jobs."""
        from gputui.engine.actions.admission import submit

        return submit(self, (submission,), recurring).ids

    def undo(
        self, changes: Iterable[UndoableChange], on_progress: Progress | None = None
    ) -> list[tuple[UndoableChange, str]]:
        """Undo the changes, latest first; return each with the reason why it was not undone, empty if it was."""
        done = []
        latest_first = list(changes)[::-1]
        with self.store.transaction() as transaction:
            check_undo(self, transaction.controls(), latest_first)
            for number, change in enumerate(latest_first):
                if on_progress is not None and number % REPORT_EVERY == 0:
                    on_progress(number, len(latest_first))
                refusal = change.revert(transaction, self.clock.now())
                if not refusal:
                    self.audit(transaction, f"undo {change.verb}", change.target, "", change.done)
                done.append((change, refusal))
        return done
