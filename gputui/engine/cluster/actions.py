"""Actions of users, carried out by a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from gputui.domain.cluster import Capability
from gputui.domain.submit_action import Done, SubmitJobs
from gputui.engine.cluster.submissions import check_submission

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gputui.domain.action import Action
    from gputui.domain.job_spec import JobId, Submission
    from gputui.engine.cluster.store import ClusterStore
    from gputui.engine.cluster.undo import ClusterChange


class ClusterActions:
    """Actions with the rights that this process's user has in the cluster.

    The engine applies a change to one job after the other: it may refuse one after it has changed others, and says so.
    """

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._cluster = store.cluster

    def act(self, action: Action, *, server: str = "", on_progress: object = None) -> Done:
        """Carry out an action; raises CapabilityError with the engine's sentence for what it cannot do."""
        del server, on_progress
        if isinstance(action, SubmitJobs):
            return Done(self._submit(action.submissions))
        from gputui.engine.cluster.changes import ClusterChanges  # a submission waits while it is imported

        return ClusterChanges(self._store).act(action)

    def foresee(self, action: Action) -> Done:
        """Return what `act` would do, for new jobs when they would start; raises the same errors."""
        if isinstance(action, SubmitJobs):
            checked = self._checked(action.submissions)
            self._cluster.caps.need(Capability.TEST_ONLY)
            return Done(starts=tuple(map(self._cluster.expected_start, checked)))
        from gputui.engine.cluster.changes import ClusterChanges

        return ClusterChanges(self._store).foresee(action)

    def undo(self, changes: Iterable[ClusterChange], on_progress: object = None) -> list[tuple[ClusterChange, str]]:
        """Undo changes, the latest first; return each with the reason why it was not undone, empty if it was."""
        from gputui.engine.cluster.undo import undone

        del on_progress
        return list(undone(changes, self._store))

    def _submit(self, submissions: Iterable[Submission]) -> tuple[JobId, ...]:
        """Submit jobs, all or none; raises CapabilityError for options that the engine cannot obey."""
        asked = self._checked(submissions)
        try:
            return self._cluster.submit(asked, uuid4().hex, is_new=True) if asked else ()
        finally:
            self._store.refresh()

    def _checked(self, submissions: Iterable[Submission]) -> tuple[Submission, ...]:
        asked = tuple(submissions)
        for submission in asked:
            check_submission(submission, self._cluster.caps)
        return asked
