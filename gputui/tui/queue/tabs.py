"""Changes to recurring jobs and reservations."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.domain.action import AddRecurring, ReserveGpus, Unreserve
from gputui.domain.gpu import Gpu
from gputui.domain.job import Job
from gputui.domain.job_spec import Submission
from gputui.domain.keyed import keyed
from gputui.domain.recurring import Recurrence
from gputui.domain.server_ids import shown_id
from gputui.domain.settings import Window
from gputui.ports.actions import Act
from gputui.tui.actions import Call

TABS = ("queue", "finished", "recurring", "reservations")


def reserve(window: Window, gpus: Sequence[Gpu]) -> Call:
    """Return the call that reserves GPUs."""

    def write(act: Act) -> str:
        made = act(ReserveGpus(window, tuple(gpus))).window or window
        return f"reservation {made.name} is made: {keyed('tab_reservations')} shows it"

    return write


def give_up(name: str) -> Call:
    """Return the call that removes a reservation."""

    def write(act: Act) -> str:
        act(Unreserve(name))
        return f"reservation {name} is released"

    return write


def again(job: Job, expression: str) -> Call:
    """Return the call that submits a job like this one by a cron expression."""

    def write(act: Act) -> str:
        from msgspec.structs import replace

        from gputui.engine.actions.recurring import local_zone_name

        spec = replace(job.spec, begin_at=None, after=(), after_any=())
        (number,) = act(AddRecurring(Recurrence(expression, local_zone_name()), Submission(spec))).ids
        like = f"submits one like job {shown_id(job.id)}"
        return f"recurring job {shown_id(number)} {like}: {keyed('tab_recurring')} shows it"

    return write
