"""A wish about several jobs at once, in words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from gputui.domain.job import Job, JobId
from gputui.domain.state import JobState
from gputui.domain.units import format_duration, listed, plural
from gputui.tui.wishes import WISHES

_NAMED = 6
_WORDS = {
    "top": "to the head of the queue, in the order they have",
    "hold": "hold them, none starts until released",
    "release": "release them, they may start",
    "cancel": "cancel them",
    "requeue": "run them again",
}


def words(ids: Sequence[JobId], verb: str, delta: int) -> str:
    """The change: `9 jobs (1, 2 and 7 more): hold them, none starts until released`."""
    shown: list[object] = list(ids[:_NAMED])
    if len(ids) > _NAMED:
        shown.append(f"{len(ids) - _NAMED} more")
    what = f"priority {delta:+} each" if verb in {"raise", "lower"} and delta else _WORDS.get(verb, "priority stays")
    return f"{len(ids)} jobs ({listed(shown)}): {what}"


def cost(jobs: Sequence[Job], verb: str, now: datetime) -> str:
    """What is lost for good, all together."""
    if verb not in {"cancel", "requeue"}:
        return ""
    running = [job for job in jobs if job.state.is_active]
    waiting = sum(job.state is JobState.PENDING for job in jobs) if verb == "cancel" else 0
    sentences = [f"{plural(waiting, 'waiting job')} will not be started."] if waiting else []
    if running:
        ran = sum((now - job.started_at for job in running if job.started_at), timedelta(0))
        gpus = sum(len(job.gpus) for job in running)
        what = f"{plural(len(running), 'running job')}, {format_duration(ran)} of work on {plural(gpus, 'GPU')}, lost"
        sentences.insert(0, f"{what}.")
    return " ".join(sentences)


def doubt(jobs: Sequence[Job], asked: int, verb: str) -> str:
    """Of how many it makes no sense any more."""
    able = sum(WISHES[verb].may(job) for job in jobs)
    return "" if able == asked else f"It makes sense for {able} of these {asked} jobs only by now."
