"""Limits of programs that ask for a user by `gputui mcp`: the highest priority, and the most GPUs at once.

They bind who asks as such a program and no other way of the same user, whose rights it has besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gputui.domain.access import is_agents
from gputui.domain.errors import AccessError
from gputui.domain.job import Job
from gputui.domain.text import plural
from gputui.engine.actions.context import ActionContext

AGENT_GPUS = "agent-gpus"


def gpus_at_once(jobs: Iterable[Job]) -> int:
    """Return how many GPUs these jobs may have together: of an array as many elements as its limit lets run."""
    counts: dict[int, int] = {}
    arrays: dict[int, tuple[int, int]] = {}
    for place, job in enumerate(jobs):
        gpus = job.spec.gpus.maximum
        if job.array is None:
            counts[place] = gpus * job.count
        else:
            count, most = arrays.get(job.array.id, (0, 0))
            count += job.count
            arrays[job.array.id] = (count, max(most, gpus * min(count, job.array.limit or count)))
    return sum(counts.values()) + sum(most for _, most in arrays.values())


def check_new(context: ActionContext, jobs: Iterable[Job], queued: Callable[[], Iterable[Job]]) -> None:
    """Raise AccessError if an agent would take too many GPUs with new jobs; `queued` are those of the queue."""
    if (limit := context.agent_gpus) is None:
        return
    new = tuple(jobs)
    for job in new:
        _check_one(job, limit)
    _check_sum(gpus_at_once(new), gpus_at_once(_of_agent(context, queued())), limit)


def check_changed(context: ActionContext, before: Job, after: Job) -> None:
    """Raise AccessError for a job that an agent lets take more GPUs than agents may, also by running it again."""
    if (limit := context.agent_gpus) is None or after.has_ended:
        return
    wanted, had = after.spec.gpus, before.spec.gpus
    if before.has_ended or wanted.everything > had.everything or wanted.maximum > had.maximum:
        _check_one(after, limit)


def taken(context: ActionContext, queued: Callable[[], Iterable[Job]]) -> int:
    """Return how many GPUs the agents of the user may have now; 0 where that is not limited."""
    return gpus_at_once(_of_agent(context, queued())) if context.agent_gpus is not None else 0


def check_taken(context: ActionContext, before: int, queued: Callable[[], Iterable[Job]]) -> None:
    """Raise AccessError if changes by an agent have let the jobs of agents take more GPUs than they may."""
    if (limit := context.agent_gpus) is not None and (now := taken(context, queued)) > before:
        _check_sum(now - before, before, limit)


def _of_agent(context: ActionContext, jobs: Iterable[Job]) -> Iterable[Job]:
    uid = context.actor.uid
    return (job for job in jobs if not job.has_ended and job.submitted_uid == uid and is_agents(job.submitted_via))


def _check_one(job: Job, limit: int) -> None:
    gpus = job.spec.gpus
    if gpus.everything or gpus.maximum > limit:
        asked = "all GPUs" if gpus.everything else plural(gpus.maximum, "GPU")
        what = f"an agent may take {plural(limit, 'GPU')} at once, and job {job.spec.name} asks for {asked}"
        raise AccessError(what, rule=AGENT_GPUS, where="gpus", hint="submit it yourself: gputui submit")


def _check_sum(new: int, before: int, limit: int) -> None:
    if new and new + before > limit:
        what = f"an agent may take {plural(limit, 'GPU')} at once: its jobs may have {before}, and these {new} more"
        hint = "wait until some have ended, or let fewer elements run at a time (sweep_limit, or array %N)"
        raise AccessError(what, rule=AGENT_GPUS, where="gpus", hint=hint)
