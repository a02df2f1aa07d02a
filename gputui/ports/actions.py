"""Interface of the actions of one user, on whatever owns the queue: the local store, a cluster or other servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gputui.domain.action import Action
    from gputui.domain.submit_action import Done


class ActionChange(Protocol):
    """Change by an action that can be undone."""

    @property
    def done(self) -> str:
        """Sentence about the restored state."""
        ...

    def subject(self, indices: Mapping[str, str]) -> str:
        """Return the name of the changed object; `indices` has the displayed index of each GPU, by UUID."""
        ...


class Performer(Protocol):
    """Actions of one user. Methods may block, and raise GputuiError."""

    def act(
        self, action: Action, /, *, server: str = "", on_progress: Callable[[int, int], None] | None = None
    ) -> Done:
        """Carry out an action for all of its jobs, or none.

        `server` is that of a new job, a reservation or a pause in a console over several; where there is one queue, it
        is ignored. `on_progress` is called now and then with the number of finished jobs and the total; an exception in
        it undoes the action.
        """
        ...

    def foresee(self, action: Action, /) -> Done:
        """Return what `act` would do, with the jobs as they would be; raises the same errors, and changes nothing."""
        ...

    def undo(
        self, changes: Iterable[Any], on_progress: Callable[[int, int], None] | None = None
    ) -> Sequence[tuple[Any, str]]:
        """Undo changes, latest first; return each with the reason why it was not undone, empty if it was."""
        ...
