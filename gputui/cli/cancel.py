"""`gputui cancel`: end jobs, or keep them from starting."""

from __future__ import annotations

from gputui.cli.wishes import wish_command
from gputui.engine.actions import Actions

command = wish_command(
    "cancel", "End jobs: politely first, by force after a grace. One that waits never starts.", Actions.cancel
)
