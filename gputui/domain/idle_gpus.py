"""GPUs that jobs leave idle, and their descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from gputui.domain.gpu import GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.telemetry_tally import MAX_GAP
from gputui.domain.units import format_duration, plural

_MINUTE = timedelta(minutes=1)


def idle_gpus(views: Iterable[GpuView], now: datetime) -> Mapping[JobId, str]:
    """Return `idle 45m`, or `2 of 8 idle 45m`, for each job that leaves some of these GPUs idle."""
    held: dict[JobId, list[datetime | None]] = {}
    for view in views:
        for job_id in view.job_ids:
            held.setdefault(job_id, []).append(view.idle_since)
    found = {}
    for job_id, times in held.items():
        if idle := [since for since in times if since is not None]:
            some = "" if len(idle) == len(times) else f"{len(idle)} of {len(times)} "
            found[job_id] = f"{some}{idle_words(now - max(idle))}"
    return found


def idle_words(idle: timedelta) -> str:
    """Return `idle 12m`, in whole minutes: seconds would redraw the line all the time."""
    return f"idle {format_duration(idle // _MINUTE * _MINUTE).removesuffix('00s')}"


def idle_times(tracks: Mapping[str, tuple[float, float]], after: timedelta, now: datetime) -> dict[str, datetime]:
    """Return the time since which each idle GPU of a job has been idle; none if `after` is zero.

    `tracks` has the seconds since the epoch at which each GPU was last used and last read.
    """
    if not after:
        return {}
    least, second = after.total_seconds(), now.timestamp()
    return {
        uuid: datetime.fromtimestamp(used_at, UTC)
        for uuid, (used_at, read_at) in tracks.items()
        if read_at - used_at >= least and second - read_at <= MAX_GAP
    }


def idle_by_gpu(jobs: Iterable[Job], found: Mapping[JobId, Mapping[str, datetime]]) -> dict[str, datetime]:
    """Return the time since which each GPU has been idle; a shared GPU is idle if all its jobs leave it idle."""
    idle: dict[str, datetime] = {}
    busy = {uuid for job in jobs for uuid in job.gpus if uuid not in found[job.id]}
    for spans in found.values():
        for uuid, since in spans.items():
            if uuid not in busy:
                idle[uuid] = max(since, idle.get(uuid, since))
    return idle


def idle_sentence(job: Job, idle: int, ends_after: timedelta | None = None) -> str:
    """Return `job 7 train (lab) leaves 2 of its 8 GPUs idle`, with the time after which that ends it."""
    held = len(job.gpus)
    gpus = f"its {plural(held, 'GPU')}" if idle == held else f"{idle} of its {plural(held, 'GPU')}"
    end = f": it is ended if that lasts for another {format_duration(ends_after)}" if ends_after is not None else ""
    name = f" {job.name}" if job.name else ""
    return f"job {job.shown_id}{name} ({job.spec.tenant}) leaves {gpus} idle{end}"
