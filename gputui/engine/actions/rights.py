"""Rules of who may do what. Each refusal is an AccessError with the rule's name; operators are refused nothing.

A process that writes the queue itself has no caller, and is bound by the rules of `permissions` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gputui.domain.access import HOW_TO_USE, Caller, Role, others_job
from gputui.domain.action import (
    Action,
    AddRecurring,
    DrainGpus,
    EditJobs,
    JobAction,
    Pause,
    PauseRecurring,
    PlaceJobs,
    Release,
    RemoveRecurring,
    RemoveTenant,
    ReserveGpus,
    ResumeGpus,
    ResumeRecurring,
    SetPriority,
    SetStanding,
    SetTenant,
    Top,
    Unpause,
    Unreserve,
    Unsuspend,
)
from gputui.domain.cluster import Capability
from gputui.domain.errors import AccessError
from gputui.domain.job import Job
from gputui.domain.recurring import RecurringJob
from gputui.domain.submit_action import SubmitJobs

if TYPE_CHECKING:
    from gputui.domain.snapshot import Controls
    from gputui.engine.actions.context import ActionContext, UndoableChange

OPERATORS_HOLD = "operators-hold"
ROLE = "role"

_WORDS: Mapping[type[Action], str] = {
    SetPriority: "change its priority",
    Top: "put it at the head of the queue",
}
"""Words for what an action does to a job, where its verb does not say it."""
_ON_OWN: frozenset[type[Action]] = frozenset(
    {SubmitJobs, AddRecurring, PauseRecurring, ResumeRecurring, RemoveRecurring}
)
"""Actions of users besides those on jobs; they are about their own things, which is checked with each."""
_OF_OPERATORS: Mapping[type[Action], tuple[str, str]] = {
    PlaceJobs: ("operators-move", "move jobs in the queue"),
    DrainGpus: ("operators-drain", "drain GPUs"),
    ResumeGpus: ("operators-drain", "let drained GPUs take jobs again"),
    Pause: ("operators-pause", "pause the scheduler"),
    Unpause: ("operators-pause", "end the pause of the scheduler"),
    ReserveGpus: ("operators-reserve", "reserve GPUs"),
    Unreserve: ("operators-reserve", "remove a reservation"),
    SetStanding: ("operators-policy", "change the standing rule"),
    SetTenant: ("operators-policy", "change tenants"),
    RemoveTenant: ("operators-policy", "change tenants"),
}
"""Rule and words of what only operators may do."""
LACKING: Mapping[Capability, str] = {
    capability: f"only operators may {what}"
    for capability, (_, what) in (
        (Capability.MOVE, _OF_OPERATORS[PlaceJobs]),
        (Capability.DRAIN_NODE, _OF_OPERATORS[DrainGpus]),
        (Capability.PAUSE, _OF_OPERATORS[Pause]),
        (Capability.RESERVE, _OF_OPERATORS[ReserveGpus]),
    )
}
"""Capabilities that others than operators lack, each with its sentence."""
_TO_OPERATORS = "ask root, the owner of the state directory, or a user named by policy.operators"


def check_action(caller: Caller | None, action: Action) -> None:
    """Raise AccessError for an action that users of this role may not ask for at all."""
    if caller is None or caller.operates:
        return
    _check_uses(caller)
    kind = type(action)
    if kind not in _ON_OWN and not isinstance(action, JobAction):
        rule, what = _OF_OPERATORS.get(kind, ("operators", "do that"))
        raise AccessError(f"only operators may {what}", rule=rule, hint=_TO_OPERATORS)


def check_own(caller: Caller, job: Job, what: str) -> None:
    """Raise AccessError unless the caller submitted the job or is an operator; `what` as in `suspend it`."""
    if caller.may_act_on(job):
        return
    _check_uses(caller)
    raise others_job(job, what)


def _check_uses(caller: Caller) -> None:
    """Raise AccessError for a viewer."""
    if caller.role is Role.VIEWER:
        raise AccessError(f"{caller.user} may look at this queue, not use it", rule=ROLE, hint=HOW_TO_USE)


def check_job(caller: Caller | None, job: Job, action: JobAction) -> None:
    """Raise AccessError for an action on a job that is not the caller's, or that ends what an operator wants."""
    if caller is None or caller.operates:
        return
    check_own(caller, job, action.may or _WORDS.get(type(action), f"{action.verb} it"))
    is_release = isinstance(action, Release) or (isinstance(action, EditJobs) and action.edit.held is False)
    if is_release and job.held and job.held_by not in {"", caller.user}:
        what = f"{job.held_by} holds job {job.shown_id}: only operators may release it"
        raise AccessError(what, rule=OPERATORS_HOLD)
    if isinstance(action, Unsuspend) and job.suspended and job.suspended_by not in {"", caller.user}:
        what = f"{job.suspended_by} has suspended job {job.shown_id}: only operators may let it continue"
        raise AccessError(what, rule=OPERATORS_HOLD)


def check_own_recurring(caller: Caller | None, entry: RecurringJob) -> None:
    """Raise AccessError unless the caller added the recurring job or is an operator."""
    if caller is None or caller.operates or entry.uid == caller.uid:
        return
    who = f"{entry.added_by}, who added it," if entry.added_by else "who added it"
    raise AccessError(f"recurring job {entry.id}: only {who} and operators may change it", rule="own-recurring")


def check_undo(context: ActionContext, controls: Controls, changes: Iterable[UndoableChange]) -> None:
    """Raise AccessError unless all of these changes may be made by the caller in the other direction too."""
    from gputui.engine.actions.context import JobChange, PriorityCaps

    caller = context.caller
    if caller is None or caller.operates:
        return
    caps = PriorityCaps(context, controls)
    for change in changes:
        if not isinstance(change, JobChange):
            raise AccessError("only operators may undo this", rule="operators", hint=_TO_OPERATORS)
        check_own(caller, change.before, "undo a change of it")
        caps.check(change.after, change.before)
