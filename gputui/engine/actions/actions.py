"""Actions of users and operators, as commands and the console ask for them.

An action is written into the store and audited in one transaction. Only the scheduler carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from msgspec.structs import replace

from gputui.domain.action import (
    Action,
    AddRecurring,
    DrainGpus,
    EditJobs,
    JobAction,
    Pause,
    PauseRecurring,
    PlaceJobs,
    RemoveRecurring,
    RemoveTenant,
    ReserveGpus,
    ResumeGpus,
    ResumeRecurring,
    SetStanding,
    SetTenant,
    Unpause,
    Unreserve,
)
from gputui.domain.audit import Actor
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import PolicySettings, SchedulerSettings
from gputui.domain.submit_action import Done, SubmitJobs
from gputui.engine.actions import admission, job_changes
from gputui.engine.actions.context import ActionContext, UndoableChange, undone
from gputui.engine.actions.permissions import UserPermissions
from gputui.ports import Clock, JobStore

DEFAULT_SETTINGS = SchedulerSettings()
DEFAULT_POLICY = PolicySettings()
Progress: TypeAlias = Callable[[int, int], None]


class Actions:
    """Actions of one actor. Every method blocks on disk."""

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
        """Carry out an action for all of its jobs, or raise GputuiError and change nothing.

        `on_progress` is called now and then with the number of finished jobs and the total; an exception in it undoes
        the action. There is one queue, whatever the name of the server.
        """
        del server
        context = replace(self._context, on_progress=on_progress) if on_progress else self._context
        match action:
            case SubmitJobs():
                return admission.submit(context, action.submissions)
            case EditJobs():
                return job_changes.edit_jobs(context, action)
            case DrainGpus() | ResumeGpus() | Pause() | Unpause():
                from gputui.engine.actions import controls

                return controls.change_controls(context, action)
            case ReserveGpus() | Unreserve() | SetStanding() | SetTenant() | RemoveTenant():
                return _changed_policy(context, action)
            case AddRecurring() | PauseRecurring() | ResumeRecurring() | RemoveRecurring():
                return _changed_recurring(context, action)
            case _:
                return job_changes.change_jobs(context, action)

    def foresee(self, action: Action) -> Done:
        """Return what `act` would do, with the jobs as they would be; raises the same errors, and writes nothing.

        Of actions about anything else than jobs and new reservations nothing is known before.
        """
        match action:
            case SubmitJobs():
                return admission.foreseen(self._context, action.submissions)
            case EditJobs():
                return job_changes.edit_foreseen(self._context, action)
            case ReserveGpus():
                from gputui.engine.actions import controls

                return controls.foreseen(self._context, action)
            case _ if isinstance(action, PlaceJobs | JobAction):
                return job_changes.foreseen(self._context, action)
        return Done()

    def submit_run(self, recurring: JobId, submission: Submission) -> tuple[JobId, ...]:
        """Submit a run of a recurring job; return the ids of its jobs."""
        return admission.submit(self._context, (submission,), recurring).ids

    def undo(
        self, changes: Iterable[UndoableChange], on_progress: Progress | None = None
    ) -> list[tuple[UndoableChange, str]]:
        """Undo the changes, latest first; return each with the reason why it was not undone, empty if it was."""
        context = replace(self._context, on_progress=on_progress) if on_progress else self._context
        return undone(context, changes)


def _changed_policy(
    context: ActionContext, action: ReserveGpus | Unreserve | SetStanding | SetTenant | RemoveTenant
) -> Done:
    from gputui.engine.actions import controls  # no other action needs them

    match action:
        case ReserveGpus():
            return controls.reserve(context, action)
        case Unreserve():
            return controls.unreserve(context, action)
        case SetStanding():
            return controls.set_standing(context, action)
        case SetTenant():
            return controls.set_tenant(context, action)
        case RemoveTenant():
            return controls.remove_tenant(context, action)


def _changed_recurring(
    context: ActionContext, action: AddRecurring | PauseRecurring | ResumeRecurring | RemoveRecurring
) -> Done:
    from gputui.engine.actions import recurring

    if isinstance(action, AddRecurring):
        return recurring.add_recurring(context, action)
    return recurring.change_recurring(context, action)
