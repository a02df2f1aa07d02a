"""Limits on jobs: longest time, waiting jobs, tenants open to a user and their highest priority.

The number of waiting jobs is checked only at submission: a retried, requeued or preempted job is never refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from gputui.domain.audit import Actor
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import MAX_PRIORITY, NORMAL_PRIORITY, JobId, JobSpec
from gputui.domain.policy.effective_settings import effective_policy
from gputui.domain.settings import PolicySettings, SchedulerSettings
from gputui.domain.snapshot import Controls
from gputui.domain.state import JobState
from gputui.domain.units import format_duration, plural
from gputui.engine.actions.permissions import UserPermissions
from gputui.ports import JobStore


def within_time_limits(spec: JobSpec, settings: SchedulerSettings) -> JobSpec:
    """Return the spec with the site's time limit; raises InputError for a longer one or a pointless warning."""
    longest, limit = settings.max_time, spec.time_limit
    if longest is not None and limit is not None and limit > longest:
        text = f"{format_duration(limit)} is longer than a job may run here"
        hint = f"at most {format_duration(longest)}: the setting scheduler.max_time"
        raise InputError(text, where="--time-limit", hint=hint)
    if limit is None and longest is not None and settings.limit_all:
        limit = longest
        spec = replace(spec, time_limit=limit)
    check_warning(spec)
    return spec


def check_warning(spec: JobSpec) -> None:
    """Raise InputError for a warning without a time limit, or before the start."""
    limit = spec.time_limit
    if spec.warning is not None and limit is None:
        raise InputError("warns of a time limit, but the job has none", where="--signal", hint="add --time-limit")
    if spec.warning is not None and limit is not None and spec.warning.before >= limit:
        text = f"{format_duration(spec.warning.before)} before the end is before the start"
        raise InputError(text, where="--signal", hint=f"the time limit is {format_duration(limit)}")


ControlsCheck: TypeAlias = Callable[[Controls], None]
"""Raises GputuiError for jobs that the operators' settings do not allow."""


def submit_within(
    store: JobStore, jobs: Sequence[Job], actor: Actor, policy: PolicySettings, check: ControlsCheck
) -> tuple[JobId, ...]:
    """Submit all jobs or none; raises GputuiError if a tenant would exceed its cap of waiting jobs.

    The queue is loaded only if a tenant may be capped; then no write can come between the count and the submission.
    """
    tenants = {job.spec.tenant for job in jobs}
    of_file = any(tenant.pending is not None and tenant.name in tenants for tenant in policy.tenants)
    if not of_file and not store.caps_waiting():
        check(Controls())
        return store.submit(jobs, actor=actor)
    with store.transaction() as transaction:
        controls = transaction.controls()
        check(controls)
        _check_waiting(transaction.waiting(), jobs, effective_policy(policy, controls))
        return store.submit(jobs, actor=actor)


def check_within(store: JobStore, jobs: Sequence[Job], policy: PolicySettings) -> None:
    """Raise GputuiError if `submit_within` would, for the present queue; nothing is written."""
    waiting = _counted(job for job in store.jobs().values() if job.state is JobState.PENDING)
    _check_waiting(waiting, jobs, effective_policy(policy, store.controls()))


def _check_waiting(waiting: Mapping[str, int], jobs: Sequence[Job], policy: PolicySettings) -> None:
    caps = {tenant.name: tenant.pending for tenant in policy.tenants}
    new = _counted(jobs)
    for tenant, count in new.items():
        cap, now = caps.get(tenant), waiting.get(tenant, 0)
        if cap is not None and now + count > cap:
            more = "1 more is" if count == 1 else f"{count} more are"
            text = f"tenant {tenant} has {plural(now, 'job')} waiting and may have {cap}: {more} too many"
            raise GputuiError(text, hint="wait, cancel some, or have the cap raised: gputui tenant set")


def _counted(jobs: Iterable[Job]) -> Counter[str]:
    """Return the number of jobs of each tenant."""
    counts: Counter[str] = Counter()
    for job in jobs:
        counts[job.spec.tenant] += job.count
    return counts


class PriorityCaps:
    """Caps of one user, from the settings and the operator's controls."""

    def __init__(
        self, policy: PolicySettings, controls: Controls, permissions: UserPermissions | None, uid: int
    ) -> None:
        tenants = effective_policy(policy, controls).tenants
        self._set = {tenant.name: tenant.max_priority for tenant in tenants}
        self._users = {tenant.name: tenant.users for tenant in tenants}
        self._permissions, self._uid = permissions, uid
        self._is_shared = permissions is not None and permissions.is_shared
        self._is_free = self._is_shared and permissions is not None and permissions.is_operator(uid)

    def most(self, tenant: str) -> int:
        """Return the highest priority: in a shared queue any for operators, and 50 if none is set."""
        if self._is_free:
            return MAX_PRIORITY
        most = self._set.get(tenant)
        if most is None:
            return NORMAL_PRIORITY if self._is_shared else MAX_PRIORITY
        return most

    def check_new(self, spec: JobSpec) -> None:
        """Raise InputError for a job of another user's tenant, or with a higher priority than allowed."""
        self._check_user(spec.tenant)
        self._check_waiting(spec.tenant, spec.priority, "--priority")

    def check(self, before: Job, after: Job) -> None:
        """Raise InputError if a job is raised to more than allowed, or put before all others."""
        tenant = after.spec.tenant
        if after.priority > before.priority:
            self._check_waiting(tenant, after.priority, "priority")
        if after.topped_at is not None and after.topped_at != before.topped_at and self.most(tenant) < MAX_PRIORITY:
            text = f"the head of the queue is before priority 100, and tenant {tenant} may have {self.most(tenant)}"
            raise InputError(text, where="top", hint=self._hint(tenant, MAX_PRIORITY))
        if after.placed is not None and after.placed != before.placed and not self._may_place(tenant):
            text = f"only operators move jobs by hand in a shared queue; tenant {tenant} may have {self.most(tenant)}"
            raise InputError(text, where="move", hint=self._hint(tenant, MAX_PRIORITY))

    def _may_place(self, tenant: str) -> bool:
        """Return whether this user may move jobs by hand: passing others' jobs amounts to any priority."""
        return not self._is_shared or self.most(tenant) == MAX_PRIORITY

    def _check_user(self, tenant: str) -> None:
        users, permissions = self._users.get(tenant), self._permissions
        if not users or permissions is None or permissions.may_operate(self._uid):
            return
        if not permissions.is_one_of(self._uid, users):
            text = f"only {', '.join(users)} and operators may submit for tenant {tenant}"
            raise InputError(text, where="--tenant", hint="leave it out: the job is then charged to you")

    def _check_waiting(self, tenant: str, priority: int, where: str) -> None:
        most = self.most(tenant)
        if priority > most:
            text = f"tenant {tenant} may have at most priority {most}, and {priority} is more"
            raise InputError(text, where=where, hint=self._hint(tenant, priority))

    def _hint(self, tenant: str, priority: int) -> str:
        who = "an operator may raise the job, or the cap" if self._is_shared else "raise the cap"
        return f"{who}: gputui tenant set {tenant} --max-priority {priority}"
