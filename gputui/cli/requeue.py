"""`gputui requeue`: run jobs again."""

from __future__ import annotations

from gputui.cli.wishes import wish_command
from gputui.domain.state import JobState
from gputui.engine.actions import Actions

command = wish_command(
    "requeue",
    "Run jobs again. One that runs is stopped first; its age in the queue is kept.",
    Actions.requeue,
    lambda job: job.state is not JobState.PENDING,
)
