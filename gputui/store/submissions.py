"""What is written down when jobs are submitted."""

from __future__ import annotations

from gputui.domain.audit import Actor, AuditEntry
from gputui.domain.job import Job


def submission_entry(job: Job, actor: Actor) -> AuditEntry:
    """What is written down about a new job."""
    after = f"{job.state}: priority {job.priority}" + (", held" if job.held else "")
    return AuditEntry(job.submitted_at, actor.uid, actor.user, "submit", f"job {job.id}", "", after)
