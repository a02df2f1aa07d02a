"""`gputui release`: release held jobs."""

from __future__ import annotations

from gputui.cli.verb_command import verb_command
from gputui.domain.verbs import JOB_VERB

command = verb_command(JOB_VERB["release"])
