"""How many jobs of a tenant may wait: judged when they are submitted, never again.

So a job that is retried, requeued or preempted is never refused: it was let in once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gputui.domain.audit import Actor
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job, JobId
from gputui.domain.policy.standing import in_force
from gputui.domain.settings import PolicySettings
from gputui.domain.state import JobState
from gputui.domain.units import plural
from gputui.ports import JobStore


def submit_within(store: JobStore, jobs: Sequence[Job], actor: Actor, policy: PolicySettings) -> tuple[JobId, ...]:
    """Submit all of them or none; raises GputuiError where more would wait than a tenant may have waiting.

    The queue is loaded only where somebody may be capped; then nothing comes between the count and the submit.
    """
    tenants = {job.spec.tenant for job in jobs}
    of_file = any(tenant.pending is not None and tenant.name in tenants for tenant in policy.tenants)
    if not of_file and not store.caps_waiting():
        return store.submit(jobs, actor=actor)
    with store.transaction() as transaction:
        _check(transaction.waiting(), jobs, in_force(policy, transaction.controls()))
        return store.submit(jobs, actor=actor)


def check_within(store: JobStore, jobs: Sequence[Job], policy: PolicySettings) -> None:
    """Raise GputuiError where `submit_within` would, as the queue is now; nothing is written."""
    waiting = Counter(job.spec.tenant for job in store.jobs().values() if job.state is JobState.PENDING)
    _check(waiting, jobs, in_force(policy, store.controls()))


def _check(waiting: Mapping[str, int], jobs: Sequence[Job], policy: PolicySettings) -> None:
    caps = {tenant.name: tenant.pending for tenant in policy.tenants}
    new = Counter(job.spec.tenant for job in jobs)
    for tenant, count in new.items():
        cap, now = caps.get(tenant), waiting.get(tenant, 0)
        if cap is not None and now + count > cap:
            more = "1 more is" if count == 1 else f"{count} more are"
            text = f"tenant {tenant} has {plural(now, 'job')} waiting and may have {cap}: {more} too many"
            raise GputuiError(text, hint="wait, cancel some, or have the cap raised: gputui tenant set")
