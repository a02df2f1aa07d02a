"""`gputui unsuspend`: let suspended jobs continue."""

from __future__ import annotations

from gputui.cli.verb_command import verb_command
from gputui.domain.running_verbs import UNSUSPEND

command = verb_command(UNSUSPEND, UNSUSPEND.may)
