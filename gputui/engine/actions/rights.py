"""Rules who may do what: each refusal is an AccessError with the rule's name."""

from __future__ import annotations

from gputui.domain.access import HOW_TO_USE, Caller, Role
from gputui.domain.errors import AccessError
from gputui.domain.job import Job


def check_own(caller: Caller, job: Job, what: str) -> None:
    """Raise AccessError unless the caller submitted the job or is an operator; `what` as in `suspend it`."""
    if caller.role is Role.VIEWER:
        raise AccessError(f"job {job.shown_id}: {caller.user} may only look, not {what}", rule="role", hint=HOW_TO_USE)
    if not caller.may_act_on(job):
        who = job.submitted_by or "its submitter"
        raise AccessError(
            f"job {job.shown_id}: only {who}, who submitted it, and operators may {what}", rule="own-jobs"
        )


def check_operator(caller: Caller, what: str, rule: str) -> None:
    """Raise AccessError unless the caller is an operator; `what` as in `drain GPUs`."""
    if not caller.operates:
        hint = "ask root, the owner of the state directory, or a user named by policy.operators"
        raise AccessError(f"only operators may {what}", rule=rule, hint=hint)
