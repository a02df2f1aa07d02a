"""Interface of the actions of one user, on whatever owns the queue: the local store, a cluster or other servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gputui.domain.verb import VerbActions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gputui.domain.edit import Edit
    from gputui.domain.gpu import Gpu
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId, Submission
    from gputui.domain.recurring import Recurrence
    from gputui.domain.settings import Window


class ActionChange(Protocol):
    """Change by an action that can be undone."""

    @property
    def done(self) -> str:
        """Sentence about the restored state."""
        ...

    def subject(self, indices: Mapping[str, str]) -> str:
        """Return the name of the changed object; `indices` has the displayed index of each GPU, by UUID."""
        ...


class UserActions(VerbActions, Protocol):
    """Actions of one user. Methods may block, raise GputuiError, and apply to all of their ids or none."""

    on_change: Callable[[Any], None]
    """Called with each `ActionChange`, which only `undo` of the same object accepts."""
    on_progress: Callable[[int, int], None]
    """Called now and then with the number of finished jobs and the total; an exception undoes the action."""

    def at(self, server: str) -> UserActions:
        """Return the actions for a server, in a console over several: its jobs, reservations and pauses.

        Where there is one queue, its actions are returned whatever the name.
        """
        ...

    def submit(self, submissions: Iterable[Submission]) -> tuple[JobId, ...]:
        """Put jobs into the queue; return their ids, in order, one for each element of an array."""
        ...

    def edit(self, job_id: JobId, edit: Edit, seen: Job | None = None) -> bool:
        """Edit a job; return whether that changed anything. `seen` is the job as the editor showed it."""
        ...

    def undo(self, changes: Iterable[Any]) -> Sequence[tuple[Any, str]]:
        """Undo changes, latest first; return each with the reason why it was not undone, empty if it was."""
        ...

    def reserve(self, window: Window, gpus: Iterable[Gpu]) -> Window:
        """Reserve some of these GPUs; return the reservation, with a name if it had none."""
        ...

    def remove_reservation(self, name: str) -> None:
        """Remove a reservation that was added by an action."""
        ...

    def add_recurring(self, recurrence: Recurrence, submission: Submission) -> JobId:
        """Submit a job whenever the cron expression is due; return the id of the recurring job."""
        ...


class CommandActions(UserActions, Protocol):
    """Actions of one user as commands call them: what they would do can also be asked before."""

    def rehearse(self, submissions: Iterable[Submission]) -> tuple[Job, ...]:
        """Return the jobs that `submit` would put into the queue, with provisional ids; raises the same errors."""
        ...

    def edit_all(self, ids: Iterable[JobId], edit: Edit, seen: Job | None = None) -> Sequence[JobId]:
        """Edit several jobs, elements of one entry together; return the ids of the changed ones."""
        ...

    def rehearse_edit(self, job_id: JobId, edit: Edit) -> Job:
        """Return the job as `edit` would leave it; raises the same errors."""
        ...

    def set_priority(self, ids: Iterable[JobId], value: int) -> Sequence[JobId]:
        """Set the priority, 0 to 100."""
        ...

    def rehearse_priority(self, ids: Iterable[JobId], value: int, *, relative: bool, top: bool) -> None:
        """Raise the errors that `set_priority`, `add_priority` or `top` would raise for these jobs."""
        ...
