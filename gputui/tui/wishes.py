"""What may be wished of a job: when it makes sense, and how it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gputui.domain.job import MAX_PRIORITY, Job, JobId
from gputui.domain.state import JobState
from gputui.engine.actions import Actions
from gputui.tui.key_words import keyed

STEP = 10
"""By how much + and - change a priority."""


@dataclass(frozen=True)
class Wish:
    """One verb."""

    may: Callable[[Job], bool]
    """Whether it makes sense now."""
    ask: Callable[[Actions, Sequence[JobId]], Sequence[JobId]]
    done: str
    """What is told afterwards, of {job}."""
    confirm: str = ""
    """What is asked before; empty: nothing."""

    def call(self, *job_ids: JobId) -> Callable[[Actions], str]:
        """What writes it down, for these very jobs."""

        def write(actions: Actions) -> str:
            changed = self.ask(actions, job_ids)
            return told(self.done, changed, job_ids)

        return write


def told(done: str, changed: Sequence[JobId], asked: Sequence[JobId]) -> str:
    """What was done, of those that it changed."""
    if not changed:
        return f"{_jobs(asked)}: nothing to change"
    words = done.format(job=_jobs(changed))
    if len(changed) == 1:
        return words
    for one, several in _PLURALS:
        words = words.replace(one, several)
    return words


_PLURALS = ((" is at", " are at"), (" is ", " are "), ("releases it", "releases them"))


def _jobs(ids: Sequence[JobId]) -> str:
    return f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs"


def _waits(job: Job) -> bool:
    return job.state is JobState.PENDING


WISHES = {
    "hold": Wish(
        may=lambda job: _waits(job) and not job.held,
        ask=lambda actions, ids: actions.hold(ids),
        done=f"{{job}} is held: {keyed('release')} releases it",
    ),
    "release": Wish(
        may=lambda job: job.held and not job.state.is_terminal,
        ask=lambda actions, ids: actions.release(ids),
        done="{job} is released",
    ),
    "cancel": Wish(
        may=lambda job: not job.state.is_terminal and not job.cancel_requested,
        ask=lambda actions, ids: actions.cancel(ids),
        done="{job} will be cancelled",
        confirm="Cancel",
    ),
    "requeue": Wish(
        may=lambda job: not _waits(job) and not job.requeue_requested,
        ask=lambda actions, ids: actions.requeue(ids),
        done="{job} will be requeued",
    ),
    "raise": Wish(
        may=lambda job: not job.state.is_terminal and job.priority < MAX_PRIORITY,
        ask=lambda actions, ids: actions.add_priority(ids, STEP),
        done=f"{{job}}: priority raised by {STEP}",
    ),
    "lower": Wish(
        may=lambda job: not job.state.is_terminal and job.priority > 0,
        ask=lambda actions, ids: actions.add_priority(ids, -STEP),
        done=f"{{job}}: priority lowered by {STEP}",
    ),
    "top": Wish(
        may=_waits,
        ask=lambda actions, ids: actions.top(ids),
        done="{job} is at the head of the queue",
    ),
}


def add_priority(job_ids: Sequence[JobId], delta: int) -> Callable[[Actions], str]:
    """What gives these jobs so much more priority."""

    def write(actions: Actions) -> str:
        changed = actions.add_priority(job_ids, delta)
        word = "raised" if delta > 0 else "lowered"
        return told(f"{{job}}: priority {word} by {abs(delta)}", changed, job_ids)

    return write


def drain(uuid: str, index: str, reason: str) -> Callable[[Actions], str]:
    """What drains this GPU."""

    def write(actions: Actions) -> str:
        actions.drain([uuid], reason)
        return f"GPU {index} is drained: no job starts there"

    return write


def resume(uuid: str, index: str) -> Callable[[Actions], str]:
    """What lets jobs start on this GPU again."""

    def write(actions: Actions) -> str:
        actions.resume([uuid])
        return f"GPU {index} takes jobs again"

    return write


def pause(reason: str) -> Callable[[Actions], str]:
    """What pauses the scheduler."""

    def write(actions: Actions) -> str:
        actions.pause(reason)
        return "paused: no job starts, running ones go on"

    return write


def unpause(actions: Actions) -> str:
    """Let the scheduler start jobs again."""
    actions.unpause()
    return "jobs start again"
