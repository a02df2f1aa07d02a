"""Jobs that can never start on this server, however long they wait."""

from __future__ import annotations

from gputui.domain.job import Job
from gputui.domain.policy.decide import is_hopeless
from gputui.domain.policy.look import Look
from gputui.domain.units import plural


def never(look: Look, job: Job) -> str:
    """Why it can never start as the server and its tenant's caps are; empty when it can."""
    ask, tenant = look.places.ask(job), job.spec.tenant
    wants = f"it needs {plural(ask.minimum, 'GPU')}"
    if is_hopeless(ask):
        fitting = max((mask.bit_count() for mask in ask.eligible), default=0)
        return f"{wants}, and {fitting or 'none'} here could ever do"
    caps = look.board.rules.caps.get(tenant)
    if caps is not None and caps.gpus is not None and ask.minimum > caps.gpus:
        return f"{wants}, and {tenant} may hold {caps.gpus}"
    if caps is not None and caps.running == 0:
        return f"{tenant} may run no jobs"
    return ""
