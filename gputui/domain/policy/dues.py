"""What each tenant is due and what it has now, side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from gputui.domain.policy.lineup import fair_shares
from gputui.domain.policy.look import Look
from gputui.domain.settings import Settings, TenantSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState


@dataclass(frozen=True)
class Dues:
    """A tenant's weight and caps, and its use of them."""

    tenant: TenantSettings
    source: str | None
    """`file` or `command`; None: nothing is set for it, it merely has or had jobs."""
    gpus: int
    """It holds now."""
    running: int
    pending: int
    fair_share: float
    """F: 1 used nothing, 0.5 exactly its share."""
    gpu_seconds: float
    """Used, those of long ago counted for less."""


def dues(snapshot: Snapshot, settings: Settings, now: datetime) -> tuple[Dues, ...]:
    """Of every tenant that is set, or has or had jobs, by name."""
    look = Look.at(snapshot, settings, now)
    waiting = [job for job in snapshot.jobs if job.state is JobState.PENDING]
    pending = Counter(job.spec.tenant for job in waiting)
    active = [job for job in snapshot.jobs if job.state.is_active]
    running = Counter(job.spec.tenant for job in active)
    gpus: Counter[str] = Counter()
    for job in active:
        gpus[job.spec.tenant] += len(job.gpus)
    known = {tenant.name: tenant for tenant in look.settings.policy.tenants}
    fair, used = fair_shares(look, waiting), look.board.ledger.used(look.second)
    commanded = {tenant.name for tenant in snapshot.controls.tenants}

    def of(name: str) -> Dues:
        source = "command" if name in commanded else "file" if name in known else None
        tenant = known.get(name) or TenantSettings(name)
        share, seconds = fair.get(name, 1.0), used.get(name, 0.0)
        return Dues(tenant, source, gpus[name], running[name], pending[name], share, seconds)

    return tuple(map(of, sorted({*known, *fair, *running})))
