"""Jobs that may still be on the GPUs that a reservation names when it begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gputui.domain.job import Job
from gputui.domain.settings import Window
from gputui.domain.short_names import short_names
from gputui.domain.snapshot import Snapshot
from gputui.domain.units import format_duration


def warnings(window: Window, snapshot: Snapshot, names: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each running job that holds a named GPU and need not end before the reservation begins.

    A reservation stops no job. `names` says how GPUs are called, by UUID.
    """
    for job in snapshot.jobs:
        held = [uuid for uuid in window.gpus if job.state.is_active and uuid in job.gpus]
        why = _why_it_stays(job, window)
        if held and why:
            short = short_names(held)
            gpus = ", ".join(names.get(uuid, short[uuid]) for uuid in held)
            verb = "is" if len(held) == 1 else "are"
            kind = "GPU" if len(held) == 1 else "GPUs"
            yield f"{kind} {gpus} {verb} held by job {job.id}, which {why}: the reservation waits for its end"


def _why_it_stays(job: Job, window: Window) -> str:
    if job.limit_at is None:
        return "has no time limit"
    if job.limit_at <= window.start:
        return ""
    return f"may run {format_duration(job.limit_at - window.start)} into it"
