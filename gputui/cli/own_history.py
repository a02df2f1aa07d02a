"""Loads the history of this server for `gputui replay --history`, and judges how reliable its replay is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli.session import Session
from gputui.domain.errors import GputuiError
from gputui.domain.policy.effective_settings import effective_settings
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.units import format_duration, plural

if TYPE_CHECKING:
    from gputui.domain.job import Job
    from gputui.replay.history import JobHistory
    from gputui.replay.metrics import Figures
    from gputui.replay.trace import TraceJob

FEW_JOBS, SHORT_SPAN = 100, timedelta(days=7)
LITTLE_LOAD = 0.6
AS_IT_WAS = "as-it-was"


def read(session: Session, jobs: Iterable[Job] | None = None) -> tuple[JobHistory, int, Settings]:
    """Return the jobs that ended here (or those of `jobs`), the number of GPUs, and the current settings."""
    from gputui.replay import history

    with session.store() as store:
        moved = {job.id: job for job in store.history()} if jobs is None else {}
        found = history.job_history({**moved, **store.jobs()}.values() if jobs is None else jobs)
        settings = effective_settings(session.options.settings, store.controls())
        views = bootstrap.current_snapshot(session.options, store).gpus
    if found is None:
        raise GputuiError("no finished job has held a GPU here yet", hint="gputui replay --synthetic 1000")
    listed = sum(view.gpu.index >= 0 and not view.gpu.mig_enabled for view in views)
    return found, max(listed, found.gpus), settings


def passable(policy: PolicySettings, jobs: Sequence[TraceJob]) -> PolicySettings:
    """Return the policy with caps raised where a past job exceeds them: such a cap is newer than the job."""
    widest: dict[str, int] = {}
    for job in jobs:
        widest[job.tenant] = max(job.gpus, widest.get(job.tenant, 0))
    tenants = (
        replace(
            tenant,
            gpus=None if tenant.gpus is None else max(tenant.gpus, widest.get(tenant.name, 0)),
            running=None if tenant.running is None else max(tenant.running, 1),
        )
        for tenant in policy.tenants
    )
    return replace(policy, tenants=tuple(tenants))


def as_it_was(history: JobHistory, jobs: Sequence[TraceJob], gpus: int) -> dict[str, Figures]:
    """Return the figures of the real past, by name."""
    from gputui.replay.metrics import figures

    return {AS_IT_WAS: figures(history.as_it_was(jobs), gpus)}


def told(history: JobHistory, found: Mapping[str, Figures], offered: float, limits: str) -> list[str]:
    """Return sentences on what the figures mean, and on why they may mislead."""
    said = meaning(found, history)
    return [*([said] if said else []), *notes(history, offered, limits)]


def as_json(history: JobHistory) -> dict[str, Any]:
    """Return the keys of the JSON output that describe the replayed history."""
    return {
        "since": history.since.isoformat(),
        "until": history.until.isoformat(),
        "tenants": len({job.tenant for job in history.jobs}),
        "failed": history.failed,
        "left_out": history.left_out,
        "shared": history.shared,
        "without_limit": sum(job.stated is None for job in history.jobs),
    }


def meaning(found: Mapping[str, Figures], history: JobHistory) -> str:
    """Return a sentence on the effect of a static split; empty unless that policy was replayed."""
    if "plan" not in found or "static-equal" not in found:
        return ""
    if len({job.tenant for job in history.jobs}) < 2:
        return "All jobs belong to one tenant: there is nothing to split."
    ours, split = found["plan"], found["static-equal"]
    waits = f"would have waited {_time(split.wait_mean)} on average, and {_time(ours.wait_mean)} under this scheduler"
    given = split.allocation_ratio / ours.allocation_ratio - 1 if ours.allocation_ratio else 0.0
    less = f"{abs(given):.0%} {'less' if given < 0 else 'more'}" if abs(given) >= 0.005 else "as much"
    return (
        f"With the GPUs split equally between the tenants these jobs {waits}; "
        f"by the last submission they would have been given {less} GPU time."
    )


def notes(history: JobHistory, offered: float, limits: str) -> Iterator[str]:
    """Yield sentences on why the figures may mislead."""
    count = len(history.jobs)
    if count < FEW_JOBS or history.span < SHORT_SPAN:
        over = f"{plural(count, 'job')} over {format_duration(history.span)}"
        yield f"{over} is a small sample: a week and some hundred jobs are better."
    if offered < LITTLE_LOAD:
        yield f"At load {offered:.2f} GPUs are mostly free, so that policies differ little."
    if history.failed:
        yield f"Counted with all their GPU time, although they did not complete: {plural(history.failed, 'job')}."
    if history.left_out:
        yield f"Left out, as they held no GPU: {plural(history.left_out, 'finished job')}."
    if history.shared:
        yield f"Counted as if alone on their GPUs, although these were shared: {plural(history.shared, 'job')}."
    unstated = sum(job.stated is None for job in history.jobs)
    if unstated and limits != "none":
        yield f"Given a time limit by --limits {limits}, as they had none: {plural(unstated, 'job')}."
    yield (
        "Each job arrives when it could have started; holds, reservations and caps of arrays are left out. "
        "With other waits, users would have submitted at other times."
    )


def _time(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))
