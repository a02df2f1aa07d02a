"""Weight, caps and current use of each tenant."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from msgspec import Struct

from gputui.domain.policy.fairshare import fair_share_factor
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.policy.queue_order import usage_by_tenant
from gputui.domain.settings import Settings, TenantSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState


class TenantUsage(Struct, frozen=True):
    """A tenant's weight and caps, and its use of them."""

    tenant: TenantSettings
    source: str | None
    """`file` or `command`; None: nothing is set for it, but it has or had jobs."""
    gpus: int
    """Number of GPUs that it holds."""
    running: int
    pending: int
    fair_share: float
    """F: 1 used nothing, 0.5 exactly its share."""
    gpu_seconds: float
    """GPU-seconds used, older use decayed."""


def tenant_usage(snapshot: Snapshot, settings: Settings, now: datetime) -> tuple[TenantUsage, ...]:
    """Return the usage of every tenant that is configured, or has or had jobs, by name."""
    context = PlanningContext.at(snapshot, settings, now)
    waiting = [job for job in snapshot.jobs if job.state is JobState.PENDING]
    pending: Counter[str] = Counter()
    for job in waiting:
        pending[job.spec.tenant] += job.count
    active = [job for job in snapshot.jobs if job.state.is_active]
    running = Counter(job.spec.tenant for job in active)
    gpus: Counter[str] = Counter()
    for job in active:
        gpus[job.spec.tenant] += len(job.gpus)
    known = {tenant.name: tenant for tenant in context.settings.policy.tenants}
    ratios, used = usage_by_tenant(context, waiting), context.cluster.ledger.used(context.second)
    commanded = {tenant.name for tenant in snapshot.controls.tenants}

    def of(name: str) -> TenantUsage:
        source = "command" if name in commanded else "file" if name in known else None
        tenant = known.get(name) or TenantSettings(name)
        share, seconds = fair_share_factor(ratios.get(name, 0.0)), used.get(name, 0.0)
        return TenantUsage(tenant, source, gpus[name], running[name], pending[name], share, seconds)

    return tuple(map(of, sorted({*known, *ratios, *running})))
