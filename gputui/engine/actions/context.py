"""State shared by all actions of one actor, and the rules of who may do what.

A change is reverted only while its target is still as the action left it. Each refusal of a rule is an AccessError with
the rule's name; operators are refused nothing. A process that writes the queue itself has no caller, and is bound by
the rules of `permissions` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.access import HOW_TO_USE, Actor, AuditEntry, Caller, Resolve, Role, is_agents, others_job
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
from gputui.domain.errors import AccessError, GputuiError, InputError, NotFoundError
from gputui.domain.gpu import Drain, Gpu
from gputui.domain.job import Job
from gputui.domain.job_spec import MAX_PRIORITY, NORMAL_PRIORITY, JobSpec
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import AccessSettings, PolicySettings, SchedulerSettings
from gputui.domain.snapshot import Controls, effective_policy
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.permissions import UserPermissions, account_number
from gputui.ports import Clock, JobStore, Transaction
from gputui.ports.backend import Progress

REPORT_EVERY = 100
"""Number of jobs between two reports of progress."""


class ActionContext(Struct, eq=False):
    store: JobStore
    clock: Clock
    actor: Actor
    settings: SchedulerSettings = SchedulerSettings()
    policy: PolicySettings = PolicySettings()
    permissions: UserPermissions | None = None
    """The site's rules; None if everything is allowed."""
    on_progress: Progress | None = None
    known_gpus: Callable[[], tuple[Gpu, ...]] = tuple
    """Returns the GPUs that the scheduler lists now; none if they are unknown."""
    caller: Caller | None = None
    """User who asks, with his rights; None: a process that writes the queue itself, by the rules of `permissions`."""

    resolve: Resolve = account_number

    @property
    def may_operate(self) -> bool:
        return self.caller is None or self.caller.operates

    @property
    def agent_limits(self) -> AccessSettings | None:
        caller, site = self.caller, self.permissions
        return site.settings.access if site is not None and caller is not None and is_agents(caller.via) else None

    @property
    def agent_gpus(self) -> int | None:
        """Return how many GPUs an agent that asks may take at once; None: any number, or it is none."""
        return self.agent_limits.agent_gpus if self.agent_limits is not None else None

    def refusal(self, what: str, rule: str, *, where: str, hint: str) -> GputuiError:
        """Return the error for what is too much for a user by that rule, or for anybody in a private queue."""
        if not self.may_operate:
            return AccessError(what, rule=rule, where=where, hint=hint)
        return InputError(what, where=where, hint=hint)

    @property
    def key(self) -> str:
        return self.caller.key if self.caller is not None else ""

    def audit(self, transaction: Transaction, verb: str, target: str, before: str, after: str) -> None:
        now, actor = self.clock.now(), self.actor
        words = verb, target, before, after
        transaction.audit(AuditEntry(now, actor.uid, actor.user, *words, via=actor.via, key=self.key))


class PriorityCaps:
    """Caps of one user, from the settings and the operator's controls."""

    def __init__(self, context: ActionContext, controls: Controls) -> None:
        self._context = context
        tenants = effective_policy(context.policy, controls).tenants
        self._users = {tenant.name: tenant.users for tenant in tenants}
        site = context.permissions
        self._has_others = not context.may_operate or (site is not None and bool(site.settings.access.users))
        # beside other users operators may use any, and these 50 if none is set
        is_free = self._has_others and context.may_operate
        self._usual = MAX_PRIORITY if is_free or not self._has_others else NORMAL_PRIORITY
        caps = {tenant.name: most for tenant in tenants if (most := tenant.max_priority) is not None}
        self._most = {} if is_free else caps
        limits = context.agent_limits
        self._agent = limits.agent_priority if limits is not None else MAX_PRIORITY

    def check_new(self, spec: JobSpec) -> None:
        """Raise GputuiError for a job of another user's tenant, or with a higher priority than allowed."""
        tenant, context, caller = spec.tenant, self._context, self._context.caller
        if caller is not None and not caller.operates:
            users = self._users.get(tenant)
            if users:
                is_mine = caller.is_one_of(users, context.resolve)
            else:  # what has another account's name is that user's
                is_mine = tenant == caller.user or (users is not None and context.resolve(tenant)[0] is None)
            if not is_mine:
                who = f"{', '.join(users)} and operators" if users else f"{tenant} and operators"
                what, hint = (
                    f"only {who} may submit for tenant {tenant}",
                    "leave it out: the job is then charged to you",
                )
                raise context.refusal(what, "tenant-users", where="--tenant", hint=hint)
        self._check_agent(spec.priority)
        if spec.priority > (most := self._most.get(tenant, self._usual)):
            raise self._too_high(tenant, most, spec.priority, "--priority")

    def check(self, before: Job, after: Job) -> None:
        """Raise GputuiError if a job is raised to more than allowed, or put before all others."""
        tenant, context = after.spec.tenant, self._context
        most = self._most.get(tenant, self._usual)
        is_topped = after.topped_at is not None and after.topped_at != before.topped_at
        is_placed = after.placed is not None and after.placed != before.placed
        if is_topped or is_placed or after.priority > before.priority:
            self._check_agent(MAX_PRIORITY if is_topped or is_placed else after.priority)
        if after.priority > before.priority and after.priority > most:
            raise self._too_high(tenant, most, after.priority, "priority")
        if is_topped and most < MAX_PRIORITY:
            text = f"the head of the queue is before priority 100, and tenant {tenant} may have {most}"
            raise context.refusal(text, "priority-ceiling", where="top", hint=self._hint(tenant, MAX_PRIORITY))
        is_capped = most < MAX_PRIORITY and (self._has_others or self._agent < MAX_PRIORITY)
        if is_placed and is_capped:  # passing others amounts to any priority
            text = f"only operators move jobs by hand where there are other users; tenant {tenant} may have {most}"
            raise context.refusal(text, "operators-move", where="move", hint=self._hint(tenant, MAX_PRIORITY))

    def _check_agent(self, priority: int) -> None:
        if priority > self._agent:
            what = f"an agent may give at most priority {self._agent}, and {priority} is more"
            raise AccessError(
                what, rule="agent-priority", where="priority", hint="an operator sets access.agent_priority"
            )

    def _too_high(self, tenant: str, most: int, priority: int, where: str) -> GputuiError:
        text = f"tenant {tenant} may have at most priority {most}, and {priority} is more"
        return self._context.refusal(text, "priority-ceiling", where=where, hint=self._hint(tenant, priority))

    def _hint(self, tenant: str, priority: int) -> str:
        who = "an operator may raise the job, or the cap" if self._has_others else "raise the cap"
        return f"{who}: gputui tenant set {tenant} --max-priority {priority}"


