"""`gputui hold`: keep waiting jobs from starting."""

from __future__ import annotations

from gputui.cli.verb_command import verb_command
from gputui.domain.state import JobState
from gputui.domain.verbs import JOB_VERB

command = verb_command(JOB_VERB["hold"], lambda job: job.state is JobState.PENDING)
