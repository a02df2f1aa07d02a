"""Descriptions of GPUs that jobs leave idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from gputui.domain.gpu import GpuView
from gputui.domain.job_spec import JobId
from gputui.domain.units import format_duration

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
