"""Checks of submissions before a cluster sees them: options that only gputui's own scheduler obeys are refused."""

from __future__ import annotations

from collections.abc import Iterator

from gputui.domain.cluster import Capability, Caps
from gputui.domain.errors import InputError
from gputui.domain.job_spec import JobSpec, Submission


def check_submission(submission: Submission, caps: Caps) -> None:
    """Raise CapabilityError or InputError for a job that the engine cannot run as it is asked to."""
    for capability in _needed(submission):
        caps.need(capability)
    for option, is_asked, why in _ours(submission.spec, caps.engine):
        if is_asked:
            raise InputError(why, where=option)


def _needed(submission: Submission) -> Iterator[Capability]:
    if submission.array:
        yield Capability.ARRAYS
    if submission.spec.after or submission.spec.after_any:
        yield Capability.DEPENDENCIES
    if submission.held:
        yield Capability.HOLD
    if submission.spec.interactive is not None:
        yield Capability.STREAMS


def _ours(spec: JobSpec, engine: str) -> Iterator[tuple[str, bool, str]]:
    yield "--idle-timeout", spec.idle_timeout is not None, f"{engine} does not watch for idle jobs"
    yield "--preemptible", spec.preemptible, f"{engine} decides by its own settings which jobs are preempted"