class JobChange(Struct, frozen=True):
    """Change of a job by an action; as the others, an `ActionChange` that names its target in the audit log."""

    verb: str
    before: Job
    after: Job

    @property
    def target(self) -> str:
        return self.before.target

    def subject(self, indices: Mapping[str, str]) -> str:
        job = self.before
        return f"{job.count} jobs {job.shown_id}" if job.runs else f"job {job.id}"

    def revert(self, transaction: Transaction, at: datetime) -> str:
        """Revert the change; return why not, or an empty string. Time on hold does not count as waiting.

        Of an array, only those elements are reverted that are still as the action left them.
        """
        pairs = ((name, getattr(self.before, name), getattr(self.after, name)) for name in Job.__struct_fields__)
        previous = {name: before for name, before, after in pairs if before != after}
        refusals = []
        try:
            parts = list(transaction.chosen(self.before.ids))
        except NotFoundError:
            return "no longer exists"
        for now in parts:
            if now.state is not self.after.state:
                refusals.append(f"is {now.state} now")
            elif any(getattr(now, name) != getattr(self.after, name) for name in previous):
                refusals.append("has been changed since")
            else:
                refusals.append("")
                back = now.evolve(**previous)
                if now.held and not back.held:
                    back = back.evolve(waited=now.waited, waiting_since=at)
                transaction.put(back)
        return "" if "" in refusals else refusals[0]

    @property
    def done(self) -> str:
        before = self.before
        words = {
            "hold": "may start again",
            "release": "is held again",
            "top": "is back at its place in the queue",
            "move": "is back at its place in the queue",
            "priority": f"has priority {before.priority} again",
        }
        again = words.get(self.verb, f"is as before the {self.verb}")
        return f"{again}, at the head of the queue" if self.verb == "priority" and before.topped_at else again


class DrainChange(Struct, frozen=True):
    verb: str
    uuid: str
    before: Drain | None
    after: Drain | None

    @property
    def target(self) -> str:
        return self.uuid

    def subject(self, indices: Mapping[str, str]) -> str:
        return f"GPU {indices.get(self.uuid, self.uuid[:12])}"

    def revert(self, transaction: Transaction, at: datetime) -> str:
        del at
        controls = transaction.controls()
        if controls.drains.get(self.uuid) != self.after:
            return "has been changed since"
        others = {uuid: drain for uuid, drain in controls.drains.items() if uuid != self.uuid}
        drains = {**others, self.uuid: self.before} if self.before else others
        resumed = {uuid: at for uuid, at in controls.resumed.items() if uuid != self.uuid or self.verb != "resume"}
        transaction.set_controls(replace(controls, drains=drains, resumed=resumed))
        return ""

    @property
    def done(self) -> str:
        return f"is drained again: {self.before.reason}".rstrip(": ") if self.before else "takes jobs again"


class PauseChange(Struct, frozen=True):
    verb: str
    before: Controls
    after: Controls
    target = "scheduler"

    def subject(self, indices: Mapping[str, str]) -> str:
        return "the scheduler"

    def revert(self, transaction: Transaction, at: datetime) -> str:
        controls = transaction.controls()
        if _pause(controls) != _pause(self.after):
            return "has been changed since"
        paused, reason, by, since = _pause(self.before)
        transaction.set_controls(replace(controls, paused=paused, pause_reason=reason, paused_by=by, paused_at=since))
        return ""

    @property
    def done(self) -> str:
        return "is paused again" if self.before.paused else "starts jobs again"


UndoableChange: TypeAlias = JobChange | DrainChange | PauseChange


def _pause(controls: Controls) -> tuple[bool, str, str, datetime | None]:
    return controls.paused, controls.pause_reason, controls.paused_by, controls.paused_at


OPERATORS_HOLD = "operators-hold"
ROLE = "role"

_WORDS: Mapping[type[Action], str] = {SetPriority: "change its priority", Top: "put it at the head of the queue"}
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
    if caller is None or caller.operates or entry.uid == caller.uid:
        return
    who = f"{entry.added_by}, who added it," if entry.added_by else "who added it"
    raise AccessError(f"recurring job {entry.id}: only {who} and operators may change it", rule="own-recurring")


def check_undo(context: ActionContext, controls: Controls, changes: Iterable[UndoableChange]) -> None:
    """Raise AccessError unless all of these changes may be made by the caller in the other direction too."""
    caller = context.caller
    if caller is None or caller.operates:
        return
    caps = PriorityCaps(context, controls)
    for change in changes:
        if not isinstance(change, JobChange):
            raise AccessError("only operators may undo this", rule="operators", hint=_TO_OPERATORS)
        check_own(caller, change.before, "undo a change of it")
        caps.check(change.after, change.before)
