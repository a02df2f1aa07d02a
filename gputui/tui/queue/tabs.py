"""What is done in tabs whose rows are no jobs: recurring jobs and reservations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gputui.domain.gpu import Gpu
from gputui.domain.job import Job, Submission
from gputui.domain.recurring import Recurrence, RecurringJob
from gputui.domain.settings import Window
from gputui.engine.actions import Actions
from gputui.engine.zones import local_name
from gputui.tui.key_words import keyed

Call = Callable[[Actions], str]
TABS = ("queue", "finished", "recurring", "reservations")


def pause(entry: RecurringJob) -> Call:
    """What makes no more runs of it, until it is resumed."""

    def write(actions: Actions) -> str:
        actions.pause_recurring([entry.id])
        return f"recurring job {entry.id} makes no run until it is released"

    return write


def resume(entry: RecurringJob) -> Call:
    """What makes runs of it again."""

    def write(actions: Actions) -> str:
        actions.resume_recurring([entry.id])
        return f"recurring job {entry.id} runs again when its time comes"

    return write


def remove(entry: RecurringJob) -> Call:
    """What submits it no more."""

    def write(actions: Actions) -> str:
        actions.remove_recurring([entry.id])
        return f"recurring job {entry.id} is removed; its jobs stay"

    return write


def reserve(window: Window, gpus: Sequence[Gpu]) -> Call:
    """What keeps GPUs, of those there are."""

    def write(actions: Actions) -> str:
        return f"reservation {actions.reserve(window, gpus).name} is made: {keyed('tab_reservations')} shows it"

    return write


def give_up(name: str) -> Call:
    """What gives a reservation up."""

    def write(actions: Actions) -> str:
        actions.remove_reservation(name)
        return f"reservation {name} is given up: its GPUs are anybody's"

    return write


def again(job: Job, expression: str) -> Call:
    """What submits a job like this one whenever the expression says so."""

    def write(actions: Actions) -> str:
        from dataclasses import replace

        spec = replace(job.spec, begin_at=None, after=(), after_any=())
        number = actions.add_recurring(Recurrence(expression, local_name()), Submission(spec))
        return f"recurring job {number} submits one like job {job.id}: {keyed('tab_recurring')} shows it"

    return write
