"""Actions of users and operators, as commands and the console ask for them.

An action is written into the store and audited in one transaction. Only the scheduler carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from gputui.domain.action import (
    Action,
    AddRecurring,
    JobAction,
    PauseRecurring,
    PlaceJobs,
    RemoveRecurring,
    ReserveGpus,
    ResumeRecurring,
)
from gputui.domain.audit import Actor
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import PolicySettings, SchedulerSettings
from gputui.domain.submit_action import Done, SubmitJobs
from gputui.engine.actions.context import ActionContext, Progress, UndoableChange, undone
from gputui.engine.actions.permissions import UserPermissions
from gputui.ports import Clock, JobStore

DEFAULT_SETTINGS = SchedulerSettings()
DEFAULT_POLICY = PolicySettings()


class Actions:
    """Actions of one actor. Methods block on disk, and import what they need."""

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        actor: Actor,
        settings: SchedulerSettings = DEFAULT_SETTINGS,
        policy: PolicySettings = DEFAULT_POLICY,
        permissions: UserPermissions | None = None,
    ) -> None:
        self._context = ActionContext(store, clock, actor, settings, policy, permissions)

    def act(self, action: Action, *, server: str = "", on_progress: Progress | None = None) -> Done:
        """See `Performer.act`; there is one queue, whatever the name of the server."""
        del server
        context = replace(self._context, on_progress=on_progress) if on_progress else self._context
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
        if isinstance(action, SubmitJobs):
            from gputui.engine.actions import admission

            return admission.foreseen(self._context, action.submissions)
        if isinstance(action, JobAction | PlaceJobs):
            from gputui.engine.actions import job_changes

            return job_changes.foreseen(self._context, action)
        if isinstance(action, ReserveGpus):
            from gputui.engine.actions import controls

            return controls.foreseen(self._context, action)
        return Done()

    def submit_run(self, recurring: JobId, submission: Submission) -> tuple[JobId, ...]:
        """Submit a run of a recurring job; return the ids of its jobs."""
        from gputui.engine.actions.admission import submit

        return submit(self._context, (submission,), recurring).ids

    def undo(
        self, changes: Iterable[UndoableChange], on_progress: Progress | None = None
    ) -> list[tuple[UndoableChange, str]]:
        """Undo the changes, latest first; return each with the reason why it was not undone, empty if it was."""
        return undone(replace(self._context, on_progress=on_progress) if on_progress else self._context, changes)
