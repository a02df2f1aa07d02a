"""`gputui unsuspend`: continue suspended jobs."""

from __future__ import annotations

from gputui.cli.verb_command import verb_command
from gputui.domain.running_verbs import UNSUSPEND

command = verb_command(UNSUSPEND, UNSUSPEND.may)
