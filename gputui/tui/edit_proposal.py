"""An edit of a waiting job before it is written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from gputui.domain.edit import Edit, differs
from gputui.domain.job import Job, JobId
from gputui.domain.policy import whatif
from gputui.domain.policy.whatif import Change
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.engine.actions import Actions
from gputui.tui.present.detail import job_title


def doubt_of(seen: Job, snapshot: Snapshot) -> str:
    """Why a job as it was seen is not to be edited any more; empty while it is."""
    now = snapshot.job(seen.id)
    if now is None:
        return f"Job {seen.id} is not in the queue any more."
    if now.state is not JobState.PENDING:
        return f"Job {seen.id} is {now.state} by now: only a waiting job can be edited."
    if now.cancel_requested:
        return f"Job {seen.id} is being cancelled."
    return f"Job {seen.id} was changed meanwhile: edit it as it is now." if differs(seen, now) else ""


@dataclass(frozen=True)
class EditProposal:
    """What a form asks for, of the job that it was opened for."""

    job: Job
    """As the form saw it."""
    edit: Edit
    told: str
    """What is changed, in words."""
    tell: Callable[[Exception | None], object] = field(compare=False, default=lambda error: None)
    """Hears that it is written down, or why not."""

    @property
    def job_ids(self) -> tuple[JobId, ...]:
        """The one it is about."""
        return (self.job.id,)

    def further(self, verb: str, snapshot: Snapshot) -> EditProposal:
        """No key adds to it."""
        del verb, snapshot
        return self

    def words(self, snapshot: Snapshot) -> str:
        """The change, in words."""
        del snapshot
        return f"job {job_title(self.job)}: {self.told}"

    def cost(self, snapshot: Snapshot, now: datetime) -> str:
        """Nothing is lost for good."""
        del snapshot, now
        return ""

    def doubt(self, snapshot: Snapshot) -> str:
        """Why it would be refused."""
        return doubt_of(self.job, snapshot)

    def change(self, now: datetime) -> Change:
        """What the plan is asked."""
        return whatif.edited(self.job.id, self.edit, now)

    def fate(self) -> str:
        """What becomes of its start when it has none afterwards."""
        return "held" if self.edit.held else "not foreseen"

    def call(self, reason: str = "") -> Callable[[Actions], str]:
        """What writes it down."""
        del reason
        job_id = self.job.id

        def write(actions: Actions) -> str:
            try:
                is_news = actions.edit(job_id, self.edit, self.job)
            except Exception as error:
                self.tell(error)
                raise
            self.tell(None)
            return f"job {job_id} is edited" if is_news else f"job {job_id}: nothing to change"

        return write
