"""`gputui suspend`: stop running jobs for a while."""

from __future__ import annotations

from gputui.cli.verb_command import verb_command
from gputui.domain.running_verbs import SUSPEND

command = verb_command(SUSPEND, SUSPEND.may)
