"""`gputui requeue`: run jobs again."""

from __future__ import annotations

from gputui.cli.verb_command import verb_command
from gputui.domain.state import JobState
from gputui.domain.verbs import JOB_VERB

command = verb_command(JOB_VERB["requeue"], lambda job: job.state is not JobState.PENDING)
