"""`gputui hold`: keep waiting jobs from starting."""

from __future__ import annotations

from gputui.cli.wishes import wish_command
from gputui.domain.state import JobState
from gputui.engine.actions import Actions

command = wish_command(
    "hold",
    "Keep waiting jobs from starting until they are released.",
    Actions.hold,
    lambda job: job.state is JobState.PENDING,
)
